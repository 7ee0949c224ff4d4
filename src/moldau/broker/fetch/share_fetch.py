"""`ShareFetch`: acquires records for a member from the partitions of its session, and waits if there are too few.

Each pass over the partitions first looks at what could be read, without acquiring anything, so that no lock runs while
the request waits for more bytes. It acquires when there are enough bytes, when released records are available again,
when a partition has an error, or at the deadline.
"""

import asyncio
from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol

from moldau.broker.access import Operation
from moldau.broker.configs.broker_settings import BrokerSettings
from moldau.broker.fetch.acknowledgements import SharesMember
from moldau.broker.fetch.cold_reads import is_cached
from moldau.broker.fetch.consumer_fetch import WAIT_MS_MAX
from moldau.broker.fetch.share_reads import scan, trim
from moldau.broker.partitions.log_scrubber import LogScrubber
from moldau.broker.partitions.partition import Partition
from moldau.broker.partitions.waiters import DelayedFetch, Watched
from moldau.broker.requests.context import RequestContext
from moldau.broker.runtime.meters import TrafficMeter
from moldau.broker.shares.share_partition import SharePartition
from moldau.machines.groups.share.settings import ShareGroupConfig
from moldau.machines.shares.acquisition import AcquiredRange, AcquireLimits
from moldau.machines.shares.sessions import FetchedPartition, ShareSession
from moldau.model.errors import KafkaError, TopicAuthorizationFailed
from moldau.model.ports import Executor, FileSlice
from moldau.model.units import MiB
from moldau.storage.aborted_transactions import UnverifiedTransactionIndex
from moldau.storage.segment import Segment

SCANNED_BYTES: Final = MiB  # what is loaded before headers are read; the kernel reads ahead
PASSES_MAX: Final = 100  # over partitions that have only gaps to read; the member then fetches again


class ShareFetchHost(SharesMember, Protocol):
    """The broker, for share fetches."""

    @property
    def executor(self) -> Executor: ...

    @property
    def log_scrubber(self) -> LogScrubber: ...

    @property
    def settings(self) -> BrokerSettings: ...

    @property
    def traffic(self) -> TrafficMeter: ...


ShareFetchContext = RequestContext[ShareFetchHost]


class ShareFetchLimits(NamedTuple):
    """The limits of a request."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    max_records: int
    batch_size: int
    is_strict: bool


class Acquired(NamedTuple):
    """The records that a member gets from one partition."""

    ranges: list[AcquiredRange]
    records: FileSlice


class _Candidate(NamedTuple):
    fetched: FetchedPartition
    share: SharePartition
    offset: int
    records: FileSlice


class ShareFetch:
    """One fetch of one member."""

    def __init__(
        self, session: ShareSession, limits: ShareFetchLimits, config: ShareGroupConfig, context: ShareFetchContext
    ) -> None:
        self._session = session
        self._limits = limits
        self._config = config
        self._context = context
        self._clock = context.broker.clock
        self.acquired: dict[FetchedPartition, Acquired] = {}
        self.errors: dict[FetchedPartition, KafkaError] = {}
        self._candidates: list[_Candidate] = []
        self._watched: list[Watched] = []
        self._unverified: list[tuple[Partition, Segment]] = []  # transaction indexes to verify first
        self._bytes = 0
        self._must_not_wait = False  # released records are available, or there is an error

    async def run(self) -> None:
        """Acquire records, at the latest after `max_wait_ms`."""
        deadline_ms = self._clock.monotonic_ms() + min(self._limits.max_wait_ms, WAIT_MS_MAX)
        for _ in range(PASSES_MAX):
            self._look()
            is_over = self._clock.monotonic_ms() >= deadline_ms
            if self._bytes >= self._limits.min_bytes or self._must_not_wait or is_over:
                if await self._read_cold():
                    self._look()  # other members may have acquired these records meanwhile
                self._acquire()
                if self._unverified and not self.acquired:
                    if await self._verify_transactions():
                        continue
                    break
                if self.acquired or self.errors or is_over or not self._candidates:
                    break
                await asyncio.sleep(0)
                continue
            wait = DelayedFetch(self._limits.min_bytes - self._bytes)
            wait.watch(self._watched)
            await wait.wait_at_most(deadline_ms - self._clock.monotonic_ms())
        for each in self.acquired.values():
            await self._load(each.records)

    def _look(self) -> None:
        """Find out what could be acquired now."""
        self._candidates, self._watched, self._bytes, self._must_not_wait = [], [], 0, False
        self.errors.clear()
        left_bytes = self._limits.max_bytes
        for fetched in self._session.partitions:
            try:
                found = self._look_at(fetched, left_bytes)
            except KafkaError as error:
                self.errors[fetched] = error
                self._must_not_wait = True
                continue
            if found is not None:
                self._candidates.append(found)
                self._bytes += found.records.length
                left_bytes -= found.records.length
                if left_bytes <= 0:
                    break

    def _look_at(self, fetched: FetchedPartition, left_bytes: int) -> _Candidate | None:
        context = self._context
        shares = context.broker.shares
        if not context.may(Operation.READ, shares.topic_name(fetched)):
            raise TopicAuthorizationFailed
        share = shares.open(self._session.key, fetched, self._config)
        self._watched.append(share)
        machine = share.machine
        if machine is None:
            return None
        partition = share.partition
        is_committed = self._config.is_read_committed
        until_offset = partition.last_stable_offset if is_committed else partition.high_watermark
        inspected_until = machine.inspected_until
        if inspected_until is not None:
            self._watched.append(partition.waiters)
            share.inspect(inspected_until, until_offset)
        offset = machine.next_fetch_offset()
        if offset is None:
            return None
        self._watched.append(partition.waiters)
        if offset >= until_offset:
            return None
        records = partition.read(offset, left_bytes, until_offset, at_least_one=not self._bytes)
        if records is None:
            return None
        self._must_not_wait |= offset < machine.end_offset
        return _Candidate(fetched, share, offset, records)

    async def _read_cold(self) -> bool:
        """Load what is not in the page cache, as far as headers are read; return whether there was anything."""
        scanned = [_head(each.records) for each in self._candidates]
        return any([await self._load(each) for each in scanned])

    async def _load(self, records: FileSlice) -> bool:
        """Load records into the page cache in a thread, unless they are there."""
        if is_cached(records):
            return False
        await self._context.broker.executor.run(records.read)
        return True

    async def _verify_transactions(self) -> bool:
        scrubber = self._context.broker.log_scrubber
        return all([await scrubber.verify_transactions(*each) for each in self._unverified])

    def _acquire(self) -> None:
        self._unverified.clear()
        left = self._limits.max_records
        for candidate in self._candidates:
            if left <= 0:
                return
            try:
                acquired = self._acquire_from(candidate, left)
            except UnverifiedTransactionIndex as unverified:
                self._unverified.append((candidate.share.partition, unverified.segment))
                continue
            except KafkaError as error:
                self.errors[candidate.fetched] = error
                continue
            if acquired is not None:
                self.acquired[candidate.fetched] = acquired
                self._session.move_to_end(candidate.fetched)
                left -= sum(each.last_offset - each.first_offset + 1 for each in acquired.ranges)

    def _acquire_from(self, candidate: _Candidate, left: int) -> Acquired | None:
        share = candidate.share
        machine = share.machine
        if machine is None or not share.is_current:
            return None
        offsets_max = left + max(0, machine.end_offset - candidate.offset)  # other members may have most of these
        read = scan(
            share.partition,
            candidate.records,
            candidate.offset,
            offsets_max,
            is_read_committed=self._config.is_read_committed,
        )
        limits = AcquireLimits(left, self._limits.batch_size, self._limits.is_strict)
        times = [(each.last_offset, each.timestamp) for each in read.positions]
        ranges = share.acquire(self._session.key.member_id, read.log, limits, times)
        if not ranges:
            return None
        records = trim(candidate.records, read, ranges)
        traffic = share.partition.traffic
        traffic.fetches += 1
        traffic.bytes_out += records.length
        return Acquired(ranges, records)


def _head(records: FileSlice) -> FileSlice:
    return FileSlice(records.file, records.position, min(records.length, SCANNED_BYTES))


def acquired_bytes(acquired: Mapping[FetchedPartition, Acquired]) -> int:
    return sum(each.records.length for each in acquired.values())
