"""`OrderedPartitionMachine`: a share partition whose records may wait for others of their key (`share.order=key`).

Keys are inside the batches. So records are inspected before they are acquired, in the order of their offsets:

    start_offset          inspected_until           end_offset
    | acquired, available | known from the durable state |      (after a failover, or while the config changes)

    inspect()   classifies the records from there on, and makes the window grow
    acquire()   acquires inspected records only

A record is blocked (AVAILABLE with the deadline `BLOCKED`) until the earlier records of its key are finished: accepted,
archived or archiving, durably. So one record of a key is in flight at a time, in order. A failing record, or one in
back-off, blocks its key alone, until the window is full of records that it blocks.
"""

from collections.abc import Iterable

from moldau.machines.shares.acquisition import AcquiredRange, AcquireLimits, LogRead, join
from moldau.machines.shares.inspection import BLOCKED, NOW, InspectedRecord, Inspection
from moldau.machines.shares.partition import SharePartitionMachine, ShareSettings
from moldau.machines.shares.state import RecordState, ShareState
from moldau.machines.shares.window import Run


class OrderedPartitionMachine(SharePartitionMachine):
    """A share partition, with or without an order of its records."""

    def __init__(
        self,
        state: ShareState,
        settings: ShareSettings,
        log_start_offset: int,
        log_end_offset: int,
        initial_offset: int,
        now_ms: float,
    ) -> None:
        super().__init__(state, settings, log_start_offset, log_end_offset, initial_offset, now_ms)
        self._inspection = Inspection(self.start_offset) if settings.is_ordered else None

    def configure(self, settings: ShareSettings) -> None:
        """The group's configs may have changed."""
        self.settings = settings
        if settings.is_ordered == (self._inspection is not None):
            return
        self._inspection = Inspection(self.start_offset) if settings.is_ordered else None
        for run in self.runs:
            if run.deadline_ms == BLOCKED:
                run.deadline_ms = NOW
        self._window.merge(0, len(self.runs))
        self._available_from = self.start_offset

    def next_fetch_offset(self) -> int | None:
        offset = super().next_fetch_offset()
        if self._inspection is None or offset is None:
            return offset
        return offset if offset < min(self._inspection.until_offset, self.end_offset) else None

    def acquire(self, member_id: str, read: LogRead, limits: AcquireLimits, now_ms: float) -> list[AcquiredRange]:
        if self._inspection is None:
            return super().acquire(member_id, read, limits, now_ms)
        first_offset = max(read.first_offset, self.start_offset)
        last_offset = min(read.end_offset, self._inspection.until_offset) - 1
        strict = limits._replace(is_strict=True)
        taken = self._acquire_available(member_id, first_offset, last_offset, limits.records_max, strict, now_ms)
        acquired: list[AcquiredRange] = []
        join(acquired, taken, limits.batch_size)
        return acquired

    # -- inspection

    @property
    def inspected_until(self) -> int | None:
        """Where the next inspection reads the log; None if none is necessary now."""
        inspection = self._inspection
        if inspection is None or self.next_fetch_offset() is not None:
            return None
        inspection.until_offset = max(inspection.until_offset, self.start_offset)
        is_necessary = inspection.until_offset < self.end_offset or self._room() > 0
        return inspection.until_offset if is_necessary else None

    def inspect(self, first_offset: int, end_offset: int, records: Iterable[InspectedRecord]) -> None:
        """The log was read from `inspected_until` to `end_offset`; it has nothing to deliver between these records."""
        inspection = self._inspection
        if inspection is None or first_offset != inspection.until_offset:
            return  # a result from before the config changed, or the log was cut
        position = first_offset
        for record in records:
            if record.offset >= self.end_offset and self._room() <= 0:
                end_offset = record.offset
                break
            if record.offset >= self.start_offset:
                self._archive_gap(max(position, self.start_offset), record.offset - 1)
                self._inspect(inspection, record)
            position = record.offset + 1
        self._archive_gap(max(position, self.start_offset), end_offset - 1)
        inspection.until_offset = end_offset
        self._available_from = min(self._available_from, first_offset)
        self._window.remove_finished()

    def _inspect(self, inspection: Inspection, record: InspectedRecord) -> None:
        window = self._window
        window.extend(record.offset + 1)
        start, end = window.cut(record.offset, record.offset)
        run = window.runs[start]
        is_unfinished = run.write or run.state in (RecordState.AVAILABLE, RecordState.ACQUIRED)
        is_blocked = is_unfinished and inspection.add(record)
        if is_blocked and run.state is RecordState.AVAILABLE and not run.write:
            window.change(run, RecordState.AVAILABLE, deadline_ms=BLOCKED)
        window.merge(start, end)

    def _end_waits(self, now_ms: float) -> None:
        """The next records of the keys of finished records may be acquired."""
        finished, self._finished = self._finished, []
        if self._inspection is None:
            return
        for each in finished:
            for offset in self._inspection.finish(*each):
                start, end = self._window.cut(offset, offset)
                run = self._window.runs[start]
                if run.state is RecordState.AVAILABLE and not run.write:
                    self._unblock(run, now_ms)
                self._window.merge(start, end)

    def _unblock(self, run: Run, now_ms: float) -> None:
        self._window.change(run, RecordState.AVAILABLE)
        if run.delivery_count:
            self._make_available(run, now_ms)
        else:
            self._available_from = min(self._available_from, run.first_offset)
