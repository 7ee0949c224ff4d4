"""The client on asyncio: what the command line, the benchmark and the tests ask of a cluster, by name.

It is not a public producer or consumer: it sends the batches it is given and returns the batches it gets.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from types import TracebackType
from typing import Any

from moldau.client import requests
from moldau.client.cluster import Cluster
from moldau.client.errors import NoAnswer, check, error_of
from moldau.client.idempotent_producer import Numbering
from moldau.client.leader_requests import AFTER_APPEND, partitions_of
from moldau.client.metadata import PartitionView, TopicView
from moldau.client.types import (
    ClusterBroker,
    ClusterView,
    ConfigEntry,
    Fetched,
    Isolation,
    NewTopic,
    OffsetAt,
    Produced,
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
from moldau.wire.messages import Message


class AsyncClient(Cluster):
    """A cluster with the calls that people make, each of which tries again while it makes sense."""

    @cached_property
    def _numbering(self) -> Numbering:
        return Numbering(self)

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
        """Create one topic, or raise why not."""
        topic = NewTopic(name, partitions, replication_factor, configs or {})
        (outcome,) = await self.create_topics([topic], timeout_ms=timeout_ms)
        return _or_raise(outcome)

    async def create_topics(
        self, topics: Sequence[NewTopic], *, validate_only: bool = False, timeout_ms: int | None = None
    ) -> list[TopicOutcome]:
        request = requests.create_topics(topics, self._patience_ms(timeout_ms), validate_only)
        response = await self._ask_controller(request, lambda answer: [each.error_code for each in answer.topics])
        return [requests.created(each) for each in response.topics]

    async def delete_topics(self, names: Sequence[str], *, timeout_ms: int | None = None) -> list[TopicOutcome]:
        request = requests.delete_topics(names, self._patience_ms(timeout_ms))
        response = await self._ask_controller(request, lambda answer: [each.error_code for each in answer.responses])
        for name in names:
            self.metadata.forget(name)
        return [TopicOutcome(each.name or "", _error(each)) for each in response.responses]

    async def delete_topic(self, name: str) -> TopicOutcome:
        (outcome,) = await self.delete_topics([name])
        return _or_raise(outcome)

    async def create_partitions(
        self, counts: Mapping[str, int], *, validate_only: bool = False, timeout_ms: int | None = None
    ) -> list[TopicOutcome]:
        """Grow topics to this many partitions in all."""
        request = requests.create_partitions(counts, self._patience_ms(timeout_ms), validate_only)
        response = await self._ask_controller(request, lambda answer: [each.error_code for each in answer.results])
        for name in counts:
            self.metadata.forget(name)
        return [TopicOutcome(each.name, _error(each), partitions=counts[each.name]) for each in response.results]

    async def describe_topics(self, names: Iterable[str] | None = None) -> list[TopicView]:
        """These topics, or all, by name; one that cannot be described carries its error."""
        return sorted(await self.refresh(names, creates=False), key=lambda each: each.name)

    async def describe_topic(self, name: str) -> TopicView:
        (topic,) = await self.describe_topics([name])
        if topic.error is not None:
            raise topic.error
        return topic

    async def describe_cluster(self, *, with_fenced: bool = False) -> ClusterView:
        """The brokers that serve; with those that are known and do not, where the cluster tells of them."""
        response = await self.persist(lambda: self.send(requests.describe_cluster(with_fenced)))
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
        """The settings of a topic or a broker, by name."""
        request = requests.describe_configs(resource, names, with_documentation)
        response = await self.persist(lambda: self.send(request, node=_node_of(resource)))
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
        """Change some settings of one resource and leave the others; removed ones return to their defaults."""
        changes = requests.config_changes(values or {}, removed, appended or {}, subtracted or {})
        request = requests.alter_configs(resource, changes, validate_only)
        response = await self.persist(lambda: self.send(request, node=_node_of(resource)))
        (result,) = response.responses
        check(result.error_code, result.error_message)

    # Records

    async def init_producer_id(
        self, *, transactional_id: str | None = None, transaction_timeout_ms: int = 60_000
    ) -> ProducerIdentity:
        """An identity for an idempotent producer. With a transactional id, ask its coordinator with `send`."""
        request = requests.init_producer_id(transactional_id, transaction_timeout_ms)

        async def ask_once() -> Any:
            response = await self.send(request)
            check(response.error_code)
            return response

        response = await self.persist(ask_once)
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
    ) -> Produced:
        """Append one batch: its bytes, or records to make it from. Only a batch with a producer id is sent again
        when nobody knows whether it arrived; records get one of ours, where the cluster gives any."""

        async def send(batch: Buffer | FileSlice) -> Produced:
            return await self._produce_batch(topic, partition, batch, acks, transactional_id, timeout_ms)

        with self.within(total_timeout_ms):
            if isinstance(what, Buffer | FileSlice):
                return await send(what)
            if acks == ACKS_ALL and transactional_id is None:
                return await self._numbering.produce(TopicPartition(topic, partition), what, compression, send)
            return await send(build_batch(what, compression=compression))

    async def _produce_batch(
        self,
        topic: str,
        partition: int,
        batch: Buffer | FileSlice,
        acks: int,
        transactional_id: str | None,
        timeout_ms: int | None,
    ) -> Produced:
        is_repeatable = not isinstance(batch, FileSlice) and read_header(batch).producer_id != NO_PRODUCER_ID
        patience_ms = self._patience_ms(timeout_ms)

        def request(view: TopicView, target: PartitionView) -> Message:
            return requests.produce(view, target.index, batch, acks, patience_ms, transactional_id)

        response = await self.send_to_leader(topic, partition, request, is_repeatable=is_repeatable)
        if response is None:
            return Produced()
        ((_, answer),) = partitions_of(response)
        if not is_repeatable and acks == ACKS_ALL and answer.error_code in AFTER_APPEND:
            said = error_of(answer.error_code, answer.error_message).message
            raise error_of(answer.error_code, f"{said} (it may be stored; without a producer id it is not sent again)")
        check(answer.error_code, answer.error_message)
        return Produced(answer.base_offset, answer.log_append_time_ms, answer.log_start_offset)

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
    ) -> Fetched:
        """Raw batches of one partition from this offset on; empty when none came within `max_wait_ms`."""

        def request(view: TopicView, target: PartitionView) -> Message:
            return requests.fetch(
                [(view, target, offset)],
                max_bytes=max_bytes,
                min_bytes=min_bytes,
                max_wait_ms=max_wait_ms,
                isolation=isolation,
            )

        timeout_ms = max_wait_ms + self.settings.request_timeout_ms
        total_timeout_ms = max_wait_ms + self.settings.total_timeout_ms
        patience_until_ms = self._clock.monotonic_ms() + self.settings.total_timeout_ms
        while True:
            response = await self.send_to_leader(
                topic, partition, request, timeout_ms=timeout_ms, total_timeout_ms=total_timeout_ms
            )
            check(response.error_code)
            answers = [answer for _, answer in partitions_of(response)]
            if answers:
                break
            # Over a quota, Kafka says how long to be quiet, and nothing of the partition.
            await self._wait_for_quota(response.throttle_time_ms, patience_until_ms)
        (answer,) = answers
        fetched = requests.fetched(answer)
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
    ) -> dict[TopicPartition, Fetched]:
        """One try at several partitions led by one broker; errors of partitions are in the result."""
        views = {name: await self.topic(name) for name in dict.fromkeys(each.topic for each in offsets)}
        wanted = [
            (views[where.topic], self.metadata.leader_in(views[where.topic], where.partition), offset)
            for where, offset in offsets.items()
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
            TopicPartition(topic.topic or names[topic.topic_id], answer.partition_index): requests.fetched(answer)
            for topic, answer in partitions_of(response)
        }

    async def list_offset(
        self, topic: str, partition: int, timestamp_ms: int, *, isolation: Isolation = Isolation.READ_UNCOMMITTED
    ) -> OffsetAt:
        """The first offset at or after a time, or at `EARLIEST`, `LATEST`, `MAX_TIMESTAMP`."""
        where = TopicPartition(topic, partition)
        answer = (await self.list_offsets({where: timestamp_ms}, isolation=isolation))[where]
        if answer.error is not None:
            raise answer.error
        return answer

    async def list_offsets(
        self, times: Mapping[TopicPartition, int], *, isolation: Isolation = Isolation.READ_UNCOMMITTED
    ) -> dict[TopicPartition, OffsetAt]:
        """The same for many partitions; an error of one is in its place."""

        async def ask(where: TopicPartition, timestamp_ms: int) -> OffsetAt:
            def request(_: TopicView, target: PartitionView) -> Message:
                return requests.list_offsets(where, target, timestamp_ms, isolation)

            try:
                response = await self.send_to_leader(where.topic, where.partition, request)
            except KafkaError as error:
                return OffsetAt(-1, error=error)
            ((_, answer),) = partitions_of(response)
            return OffsetAt(answer.offset, answer.timestamp, answer.leader_epoch, _error(answer))

        answers = await asyncio.gather(*(ask(where, at_ms) for where, at_ms in times.items()))
        return dict(zip(times, answers, strict=True))

    async def delete_records(self, topic: str, partition: int, before_offset: int) -> int:
        """Forget what is before an offset (-1: everything); where the log starts now."""
        request = requests.delete_records(topic, partition, before_offset, self._patience_ms(None))
        response = await self.send_to_leader(topic, partition, request)
        ((_, answer),) = partitions_of(response)
        check(answer.error_code)
        return int(answer.low_watermark)

    # Ways of asking

    async def _ask_controller(self, request: Message, codes: Any) -> Any:
        async def ask_once() -> Any:
            response = await self.send_to_controller(request)
            if ErrorCode.NOT_CONTROLLER in codes(response):
                raise error_of(ErrorCode.NOT_CONTROLLER)
            return response

        # Sent again after a lost connection, a creation would only hear that the topic exists.
        return await self.persist(ask_once, is_repeatable=False)

    async def _wait_for_quota(self, throttle_ms: int, patience_until_ms: float) -> None:
        wait_ms = max(throttle_ms, self.settings.retry_backoff_ms)
        if self._clock.monotonic_ms() + wait_ms > patience_until_ms:
            given_ms = self.settings.total_timeout_ms
            said = f"no records within {given_ms} ms: over a quota, the broker wants {wait_ms} ms more of quiet"
            raise NoAnswer(said, was_sent=True)
        await asyncio.sleep(wait_ms / 1000)

    def _patience_ms(self, timeout_ms: int | None) -> int:
        return self.settings.request_timeout_ms if timeout_ms is None else timeout_ms


def _error(answer: Any) -> KafkaError | None:
    if answer.error_code == ErrorCode.NONE:
        return None
    return error_of(answer.error_code, getattr(answer, "error_message", None))


def _or_raise(outcome: TopicOutcome) -> TopicOutcome:
    if outcome.error is not None:
        raise outcome.error
    return outcome


def _node_of(resource: Resource) -> int | None:
    is_one_broker = resource.kind in (ResourceKind.BROKER, ResourceKind.BROKER_LOGGER) and resource.name != ""
    return int(resource.name) if is_one_broker else None
