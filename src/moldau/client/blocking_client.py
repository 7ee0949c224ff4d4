"""The blocking client: runs the asyncio client on its own event loop."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar

from moldau.client.async_client import AsyncClient
from moldau.client.metadata import PartitionView, TopicView
from moldau.client.settings import ClientSettings
from moldau.client.types import (
    ClusterView,
    ConfigEntry,
    FetchResult,
    Isolation,
    NewTopic,
    OffsetResult,
    ProduceResult,
    ProducerIdentity,
    Resource,
    TopicOutcome,
)
from moldau.model.ids import Address, TopicPartition
from moldau.model.ports import Buffer, Clock, FileSlice, Network, Random
from moldau.model.units import MiB
from moldau.records.builder import NewRecord
from moldau.records.compression import Compression
from moldau.records.record import Record
from moldau.wire.messages import Request, Response

Result = TypeVar("Result")


class BlockingClient:
    """`with BlockingClient(network, clock, random, "localhost:9092") as client: client.create_topic("hello")`"""

    def __init__(
        self,
        network: Network,
        clock: Clock,
        random: Random,
        bootstrap: str | Sequence[Address],
        *,
        settings: ClientSettings | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self.asynchronous = AsyncClient(network, clock, random, bootstrap, settings=settings)
        self._loop = loop or asyncio.new_event_loop()
        self._owns_loop = loop is None

    def __enter__(self) -> "BlockingClient":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine that uses `asynchronous` to completion; cancel it on an interrupt.

        An interrupt is any exception of a signal handler, such as that of a test timeout.
        """
        task = self._loop.create_task(work)
        try:
            return self._loop.run_until_complete(task)
        except BaseException:
            task.cancel()
            self._loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
            raise

    def close(self) -> None:
        if self._loop.is_closed():
            return
        self.run(self.asynchronous.close())
        if self._owns_loop:
            self._loop.close()

    # The calls of `AsyncClient`, documented there.

    def send(
        self,
        request: Request[Response],
        *,
        node: int | None = None,
        timeout_ms: float | None = None,
        version_at_most: int | None = None,
    ) -> Response:
        return self.run(
            self.asynchronous.send(request, node=node, timeout_ms=timeout_ms, version_at_most=version_at_most)
        )

    def send_to_leader(
        self,
        topic: str,
        partition: int,
        request: Request[Response] | Callable[[TopicView, PartitionView], Request[Response]],
    ) -> Response:
        return self.run(self.asynchronous.send_to_leader(topic, partition, request))

    def create_topic(
        self,
        name: str,
        *,
        partitions: int = -1,
        replication_factor: int = -1,
        configs: Mapping[str, str] | None = None,
    ) -> TopicOutcome:
        call = self.asynchronous.create_topic(
            name, partitions=partitions, replication_factor=replication_factor, configs=configs
        )
        return self.run(call)

    def create_topics(self, topics: Sequence[NewTopic], *, validate_only: bool = False) -> list[TopicOutcome]:
        return self.run(self.asynchronous.create_topics(topics, validate_only=validate_only))

    def delete_topic(self, name: str) -> TopicOutcome:
        return self.run(self.asynchronous.delete_topic(name))

    def delete_topics(self, names: Sequence[str]) -> list[TopicOutcome]:
        return self.run(self.asynchronous.delete_topics(names))

    def create_partitions(self, counts: Mapping[str, int], *, validate_only: bool = False) -> list[TopicOutcome]:
        return self.run(self.asynchronous.create_partitions(counts, validate_only=validate_only))

    def describe_topics(self, names: Iterable[str] | None = None) -> list[TopicView]:
        return self.run(self.asynchronous.describe_topics(names))

    def describe_topic(self, name: str) -> TopicView:
        return self.run(self.asynchronous.describe_topic(name))

    def describe_cluster(self) -> ClusterView:
        return self.run(self.asynchronous.describe_cluster())

    def describe_configs(
        self, resource: Resource, names: Iterable[str] | None = None, *, with_documentation: bool = False
    ) -> list[ConfigEntry]:
        return self.run(self.asynchronous.describe_configs(resource, names, with_documentation=with_documentation))

    def alter_configs(
        self,
        resource: Resource,
        values: Mapping[str, str] | None = None,
        *,
        removed: Iterable[str] = (),
        appended: Mapping[str, str] | None = None,
        subtracted: Mapping[str, str] | None = None,
        validate_only: bool = False,
    ) -> None:
        call = self.asynchronous.alter_configs(
            resource, values, removed=removed, appended=appended, subtracted=subtracted, validate_only=validate_only
        )
        self.run(call)

    def init_producer_id(self) -> ProducerIdentity:
        return self.run(self.asynchronous.init_producer_id())

    def produce(
        self,
        topic: str,
        partition: int,
        what: Buffer | FileSlice | Sequence[Record | NewRecord],
        *,
        acks: int = -1,
        compression: Compression = Compression.NONE,
    ) -> ProduceResult:
        return self.run(self.asynchronous.produce(topic, partition, what, acks=acks, compression=compression))

    def fetch(
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
        call = self.asynchronous.fetch(
            topic,
            partition,
            offset,
            max_bytes=max_bytes,
            min_bytes=min_bytes,
            max_wait_ms=max_wait_ms,
            isolation=isolation,
        )
        return self.run(call)

    def list_offset(
        self, topic: str, partition: int, timestamp_ms: int, *, isolation: Isolation = Isolation.READ_UNCOMMITTED
    ) -> OffsetResult:
        return self.run(self.asynchronous.list_offset(topic, partition, timestamp_ms, isolation=isolation))

    def list_offsets(
        self, times: Mapping[TopicPartition, int], *, isolation: Isolation = Isolation.READ_UNCOMMITTED
    ) -> dict[TopicPartition, OffsetResult]:
        return self.run(self.asynchronous.list_offsets(times, isolation=isolation))

    def delete_records(self, topic: str, partition: int, before_offset: int) -> int:
        return self.run(self.asynchronous.delete_records(topic, partition, before_offset))
