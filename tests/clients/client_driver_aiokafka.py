"""aiokafka behind the common interface: each call runs on its own event loop."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiokafka as library
from aiokafka import admin
from aiokafka import errors as library_errors
from client_driver import WAIT_S, Acks, Cluster, Got, Isolation, Rejected, Sent

WAIT_MS = int(WAIT_S * 1000)


class AioKafka:
    """Producers and consumers are made for each call; the admin client stays."""

    name = "aiokafka"

    def __init__(self, bootstrap_servers: str) -> None:
        self._servers = bootstrap_servers
        self._runner = asyncio.Runner()
        self._admin: Any = self._runner.run(self._start_admin())

    async def _start_admin(self) -> Any:
        client: Any = admin.AIOKafkaAdminClient(bootstrap_servers=self._servers)
        await client.start()
        return client

    def close(self) -> None:
        self._runner.run(self._admin.close())
        self._runner.close()

    def _run(self, work: Any) -> Any:
        async def bounded() -> Any:
            return await asyncio.wait_for(work, WAIT_S)

        try:
            return self._runner.run(bounded())
        except library_errors.KafkaError as error:
            raise Rejected(getattr(error, "errno", -1), repr(error)) from error

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
        options = {
            "compression_type": None if compression == "none" else compression,
            "acks": acks,
            "enable_idempotence": is_idempotent,
            "max_request_size": request_bytes_max,
            "linger_ms": 5,
        }
        offsets: list[int] = self._run(self._produce(topic, records, options))
        return offsets

    async def _produce(self, topic: str, records: Sequence[Sent], options: Mapping[str, Any]) -> list[int]:
        producer: Any = library.AIOKafkaProducer(bootstrap_servers=self._servers, **options)
        await producer.start()
        try:
            waiting = [await _send(producer, topic, record) for record in records]
            results = await asyncio.gather(*waiting)
            return [-1 if each is None else each.offset for each in results]
        finally:
            await producer.stop()

    # -- consuming

    def consume(
        self,
        topic: str,
        count: int,
        *,
        offsets: Mapping[int, int] | None = None,
        isolation: Isolation = "read_uncommitted",
    ) -> list[Got]:
        wanted = {library.TopicPartition(topic, index): at for index, at in (offsets or {0: 0}).items()}
        got: list[Got] = self._run(self._consume(wanted, count, isolation))
        return got

    async def _consume(self, wanted: Mapping[Any, int], count: int, isolation: Isolation) -> list[Got]:
        async with self._consumer(isolation) as consumer:
            consumer.assign(list(wanted))
            for partition, at in wanted.items():
                consumer.seek(partition, at)
            records: list[Any] = []
            while len(records) < count:
                arrived = await consumer.getmany(timeout_ms=WAIT_MS, max_records=count - len(records))
                records.extend(record for batch in arrived.values() for record in batch)
            return [_got(record) for record in records]

    def offset_at(self, topic: str, timestamp_ms: int, partition: int = 0) -> int | None:
        async def look_up() -> int | None:
            place = library.TopicPartition(topic, partition)
            async with self._consumer() as consumer:
                found = (await consumer.offsets_for_times({place: timestamp_ms}))[place]
                return None if found is None else int(found.offset)

        offset: int | None = self._run(look_up())
        return offset

    def watermarks(self, topic: str, partition: int = 0) -> tuple[int, int]:
        async def look_up() -> tuple[int, int]:
            place = library.TopicPartition(topic, partition)
            async with self._consumer() as consumer:
                low, high = await consumer.beginning_offsets([place]), await consumer.end_offsets([place])
                return low[place], high[place]

        marks: tuple[int, int] = self._run(look_up())
        return marks

    @asynccontextmanager
    async def _consumer(self, isolation: Isolation = "read_uncommitted") -> AsyncIterator[Any]:
        consumer: Any = library.AIOKafkaConsumer(
            bootstrap_servers=self._servers,
            group_id=None,
            auto_offset_reset="none",
            isolation_level=isolation,
            fetch_max_wait_ms=100,
        )
        await consumer.start()
        try:
            yield consumer
        finally:
            await consumer.stop()

    # -- administration

    def create_topic(self, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        new: Any = admin.NewTopic(topic, partitions, 1, topic_configs=dict(config or {}))
        future = self._run(self._admin.create_topics([new]))
        _raise_first((code, message) for _, code, message, *_ in future.topic_errors)

    def delete_topic(self, topic: str) -> None:
        future = self._run(self._admin.delete_topics([topic]))
        _raise_first((row[1], row) for row in future.topic_error_codes)

    def topics(self) -> set[str]:
        return set(self._run(self._admin.list_topics()))

    def partition_count(self, topic: str) -> int:
        (described,) = self._run(self._admin.describe_topics([topic]))
        return len(described["partitions"])

    def create_partitions(self, topic: str, total: int) -> None:
        self._run(self._admin.create_partitions({topic: admin.NewPartitions(total)}))

    def config(self, topic: str) -> dict[str, str | None]:
        resource: Any = admin.config_resource.ConfigResource(admin.config_resource.ConfigResourceType.TOPIC, topic)
        (future,) = self._run(self._admin.describe_configs([resource]))
        (row,) = future.resources
        _raise_first([(row[0], row[1])])
        return {entry[0]: entry[1] for entry in row[4]}

    def alter_config(self, topic: str, changes: Mapping[str, str]) -> None:
        kind = admin.config_resource.ConfigResourceType.TOPIC
        resource: Any = admin.config_resource.ConfigResource(kind, topic, configs=dict(changes))
        (future,) = self._run(self._admin.alter_configs([resource]))
        _raise_first((row[0], row[1]) for row in future.resources)

    def delete_records(self, topic: str, before_offset: int, partition: int = 0) -> int:
        place = library.TopicPartition(topic, partition)
        results = self._run(self._admin.delete_records({place: admin.RecordsToDelete(before_offset=before_offset)}))
        return int(results[place])

    def cluster(self) -> Cluster:
        said = self._run(self._admin.describe_cluster())
        brokers = {each["node_id"]: f"{each['host']}:{each['port']}" for each in said["brokers"]}
        return Cluster(said["cluster_id"], said["controller_id"], brokers)


async def _send(producer: Any, topic: str, record: Sent) -> Any:
    return await producer.send(
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


def _raise_first(responses: Any) -> None:
    for code, message in responses:
        if code:
            raise Rejected(code, message)
