"""`SharePartitionMachine`: which records of a partition a share group has acquired and acknowledged (KIP-932).

The broker that leads the partition runs one machine per share group. It is pure: time is an argument, and reading the
log and writing the state are its driver's work.

                 acquire                    acknowledge: accept
    AVAILABLE ------------> ACQUIRED -----------------------------> ACKNOWLEDGED
        ^                      |  \\---------------------------------> ARCHIVED
        |                      |     reject, gap; release or expiry after the last delivery attempt
        +----------------------+
          release, lock expired, session closed

If the group has a dead-letter topic, a record is ARCHIVING before it is ARCHIVED. Its dead letter is written after the
ARCHIVING state is durable, and it is archived after its dead letter is (see `broker/shares/dead_letters.py`).

A released record may have to wait: until its back-off is over it is AVAILABLE with a deadline, and is not acquired. The
deadlines of locks and of back-offs are in one heap, so that the driver needs one timer. A back-off is not durable: the
next leader begins it again, for every record that was delivered before.

An acknowledgement changes its records at once, so that no lock expires meanwhile, and counts once its write is durable
(`Run.write`): until then the records are neither acquired again nor passed by the start offset. At most one write is
under way. Changes in the meantime go into the next one, so that a slow write collects many acknowledgements:

    acknowledge() -> number of a write     the driver keeps the response
    next_write()  -> StateWrite            unless one is under way
    persisted()                            the acknowledgements of that write may be sent
    persist_failed()                       their records are acquired again, by the same members

Expired locks and closed sessions change records without an acknowledgement. They are written too, but nothing waits for
that: if the write is lost with the leader, the next leader delivers the records with an older delivery count.
"""

import heapq
from collections.abc import Iterable, Sequence
from math import inf
from typing import Final, NamedTuple

from moldau.machines.shares.acknowledgement import (
    TYPES,
    Acknowledgement,
    AcknowledgeType,
    Change,
    OffsetRange,
    changes_of,
)
from moldau.machines.shares.acquisition import AcquiredRange, AcquireLimits, LogRead, join
from moldau.machines.shares.retry import RetryBackoff
from moldau.machines.shares.state import UNINITIALIZED_START_OFFSET, RecordState, ShareState, StateBatch, StateWrite
from moldau.machines.shares.window import DURABLE, TERMINAL, InFlightWindow, Run
from moldau.machines.shares.writes import state_batches
from moldau.model.errors import InvalidRecordState, InvalidRequest

RUNS_PER_LOCK: Final = 4  # limits the runs of a window, in relation to the records that may be in flight
DELIVERY_COUNT_MAX: Final = 2**15 - 1  # an int16 in the protocol
_DEADLINES_MIN: Final = 1024  # from this many on, deadlines of released locks are purged


class ShareSettings(NamedTuple):
    """The group's configs."""

    lock_duration_ms: float
    delivery_count_limit: int
    in_flight_max: int
    backoff: RetryBackoff = RetryBackoff()
    has_dead_letters: bool = False
    is_ordered: bool = False  # by key


class DeadLetter(NamedTuple):
    """A record that is not delivered any more, although no member accepted it."""

    offset: int
    delivery_count: int
    is_rejected: bool  # by a member; otherwise its attempts are used up


class SharePartitionMachine:
    """The in-flight window of one share partition, on the leader of the partition, in one leader epoch."""

    def __init__(
        self,
        state: ShareState,
        settings: ShareSettings,
        log_start_offset: int,
        log_end_offset: int,
        initial_offset: int,
        now_ms: float,
    ) -> None:
        """`state` is the durable one; `initial_offset` is where a new group begins (`share.auto.offset.reset`)."""
        self.settings = settings
        self.state_epoch = state.state_epoch
        self.log_start_offset = log_start_offset
        is_new = state.start_offset == UNINITIALIZED_START_OFFSET
        start_offset = initial_offset if is_new else state.start_offset
        # an unclean election may have cut the log below it
        self._window = InFlightWindow(min(max(start_offset, log_start_offset), max(log_start_offset, log_end_offset)))
        self._deadlines: list[tuple[float, int, int]] = []  # a heap of deadline, first and last offset
        self._load(state.batches, log_end_offset)
        self._window.remove_finished()
        self._available_from = self._window.start_offset  # no record before it is available
        self._begin_backoffs(now_ms)
        self._finished: list[OffsetRange] = []  # records for which others may wait
        self._rejected: set[int] = set()  # offsets that are ARCHIVING because a member rejected them
        self._changed: list[OffsetRange] = []  # to be written
        self._must_write_start = self._window.start_offset != state.start_offset
        self._write = DURABLE  # the number of the newest write
        self._written: list[OffsetRange] | None = None  # while a write is under way: its ranges

    def _load(self, batches: Iterable[StateBatch], log_end_offset: int) -> None:
        window = self._window
        for batch in sorted(batches):
            if batch.last_offset >= window.end_offset and batch.first_offset < log_end_offset:
                window.extend(batch.first_offset)
                state = RecordState(batch.delivery_state)
                window.extend(min(batch.last_offset + 1, log_end_offset), state, batch.delivery_count)

    def _begin_backoffs(self, now_ms: float) -> None:
        """The records that an earlier leader delivered may have been released just now."""
        for run in self.runs:
            if run.is_available and run.delivery_count:
                self._make_available(run, now_ms)

    # -- state

    @property
    def start_offset(self) -> int:
        """All records before it need no delivery any more."""
        return self._window.start_offset

    @property
    def end_offset(self) -> int:
        """The records from here on were never acquired."""
        return self._window.end_offset

    @property
    def runs(self) -> Sequence[Run]:
        return self._window.runs

    def count(self, state: RecordState) -> int:
        """The number of records in the window in this state."""
        return self._window.counts[state]

    @property
    def waiting(self) -> int:
        """The number of records that are released but not available yet."""
        return sum(len(run) for run in self.runs if run.state is RecordState.AVAILABLE and run.deadline_ms)

    @property
    def deadline_ms(self) -> float | None:
        """When `expire` is due; some of these locks may have been released."""
        return self._deadlines[0][0] if self._deadlines else None

    @property
    def is_settled(self) -> bool:
        """Whether the durable state is all that is to be known."""
        return not (
            self.count(RecordState.ACQUIRED)
            or self.count(RecordState.ARCHIVING)
            or self._changed
            or self._must_write_start
            or self._written is not None
        )

    # -- fetching

    def next_fetch_offset(self) -> int | None:
        """Where the next fetch reads the log; None if no record may be acquired now."""
        window = self._window
        for index in range(window.index_of(self._available_from), len(window.runs)):
            run = window.runs[index]
            if run.is_available:
                self._available_from = max(self._available_from, run.first_offset)
                return self._available_from
            self._available_from = run.last_offset + 1
        return window.end_offset if self._room() > 0 else None

    def _room(self) -> int:
        """How many records the window may grow by."""
        if len(self._window.runs) >= RUNS_PER_LOCK * self.settings.in_flight_max:
            return 0
        return self.settings.in_flight_max - self._window.unfinished

    def acquire(self, member_id: str, read: LogRead, limits: AcquireLimits, now_ms: float) -> list[AcquiredRange]:
        """Acquire the available records of what was read, up to the limits, and lock them for the member."""
        window = self._window
        acquired: list[AcquiredRange] = []
        left = limits.records_max
        position = max(read.first_offset, window.start_offset)
        for batch in read.batches:
            first_offset = max(position, batch.first_offset)
            if first_offset > batch.last_offset:
                continue
            if left <= 0 or (first_offset >= window.end_offset and self._room() <= 0):
                break
            self._archive_gap(position, first_offset - 1)
            taken = self._acquire_batch(member_id, first_offset, batch.last_offset, left, limits, now_ms)
            left -= sum(each.last_offset - each.first_offset + 1 for each in taken)
            join(acquired, taken, limits.batch_size)
            position = batch.last_offset + 1
            if window.end_offset < position:
                break  # the window is full
        else:
            self._archive_gap(position, read.end_offset - 1)
        window.remove_finished()
        return acquired

    def _archive_gap(self, first_offset: int, last_offset: int) -> None:
        """There is nothing to deliver. This is not written: another leader finds the same in the log."""
        if first_offset > last_offset:
            return
        window = self._window
        for run in self._cut_available(first_offset, last_offset):
            window.change(run, RecordState.ARCHIVED)
        self._merge(first_offset, last_offset)
        if window.end_offset >= first_offset:
            window.extend(last_offset + 1, RecordState.ARCHIVED)

    def _acquire_batch(
        self, member_id: str, first_offset: int, last_offset: int, left: int, limits: AcquireLimits, now_ms: float
    ) -> list[AcquiredRange]:
        window = self._window
        room = min(self._room(), left) if limits.is_strict else self._room()
        window.extend(min(last_offset + 1, window.end_offset + max(0, room)))
        return self._acquire_available(member_id, first_offset, last_offset, left, limits, now_ms)

    def _acquire_available(
        self, member_id: str, first_offset: int, last_offset: int, left: int, limits: AcquireLimits, now_ms: float
    ) -> list[AcquiredRange]:
        window = self._window
        deadline_ms = now_ms + self.settings.lock_duration_ms
        acquired: list[AcquiredRange] = []
        for available in self._cut_available(first_offset, min(last_offset, window.end_offset - 1)):
            if limits.is_strict and left < len(available):
                if left <= 0:
                    break
                window.cut(available.first_offset, available.first_offset + left - 1)
            count = min(available.delivery_count + 1, DELIVERY_COUNT_MAX)
            window.change(
                available, RecordState.ACQUIRED, member_id=member_id, deadline_ms=deadline_ms, delivery_count=count
            )
            acquired.append(AcquiredRange(available.first_offset, available.last_offset, count))
            left -= len(available)
        if acquired:
            self._wake_at(deadline_ms, acquired[0].first_offset, acquired[-1].last_offset)
        self._merge(first_offset, last_offset)
        return acquired

    def _cut_available(self, first_offset: int, last_offset: int) -> list[Run]:
        """The available runs in the range, cut to it."""
        if first_offset > last_offset or first_offset >= self._window.end_offset:
            return []
        start, end = self._window.cut(first_offset, last_offset)
        return [run for run in self._window.runs[start:end] if run.is_available]

    def _merge(self, first_offset: int, last_offset: int) -> None:
        self._window.merge(self._window.index_of(first_offset), self._window.index_of(last_offset) + 1)

    # -- acknowledgements

    def acknowledge(self, member_id: str, acknowledgements: Sequence[Acknowledgement], now_ms: float) -> int:
        """Apply all of them or, if one is invalid, none.

        Return the number of the write after which they are durable; `DURABLE` if there is nothing to write.
        """
        changes = [change for each in acknowledgements for change in changes_of(each)]
        self._check(member_id, changes)
        write = DURABLE
        for offsets, kind in changes:
            if offsets.last_offset < self.log_start_offset:
                continue
            if kind == AcknowledgeType.RENEW:
                self._renew(offsets, now_ms)
            else:
                write = self._apply(offsets, kind)
        return write

    def _check(self, member_id: str, changes: Sequence[Change]) -> None:
        previous_offset = -1
        for (first_offset, last_offset), kind in changes:
            if kind not in TYPES:
                raise InvalidRequest(f"Unknown acknowledgement type {kind}.")
            if first_offset <= previous_offset:
                raise InvalidRequest("The ranges of acknowledgements must be in ascending order and not overlap.")
            previous_offset = last_offset
            checked_offset = max(first_offset, self.log_start_offset)  # records before it are deleted
            if checked_offset > last_offset:
                continue
            if checked_offset < self.start_offset or last_offset >= self.end_offset:
                raise InvalidRecordState(f"Records {first_offset} to {last_offset} are not all acquired.")
            for run in self._window.overlapping(checked_offset, last_offset):
                if not run.is_acquired_by(member_id):
                    raise InvalidRecordState(f"Records {first_offset} to {last_offset} are not acquired by the member.")

    def _renew(self, offsets: OffsetRange, now_ms: float) -> None:
        deadline_ms = now_ms + self.settings.lock_duration_ms
        start, end = self._window.cut(max(offsets.first_offset, self.start_offset), offsets.last_offset)
        for run in self._window.runs[start:end]:
            run.deadline_ms = deadline_ms
        self._window.merge(start, end)
        self._wake_at(deadline_ms, *offsets)

    def _apply(self, offsets: OffsetRange, kind: int) -> int:
        window = self._window
        write = self._write + 1
        start, end = window.cut(max(offsets.first_offset, self.start_offset), offsets.last_offset)
        for run in window.runs[start:end]:
            state = self._state_after(run, kind)
            window.change(run, state, write=write, member_id=run.member_id, deadline_ms=run.deadline_ms)
            if kind == AcknowledgeType.REJECT and state is RecordState.ARCHIVING:
                self._rejected.update(range(run.first_offset, run.last_offset + 1))
        window.merge(start, end)
        self._mark_changed(offsets)
        return write

    def _state_after(self, run: Run, kind: int) -> RecordState:
        if kind == AcknowledgeType.ACCEPT:
            return RecordState.ACKNOWLEDGED
        if kind == AcknowledgeType.RELEASE and run.delivery_count < self.settings.delivery_count_limit:
            return RecordState.AVAILABLE
        if kind != AcknowledgeType.GAP and self.settings.has_dead_letters:
            return RecordState.ARCHIVING
        return RecordState.ARCHIVED

    # -- locks, sessions, and the log

    def _wake_at(self, deadline_ms: float, first_offset: int, last_offset: int) -> None:
        deadlines = self._deadlines
        if len(deadlines) >= max(_DEADLINES_MIN, 2 * len(self.runs)):
            waiting = (run for run in self.runs if 0 < run.deadline_ms < inf)
            deadlines[:] = [(run.deadline_ms, run.first_offset, run.last_offset) for run in waiting]
            heapq.heapify(deadlines)
        heapq.heappush(deadlines, (deadline_ms, first_offset, last_offset))

    def expire(self, now_ms: float) -> int:
        """End the back-offs that are over, and release the records whose locks have expired; return their number."""
        deadlines, expired = self._deadlines, 0
        while deadlines and deadlines[0][0] <= now_ms:
            _, first_offset, last_offset = heapq.heappop(deadlines)
            for run in self._window.overlapping(first_offset, last_offset):
                if not 0 < run.deadline_ms <= now_ms or run.write:
                    continue
                if run.state is RecordState.ACQUIRED:
                    self._release(run, now_ms)
                    expired += len(run)
                elif run.state is RecordState.AVAILABLE:
                    self._window.change(run, RecordState.AVAILABLE)
                    self._available_from = min(self._available_from, run.first_offset)
            self._merge(first_offset, last_offset)
        self._end_waits(now_ms)
        self._window.remove_finished()
        return expired

    def release_member(self, member_id: str, now_ms: float) -> None:
        """Release the records of a member whose session is closed."""
        for run in self.runs:
            if run.is_acquired_by(member_id):
                self._release(run, now_ms)
        self._window.merge(0, len(self.runs))
        self._end_waits(now_ms)
        self._window.remove_finished()

    def _release(self, run: Run, now_ms: float) -> None:
        state = self._state_after(run, AcknowledgeType.RELEASE)
        if state is not RecordState.AVAILABLE:  # nothing that waits for this may happen before it is durable
            self._window.change(run, state, write=self._write + 1, member_id=run.member_id, deadline_ms=run.deadline_ms)
        else:
            self._window.change(run, state)
        self._mark_changed(OffsetRange(run.first_offset, run.last_offset))
        if run.state is RecordState.AVAILABLE:
            self._make_available(run, now_ms)

    def _end_waits(self, now_ms: float) -> None:  # noqa: ARG002 - used where records wait for others
        """Some records are finished: others may have waited for them."""
        self._finished.clear()

    def _make_available(self, run: Run, now_ms: float) -> None:
        """Let a released run be acquired, once its back-off is over."""
        delay_ms = self.settings.backoff.delay_ms(run.delivery_count)
        if delay_ms:
            run.deadline_ms = now_ms + delay_ms
            self._wake_at(run.deadline_ms, run.first_offset, run.last_offset)
        else:
            self._available_from = min(self._available_from, run.first_offset)

    def advance_log_start(self, log_start_offset: int, now_ms: float) -> None:
        """Records before `log_start_offset` were deleted."""
        self.log_start_offset = max(self.log_start_offset, log_start_offset)
        if log_start_offset > self.start_offset:
            self._finished.append(OffsetRange(self.start_offset, log_start_offset - 1))
            self._window.remove_before(log_start_offset)
            self._end_waits(now_ms)
            self._window.remove_finished()
            self._must_write_start = True

    # -- dead letters

    def dead_letters(self, count_max: int) -> list[DeadLetter]:
        """The first records that are durably ARCHIVING."""
        found: list[DeadLetter] = []
        for run in self.runs if self.count(RecordState.ARCHIVING) else ():
            if run.state is RecordState.ARCHIVING and not run.write:
                end_offset = min(run.last_offset + 1, run.first_offset + count_max - len(found))
                found += (
                    DeadLetter(offset, run.delivery_count, offset in self._rejected)
                    for offset in range(run.first_offset, end_offset)
                )
            if len(found) >= count_max:
                break
        return found

    def archive(self, offset: int) -> None:
        """The dead letter of a record is written, or the group has no dead-letter topic any more."""
        self._rejected.discard(offset)
        if not self.start_offset <= offset < self.end_offset:
            return
        window = self._window
        start, end = window.cut(offset, offset)
        for run in window.runs[start:end]:
            if run.state is RecordState.ARCHIVING and not run.write:
                window.change(run, RecordState.ARCHIVED)
                self._mark_changed(OffsetRange(offset, offset))
        window.merge(start, end)
        window.remove_finished()

    # -- writes

    def _mark_changed(self, offsets: OffsetRange) -> None:
        changed = self._changed
        if changed and changed[-1].last_offset + 1 == offsets.first_offset:
            offsets = OffsetRange(changed.pop().first_offset, offsets.last_offset)
        elif len(changed) >= RUNS_PER_LOCK * self.settings.in_flight_max:
            changed.clear()
            offsets = OffsetRange(self.start_offset, self.end_offset - 1)
        changed.append(offsets)

    def next_write(self) -> StateWrite | None:
        """The next write, which is then under way; None if one is, or nothing has changed."""
        if self._written is not None or not (self._changed or self._must_write_start):
            return None
        self._written, self._changed, self._must_write_start = self._changed, [], False
        self._write += 1
        window = self._window
        start_offset, passed = window.end_offset, 0
        for run in window.runs:
            if not run.is_terminal:
                start_offset = run.first_offset
                break
            passed += len(run)
        complete = sum(window.counts[state] for state in TERMINAL) - passed
        return StateWrite(start_offset, complete, state_batches(window, self._written, start_offset))

    def persisted(self, now_ms: float) -> int:
        """The write under way is durable; return its number."""
        written = self._end_write()
        for run in self._runs_of_write(written):
            self._window.change(run, run.state)
            if run.state is RecordState.AVAILABLE:
                self._make_available(run, now_ms)
            else:
                self._finished.append(OffsetRange(run.first_offset, run.last_offset))
        self._merge_all(written)
        self._end_waits(now_ms)
        self._window.remove_finished()
        return self._write

    def persist_failed(self) -> int:
        """The write under way has failed; return its number. Its records are acquired again, by the same members."""
        written = self._end_write()
        for run in self._runs_of_write(written):
            self._window.change(run, RecordState.ACQUIRED, member_id=run.member_id, deadline_ms=run.deadline_ms)
            self._wake_at(run.deadline_ms, run.first_offset, run.last_offset)
            self._rejected.difference_update(range(run.first_offset, run.last_offset + 1))
        self._merge_all(written)
        self._changed = [*written, *self._changed]
        self._must_write_start = True
        return self._write

    def _end_write(self) -> list[OffsetRange]:
        if self._written is None:
            raise AssertionError("no write is under way")
        written, self._written = self._written, None
        return written

    def _runs_of_write(self, written: Iterable[OffsetRange]) -> list[Run]:
        """The runs whose acknowledgements were part of the newest write."""
        found = (run for offsets in written for run in self._window.overlapping(*offsets))
        return [run for run in dict.fromkeys(found) if run.write == self._write]

    def _merge_all(self, ranges: Iterable[OffsetRange]) -> None:
        for offsets in ranges:
            self._merge(*offsets)
