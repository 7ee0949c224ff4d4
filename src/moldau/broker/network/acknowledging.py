"""Batches of one connection that wait for other replicas: acknowledged in the turn in which the last has them."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from moldau.broker.handlers.produce import error_after_wait
from moldau.broker.network.replies import Replies, Reply
from moldau.broker.runtime.lazy_timer import LazyTimer
from moldau.model.errors import KafkaError, RequestTimedOut

if TYPE_CHECKING:
    from moldau.broker.network.repetition import Known, Run
    from moldau.broker.runtime.meters import ApiMeter
    from moldau.model.ports import Clock, Piece

Refuse = Callable[["Known", int, KafkaError], list["Piece"]]


class _Wait:
    """One run. It takes the place of a future where partitions keep who waits."""

    __slots__ = ("_all", "_is_over", "deadline_ms", "reply", "run")

    def __init__(self, waits: "Acknowledging", run: "Run", deadline_ms: float) -> None:
        self._all = waits
        self._is_over = False
        self.run = run
        self.deadline_ms = deadline_ms
        self.reply = Reply(run.count)

    def done(self) -> bool:
        return self._is_over

    def forget(self) -> None:
        """Nobody is there to be answered."""
        self._is_over = True

    def set_result(self, _: None) -> None:
        """All of it is committed: nothing but the answer is to be done, so it is done now."""
        self._is_over = True
        self._all.finish(self, None)

    def set_exception(self, error: Exception) -> None:
        """Who leads may be changing at this moment: what a refusal says is found out in the next turn."""
        self._is_over = True
        asyncio.get_running_loop().call_soon(self._all.finish, self, error)


class Acknowledging:
    """All runs of a connection that wait, in the order they came."""

    __slots__ = ("_clock", "_due_ms", "_meter", "_refuse", "_replies", "_timer", "_waits")

    def __init__(self, clock: "Clock", replies: Replies, meter: "ApiMeter", refuse: Refuse) -> None:
        self._clock = clock
        self._replies = replies
        self._meter = meter
        self._refuse = refuse
        self._waits: deque[_Wait] = deque()
        self._timer = LazyTimer(self._give_up)
        self._due_ms = 0.0

    def wait_for(self, run: "Run", now_ms: float) -> None:
        assert run.partition is not None
        timeout_ms = max(run.timeout_ms, 0)
        wait = _Wait(self, run, now_ms + timeout_ms)
        self._replies.line_up(wait.reply)
        if not self._waits or wait.deadline_ms < self._due_ms:
            self._due_ms = wait.deadline_ms
            self._timer.set(timeout_ms)
        self._waits.append(wait)
        run.partition.await_commit(run.end_offset, wait)

    def finish(self, wait: _Wait, failure: Exception | None) -> None:
        """Acknowledge it, or say why not."""
        waits, run = self._waits, wait.run
        while waits and waits[0].done():
            waits.popleft()
        if not waits:
            self._timer.stop()
        assert run.partition is not None
        refusal = error_after_wait(failure, run.partition, run.end_offset)
        self._meter.finished_together(run.count, self._clock.monotonic_ms() - run.started_ms)
        pieces: list[Piece] = [run.answers]
        if refusal is not None:
            pieces = [piece for known, number in run.asked for piece in self._refuse(known, number, refusal)]
        self._replies.send(pieces, wait.reply)

    def _give_up(self) -> None:
        """The time is up for those that are not committed yet."""
        now_ms = self._clock.monotonic_ms()
        for wait in list(self._waits):
            if not wait.done() and wait.deadline_ms <= now_ms:
                wait.set_exception(RequestTimedOut())
        left = [each.deadline_ms for each in self._waits if not each.done()]
        if left:
            self._due_ms = min(left)
            self._timer.set(max(self._due_ms - now_ms, 0))

    def close(self) -> None:
        """The connection is gone."""
        for wait in self._waits:
            wait.forget()
        self._waits.clear()
        self._timer.close()
