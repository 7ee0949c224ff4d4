"""kafka-python behind the common interface."""

import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from client_driver import WAIT_S, Acks, Cluster, Got, Isolation, Rejected, Sent

with warnings.catch_warnings():
    # kafka-python loads its schemas through a function that Python 3.11 deprecates.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka
    from kafka import admin
    from kafka import errors as kafka_errors
    from kafka.net import inet

__all__ = ["KafkaPython", "inet", "kafka", "kafka_errors"]

WAIT_MS = int(WAIT_S * 1000)


class KafkaPython:
    """Producers and consumers are made for each call; the admin client stays."""

    name = "kafka-python"

    def __init__(self, bootstrap_servers: str) -> None:
        self._servers = bootstrap_servers
        self._admin: Any = admin.KafkaAdminClient(bootstrap_servers=bootstrap_servers)

    def close(self) -> None:
        self._admin.close()

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
        producer: Any = kafka.KafkaProducer(
            bootstrap_servers=self._servers,
            compression_type=None if compression == "none" else compression,
            acks=acks,
            enable_idempotence=is_idempotent,
            max_request_size=request_bytes_max,
            linger_ms=5,
            delivery_timeout_ms=WAIT_MS,
            request_timeout_ms=WAIT_MS - 1000,
            max_block_ms=3000,
        )
        try:
            waiting = [_send(producer, topic, record) for record in records]
            producer.flush(WAIT_S)
            return [future.get(WAIT_S).offset for future in waiting]
        except kafka_errors.KafkaError as error:
            raise _rejected(error) from error
        finally:
            producer.close(WAIT_S)

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
            wanted = {kafka.TopicPartition(topic, index): at for index, at in (offsets or {0: 0}).items()}
            consumer.assign(list(wanted))
            for partition, at in wanted.items():
                consumer.seek(partition, at)
            records: list[Any] = []
            while len(records) < count:
                arrived = consumer.poll(timeout_ms=WAIT_MS, max_records=count - len(records))
                assert arrived, f"{len(records)} of {count} records arrived"
                records.extend(record for batch in arrived.values() for record in batch)
            return [_got(record) for record in records]
        finally:
            consumer.close()

    def offset_at(self, topic: str, timestamp_ms: int, partition: int = 0) -> int | None:
        consumer = self._consumer()
        try:
            place = kafka.TopicPartition(topic, partition)
            found = consumer.offsets_for_times({place: timestamp_ms})[place]
            return None if found is None else int(found.offset)
        finally:
            consumer.close()

    def watermarks(self, topic: str, partition: int = 0) -> tuple[int, int]:
        consumer = self._consumer()
        try:
            place = kafka.TopicPartition(topic, partition)
            return consumer.beginning_offsets([place])[place], consumer.end_offsets([place])[place]
        finally:
            consumer.close()

    def _consumer(self, isolation: Isolation = "read_uncommitted") -> Any:
        return kafka.KafkaConsumer(
            bootstrap_servers=self._servers,
            group_id=None,
            auto_offset_reset="none",
            isolation_level=isolation,
            fetch_max_wait_ms=100,
        )

    # -- administration

    def create_topic(self, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        new = {"num_partitions": partitions, "replication_factor": 1, "configs": dict(config or {})}
        self._call(self._admin.create_topics, {topic: new})

    def delete_topic(self, topic: str) -> None:
        self._call(self._admin.delete_topics, [topic])

    def topics(self) -> set[str]:
        return set(self._admin.list_topics())

    def partition_count(self, topic: str) -> int:
        (described,) = self._admin.describe_topics([topic])
        return len(described["partitions"])

    def create_partitions(self, topic: str, total: int) -> None:
        self._call(self._admin.create_partitions, {topic: total})

    def config(self, topic: str) -> dict[str, str | None]:
        resource = admin.ConfigResource(admin.ConfigResourceType.TOPIC, topic)
        described = self._admin.describe_configs([resource], config_filter="all")["topic"][topic]
        return {name: entry["value"] for name, entry in described.items()}

    def alter_config(self, topic: str, changes: Mapping[str, str]) -> None:
        resource = admin.ConfigResource(admin.ConfigResourceType.TOPIC, topic, configs=dict(changes))
        results = self._admin.alter_configs([resource], raise_on_unknown=False)["topic"][topic]
        if results != "OK":
            code = re.match(r"\[Error (\d+)\]", results)
            raise Rejected(int(code[1]) if code else -1, results)

    def delete_records(self, topic: str, before_offset: int, partition: int = 0) -> int:
        place = kafka.TopicPartition(topic, partition)
        return int(self._call(self._admin.delete_records, {place: before_offset})[place]["low_watermark"])

    def log_folders(self) -> Any:
        """One row per broker, as the library gives it."""
        return self._admin.describe_log_dirs()

    def cluster(self) -> Cluster:
        said = self._admin.describe_cluster()
        brokers = {each["broker_id"]: f"{each['host']}:{each['port']}" for each in said["brokers"]}
        return Cluster(said["cluster_id"], said["controller_id"], brokers)

    def _call(self, request: Any, place: Any) -> Any:
        try:
            return request(place)
        except kafka_errors.KafkaError as error:
            raise _rejected(error) from error


def _send(producer: Any, topic: str, record: Sent) -> Any:
    return producer.send(
        topic,
        value=record.value,
        key=record.key,
        headers=list(record.headers),
        partition=record.partition,
        timestamp_ms=record.timestamp_ms,
    )


def _got(record: Any) -> Got:
    headers = tuple((name, value) for name, value in record.headers)
    return Got(record.partition, record.offset, record.timestamp, record.key, record.value, headers)


def _rejected(error: Any) -> Rejected:
    return Rejected(getattr(error, "errno", -1), repr(error))
