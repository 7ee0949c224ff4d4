"""`InFlightWindow`: the states of the records between a share partition's start and end offset, run-length encoded.

    start_offset                                         end_offset
    | acquired by m1 | acknowledged | available | acquired by m2 | archived |

Runs are contiguous and cover the window. A change splits the runs at its ends and merges them again with equal
neighbours, so that memory grows with the number of different states side by side, not with the number of records.

An available run with a `deadline_ms` is not acquired before that time: its records are in back-off.

A run whose `write` is set has changed by an acknowledgement that is not durable yet. It keeps the member and the
deadline of its lock, to which it returns if the write fails.
"""

from bisect import bisect_right
from collections.abc import Iterator

from moldau.machines.shares.state import RecordState

NO_MEMBER = ""
DURABLE = 0  # the `write` of a run that waits for no write
TERMINAL = (RecordState.ACKNOWLEDGED, RecordState.ARCHIVED)


class Run:
    """Consecutive records in the same state."""

    __slots__ = ("deadline_ms", "delivery_count", "first_offset", "last_offset", "member_id", "state", "write")

    def __init__(self, first_offset: int, last_offset: int, state: RecordState, delivery_count: int) -> None:
        self.first_offset = first_offset
        self.last_offset = last_offset
        self.state = state
        self.delivery_count = delivery_count
        self.member_id = NO_MEMBER
        self.deadline_ms = 0.0  # of the lock, or when an available record may be acquired; monotonic
        self.write = DURABLE

    def __len__(self) -> int:
        return self.last_offset - self.first_offset + 1

    @property
    def is_terminal(self) -> bool:
        """Whether the records need no delivery any more."""
        return self.state in TERMINAL

    @property
    def is_available(self) -> bool:
        return self.state is RecordState.AVAILABLE and not self.write and not self.deadline_ms

    @property
    def is_finished(self) -> bool:
        """Whether the records need no delivery any more, durably."""
        return not self.write and self.state in TERMINAL

    def is_acquired_by(self, member_id: str) -> bool:
        return self.state is RecordState.ACQUIRED and self.member_id == member_id

    def is_like(self, other: "Run") -> bool:
        """Whether both are one run if they are side by side."""
        return (
            self.state is other.state
            and self.delivery_count == other.delivery_count
            and self.write == other.write
            and self.member_id == other.member_id
            and self.deadline_ms == other.deadline_ms
        )

    def split_at(self, offset: int) -> "Run":
        """Cut off and return the part from `offset` on."""
        rest = Run(offset, self.last_offset, self.state, self.delivery_count)
        rest.member_id, rest.deadline_ms, rest.write = self.member_id, self.deadline_ms, self.write
        self.last_offset = offset - 1
        return rest


def _first_offset(run: Run) -> int:
    return run.first_offset


class InFlightWindow:
    """Runs in the order of offsets, and how many records are in which state."""

    __slots__ = ("counts", "end_offset", "runs", "start_offset", "unfinished")

    def __init__(self, start_offset: int) -> None:
        self.start_offset = start_offset
        self.end_offset = start_offset
        self.runs: list[Run] = []
        self.counts = dict.fromkeys(RecordState, 0)
        self.unfinished = 0  # records that need a delivery or whose acknowledgement is not durable yet

    def index_of(self, offset: int) -> int:
        """The index of the run with the offset; the first or the number of runs outside the window."""
        if offset >= self.end_offset:
            return len(self.runs)
        return max(0, bisect_right(self.runs, offset, key=_first_offset) - 1)

    def overlapping(self, first_offset: int, last_offset: int) -> Iterator[Run]:
        """The runs with records in the range. The window must not change meanwhile."""
        for index in range(self.index_of(first_offset), len(self.runs)):
            run = self.runs[index]
            if run.first_offset > last_offset:
                return
            yield run

    def extend(self, end_offset: int, state: RecordState = RecordState.AVAILABLE, delivery_count: int = 0) -> None:
        """Add the records up to `end_offset`, which are not in the window yet."""
        if end_offset > self.end_offset:
            run = Run(self.end_offset, end_offset - 1, state, delivery_count)
            self.runs.append(run)
            self._count(run, 1)
            self.end_offset = end_offset
            self._merge(len(self.runs) - 1, len(self.runs))

    def cut(self, first_offset: int, last_offset: int) -> tuple[int, int]:
        """Split the runs at both ends of the range; return the indexes of its first run and behind its last."""
        start = self._cut_at(first_offset)
        return start, self._cut_at(last_offset + 1)

    def _cut_at(self, offset: int) -> int:
        index = self.index_of(offset)
        if index < len(self.runs) and self.runs[index].first_offset < offset:
            self.runs.insert(index + 1, self.runs[index].split_at(offset))
            return index + 1
        return index

    def change(
        self,
        run: Run,
        state: RecordState,
        *,
        write: int = DURABLE,
        member_id: str = NO_MEMBER,
        deadline_ms: float = 0.0,
        delivery_count: int | None = None,
    ) -> None:
        """Change the state of a whole run; `merge` must follow."""
        self._count(run, -1)
        run.state, run.write, run.member_id, run.deadline_ms = state, write, member_id, deadline_ms
        if delivery_count is not None:
            run.delivery_count = delivery_count
        self._count(run, 1)

    def _count(self, run: Run, sign: int) -> None:
        records = sign * len(run)
        self.counts[run.state] += records
        if not run.is_finished:
            self.unfinished += records

    def merge(self, start: int, end: int) -> None:
        """Merge equal neighbours among the runs from index `start` to `end`, and with those beside them."""
        self._merge(max(0, start - 1), min(len(self.runs), end + 1))

    def _merge(self, start: int, end: int) -> None:
        start = max(0, start - 1)
        merged: list[Run] = []
        for run in self.runs[start:end]:
            if merged and merged[-1].is_like(run):
                merged[-1].last_offset = run.last_offset
            else:
                merged.append(run)
        if len(merged) < end - start:
            self.runs[start:end] = merged

    def remove_finished(self) -> None:
        """Move the start offset past the records that need no delivery any more."""
        count = 0
        for run in self.runs:
            if not run.is_finished:
                break
            self._count(run, -1)
            count += 1
        if count:
            del self.runs[:count]
            self.start_offset = self.runs[0].first_offset if self.runs else self.end_offset

    def remove_before(self, offset: int) -> None:
        """Remove all records before the offset, whatever their state."""
        if offset <= self.start_offset:
            return
        count = self._cut_at(offset)
        for run in self.runs[:count]:
            self._count(run, -1)
        del self.runs[:count]
        self.start_offset = offset
        self.end_offset = max(offset, self.end_offset)
