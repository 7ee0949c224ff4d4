"""confluent-kafka (librdkafka) behind the common interface."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

import confluent_kafka as library
from client_driver import WAIT_S, Acks, Cluster, Got, Isolation, Rejected, Sent
from confluent_kafka import admin

Result = TypeVar("Result")


class ConfluentKafka:
    """Producers and consumers are made for each call; the admin client stays."""

    name = "confluent-kafka"

    def __init__(self, bootstrap_servers: str) -> None:
        self._servers = bootstrap_servers
        self._admin = admin.AdminClient({"bootstrap.servers": bootstrap_servers})

    def close(self) -> None:
        del self._admin

    # -- producing

    def produce(
        self,
        topic: str,
        records: Sequence[Sent],
        *,
        compression: str = "none",
        acks: Acks = "all",
        is_idempotent: bool = False,
        request_bytes_max: int = 1_048_576,
    ) -> list[int]:
        producer = library.Producer(
            {
                "bootstrap.servers": self._servers,
                "compression.type": compression,
                "acks": acks,
                "enable.idempotence": is_idempotent,
                "message.max.bytes": request_bytes_max,
                "linger.ms": 100,  # one batch, so that it shrinks: librdkafka sends incompressible batches as they are
                "delivery.timeout.ms": int(WAIT_S * 1000),
            }
        )
        outcomes: list[int | Rejected] = [-1] * len(records)

        def settle(index: int, error: Any, message: Any) -> None:
            outcomes[index] = Rejected(error.code(), error.str()) if error else _offset(message)

        for index, record in enumerate(records):
            _send(producer, topic, record, lambda error, message, index=index: settle(index, error, message))
        assert producer.flush(WAIT_S) == 0
        return [_offset_or_raise(outcome) for outcome in outcomes]

    # -- consuming

    def consume(
        self,
        topic: str,
        count: int,
        *,
        offsets: Mapping[int, int] | None = None,
        isolation: Isolation = "read_uncommitted",
    ) -> list[Got]:
        consumer = self._consumer(isolation)
        try:
            consumer.assign([library.TopicPartition(topic, index, at) for index, at in (offsets or {0: 0}).items()])
            messages: list[Any] = []
            while len(messages) < count:
                arrived = consumer.consume(count - len(messages), timeout=WAIT_S)
                assert arrived, f"{len(messages)} of {count} records arrived"
                messages.extend(arrived)
            return [_got(message) for message in messages]
        finally:
            consumer.close()

    def offset_at(self, topic: str, timestamp_ms: int, partition: int = 0) -> int | None:
        consumer = self._consumer()
        try:
            place = [library.TopicPartition(topic, partition, timestamp_ms)]
            (found,) = consumer.offsets_for_times(place, timeout=WAIT_S)
            return None if found.offset == library.OFFSET_END else found.offset
        finally:
            consumer.close()

    def watermarks(self, topic: str, partition: int = 0) -> tuple[int, int]:
        consumer = self._consumer()
        try:
            low, high = consumer.get_watermark_offsets(library.TopicPartition(topic, partition), timeout=WAIT_S)
            return low, high
        except library.KafkaException as error:
            raise _rejected(error) from error
        finally:
            consumer.close()

    def _consumer(self, isolation: Isolation = "read_uncommitted") -> library.Consumer:
        return library.Consumer(
            {
                "bootstrap.servers": self._servers,
                "group.id": "assigned by hand",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "isolation.level": isolation,
                "fetch.wait.max.ms": 100,
            }
        )

    # -- administration

    def create_topic(self, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        new = admin.NewTopic(topic, num_partitions=partitions, config=dict(config or {}))
        _result(self._admin.create_topics([new])[topic])

    def delete_topic(self, topic: str) -> None:
        _result(self._admin.delete_topics([topic])[topic])

    def topics(self) -> set[str]:
        return set(self._admin.list_topics(timeout=WAIT_S).topics)

    def partition_count(self, topic: str) -> int:
        return len(self._admin.list_topics(timeout=WAIT_S).topics[topic].partitions)

    def create_partitions(self, topic: str, total: int) -> None:
        _result(self._admin.create_partitions([admin.NewPartitions(topic, total)])[topic])

    def config(self, topic: str) -> dict[str, str | None]:
        resource = admin.ConfigResource(admin.RESOURCE_TOPIC, topic)
        described: Any = _result(self._admin.describe_configs([resource])[resource])
        return {name: entry.value for name, entry in described.items()}

    def alter_config(self, topic: str, changes: Mapping[str, str]) -> None:
        setting = admin.AlterConfigOpType.SET
        entries = [admin.ConfigEntry(name, value, incremental_operation=setting) for name, value in changes.items()]
        resource = admin.ConfigResource(admin.RESOURCE_TOPIC, topic, incremental_configs=entries)
        _result(self._admin.incremental_alter_configs([resource])[resource])

    def delete_records(self, topic: str, before_offset: int, partition: int = 0) -> int:
        place = library.TopicPartition(topic, partition, library.OFFSET_END if before_offset < 0 else before_offset)
        deleted: Any = _result(self._admin.delete_records([place])[place])
        return int(deleted.low_watermark)

    def cluster(self) -> Cluster:
        said: Any = _result(self._admin.describe_cluster())
        return Cluster(
            said.cluster_id, said.controller.id, {node.id: f"{node.host}:{node.port}" for node in said.nodes}
        )


def _send(producer: library.Producer, topic: str, record: Sent, delivered: Any) -> None:
    producer.produce(
        topic,
        value=record.value,
        key=record.key,
        headers=list(record.headers),
        partition=record.partition,
        timestamp=record.timestamp_ms or 0,
        on_delivery=delivered,
    )


def _offset(message: Any) -> int:
    offset = message.offset()
    return -1 if offset is None or offset == library.OFFSET_INVALID else int(offset)


def _offset_or_raise(outcome: int | Rejected) -> int:
    if isinstance(outcome, Rejected):
        raise outcome
    return outcome


def _got(message: Any) -> Got:
    if message.error():
        raise Rejected(message.error().code(), message.error().str())
    headers = tuple((name, value) for name, value in message.headers() or ())
    _, timestamp_ms = message.timestamp()
    return Got(message.partition(), message.offset(), timestamp_ms, message.key(), message.value(), headers)


def _result(future: "Future[Result]") -> Result:
    try:
        return future.result(WAIT_S)
    except library.KafkaException as error:
        raise _rejected(error) from error


def _rejected(error: library.KafkaException) -> Rejected:
    return Rejected(error.args[0].code(), error.args[0].str())
