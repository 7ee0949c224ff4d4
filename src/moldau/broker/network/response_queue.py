"""Responses of one connection in request order, and back-pressure on a peer that does not read them."""

import asyncio
from collections import deque
from typing import Final

from moldau.broker.runtime.time_slice import ALONE
from moldau.model.ports import Connection, FileSlice, Piece
from moldau.model.units import MiB

REQUESTS_IN_FLIGHT_MAX: Final = ALONE  # in weights: a heavy request counts for several
# Beyond these, reading from a peer that does not read pauses. File slices take no memory.
QUEUED_BYTES_MAX: Final = 64 * MiB
QUEUED_MEMORY_BYTES_MAX: Final = 1 * MiB
RESPONSE_BYTES_PER_WEIGHT: Final = QUEUED_MEMORY_BYTES_MAX // REQUESTS_IN_FLIGHT_MAX


class PendingResponse:
    """The place of one response in the queue, and its weight in the connection's budget."""

    __slots__ = ("_queue", "pieces", "weight")

    def __init__(self, queue: "ResponseQueue", weight: int, pieces: list[Piece] | None = None) -> None:
        self._queue = queue
        self.weight = weight
        self.pieces = pieces  # None until the response is ready

    def send(self, pieces: list[Piece]) -> None:
        """The response is ready: send it, and those behind it that are, unless it has to wait for earlier ones."""
        self.pieces = pieces
        self._queue.send_ready()


def _weight(pieces: list[Piece]) -> int:
    """Of a response that is ready and waits for earlier ones."""
    in_memory_bytes = sum(len(piece) for piece in pieces if not isinstance(piece, FileSlice))
    return 1 + in_memory_bytes // RESPONSE_BYTES_PER_WEIGHT


class ResponseQueue:
    """See the module. `connection` is set once the peer is connected."""

    __slots__ = ("_is_paused", "_muted_until_s", "_pending", "_weight", "connection")

    def __init__(self) -> None:
        self.connection: Connection | None = None
        self._pending: deque[PendingResponse] = deque()
        self._weight = 0
        self._is_paused = False
        self._muted_until_s = 0.0  # 0: not muted

    def __bool__(self) -> bool:
        return bool(self._pending)

    def send(self, pieces: list[Piece]) -> None:
        """Send the response of the newest request, or queue it behind earlier ones. No pieces: no response."""
        if self._pending:
            self._append(PendingResponse(self, _weight(pieces), pieces))
            return
        if pieces:
            connection = self.connection
            assert connection is not None
            connection.send(pieces)
            if connection.queued_bytes > QUEUED_MEMORY_BYTES_MAX:
                self.pause_if_full()

    def reserve(self, weight: int) -> PendingResponse:
        """The place of a response that is not ready."""
        pending = PendingResponse(self, weight)
        self._append(pending)
        return pending

    def _append(self, pending: PendingResponse) -> None:
        self._pending.append(pending)
        self._weight += pending.weight
        self.pause_if_full()

    def send_ready(self) -> None:
        """Send the responses at the head of the queue that are ready."""
        connection = self.connection
        assert connection is not None
        queue = self._pending
        while queue and queue[0].pieces is not None:
            first = queue.popleft()
            self._weight -= first.weight
            if first.pieces:
                connection.send(first.pieces)
        self.pause_if_full()

    def clear(self) -> None:
        """The connection is closed."""
        self._muted_until_s = 0.0
        self._pending.clear()
        self._weight = 0

    # -- back-pressure

    def pause(self) -> None:
        """Stop reading until `pause_if_full` finds no reason left."""
        assert self.connection is not None
        self._is_paused = True
        self.connection.pause_reading()

    def pause_if_full(self) -> None:
        """Stop reading while the queue is full, and resume when it is not."""
        connection = self.connection
        assert connection is not None
        is_full = self._weight >= REQUESTS_IN_FLIGHT_MAX or connection.queued_bytes > QUEUED_MEMORY_BYTES_MAX
        if is_full and self._weight < REQUESTS_IN_FLIGHT_MAX:
            is_full = (
                connection.queued_bytes > QUEUED_BYTES_MAX or connection.queued_memory_bytes > QUEUED_MEMORY_BYTES_MAX
            )
        if is_full and not self._is_paused:
            self.pause()
            # Queued bytes may leave when this turn ends; no `drained` follows then.
            asyncio.get_running_loop().call_soon(self.pause_if_full)
        elif self._is_paused and not is_full and not self._muted_until_s:
            self._is_paused = False
            connection.resume_reading()

    def mute(self, until_s: float) -> bool:
        """Stop reading from a client that exceeds its quota. False if it is muted for longer already."""
        if until_s <= self._muted_until_s:
            return False
        self._muted_until_s = until_s
        self.pause()
        return True

    def unmute(self, until_s: float) -> None:
        """The mute until this time is over; a later one may have replaced it."""
        if self._muted_until_s == until_s:
            self._muted_until_s = 0.0
            self.pause_if_full()
