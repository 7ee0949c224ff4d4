"""One TCP connection in memory: two sides, and a line in each direction that keeps order, takes time and may be cut."""

import asyncio
import struct
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import Context
from typing import TYPE_CHECKING, Final

from moldau.model.ids import Address
from moldau.model.ports import Endpoint, FileSlice, Piece
from moldau.wire.foreign_protocols import refused_length

if TYPE_CHECKING:
    from moldau.testing.network import SimulatedNetwork

FIRST_FREE_PORT: Final = 32768  # those who connect are given one from here on
RESET: Final = "[Errno 104] Connection reset by peer"
GARBAGE: Final = 0xDD
FRAMES_PER_TURN_MAX: Final = 32
WINDOW_BYTES: Final = 256 * 1024  # taken by the network and not yet read by the peer; the rest stays queued

_length_at = struct.Struct(">i").unpack_from


class Line:
    """One direction of a connection. What is put in comes out in order, later, unless the connection is lost."""

    def __init__(self, network: "SimulatedNetwork", sender: str, receiver: str) -> None:
        self.sender, self.receiver = sender, receiver
        self._network = network
        self._packets: deque[tuple[float, Callable[[], None]]] = deque()
        self._last_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def put(self, arrive: Callable[[], None], held_back_s: float = 0.0) -> None:
        self._last_s = max(self._last_s, self._network.arrival_s() + held_back_s)
        self._packets.append((self._last_s, arrive))
        self.move()

    def move(self) -> None:
        """See to it that the first packet arrives in its time; a cut holds it until it is healed."""
        if self._timer is not None or not self._packets:
            return
        if self._network.is_cut(self.sender, self.receiver):
            self._network.hold(self)
        else:
            self._timer = self._network.loop.call_at(self._packets[0][0], self._arrive, context=Context())

    def lose(self) -> None:
        self._packets.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arrive(self) -> None:
        self._timer = None
        if not self._network.is_cut(self.sender, self.receiver):
            _, arrive = self._packets.popleft()
            arrive()
        self.move()


def _nothing() -> None:
    """Nobody asked to be told."""


class SimulatedConnection:
    """One side of a connection: the `Connection` port of whoever holds it."""

    other: "SimulatedConnection"

    def __init__(
        self, network: "SimulatedNetwork", local: Address, peer: Address, context: Context, frame_bytes_max: int
    ) -> None:
        self.local, self.peer = local, peer
        self.frame_bytes_max = frame_bytes_max
        self.is_lost = False
        self.is_in_void = False  # its host lost power, so nobody told the peer
        self.swallowed_bytes = 0  # what the peer sent into that void
        self._network = network
        self._context = context  # whose code the endpoint is
        self._endpoint: Endpoint | None = None
        self._line = Line(network, local.host, peer.host)
        self._queue: deque[Piece] = deque()
        self._queued_bytes = 0
        self._unread_bytes = 0  # on the line, or waiting at the peer
        self._received = bytearray()
        self._lent: list[bytearray] = []  # frames of this turn
        self.may_wait = False
        self.is_in_run = False
        self.when_turn_ends: Callable[[], None] = _nothing
        self._untold_bytes = 0  # received while paused: the peer's window still counts them
        self._has_ended = False  # the peer has closed; seen once all frames are read
        self._is_paused = False
        self._is_delivering = False
        self._is_waiting_to_write = False
        self._is_closing = False
        self._has_finished = False
        self._reason = ""

    # For the owner

    @property
    def queued_bytes(self) -> int:
        return self._queued_bytes

    @property
    def queued_memory_bytes(self) -> int:
        return sum(len(piece) for piece in self._queue if not isinstance(piece, FileSlice))

    @property
    def is_in_frame(self) -> bool:
        return bool(self._received) and self._may_read() and not self._has_frame()

    def send(self, pieces: Sequence[Piece]) -> None:
        if self.is_lost or self._is_closing:
            return
        self._queue.extend(pieces)
        self._queued_bytes += sum(len(piece) for piece in pieces)
        if not self._is_delivering and not self._is_waiting_to_write:
            self._transmit()

    def pause_reading(self) -> None:
        self._is_paused = True

    def resume_reading(self) -> None:
        if self._is_paused:
            self._is_paused = False
            self._tell_read()
            self._soon(self._deliver)

    def close(self) -> None:
        if self.is_lost or self._is_closing:
            return
        self._is_closing = True
        if not self._queue and not self._is_delivering:
            self._finish()

    def abort(self) -> None:
        if not self.is_lost:
            self._is_closing = True
            self._drop_queue()
            self._line.put(lambda: self.other._soon(self.other.be_reset))
            self._soon(lambda: self.lose(self._reason))

    # For the network

    def begin(self, endpoint: Endpoint) -> None:
        """Give the connection to its endpoint. What came before that has waited."""
        self._endpoint = endpoint
        endpoint.connected(self)
        self._soon(self._deliver)

    def lose(self, reason: str) -> None:
        """The end, once."""
        if self.is_lost:
            return
        self.is_lost = True
        self._drop_queue()
        self._network.forget(self)
        if self._endpoint is not None:
            self._endpoint.disconnected(reason)

    def be_reset(self) -> None:
        self._received.clear()
        self.lose(RESET)

    def die(self, *, silently: bool) -> None:
        """The process is gone. A kernel that lives tells the peer, after what was sent; one without power does not."""
        self.is_lost = True
        self.is_in_void = silently
        self._drop_queue()
        if silently:
            self._line.lose()
            return
        self._network.forget(self)
        is_abrupt = self._network.chance.random() < 0.5  # a reset if anything was unread, else an ordinary end
        self._line.put(lambda: self.other._soon(self.other.be_reset if is_abrupt else self.other._end))

    def reset_both(self) -> None:
        """Somebody between the two lost patience."""
        for side in (self, self.other):
            side._line.lose()
            side._soon(side.be_reset)

    # Out

    def _transmit(self) -> None:
        """Put on the line what the window lets through, file slices read only now."""
        if self.is_lost:
            return
        if self._network.stalls_sender():
            self._is_waiting_to_write = True
            self._network.loop.call_later(self._network.stall_s(), self._transmit_again, context=self._context)
            return
        parts = []
        while self._queue and self._unread_bytes < WINDOW_BYTES:
            part = self._next_part()
            if part is None:
                return
            parts.append(part)
        if parts:
            self._put(b"".join(parts))
        self._after_transmission()

    def _transmit_again(self) -> None:
        if (self._queue or self._is_closing) and not self.is_lost:
            self._transmit()

    def _next_part(self) -> bytes | None:
        piece = self._queue.popleft()
        try:
            part = _read(piece)
        except OSError as error:
            self._reason = f"lost while sending: {error}"
            self.abort()
            return None
        self._queued_bytes -= len(part)
        self._unread_bytes += len(part)
        return part

    def _put(self, data: bytes) -> None:
        self._network.trace.record("send", f"{self.local} to {self.peer} {len(data)} {zlib.crc32(data):08x}")
        if self._network.resets_packet(self.local.host, self.peer.host):
            self.reset_both()
        else:
            is_client = self.local.port >= FIRST_FREE_PORT
            self._line.put(lambda: self._arrive(data), self._network.held_back_s(data) if is_client else 0.0)

    def _arrive(self, data: bytes) -> None:
        other = self.other
        if other.is_in_void:
            other.swallowed_bytes += len(data)
            self._network.reset_if_up(other)
        elif not other.is_lost:
            other._soon(lambda: other._receive(data))

    def _after_transmission(self) -> None:
        if self._queue:
            self._is_waiting_to_write = True
            return
        if self._is_waiting_to_write:
            self._is_waiting_to_write = False
            if self._endpoint is not None:
                self._endpoint.drained()
        if self._is_closing and not self._queue:
            self._finish()

    def _finish(self) -> None:
        if not self._has_finished:
            self._has_finished = True
            self._line.put(lambda: self.other._soon(self.other._end))
            self._soon(lambda: self.lose(self._reason))

    def _drop_queue(self) -> None:
        self._queue.clear()
        self._queued_bytes = 0

    # In

    def _receive(self, data: bytes) -> None:
        self._received += data
        self._untold_bytes += len(data)
        self._tell_read()
        self._deliver()

    def _tell_read(self) -> None:
        """Whoever reads takes what comes, whole frames or not, and so makes room in the window."""
        if not self._is_paused and self._untold_bytes:
            self._network.loop.call_soon(self.other._credit, self._untold_bytes, context=self.other._context)
            self._untold_bytes = 0

    def _end(self) -> None:
        self._has_ended = True
        self._deliver()

    def _deliver(self) -> None:
        """Hand over whole frames, a bounded number a turn; answers leave together at the end."""
        if self._endpoint is None or self._is_delivering:
            return
        self._is_delivering = True
        frames = 0
        while self._may_read() and self._deliver_frame():
            frames += 1
            if frames == FRAMES_PER_TURN_MAX:
                self._soon(self._deliver)
                break
        self.when_turn_ends()
        for lent in self._lent:
            lent[:] = bytes([GARBAGE]) * len(lent)  # lent until the turn ended: whoever kept it reads rubbish
        self._lent.clear()
        self._is_delivering = False
        if not self._is_waiting_to_write and (self._queue or self._is_closing):
            self._transmit()
        if self._has_ended and self._may_read() and not self._has_frame():
            self._is_closing = True
            self._drop_queue()
            self._finish()

    def _may_read(self) -> bool:
        return not self._is_paused and not self._is_closing and not self.is_lost

    def _has_frame(self) -> bool:
        return len(self._received) >= 4 and len(self._received) - 4 >= _length_at(self._received)[0]

    def _deliver_frame(self) -> bool:
        if len(self._received) < 4:
            return False
        (length,) = _length_at(self._received)
        if not 0 <= length <= self.frame_bytes_max:
            self._refuse_frame(length)
            return False
        if len(self._received) - 4 < length:
            return False
        lent = self._received[4 : 4 + length]
        del self._received[: 4 + length]
        assert self._endpoint is not None
        self.is_in_run = len(self._received) > 0
        self._lent.append(lent)
        self._endpoint.frame_received(memoryview(lent))
        return True

    def _refuse_frame(self, length: int) -> None:
        self._reason = refused_length(length, self.frame_bytes_max)
        self.close()

    def _credit(self, read_bytes: int) -> None:
        self._unread_bytes -= read_bytes
        if self._is_waiting_to_write and self._unread_bytes < WINDOW_BYTES:
            self._transmit_again()

    def _soon(self, act: Callable[[], None]) -> None:
        self._network.loop.call_soon(act, context=self._context)


def _read(piece: Piece) -> bytes:
    if not isinstance(piece, FileSlice):
        return bytes(piece)
    part = piece.read()
    if len(part) < piece.length:
        raise OSError(f"a file ended {piece.length - len(part)} bytes before the slice of it that was promised")
    return part
