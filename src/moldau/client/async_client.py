"""The asyncio client: typed calls for the command line, benchmarks and tests.

It is not a public producer or consumer: it sends the batches it is given and returns the batches it gets.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from types import TracebackType

from moldau.client import requests
from moldau.client.cluster import Cluster
from moldau.client.errors import HasErrorCode, ResponseTimeout, check, error_of
from moldau.client.idempotent_producer import IdempotentProducer
from moldau.client.leader_requests import AFTER_APPEND, partitions_of
from moldau.client.metadata import PartitionView, TopicView
from moldau.client.types import (
    ClusterBroker,
    ClusterView,
    ConfigEntry,
    FetchResult,
    Isolation,
    NewTopic,
    OffsetResult,
    ProduceResult,
    ProducerIdentity,
    Resource,
    ResourceKind,
    TopicOutcome,
)
from moldau.model.errors import ErrorCode, KafkaError
from moldau.model.ids import NO_PRODUCER_ID, NodeId, TopicPartition
from moldau.model.ports import Buffer, FileSlice
from moldau.model.protocol import ACKS_ALL
from moldau.model.units import MiB
from moldau.records.builder import NewRecord, build_batch
from moldau.records.compression import Compression
from moldau.records.header import read_header
from moldau.records.record import Record
from moldau.wire import messages
from moldau.wire.messages import Request, Response


class AsyncClient(Cluster):
    """A cluster with typed calls, which retry retriable errors."""

    @cached_property
    def _idempotent_producer(self) -> IdempotentProducer:
        return IdempotentProducer(self)

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # Topics

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int = -1,
        replication_factor: int = -1,
        configs: Mapping[str, str] | None = None,
        timeout_ms: int | None = None,
    ) -> TopicOutcome:
        """Create one topic, or raise its error."""
        topic = NewTopic(name, partitions, replication_factor, configs or {})
        (outcome,) = await self.create_topics([topic], timeout_ms=timeout_ms)
        return _or_raise(outcome)

    async def create_topics(
        self, topics: Sequence[NewTopic], *, validate_only: bool = False, timeout_ms: int | None = None
    ) -> list[TopicOutcome]:
        request = requests.create_topics(topics, self._request_timeout_ms(timeout_ms), validate_only)
        response = await self._send_to_controller(
            request, lambda response: [each.error_code for each in response.topics]
        )
        return [requests.created(each) for each in response.topics]

    async def delete_topics(self, names: Sequence[str], *, timeout_ms: int | None = None) -> list[TopicOutcome]:
        request = requests.delete_topics(names, self._request_timeout_ms(timeout_ms))
        response = await self._send_to_controller(
            request, lambda response: [each.error_code for each in response.responses]
        )
        for name in names:
            self.metadata.forget(name)
        return [TopicOutcome(each.name or "", _error(each)) for each in response.responses]

    async def delete_topic(self, name: str) -> TopicOutcome:
        (outcome,) = await self.delete_topics([name])
        return _or_raise(outcome)

    async def create_partitions(
        self, counts: Mapping[str, int], *, validate_only: bool = False, timeout_ms: int | None = None
    ) -> list[TopicOutcome]:
        """Increase the partitions of topics to these totals."""
        request = requests.create_partitions(counts, self._request_timeout_ms(timeout_ms), validate_only)
        response = await self._send_to_controller(
            request, lambda response: [each.error_code for each in response.results]
        )
        for name in counts:
            self.metadata.forget(name)
        return [TopicOutcome(each.name, _error(each), partitions=counts[each.name]) for each in response.results]

    async def describe_topics(self, names: Iterable[str] | None = None) -> list[TopicView]:
        """Return these topics, or all, by name; one that cannot be described has an error."""
        return sorted(await self.refresh(names, may_create=False), key=lambda each: each.name)

    async def describe_topic(self, name: str) -> TopicView:
        (topic,) = await self.describe_topics([name])
        if topic.error is not None:
            raise topic.error
        return topic

    async def describe_cluster(self, *, with_fenced: bool = False) -> ClusterView:
        """Describe the brokers; with fenced ones if the cluster supports it."""
        response = await self.retry(lambda: self.send(requests.describe_cluster(with_fenced)))
        check(response.error_code, response.error_message)
        brokers = (
            ClusterBroker(NodeId(each.broker_id), each.host, each.port, each.rack, each.is_fenced)
            for each in response.brokers
        )
        ordered = tuple(sorted(brokers, key=lambda each: each.node_id))
        return ClusterView(response.cluster_id, NodeId(response.controller_id), ordered)

    # Settings

    async def describe_configs(
        self, resource: Resource, names: Iterable[str] | None = None, *, with_documentation: bool = False
    ) -> list[ConfigEntry]:
        """Return the settings of a topic or a broker, by name."""
        request = requests.describe_configs(resource, names, with_documentation)
        response = await self.retry(lambda: self.send(request, node=_node_of(resource)))
        (result,) = response.results
        check(result.error_code, result.error_message)
        return sorted((requests.config_entry(each) for each in result.configs), key=lambda each: each.name)

    async def alter_configs(
        self,
        resource: Resource,
        values: Mapping[str, str] | None = None,
        *,
        removed: Iterable[str] = (),
        appended: Mapping[str, str] | None = None,
        subtracted: Mapping[str, str] | None = None,
        validate_only: bool = False,
    ) -> None:
        """Change settings of one resource and keep the others; `removed` settings return to their defaults."""
        changes = requests.config_changes(values or {}, removed, appended or {}, subtracted or {})
        request = requests.alter_configs(resource, changes, validate_only)
        response = await self.retry(lambda: self.send(request, node=_node_of(resource)))
        (result,) = response.responses
        check(result.error_code, result.error_message)

    # Records

    async def init_producer_id(
        self, *, transactional_id: str | None = None, transaction_timeout_ms: int = 60_000
    ) -> ProducerIdentity:
        """Return an identity for an idempotent producer. For a transactional id, send to its coordinator instead."""
        request = requests.init_producer_id(transactional_id, transaction_timeout_ms)

        async def attempt_once() -> "messages.InitProducerIdResponse":
            response = await self.send(request)
            check(response.error_code)
            return response

        response = await self.retry(attempt_once)
        return ProducerIdentity(response.producer_id, response.producer_epoch)

    async def produce(
        self,
        topic: str,
        partition: int,
        what: Buffer | FileSlice | Sequence[Record | NewRecord],
        *,
        acks: int = -1,
        compression: Compression = Compression.NONE,
        transactional_id: str | None = None,
        timeout_ms: int | None = None,
        total_timeout_ms: float | None = None,
    ) -> ProduceResult:
        """Append one batch: its bytes, or records to build it from.

        Only a batch with a producer id is retried after an unknown outcome. Records get the client's producer id, if
        the cluster grants one.
        """

        async def send(batch: Buffer | FileSlice) -> ProduceResult:
            return await self._produce_batch(topic, partition, batch, acks, transactional_id, timeout_ms)

        with self.deadline(total_timeout_ms):
            if isinstance(what, Buffer | FileSlice):
                return await send(what)
            if acks == ACKS_ALL and transactional_id is None:
                return await self._idempotent_producer.produce(
                    TopicPartition(topic, partition), what, compression, send
                )
            return await send(build_batch(what, compression=compression))

    async def _produce_batch(
        self,
        topic: str,
        partition: int,
        batch: Buffer | FileSlice,
        acks: int,
        transactional_id: str | None,
        timeout_ms: int | None,
    ) -> ProduceResult:
        is_idempotent = not isinstance(batch, FileSlice) and read_header(batch).producer_id != NO_PRODUCER_ID
        request_timeout_ms = self._request_timeout_ms(timeout_ms)

        def request(view: TopicView, target: PartitionView) -> "messages.ProduceRequest":
            return requests.produce(view, target.index, batch, acks, request_timeout_ms, transactional_id)

        response = await self.send_to_leader(topic, partition, request, is_idempotent=is_idempotent)
        if response is None:
            return ProduceResult()
        ((_, result),) = partitions_of(response)
        if not is_idempotent and acks == ACKS_ALL and result.error_code in AFTER_APPEND:
            message = error_of(result.error_code, result.error_message).message
            raise error_of(result.error_code, f"{message} (it may be stored; not retried without a producer id)")
        check(result.error_code, result.error_message)
        return ProduceResult(result.base_offset, result.log_append_time_ms, result.log_start_offset)

    async def fetch(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        max_bytes: int = MiB,
        min_bytes: int = 1,
        max_wait_ms: int = 500,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
    ) -> FetchResult:
        """Fetch raw batches of one partition from an offset; empty if there are none within `max_wait_ms`."""

        def request(view: TopicView, target: PartitionView) -> "messages.FetchRequest":
            return requests.fetch(
                [(view, target, offset)],
                max_bytes=max_bytes,
                min_bytes=min_bytes,
                max_wait_ms=max_wait_ms,
                isolation=isolation,
            )

        timeout_ms = max_wait_ms + self.settings.request_timeout_ms
        total_timeout_ms = max_wait_ms + self.settings.total_timeout_ms
        deadline_ms = self._clock.monotonic_ms() + self.settings.total_timeout_ms
        while True:
            response = await self.send_to_leader(
                topic, partition, request, timeout_ms=timeout_ms, total_timeout_ms=total_timeout_ms
            )
            check(response.error_code)
            partitions = [result for _, result in partitions_of(response)]
            if partitions:
                break
            # Over a quota, Kafka returns a throttle time and no partitions.
            await self._wait_for_quota(response.throttle_time_ms, deadline_ms)
        (result,) = partitions
        fetched = requests.fetched(result)
        if fetched.error is not None:
            raise fetched.error
        return fetched

    async def fetch_from(
        self,
        node: int,
        offsets: Mapping[TopicPartition, int],
        *,
        max_bytes: int = 50 * MiB,
        partition_max_bytes: int = MiB,
        min_bytes: int = 1,
        max_wait_ms: int = 500,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
    ) -> dict[TopicPartition, FetchResult]:
        """Fetch several partitions from one broker, once; errors of partitions are in the result."""
        views = {name: await self.topic(name) for name in dict.fromkeys(each.topic for each in offsets)}
        wanted = [
            (
                views[topic_partition.topic],
                self.metadata.leader_in(views[topic_partition.topic], topic_partition.partition),
                offset,
            )
            for topic_partition, offset in offsets.items()
        ]
        request = requests.fetch(
            wanted,
            max_bytes=max_bytes,
            partition_max_bytes=partition_max_bytes,
            min_bytes=min_bytes,
            max_wait_ms=max_wait_ms,
            isolation=isolation,
        )
        response = await self.send(request, node=node, timeout_ms=max_wait_ms + self.settings.request_timeout_ms)
        check(response.error_code)
        names = {view.topic_id: name for name, view in views.items()}
        return {
            TopicPartition(topic.topic or names[topic.topic_id], result.partition_index): requests.fetched(result)
            for topic, result in partitions_of(response)
        }

    async def list_offset(
        self, topic: str, partition: int, timestamp_ms: int, *, isolation: Isolation = Isolation.READ_UNCOMMITTED
    ) -> OffsetResult:
        """Return the first offset at or after a time, or at `EARLIEST`, `LATEST`, `MAX_TIMESTAMP`."""
        topic_partition = TopicPartition(topic, partition)
        result = (await self.list_offsets({topic_partition: timestamp_ms}, isolation=isolation))[topic_partition]
        if result.error is not None:
            raise result.error
        return result

    async def list_offsets(
        self, times: Mapping[TopicPartition, int], *, isolation: Isolation = Isolation.READ_UNCOMMITTED
    ) -> dict[TopicPartition, OffsetResult]:
        """Look up the offsets of many partitions; an error of a partition is in its result."""

        async def look_up(topic_partition: TopicPartition, timestamp_ms: int) -> OffsetResult:
            def request(_: TopicView, target: PartitionView) -> "messages.ListOffsetsRequest":
                return requests.list_offsets(topic_partition, target, timestamp_ms, isolation)

            try:
                response = await self.send_to_leader(topic_partition.topic, topic_partition.partition, request)
            except KafkaError as error:
                return OffsetResult(-1, error=error)
            ((_, result),) = partitions_of(response)
            return OffsetResult(result.offset, result.timestamp, result.leader_epoch, _error(result))

        partitions = await asyncio.gather(
            *(look_up(topic_partition, at_ms) for topic_partition, at_ms in times.items())
        )
        return dict(zip(times, partitions, strict=True))

    async def delete_records(self, topic: str, partition: int, before_offset: int) -> int:
        """Delete records before an offset (-1: all); return the new log start offset."""
        request = requests.delete_records(topic, partition, before_offset, self._request_timeout_ms(None))
        response = await self.send_to_leader(topic, partition, request)
        ((_, result),) = partitions_of(response)
        check(result.error_code)
        return int(result.low_watermark)

    # Requests

    async def _send_to_controller(
        self, request: Request[Response], codes: Callable[[Response], Iterable[int]]
    ) -> Response:
        async def attempt_once() -> Response:
            response = await self.send_to_controller(request)
            if ErrorCode.NOT_CONTROLLER in codes(response):
                raise error_of(ErrorCode.NOT_CONTROLLER)
            return response

        # Not idempotent: a retry after a lost connection would fail with TopicAlreadyExists.
        return await self.retry(attempt_once, is_idempotent=False)

    async def _wait_for_quota(self, throttle_ms: int, deadline_ms: float) -> None:
        wait_ms = max(throttle_ms, self.settings.retry_backoff_ms)
        if self._clock.monotonic_ms() + wait_ms > deadline_ms:
            given_ms = self.settings.total_timeout_ms
            message = f"no records within {given_ms} ms: quota exceeded, throttled for {wait_ms} ms more"
            raise ResponseTimeout(message, was_sent=True)
        await asyncio.sleep(wait_ms / 1000)

    def _request_timeout_ms(self, timeout_ms: int | None) -> int:
        return self.settings.request_timeout_ms if timeout_ms is None else timeout_ms


def _error(result: HasErrorCode) -> KafkaError | None:
    if result.error_code == ErrorCode.NONE:
        return None
    return error_of(result.error_code, getattr(result, "error_message", None))


def _or_raise(outcome: TopicOutcome) -> TopicOutcome:
    if outcome.error is not None:
        raise outcome.error
    return outcome


def _node_of(resource: Resource) -> int | None:
    is_one_broker = resource.kind in (ResourceKind.BROKER, ResourceKind.BROKER_LOGGER) and resource.name != ""
    return int(resource.name) if is_one_broker else None
