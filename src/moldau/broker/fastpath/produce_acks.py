"""Acknowledgements that wait for other replicas: sent in the turn in which the high watermark reaches their batches.

    flush() ── PendingAcks of one partition ──> wait_for() ── place in the response queue, waiter at the partition
                                                   │
       high watermark reaches the last batch ──────┼──> finish(): all responses as one buffer
       leader changes, timeout ────────────────────┴──> finish() in the next turn: an error for each request

The waiter implements `CommitWaiter` as a future does, so the partition completes it without a turn of the event loop in
between. The places in the response queue are taken in request order, so responses keep it whatever finishes first. One
timer serves all waiters of the connection.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from moldau.broker.partitions.commit_outcome import error_after_wait
from moldau.broker.runtime.lazy_timer import LazyTimer
from moldau.model.errors import KafkaError, RequestTimedOut

if TYPE_CHECKING:
    from moldau.broker.fastpath.produce import CachedRequest, PendingAcks
    from moldau.broker.requests.fast_path import PendingResponse, Responses
    from moldau.broker.runtime.meters import ApiMeter
    from moldau.model.ports import Clock, Piece

RejectCached = Callable[["CachedRequest", int, KafkaError], list["Piece"]]


class _CommitWaiter:
    """Waits for the batches of one `PendingAcks`. A partition keeps it where the handler would leave a future."""

    __slots__ = ("_is_done", "_replicated", "acks", "deadline_ms", "response")

    def __init__(
        self, replicated: "ReplicatedAcks", acks: "PendingAcks", deadline_ms: float, response: "PendingResponse"
    ) -> None:
        self._replicated = replicated
        self._is_done = False
        self.acks = acks
        self.deadline_ms = deadline_ms
        self.response = response

    def done(self) -> bool:
        return self._is_done

    def cancel(self) -> None:
        self._is_done = True

    def set_result(self, _: None) -> None:
        """All batches are committed: respond now, there is nothing else to do."""
        self._is_done = True
        self._replicated.finish(self, None)

    def set_exception(self, error: Exception) -> None:
        """Respond in the next turn: the leader may be changing now, and the response names the new one."""
        self._is_done = True
        asyncio.get_running_loop().call_soon(self._replicated.finish, self, error)


class ReplicatedAcks:
    """The acknowledgements of one connection that wait for other replicas, in request order."""

    __slots__ = ("_clock", "_due_ms", "_meter", "_reject", "_responses", "_timer", "_waiters")

    def __init__(self, clock: "Clock", responses: "Responses", meter: "ApiMeter", reject: RejectCached) -> None:
        self._clock = clock
        self._responses = responses
        self._meter = meter
        self._reject = reject
        self._waiters: deque[_CommitWaiter] = deque()
        self._timer = LazyTimer(self._time_out)
        self._due_ms = 0.0

    def wait_for(self, acks: "PendingAcks", now_ms: float) -> None:
        assert acks.partition is not None
        timeout_ms = max(acks.timeout_ms, 0)
        waiter = _CommitWaiter(self, acks, now_ms + timeout_ms, self._responses.reserve(acks.count))
        if not self._waiters or waiter.deadline_ms < self._due_ms:
            self._due_ms = waiter.deadline_ms
            self._timer.set(timeout_ms)
        self._waiters.append(waiter)
        acks.partition.waiters.await_commit(acks.end_offset, waiter)

    def finish(self, waiter: _CommitWaiter, failure: Exception | None) -> None:
        """Send the acknowledgements, or the error that each request gets instead."""
        waiters, acks = self._waiters, waiter.acks
        while waiters and waiters[0].done():
            waiters.popleft()
        if not waiters:
            self._timer.stop()
        assert acks.partition is not None
        error = error_after_wait(failure, acks.partition, acks.end_offset)
        self._meter.finished_together(acks.count, self._clock.monotonic_ms() - acks.started_ms)
        pieces: list[Piece] = [acks.responses]
        if error is not None:
            pieces = [piece for cached, number in acks.requests for piece in self._reject(cached, number, error)]
        waiter.response.send(pieces)

    def _time_out(self) -> None:
        now_ms = self._clock.monotonic_ms()
        for waiter in list(self._waiters):
            if not waiter.done() and waiter.deadline_ms <= now_ms:
                waiter.set_exception(RequestTimedOut())
        deadlines_ms = [each.deadline_ms for each in self._waiters if not each.done()]
        if deadlines_ms:
            self._due_ms = min(deadlines_ms)
            self._timer.set(max(self._due_ms - now_ms, 0))

    def close(self) -> None:
        """The connection is closed: no response is sent."""
        for waiter in self._waiters:
            waiter.cancel()
        self._waiters.clear()
        self._timer.close()
