"""Read partitions for `moldau consume`: one fetch in flight per leader, records in order within each partition."""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass, field
from typing import Final

from moldau.cli.output import note
from moldau.client.async_client import AsyncClient
from moldau.client.errors import RETRIABLE
from moldau.client.metadata import TopicView
from moldau.client.types import FetchResult, Isolation
from moldau.client.visibility import visible_batches
from moldau.model.errors import ErrorCode, KafkaError, LeaderNotAvailable
from moldau.model.ids import NodeId, TopicPartition
from moldau.model.ports import Clock
from moldau.model.units import SECOND_MS
from moldau.records.record import Record, iterate_records

RETRY_S: Final = 0.5
FETCH_WAIT_MS: Final = 500

Chunk = tuple[TopicPartition, list[Record]]
_Fetch = asyncio.Task[dict[TopicPartition, FetchResult]]


@dataclass(slots=True)
class PartitionReader:
    """Positions and end offsets of the partitions. A partition that has reached its end is no longer fetched."""

    client: AsyncClient
    clock: Clock
    positions: dict[TopicPartition, int]
    ends: dict[TopicPartition, int] = field(default_factory=dict)  # a partition without one is followed
    until_ms: int | None = None  # a future time: the first record at or after it ends its partition
    isolation: Isolation = Isolation.READ_UNCOMMITTED
    _in_flight: dict[_Fetch, NodeId] = field(default_factory=dict)
    _has_noted_error: bool = False
    _leaderless: set[TopicPartition] = field(default_factory=set)
    _next_lookup_ms: float = 0.0  # when to look up missing leaders again

    async def chunks(self) -> AsyncGenerator[Chunk, None]:
        """Yield records as they arrive, by partition."""
        self._drop_finished()
        try:
            while self.positions:
                await self._fetch_from_idle_leaders()
                if not self._in_flight:
                    await asyncio.sleep(RETRY_S)
                    continue
                done, _ = await asyncio.wait(self._in_flight, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    del self._in_flight[task]
                    for chunk in await self._decode_response(task):
                        yield chunk
                self._drop_finished()
        finally:
            for task in self._in_flight:
                task.cancel()
            await asyncio.gather(*self._in_flight, return_exceptions=True)

    async def _fetch_from_idle_leaders(self) -> None:
        busy = set(self._in_flight.values())
        for node, offsets in (await self._by_leader()).items():
            if node not in busy:
                fetch = self.client.fetch_from(node, offsets, max_wait_ms=FETCH_WAIT_MS, isolation=self.isolation)
                self._in_flight[asyncio.get_running_loop().create_task(fetch)] = node

    async def _by_leader(self) -> dict[NodeId, dict[TopicPartition, int]]:
        leaders: dict[NodeId, dict[TopicPartition, int]] = {}
        self._refresh_leaderless()
        for place, offset in self.positions.items():
            try:
                view = await self.client.topic(place.topic)
                leader = self._leader_of(place, view)
            except (KafkaError, ConnectionError, TimeoutError) as error:
                self._retry_or_raise(error, place.topic)
                return {}
            if leader is not None:
                leaders.setdefault(leader, {})[place] = offset
        return leaders

    def _leader_of(self, place: TopicPartition, view: TopicView) -> NodeId | None:
        """Return None if the partition has no leader: a note is printed once, and the others are read meanwhile."""
        try:
            leader = self.client.metadata.leader_in(view, place.partition).leader
        except LeaderNotAvailable as error:
            if place not in self._leaderless:
                note(f"{error}; retrying")
                self._leaderless.add(place)
            return None
        self._leaderless.discard(place)
        return leader

    def _refresh_leaderless(self) -> None:
        """Look up missing leaders again, at most once in RETRY_S: other partitions may be read at full speed."""
        missing = {place.topic for place in self._leaderless if place in self.positions}
        now_ms = self.clock.monotonic_ms()
        if missing and now_ms >= self._next_lookup_ms:
            self._next_lookup_ms = now_ms + RETRY_S * SECOND_MS
            for topic in missing:
                self.client.metadata.forget(topic)

    async def _decode_response(self, task: _Fetch) -> list[Chunk]:
        try:
            response = task.result()
        except (KafkaError, ConnectionError, TimeoutError) as error:
            for topic in {each.topic for each in self.positions}:
                self._retry_or_raise(error, topic)
            await asyncio.sleep(RETRY_S)
            return []
        self._has_noted_error = False
        chunks = []
        for place, fetched in response.items():
            if fetched.error is not None:
                await self._handle_fetch_error(place, fetched)
                continue
            if records := list(self._records(place, fetched)):
                chunks.append((place, records))
            if self.until_ms is not None and place not in self.ends:
                self._end_if_late(place, fetched, self.until_ms)
        return chunks

    def _end_if_late(self, place: TopicPartition, fetched: FetchResult, until_ms: int) -> None:
        has_read_all = self.positions[place] >= fetched.high_watermark
        if has_read_all and self.clock.wall_ms() >= until_ms:
            self.ends[place] = self.positions[place]

    def _records(self, place: TopicPartition, fetched: FetchResult) -> Iterator[Record]:
        """Yield the new records of a fetch up to the end offset. The position advances past invisible batches too."""
        position = self.positions[place]
        end = self.ends.get(place)
        for header, batch, is_visible in visible_batches(fetched.records, fetched.aborted, self.isolation):
            if header.next_offset <= position:
                continue
            if is_visible:
                for record in iterate_records(batch):
                    if self.until_ms is not None and record.timestamp >= self.until_ms:
                        self.ends[place] = end = min(record.offset, self.ends.get(place, record.offset))
                    if record.offset >= position and (end is None or record.offset < end):
                        yield record
            self.positions[place] = max(self.positions[place], header.next_offset)

    def _drop_finished(self) -> None:
        finished = [place for place, end in self.ends.items() if self.positions.get(place, end) >= end]
        for place in finished:
            self.positions.pop(place, None)

    async def _handle_fetch_error(self, place: TopicPartition, fetched: FetchResult) -> None:
        assert fetched.error is not None
        if fetched.error.code == ErrorCode.OFFSET_OUT_OF_RANGE:
            await self._move_into_range(place)
        else:
            self._retry_or_raise(fetched.error, place.topic)
            await asyncio.sleep(RETRY_S)

    async def _move_into_range(self, place: TopicPartition) -> None:
        from moldau.client.positions import extents

        extent = (await extents(self.client, [place], self.isolation))[place]
        position = min(max(self.positions[place], extent.start), extent.end)
        note(f"offset {self.positions[place]} of {place} is out of range; continuing at {position}")
        self.positions[place] = position

    def _retry_or_raise(self, error: Exception, topic: str) -> None:
        """Retry after transient errors, with a note for the first one; raise all others."""
        if isinstance(error, KafkaError) and error.code not in RETRIABLE:
            raise error
        if isinstance(error, KafkaError) and error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise error
        self.client.invalidate_topic(topic, is_stale=isinstance(error, KafkaError))
        if not self._has_noted_error and not isinstance(error, KafkaError):
            note(f"{error}; retrying")
            self._has_noted_error = True
