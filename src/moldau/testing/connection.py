"""A simulated TCP connection: two sides, and one ordered line per direction with latency, which can be cut."""

import asyncio
import struct
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import Context
from typing import TYPE_CHECKING, Final

from moldau.model.ids import Address
from moldau.model.ports import Endpoint, FileSlice, Piece
from moldau.wire.foreign_protocols import describe_invalid_length

if TYPE_CHECKING:
    from moldau.testing.network import SimulatedNetwork

FIRST_FREE_PORT: Final = 32768  # the first ephemeral port of a host
RESET: Final = "[Errno 104] Connection reset by peer"
GARBAGE: Final = 0xDD
FRAMES_PER_TURN_MAX: Final = 32
WINDOW_BYTES: Final = 256 * 1024  # sent and not yet read by the peer, at most; the rest stays queued

_length_at = struct.Struct(">i").unpack_from


class Line:
    """One direction of a connection: delivers packets later and in order, unless the connection is lost."""

    def __init__(self, network: "SimulatedNetwork", sender: str, receiver: str) -> None:
        self.sender, self.receiver = sender, receiver
        self._network = network
        self._packets: deque[tuple[float, Callable[[], None]]] = deque()
        self._last_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def put(self, arrive: Callable[[], None], delay_s: float = 0.0) -> None:
        self._last_s = max(self._last_s, self._network.arrival_s() + delay_s)
        self._packets.append((self._last_s, arrive))
        self.schedule()

    def schedule(self) -> None:
        """Schedule the arrival of the first packet; a cut holds it until `heal`."""
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
        self.schedule()


def _no_op() -> None:
    """The default of `on_turn_end`."""


class SimulatedConnection:
    """One side of a connection: the `Connection` port of its owner."""

    other: "SimulatedConnection"

    def __init__(
        self, network: "SimulatedNetwork", local: Address, peer: Address, context: Context, frame_bytes_max: int
    ) -> None:
        self.local, self.peer = local, peer
        self.peer_subject: str | None = None
        self.frame_bytes_max = frame_bytes_max
        self.is_lost = False
        self.is_half_open = False  # this host lost power, so the peer got neither FIN nor RST
        self.dropped_bytes = 0  # sent by the peer since then
        self._network = network
        self._context = context  # of the process that runs the endpoint
        self._endpoint: Endpoint | None = None
        self._line = Line(network, local.host, peer.host)
        self._queue: deque[Piece] = deque()
        self._queued_bytes = 0
        self._unread_bytes = 0  # in flight, or not yet read by the peer
        self._received = bytearray()
        self._lent: list[bytearray] = []  # frames of this turn
        self.may_defer_reads = False
        self.has_more_bytes = False
        self.on_turn_end: Callable[[], None] = _no_op
        self._uncredited_bytes = 0  # received while paused: they still fill the peer's window
        self._has_eof = False  # the peer has closed; handled once all frames are read
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
            self._return_credit()
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
            self._line.put(lambda: self.other._soon(self.other.on_reset))
            self._soon(lambda: self.lose(self._reason))

    # For the network

    def begin(self, endpoint: Endpoint) -> None:
        """Attach the endpoint and deliver what arrived before."""
        self._endpoint = endpoint
        endpoint.connected(self)
        self._soon(self._deliver)

    def lose(self, reason: str) -> None:
        """Close this side and notify the endpoint, once."""
        if self.is_lost:
            return
        self.is_lost = True
        self._drop_queue()
        self._network.forget(self)
        if self._endpoint is not None:
            self._endpoint.disconnected(reason)

    def on_reset(self) -> None:
        self._received.clear()
        self.lose(RESET)

    def die(self, *, silently: bool) -> None:
        """Handle the death of the process: the kernel sends RST or FIN after the data, unless the power is lost."""
        self.is_lost = True
        self.is_half_open = silently
        self._drop_queue()
        if silently:
            self._line.lose()
            return
        self._network.forget(self)
        is_rst = self._network.chance.random() < 0.5  # RST if there was unread data, else FIN
        self._line.put(lambda: self.other._soon(self.other.on_reset if is_rst else self.other._on_eof))

    def reset_both(self) -> None:
        """Reset both sides, as a middlebox may."""
        for side in (self, self.other):
            side._line.lose()
            side._soon(side.on_reset)

    # Out

    def _transmit(self) -> None:
        """Send what fits into the window; file slices are read only now."""
        if self.is_lost:
            return
        if self._network.stalls_sender():
            self._is_waiting_to_write = True
            self._network.loop.call_later(self._network.stall_s(), self._resume_transmission, context=self._context)
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

    def _resume_transmission(self) -> None:
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
            self._line.put(lambda: self._arrive(data), self._network.request_delay_s(data) if is_client else 0.0)

    def _arrive(self, data: bytes) -> None:
        other = self.other
        if other.is_half_open:
            other.dropped_bytes += len(data)
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
            self._line.put(lambda: self.other._soon(self.other._on_eof))
            self._soon(lambda: self.lose(self._reason))

    def _drop_queue(self) -> None:
        self._queue.clear()
        self._queued_bytes = 0

    # In

    def _receive(self, data: bytes) -> None:
        self._received += data
        self._uncredited_bytes += len(data)
        self._return_credit()
        self._deliver()

    def _return_credit(self) -> None:
        """Unless paused, reading frees the peer's window for all received bytes, whole frames or not."""
        if not self._is_paused and self._uncredited_bytes:
            self._network.loop.call_soon(self.other._credit, self._uncredited_bytes, context=self.other._context)
            self._uncredited_bytes = 0

    def _on_eof(self) -> None:
        self._has_eof = True
        self._deliver()

    def _deliver(self) -> None:
        """Deliver whole frames, a bounded number per turn; responses are sent together at the end of the turn."""
        if self._endpoint is None or self._is_delivering:
            return
        self._is_delivering = True
        frames = 0
        while self._may_read() and self._deliver_frame():
            frames += 1
            if frames == FRAMES_PER_TURN_MAX:
                self._soon(self._deliver)
                break
        self.on_turn_end()
        for lent in self._lent:
            lent[:] = bytes([GARBAGE]) * len(
                lent
            )  # a frame is valid until the turn ends: later reads must fail visibly
        self._lent.clear()
        self._is_delivering = False
        if not self._is_waiting_to_write and (self._queue or self._is_closing):
            self._transmit()
        if self._has_eof and self._may_read() and not self._has_frame():
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
            self._reject_frame(length)
            return False
        if len(self._received) - 4 < length:
            return False
        lent = self._received[4 : 4 + length]
        del self._received[: 4 + length]
        assert self._endpoint is not None
        self.has_more_bytes = len(self._received) > 0
        self._lent.append(lent)
        self._endpoint.frame_received(memoryview(lent))
        return True

    def _reject_frame(self, length: int) -> None:
        self._reason = describe_invalid_length(length, self.frame_bytes_max)
        self.close()

    def _credit(self, read_bytes: int) -> None:
        self._unread_bytes -= read_bytes
        if self._is_waiting_to_write and self._unread_bytes < WINDOW_BYTES:
            self._resume_transmission()

    def _soon(self, act: Callable[[], None]) -> None:
        self._network.loop.call_soon(act, context=self._context)


def _read(piece: Piece) -> bytes:
    if not isinstance(piece, FileSlice):
        return bytes(piece)
    part = piece.read()
    if len(part) < piece.length:
        raise OSError(f"file slice is {piece.length - len(part)} bytes short")
    return part
