"""Answers of one connection in the order of its requests, and a peer that is not listened to while it takes none."""

import asyncio
from collections import deque
from typing import Final

from moldau.broker.runtime.time_slice import ALONE
from moldau.model.ports import Connection, FileSlice, Piece
from moldau.model.units import MiB

REQUESTS_IN_FLIGHT_MAX: Final = ALONE  # in weights: a heavy request counts for several
# Beyond these, a peer that does not read is not listened to either. Slices of files take no memory.
QUEUED_BYTES_MAX: Final = 64 * MiB
QUEUED_MEMORY_BYTES_MAX: Final = 1 * MiB
ANSWER_BYTES_PER_WEIGHT: Final = QUEUED_MEMORY_BYTES_MAX // REQUESTS_IN_FLIGHT_MAX


class Reply:
    """The place of one answer in the order of answers, and how much its connection carries by it."""

    __slots__ = ("pieces", "weight")

    def __init__(self, weight: int, pieces: list[Piece] | None = None) -> None:
        self.weight = weight
        self.pieces = pieces


def _weight(pieces: list[Piece]) -> int:
    """Of an answer that is ready and has to wait for those before it."""
    in_memory_bytes = sum(len(piece) for piece in pieces if not isinstance(piece, FileSlice))
    return 1 + in_memory_bytes // ANSWER_BYTES_PER_WEIGHT


class Replies:
    """See the module. `connection` is there once the peer is connected."""

    __slots__ = ("_is_held", "_lined_up", "_unmute", "_weight", "connection")

    def __init__(self) -> None:
        self.connection: Connection | None = None
        self._lined_up: deque[Reply] = deque()
        self._weight = 0
        self._is_held = False
        self._unmute: asyncio.TimerHandle | None = None

    def __bool__(self) -> bool:
        return bool(self._lined_up)

    def send(self, pieces: list[Piece], reply: Reply | None) -> None:
        """An answer is ready: it leaves, with those that waited for it, unless others have to come first."""
        connection = self.connection
        assert connection is not None
        lined_up = self._lined_up
        if reply is None:
            if not lined_up:
                if pieces:
                    connection.send(pieces)
                    if connection.queued_bytes > QUEUED_MEMORY_BYTES_MAX:
                        self.hold_if_needed()
                return
            self.line_up(Reply(_weight(pieces), pieces))
            return
        reply.pieces = pieces
        while lined_up and lined_up[0].pieces is not None:
            first = lined_up.popleft()
            self._weight -= first.weight
            if first.pieces:
                connection.send(first.pieces)
        self.hold_if_needed()

    def line_up(self, reply: Reply) -> None:
        self._lined_up.append(reply)
        self._weight += reply.weight
        self.hold_if_needed()

    def clear(self) -> None:
        """The peer is gone."""
        if self._unmute:
            self._unmute.cancel()
        self._lined_up.clear()
        self._weight = 0

    # -- back-pressure

    def hold(self) -> None:
        """Read nothing until there is no reason left, which `hold_if_needed` finds out."""
        assert self.connection is not None
        self._is_held = True
        self.connection.pause_reading()

    def hold_if_needed(self) -> None:
        connection = self.connection
        assert connection is not None
        is_full = self._weight >= REQUESTS_IN_FLIGHT_MAX or connection.queued_bytes > QUEUED_MEMORY_BYTES_MAX
        if is_full and self._weight < REQUESTS_IN_FLIGHT_MAX:
            is_full = (
                connection.queued_bytes > QUEUED_BYTES_MAX or connection.queued_memory_bytes > QUEUED_MEMORY_BYTES_MAX
            )
        if is_full and not self._is_held:
            self.hold()
            # What is queued may leave as soon as this turn ends, and then nobody is told that it has drained.
            asyncio.get_running_loop().call_soon(self.hold_if_needed)
        elif self._is_held and not is_full and self._unmute is None:
            self._is_held = False
            connection.resume_reading()

    def mute(self, throttle_ms: int) -> None:
        """Whoever asks too much is not listened to for a while."""
        self.hold()
        loop = asyncio.get_running_loop()
        until_s = loop.time() + throttle_ms / 1000
        if self._unmute is not None:
            until_s = max(until_s, self._unmute.when())
            self._unmute.cancel()
        self._unmute = loop.call_at(until_s, self._end_mute)

    def _end_mute(self) -> None:
        self._unmute = None
        self.hold_if_needed()
