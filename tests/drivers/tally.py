"""A minimal replicated machine with every kind of decision, and a log whose commits are controlled by a test."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Hashable, Iterable, Sequence

from moldau.machines.decision import REQUESTER, CancelTimer, Decision, SetTimer, Ticket, respond
from moldau.model.errors import InvalidRequest, KafkaError

LIMIT = 1000


class Tally:
    """Adds up numbers. Requests may wait until the sum reaches a mark; a timer closes the tally."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.offsets: list[int] = []
        self._waiting: dict[Ticket, int] = {}  # soft: tickets and the sum they wait for

    @property
    def sum(self) -> int:
        return sum(self.numbers)

    def apply(self, record: int, offset: int) -> None:
        if record == 13:
            raise RuntimeError("a number that cannot be added")
        self.numbers.append(record)
        self.offsets.append(offset)

    def decide_elected(self, now_ms: float) -> Decision[int, None]:  # noqa: ARG002
        return respond(None, timers=[SetTimer("closing", 60_000)])

    def decide_timed_out(self, event: Hashable, now_ms: float) -> Decision[int, None]:
        if event == "broken":
            raise RuntimeError("unknown timer event")
        return Decision([-1], effects=[(event, now_ms)])

    def decide_add(self, *numbers: int) -> Decision[int, int]:
        total = self.sum + sum(numbers)
        if total > LIMIT:
            raise InvalidRequest(f"{total} is too much")
        done = [ticket for ticket, mark in self._waiting.items() if mark <= total]
        for ticket in done:
            del self._waiting[ticket]
        responses: dict[Ticket, int | KafkaError] = {REQUESTER: total, **dict.fromkeys(done, total)}
        return Decision(list(numbers), responses, effects=[("added", total)] if numbers else ())

    def decide_wait(self, mark: int, ticket: Ticket) -> Decision[int, int]:
        if self.sum >= mark:
            return respond(self.sum)
        self._waiting[ticket] = mark
        return Decision()

    def decide_turn_away(self) -> Decision[int, int]:
        rejected = InvalidRequest("go away")
        return Decision(responses={REQUESTER: 0, **dict.fromkeys(self._waiting, rejected)})

    def decide_timer(self, event: Hashable, delay_ms: float | None) -> Decision[int, None]:
        return respond(None, timers=[CancelTimer(event) if delay_ms is None else SetTimer(event, delay_ms)])


class MemoryLog:
    """Everything is written at once; `commit` decides what is committed."""

    def __init__(self, *numbers: int) -> None:
        self.records: list[int] = list(numbers)
        self.appends: list[Sequence[Sequence[int]]] = []
        self.high_watermark = len(numbers)
        self.failure: Exception | None = None
        self.chunk_records = 10
        self.chunks_read = 0
        self._committed: Callable[[int], None] | None = None

    @property
    def end_offset(self) -> int:
        return len(self.records)

    def append(self, decisions: Sequence[Sequence[int]]) -> None:
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure
        self.appends.append(decisions)
        for records in decisions:
            self.records.extend(records)

    def watch(self, committed: Callable[[int], None]) -> None:
        self._committed = committed

    def commit(self, end_offset: int | None = None) -> None:
        self.high_watermark = self.end_offset if end_offset is None else end_offset
        assert self._committed is not None
        self._committed(self.high_watermark)

    async def replay(self) -> AsyncGenerator[Iterable[tuple[int, int]], None]:
        for start in range(0, len(self.records), self.chunk_records):
            await asyncio.sleep(0.001)
            self.chunks_read += 1
            yield list(enumerate(self.records[start : start + self.chunk_records], start))
