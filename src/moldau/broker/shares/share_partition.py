"""`SharePartition`: drives the machine of a share partition on the leader of the partition.

It reads the durable state when a group first fetches from the partition, writes what acknowledgements and expired locks
change, and has a timer for locks and back-offs. It lives as long as this broker leads the partition in this epoch, and
is unloaded when no member has a session with it and everything is durable.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from enum import Enum
from typing import Final, Protocol

from moldau.broker.partitions.log_scrubber import LogScrubber
from moldau.broker.partitions.partition import Partition
from moldau.broker.partitions.waiters import FetchWatcher
from moldau.broker.runtime.lazy_timer import LazyTimer
from moldau.broker.runtime.meters import ShareMeter
from moldau.broker.shares.dead_letters import DeadLetters, DeadLettersHost
from moldau.broker.shares.persister import SharePartitionKey, SharePersister
from moldau.broker.shares.record_reader import read_records
from moldau.machines.groups.share.settings import OffsetReset, ShareGroupConfig
from moldau.machines.shares.acknowledgement import Acknowledgement
from moldau.machines.shares.acquisition import AcquiredRange, AcquireLimits, LogRead
from moldau.machines.shares.inspection import InspectedRecord
from moldau.machines.shares.ordered_partition import OrderedPartitionMachine
from moldau.machines.shares.partition import ShareSettings
from moldau.machines.shares.state import UNINITIALIZED_START_OFFSET, ShareState, StateWrite
from moldau.machines.shares.window import DURABLE
from moldau.model.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    InvalidRecordState,
    KafkaError,
    NotCoordinator,
    NotLeaderOrFollower,
    UnknownServerFailure,
)
from moldau.storage.aborted_transactions import UnverifiedTransactionIndex

INSPECTED_AT_ONCE: Final = 1000  # records
RETRY_MS: Final = 1000.0  # after a read or write of the state has failed
_RETRIABLE: Final = (CoordinatorNotAvailable, CoordinatorLoadInProgress, NotCoordinator, UnknownServerFailure)


class ShareHost(DeadLettersHost, Protocol):
    """The parts of the broker that share partitions use."""

    @property
    def log_scrubber(self) -> LogScrubber: ...


class _Phase(Enum):
    LOADING = "loading"
    READY = "ready"
    CLOSED = "closed"


class SharePartition:
    """One share partition in one leader epoch."""

    def __init__(
        self,
        key: SharePartitionKey,
        partition: Partition,
        config: ShareGroupConfig,
        persister: SharePersister,
        support: ShareHost,
        meter: ShareMeter,
        on_idle: Callable[["SharePartition"], None],
    ) -> None:
        """`on_idle` is called when the share partition can be unloaded."""
        self.key = key
        self.partition = partition
        self.leader_epoch = partition.role.leader_epoch
        self.watchers: dict[FetchWatcher, None] = {}
        self.members: set[str] = set()  # with a session that includes the partition
        self._config = config
        self._persister = persister
        self._support = support
        self._meter = meter
        self._on_idle = on_idle
        self._phase = _Phase.LOADING
        self._machine: OrderedPartitionMachine | None = None
        self._times: deque[tuple[int, int]] = deque()  # last offset and timestamp of the batches in the window
        self._waiters: dict[int, list[tuple[float, asyncio.Future[None]]]] = {}  # by the write: since when
        self._task: asyncio.Task[None] | None = None  # a read or write of the state
        self._inspecting: asyncio.Task[None] | None = None
        self._timer = LazyTimer(self._expire)
        self._retry = LazyTimer(self._try_again)
        self._dead_letters = DeadLetters(key, partition, support, meter, self._archived)
        self._start(self._load())

    @property
    def is_current(self) -> bool:
        """Whether this broker still leads the partition in the same epoch."""
        partition = self.partition
        return (
            self._phase is not _Phase.CLOSED
            and partition.role.is_open
            and partition.role.is_leader
            and partition.role.leader_epoch == self.leader_epoch
        )

    @property
    def machine(self) -> OrderedPartitionMachine | None:
        """None until the durable state is known."""
        return self._machine

    def configure(self, config: ShareGroupConfig) -> None:
        """Apply the group's configs, which may have changed."""
        self._config = config
        if self._machine is not None:
            self._machine.configure(_settings(config))
            self._machine.advance_log_start(self.partition.log.start_offset, self._support.clock.monotonic_ms())
            self._dead_letters.write(self._machine, config)
            self._write()

    # -- members

    def acquire(
        self, member_id: str, read: LogRead, limits: AcquireLimits, times: Sequence[tuple[int, int]]
    ) -> list[AcquiredRange]:
        """`times` are the last offsets and the timestamps of the batches that were read."""
        assert self._machine is not None
        acquired = self._machine.acquire(member_id, read, limits, self._support.clock.monotonic_ms())
        redelivered = sum(last - first + 1 for first, last, count in acquired if count > 1)
        if redelivered:
            self._meter.count_redeliveries(self.key.group_id, redelivered)
        self._note_times(self._machine, times)
        self._set_timer()
        return acquired

    def _note_times(self, machine: OrderedPartitionMachine, times: Sequence[tuple[int, int]]) -> None:
        known = self._times
        for last_offset, timestamp in times:
            if last_offset < machine.end_offset and (not known or last_offset > known[-1][0]):
                known.append((last_offset, timestamp))
        while known and known[0][0] < machine.start_offset:
            known.popleft()

    @property
    def oldest_age_ms(self) -> float:
        """The age of the oldest record that is not durably acknowledged; 0 if there is none, or it was not read yet."""
        machine = self._machine
        if machine is None or machine.start_offset == machine.end_offset:
            return 0.0
        times = (timestamp for last_offset, timestamp in self._times if last_offset >= machine.start_offset)
        timestamp = next(times, None)
        return 0.0 if timestamp is None else max(0.0, self._support.clock.wall_ms() - timestamp)

    def acknowledge(self, member_id: str, acknowledgements: Sequence[Acknowledgement]) -> asyncio.Future[None]:
        """Raise if an acknowledgement is invalid; the future is done when all of them are durable."""
        if self._machine is None:
            raise InvalidRecordState("The member has not acquired these records from the partition's leader.")
        now_ms = self._support.clock.monotonic_ms()
        number = self._machine.acknowledge(member_id, acknowledgements, now_ms)
        self._count(acknowledgements)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if number == DURABLE:
            done.set_result(None)
        else:
            self._waiters.setdefault(number, []).append((now_ms, done))
        self._set_timer()
        self._write()
        return done

    def _count(self, acknowledgements: Sequence[Acknowledgement]) -> None:
        counts = self._meter.acknowledgements
        for first_offset, last_offset, types in acknowledgements:
            if len(types) == 1:
                counts[types[0]] += last_offset - first_offset + 1
            else:
                counts.update(types)

    def leave(self, member_id: str) -> None:
        """The member's session has ended: release its records."""
        self.members.discard(member_id)
        if self._machine is not None:
            self._machine.release_member(member_id, self._support.clock.monotonic_ms())
            self._set_timer()
            self._write()
            self._wake()
        self._unload_if_idle()

    # -- order

    def inspect(self, offset: int, until_offset: int) -> None:
        """Read keys in the background; waiting fetches then look again."""
        machine = self._machine
        if self._inspecting is None and machine is not None and offset < until_offset:
            self._inspecting = asyncio.get_running_loop().create_task(self._inspect(machine, offset, until_offset))
            self._inspecting.add_done_callback(self._inspected)

    async def _inspect(self, machine: OrderedPartitionMachine, offset: int, until_offset: int) -> None:
        records: list[InspectedRecord] = []
        end_offset = until_offset
        skips_aborted = self._config.is_read_committed
        try:
            async for each in read_records(
                self.partition, offset, until_offset - 1, self._support.executor, skips_aborted=skips_aborted
            ):
                records.append(InspectedRecord(each.offset, None if each.key is None else hash(each.key)))
                if len(records) == INSPECTED_AT_ONCE:
                    end_offset = each.offset + 1
                    break
        except UnverifiedTransactionIndex as unverified:
            await self._support.log_scrubber.verify_transactions(self.partition, unverified.segment)
            return
        except KafkaError as error:
            self._support.limited_logger.write(
                "share inspection failed",
                f"group={self.key.group_id} partition={self.partition.name} keys from offset {offset} on are not "
                f"readable, so that these records wait: {error.message}",
            )
            return
        machine.inspect(offset, end_offset, records)

    def _inspected(self, task: "asyncio.Task[None]") -> None:
        self._inspecting = None
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            self._support.report_bug(f"share partition {self.key.group_id} {self.partition.name}", error)
        elif self._phase is _Phase.READY:
            self._wake()

    # -- state

    async def _load(self) -> None:
        try:
            state = await self._persister.read(self.key, self.leader_epoch)
        except KafkaError as error:
            self._failed(error)
            return
        leading = self.partition.role.leading
        if leading is not None and not leading.machine.has_reached_epoch_start:
            self._retry.set(RETRY_MS)  # its predecessor's high watermark may be higher
            return
        if self.is_current:
            self._machine = self._new_machine(state)
            self._phase = _Phase.READY
            self._set_timer()
            self._wake()

    def _new_machine(self, state: ShareState) -> OrderedPartitionMachine:
        log = self.partition.log
        is_new = state.start_offset == UNINITIALIZED_START_OFFSET
        initial_offset = _initial_offset(self.partition, self._config.offset_reset, self._support) if is_new else 0
        return OrderedPartitionMachine(
            state,
            _settings(self._config),
            log.start_offset,
            log.end_offset,
            initial_offset,
            self._support.clock.monotonic_ms(),
        )

    def _write(self) -> None:
        """Start the next write, unless a read or write is under way."""
        if self._task is None and self._machine is not None and self._phase is _Phase.READY:
            write = self._machine.next_write()
            if write is not None:
                self._start(self._persist(self._machine, write))

    async def _persist(self, machine: OrderedPartitionMachine, write: StateWrite) -> None:
        try:
            await self._persister.write(self.key, machine.state_epoch, self.leader_epoch, write)
        except KafkaError as error:
            self._complete(machine.persist_failed(), error)
            self._failed(error)
        except Exception:
            self._complete(machine.persist_failed(), UnknownServerFailure("The share state could not be written."))
            raise
        else:
            before = machine.next_fetch_offset()
            self._complete(machine.persisted(self._support.clock.monotonic_ms()), None)
            self._dead_letters.write(machine, self._config)
            if machine.next_fetch_offset() != before:
                self._wake()

    def _archived(self) -> None:
        """Persist that dead letters are written."""
        self._write()
        self._unload_if_idle()

    def _complete(self, number: int, error: KafkaError | None) -> None:
        for since_ms, done in self._waiters.pop(number, ()):
            if done.done():
                continue
            if error is None:
                self._meter.latency.finished(self._support.clock.monotonic_ms() - since_ms)
                done.set_result(None)
            else:
                done.set_exception(error)
        self._set_timer()

    def _failed(self, error: KafkaError) -> None:
        if isinstance(error, _RETRIABLE):
            self._retry.set(RETRY_MS)
        else:
            self.close()  # another leader, or the group was deleted: the next fetch reads the state again

    def _try_again(self) -> None:
        if self._phase is _Phase.LOADING and self._task is None:
            self._start(self._load())
        self._write()

    def _start(self, work: Coroutine[None, None, None]) -> None:
        self._task = asyncio.get_running_loop().create_task(work)
        self._task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._task = None
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            self._support.report_bug(f"share partition {self.key.group_id} {self.partition.name}", error)
            self._retry.set(RETRY_MS)
        elif not self._retry.is_set:
            self._write()
        self._unload_if_idle()

    # -- time

    def _set_timer(self) -> None:
        deadline_ms = None if self._machine is None else self._machine.deadline_ms
        if deadline_ms is not None and self._phase is _Phase.READY:
            self._timer.set(max(0.0, deadline_ms - self._support.clock.monotonic_ms()))

    def _expire(self) -> None:
        if self._machine is not None:
            self._meter.lock_timeouts += self._machine.expire(self._support.clock.monotonic_ms())
            self._set_timer()
            self._write()
            self._wake()

    def _wake(self) -> None:
        """Have waiting fetches look again."""
        for watcher in list(self.watchers):
            watcher.wake()

    # -- the end

    def _unload_if_idle(self) -> None:
        if self.members or self._task is not None or self._phase is _Phase.CLOSED:
            return
        if self._machine is None or self._machine.is_settled:
            self.close()
            self._on_idle(self)

    def close(self) -> None:
        """This broker no longer leads the partition in this epoch, or the share partition is idle."""
        self._phase = _Phase.CLOSED
        self._timer.close()
        self._dead_letters.close()
        self._retry.close()
        error = NotLeaderOrFollower(f"This broker no longer leads {self.partition.name} in epoch {self.leader_epoch}.")
        for number in list(self._waiters):
            self._complete(number, error)
        self._wake()

    async def stop(self) -> None:
        """The broker stops."""
        self.close()
        await self._dead_letters.stop()
        if self._inspecting is not None:
            self._inspecting.cancel()
            await asyncio.gather(self._inspecting, return_exceptions=True)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


def _settings(config: ShareGroupConfig) -> ShareSettings:
    return ShareSettings(
        config.record_lock_duration_ms,
        config.delivery_count_limit,
        config.partition_max_record_locks,
        config.retry_backoff,
        bool(config.dead_letter_topic),
        config.is_ordered,
    )


def _initial_offset(partition: Partition, reset: OffsetReset, support: ShareHost) -> int:
    log = partition.log
    if reset.strategy == "earliest":
        return log.start_offset
    if reset.strategy == "by_duration":
        found = log.offset_for_timestamp(support.clock.wall_ms() - reset.duration_ms)
        if found is not None:
            return min(found[1], partition.high_watermark)
    return partition.high_watermark
