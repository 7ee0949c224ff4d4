"""A share partition with a log, members and a share coordinator, and what must hold of every record."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from moldau.machines.shares.acknowledgement import Acknowledgement, AcknowledgeType, OffsetRange
from moldau.machines.shares.acquisition import AcquiredRange, AcquireLimits, LogRead
from moldau.machines.shares.inspection import InspectedRecord
from moldau.machines.shares.ordered_partition import OrderedPartitionMachine
from moldau.machines.shares.partition import SharePartitionMachine, ShareSettings
from moldau.machines.shares.retry import RetryBackoff
from moldau.machines.shares.state import (
    UNINITIALIZED_START_OFFSET,
    RecordState,
    ShareState,
    StateBatch,
    StateWrite,
)
from moldau.machines.shares.window import DURABLE, Run
from moldau.model.errors import InvalidRecordState

LOCK_MS = 1000.0
SETTINGS = ShareSettings(lock_duration_ms=LOCK_MS, delivery_count_limit=3, in_flight_max=30)
BACKOFF = RetryBackoff(initial_ms=500.0, factor=2.0, max_ms=1500.0)
NEW = ShareState(0, UNINITIALIZED_START_OFFSET)
TERMINAL = (RecordState.ACKNOWLEDGED, RecordState.ARCHIVED)


def limits(records_max: int = 1000, *, is_strict: bool = False, batch_size: int = 1000) -> AcquireLimits:
    return AcquireLimits(records_max, batch_size, is_strict)


def machine_of(
    end_offset: int = 100, state: ShareState = NEW, settings: ShareSettings = SETTINGS, start_offset: int = 0
) -> SharePartitionMachine:
    """A machine of a log with offsets 0 to `end_offset`."""
    return SharePartitionMachine(state, settings, start_offset, end_offset, start_offset, 0.0)


def read_of(machine: SharePartitionMachine, *batches: tuple[int, int], end_offset: int | None = None) -> LogRead:
    """The batches, read from where the machine fetches next."""
    offset = machine.next_fetch_offset()
    assert offset is not None
    end = batches[-1][1] + 1 if end_offset is None else end_offset
    return LogRead(offset, end, [OffsetRange(*each) for each in batches if each[1] >= offset])


def runs_of(machine: SharePartitionMachine) -> list[tuple[int, int, str]]:
    return [(run.first_offset, run.last_offset, run.state.name) for run in machine.runs]


class Coordinator:
    """The durable state, offset by offset."""

    def __init__(self) -> None:
        self.start_offset = UNINITIALIZED_START_OFFSET
        self.records: dict[int, tuple[int, int]] = {}  # state and delivery count

    def write(self, write: StateWrite) -> None:
        self.start_offset = write.start_offset
        for batch in write.batches:
            for offset in range(batch.first_offset, batch.last_offset + 1):
                self.records[offset] = (batch.delivery_state, batch.delivery_count)
        self.records = {offset: each for offset, each in self.records.items() if offset >= self.start_offset}

    def read(self) -> ShareState:
        batches = tuple(StateBatch(offset, offset, *each) for offset, each in sorted(self.records.items()))
        return ShareState(0, self.start_offset, batches)


@dataclass
class Delivery:
    """The state of one record as seen from outside."""

    count: int = 0
    holder: str | None = None
    deadline_ms: float = 0.0
    is_accepted: bool = False  # confirmed to the member
    may_be_gone: bool = False  # rejected, or delivered as often as allowed
    not_before_ms: float = 0.0  # the end of its back-off
    is_expired: bool = False  # its lock
    is_dead: bool = False  # its dead letter is written
    is_gap: bool = False  # according to a member


@dataclass
class Scene:
    """Any sequence of events; each step checks the invariants."""

    batches: list[OffsetRange]
    end_offset: int
    now_ms: float = 0.0
    log_start: int = 0
    coordinator: Coordinator = field(default_factory=Coordinator)
    records: dict[int, Delivery] = field(default_factory=dict)
    unconfirmed: dict[int, list[tuple[int, int]]] = field(default_factory=dict)  # by write: offset and type
    write: StateWrite | None = None
    settings: ShareSettings = SETTINGS
    keys: Mapping[int, int | None] = field(default_factory=dict)  # by offset
    delivered: set[int] = field(default_factory=set)  # ever

    def __post_init__(self) -> None:
        for batch in self.batches:
            for offset in range(batch.first_offset, batch.last_offset + 1):
                self.records[offset] = Delivery()
        self.machine = OrderedPartitionMachine(NEW, self.settings, 0, self.end_offset, 0, 0.0)

    def inspect(self) -> None:
        """Show the next records to the machine, if it needs that."""
        offset = self.machine.inspected_until
        if offset is not None and offset < self.end_offset:
            end_offset = min(offset + 7, self.end_offset)
            found = (each for each in sorted(self.records) if offset <= each < end_offset)
            self.machine.inspect(offset, end_offset, [InspectedRecord(each, self.keys.get(each)) for each in found])
            self.check()

    def fetch(self, member: str, records_max: int, batches_max: int, *, is_strict: bool = False) -> list[AcquiredRange]:
        self.inspect()
        offset = self.machine.next_fetch_offset()
        if offset is None or offset >= self.end_offset:
            return []
        found = [each for each in self.batches if each.last_offset >= offset][:batches_max]
        is_end = not found or found[-1] == self.batches[-1]
        read = LogRead(offset, self.end_offset if is_end else found[-1].last_offset + 1, found)
        acquired = self.machine.acquire(member, read, limits(records_max, is_strict=is_strict), self.now_ms)
        count = 0
        for first, last, deliveries in acquired:
            for each in range(first, last + 1):
                count += 1
                self._deliver(member, each, deliveries)
        if is_strict:
            assert count <= records_max
        self.check()
        return acquired

    def _deliver(self, member: str, offset: int, deliveries: int) -> None:
        record = self.records[offset]  # offsets of gaps are not delivered
        assert offset >= self.log_start
        assert record.holder is None or record.deadline_ms <= self.now_ms, "acquired twice at one time"
        assert not record.is_accepted, "accepted and delivered again"
        self._check_order(offset)
        assert not record.is_dead, "delivered after its dead letter was written"
        assert deliveries > record.count or record.count == 0, "the delivery count fell"
        assert record.not_before_ms <= self.now_ms, "delivered during its back-off"
        record.is_expired = False
        record.count, record.holder, record.deadline_ms = deliveries, member, self.now_ms + LOCK_MS
        if deliveries >= SETTINGS.delivery_count_limit:
            record.may_be_gone = True

    def _check_order(self, offset: int) -> None:
        self.delivered.add(offset)
        key = self.keys.get(offset)
        if key is None or not self.settings.is_ordered:
            return
        for other in (each for each, its_key in self.keys.items() if its_key == key):
            assert other >= offset or self._is_done(other), f"{offset} is delivered before {other} is done"
            assert other <= offset or other not in self.delivered, f"{offset} is delivered after {other}"

    def _is_done(self, offset: int) -> bool:
        """Whether the record needs no delivery any more, durably."""
        state, _ = self.coordinator.records.get(offset, (RecordState.AVAILABLE, 0))
        is_passed = offset < max(self.log_start, self.coordinator.start_offset)
        return is_passed or state in (*TERMINAL, RecordState.ARCHIVING)

    def acknowledge(self, member: str, offsets: Sequence[int], kind: int) -> None:
        held = [each for each in offsets if self.records[each].holder == member]
        try:
            number = self.machine.acknowledge(
                member, [Acknowledgement(each, each, (kind,)) for each in held], self.now_ms
            )
        except InvalidRecordState:  # only a lock that has expired, or whose state a write holds, can be missing
            assert any(self._may_be_lost(each) for each in held)
            return
        for each in held:
            record = self.records[each]
            if kind == AcknowledgeType.RENEW:
                record.deadline_ms = self.now_ms + LOCK_MS
            elif number != DURABLE:  # otherwise these records are deleted
                self.unconfirmed.setdefault(number, []).append((each, kind))
                record.is_gap |= kind == AcknowledgeType.GAP
                record.may_be_gone |= kind in (AcknowledgeType.REJECT, AcknowledgeType.GAP)
        self.check()

    def _may_be_lost(self, offset: int) -> bool:
        return self.records[offset].deadline_ms <= self.now_ms or offset in self._pending()

    def bury(self, count: int) -> None:
        """Write dead letters, which is only done for records that are durably rejected."""
        for letter in self.machine.dead_letters(count):
            assert self.coordinator.records[letter.offset] == (RecordState.ARCHIVING, letter.delivery_count)
            record = self.records[letter.offset]
            assert record.may_be_gone
            assert not record.is_accepted
            record.is_dead = True
            self.machine.archive(letter.offset)
        self.check()

    def begin_write(self) -> None:
        if self.write is None:
            self.write = self.machine.next_write()

    def end_write(self, *, succeeds: bool, is_applied: bool = True) -> None:
        if self.write is None:
            return
        if succeeds or is_applied:
            self.coordinator.write(self.write)
        self.write = None
        number = self.machine.persisted(self.now_ms) if succeeds else self.machine.persist_failed()
        for offset, kind in self.unconfirmed.pop(number, []):
            record = self.records[offset]
            if succeeds:
                record.holder = None
                record.is_accepted |= kind == AcknowledgeType.ACCEPT
                if kind == AcknowledgeType.RELEASE:
                    self._wait_for_retry(record)
        self.check()

    def advance(self, by_ms: float) -> None:
        self.now_ms += by_ms
        self.machine.expire(self.now_ms)
        pending = self._pending()
        for offset, record in self.records.items():
            is_due = record.holder is not None and record.deadline_ms <= self.now_ms
            if is_due and not record.is_expired and offset not in pending:
                record.is_expired = True
                self._wait_for_retry(record)
        self.check()

    def _pending(self) -> set[int]:
        return {offset for ranges in self.unconfirmed.values() for offset, _ in ranges}

    def _wait_for_retry(self, record: Delivery) -> None:
        record.not_before_ms = self.now_ms + self.settings.backoff.delay_ms(record.count)

    def close_session(self, member: str) -> None:
        self.machine.release_member(member, self.now_ms)
        pending = self._pending()
        for offset, record in self.records.items():
            if record.holder == member and offset not in pending:
                record.holder = None
                if not record.is_expired:
                    self._wait_for_retry(record)
        self.check()

    def delete_records(self, offset: int) -> None:
        self.log_start = max(self.log_start, min(offset, self.end_offset))
        self.batches = [each for each in self.batches if each.last_offset >= self.log_start]
        self.machine.advance_log_start(self.log_start, self.now_ms)
        self.check()

    def change_leader(self, *, is_applied: bool) -> None:
        """Another leader continues with the durable state; a write under way may have been applied."""
        if self.write is not None and is_applied:
            self.coordinator.write(self.write)
        self.write = None
        self.unconfirmed.clear()
        for record in self.records.values():
            record.holder = None
            record.count = 0  # deliveries may be lost
            record.not_before_ms, record.is_expired = 0.0, False
        self.machine = OrderedPartitionMachine(
            self.coordinator.read(), self.settings, self.log_start, self.end_offset, self.log_start, self.now_ms
        )
        for offset, (state, count) in self.coordinator.records.items():
            if self.machine.start_offset <= offset < self.end_offset:
                run = _run_at(self.machine, offset)
                assert (int(run.state), run.delivery_count) == (state, count)
                record = self.records.setdefault(offset, Delivery())
                record.count = count
                if count:
                    self._wait_for_retry(record)
        self.check()

    def drain(self) -> None:
        """Every record is delivered in the end, unless it was accepted, rejected, deleted or tried too often."""
        while self.write is not None or any(self.unconfirmed.values()):
            self.begin_write()
            self.end_write(succeeds=True)
        for _ in range(len(self.records) * (SETTINGS.delivery_count_limit + 1)):
            self.advance(LOCK_MS + BACKOFF.max_ms)
            for first, last, _ in self.fetch("last", 7, 2):
                self.acknowledge("last", range(first, last + 1), AcknowledgeType.ACCEPT)
            self.begin_write()
            self.end_write(succeeds=True)
            self.bury(10)
        for offset, record in self.records.items():
            is_buried = record.is_dead or record.is_gap or not self.settings.has_dead_letters
            is_done = record.is_accepted or (record.may_be_gone and is_buried)
            assert is_done or offset < self.log_start, f"record {offset} was skipped"
        assert self.machine.start_offset == self.machine.end_offset >= max(self.end_offset, self.log_start)

    def check(self) -> None:
        """The runs cover the window without overlaps, are merged, and match the counts."""
        machine = self.machine
        position, previous = machine.start_offset, None
        for run in machine.runs:
            assert run.first_offset == position
            assert run.last_offset >= run.first_offset
            assert previous is None or not previous.is_like(run)
            position, previous = run.last_offset + 1, run
        assert position == machine.end_offset
        for state in RecordState:
            assert machine.count(state) == sum(len(run) for run in machine.runs if run.state is state)
        unfinished = sum(len(run) for run in machine.runs if not run.is_finished)
        assert unfinished <= SETTINGS.in_flight_max
        assert not machine.runs or not machine.runs[0].is_finished


def _run_at(machine: SharePartitionMachine, offset: int) -> Run:
    return next(run for run in machine.runs if run.first_offset <= offset <= run.last_offset)
