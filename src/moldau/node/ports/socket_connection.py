"""TCP: frames are received into a reusable buffer; buffers and file slices are sent from a queue.

asyncio opens and closes the connections. Bytes are read and written through a duplicate of the socket: asyncio's
transport copies the buffers it queues, its `sendfile` costs ten times the system call, and its four calls between a
readable socket and the protocol are noticeable on small requests.
"""

import asyncio
import errno
import os
import socket
import struct
import sys
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Final

from moldau.model.ids import Address
from moldau.model.ports import Endpoint, FileSlice, Piece
from moldau.model.units import KiB, MiB
from moldau.node.ports.capabilities import Capabilities
from moldau.node.ports.deferred_reader import DeferredReader
from moldau.node.ports.receive_buffer import ReceiveBudget, ReceiveBuffer
from moldau.wire.foreign_protocols import describe_invalid_length

FRAMES_PER_TURN_MAX: Final = 32
TURN_SECONDS_MAX: Final = 0.0005  # the remaining frames of a peer wait for its next turn
SEND_BYTES_PER_TURN_MAX: Final = 2 * MiB
READ_BYTES_WITHOUT_SENDFILE: Final = 256 * KiB
READ_BYTES_INSTEAD_OF_SENDFILE: Final = 32 * KiB
BUFFERS_PER_SEND_MAX: Final = 64  # well under the kernel's IOV_MAX
MISSING_BYTES_MIN: Final = 32 * KiB  # below this, SO_RCVLOWAT costs more than it saves

# Reasons to pause reading; it resumes when none is left.
_BY_OWNER: Final = 1
_FOR_BUDGET: Final = 2
_FOR_TURN: Final = 4
_FOR_GOOD: Final = 8

_length_at = struct.Struct(">i").unpack_from


class SocketConnection(asyncio.Protocol):
    """One TCP connection that carries frames."""

    local: Address
    peer: Address
    peer_subject: str | None = None

    def __init__(
        self,
        endpoint: Endpoint,
        frame_bytes_max: int,
        budget: ReceiveBudget,
        capabilities: Capabilities,
        descriptor_max: int = sys.maxsize,
        deferred_reader: DeferredReader | None = None,
    ) -> None:
        """`deferred_reader` reads the socket while `may_defer_reads` is set; None where epoll is missing."""
        self.frame_bytes_max = frame_bytes_max
        self._descriptor_max = descriptor_max
        self._endpoint = endpoint
        self._capabilities = capabilities
        self._deferred_reader = deferred_reader
        self._may_defer_reads = False
        self._received = ReceiveBuffer(budget)
        self._queue: deque[Piece] = deque()
        self._queued_bytes = 0
        self._paused = 0
        self._resuming: asyncio.Handle | None = None  # scheduled for the next turn
        self._is_corked = False
        self._awaited_bytes = 1
        self._is_reading = False
        self._is_waiting_to_write = False
        self._is_closing = False
        self._is_lost = False
        self._reason = ""
        self.has_more_bytes = False
        self.on_turn_end: Callable[[], None] = _ignore_turn_end

    # -- asyncio callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._loop = asyncio.get_running_loop()
        self._transport = transport
        original = transport.get_extra_info("socket")
        self.local = address_of(transport.get_extra_info("sockname"))
        self.peer = address_of(transport.get_extra_info("peername"))
        try:
            self._socket = self._duplicate(original.fileno())
        except OSError as error:
            self._is_lost = True
            self._transport.abort()
            self._endpoint.disconnected(f"could not be accepted: {error.strerror}")
            return
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._descriptor = self._socket.fileno()
        self._loop.call_soon(self._take_over)
        self._on_established()

    def _on_established(self) -> None:
        """The TCP connection is established."""
        self._endpoint.connected(self)

    def _take_over(self) -> None:
        """Read here instead of in asyncio. Called one turn after `connection_made`: before Python 3.11.4, it starts
        reading after that callback even if the transport was paused in it."""
        if self._is_lost or self._transport.is_closing():
            return
        self._transport.pause_reading()
        if not self._paused:
            self._start_reading()

    def _duplicate(self, descriptor: int) -> socket.socket:
        """The kernel assigns the lowest free descriptor: a high one means that few are left, which files need."""
        duplicate = socket.socket(fileno=os.dup(descriptor))
        if duplicate.fileno() < self._descriptor_max:
            return duplicate
        duplicate.close()
        raise OSError(errno.EMFILE, "too few file descriptors are left (ulimit -n)")

    def _readable(self) -> None:
        received = self._received
        try:
            count = self._socket.recv_into(received.room())
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._reason = self._reason or str(error)
            self._stop_reading()
            self._transport.abort()
            return
        if not count:  # a half-closed peer is a closed one
            self._stop_reading()
            self._transport.close()
            return
        received.on_received(count)
        self._deliver()

    def _start_reading(self) -> None:
        if not self._is_reading:
            self._is_reading = True
            if self._may_defer_reads and self._deferred_reader is not None:
                self._deferred_reader.add(self._descriptor, self._readable)
            else:
                self._loop.add_reader(self._descriptor, self._readable)

    def _stop_reading(self) -> None:
        if self._is_reading:
            self._is_reading = False
            if self._may_defer_reads and self._deferred_reader is not None:
                self._deferred_reader.remove(self._descriptor)
            else:
                self._loop.remove_reader(self._descriptor)

    @property
    def may_defer_reads(self) -> bool:
        return self._may_defer_reads

    @may_defer_reads.setter
    def may_defer_reads(self, may_defer_reads: bool) -> None:
        if may_defer_reads != self._may_defer_reads:
            is_reading = self._is_reading
            self._stop_reading()
            self._may_defer_reads = may_defer_reads
            if is_reading:
                self._start_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._is_lost:
            return
        self._is_lost = True
        self._stop_reading()
        self._stop_writing()
        self._socket.close()
        self._queue.clear()
        self._queued_bytes = 0
        self._received.release()
        self._endpoint.disconnected(self._reason or (str(exc) if exc else ""))

    # -- frames in

    def _deliver(self) -> None:
        """Deliver complete frames, a bounded number per turn; their responses are sent together at its end."""
        received = self._received
        self._is_corked = True
        frames = 0
        expected_bytes = 0
        give_way_s = monotonic() + TURN_SECONDS_MAX
        while not self._paused and not self._is_closing:
            start, end = received.start, received.end
            if end - start < 4:
                break
            (length,) = _length_at(received.view, start)
            if not 0 <= length <= self.frame_bytes_max:
                self._reject_frame(length)
                break
            if end - start - 4 < length:
                expected_bytes = length + 4
                break
            received.start = start + 4 + length
            self.has_more_bytes = end - received.start > 0
            self._endpoint.frame_received(received.view[start + 4 : start + 4 + length])
            frames += 1
            if received.end - received.start >= 4 and (frames == FRAMES_PER_TURN_MAX or monotonic() >= give_way_s):
                self._pause(_FOR_TURN)
                self._loop.call_soon(self._unpause, _FOR_TURN)
        self.on_turn_end()
        if expected_bytes and not received.expect(expected_bytes, self._on_budget_free):
            self._pause(_FOR_BUDGET)
        received.recycle()
        missing_bytes = received.missing(expected_bytes) if expected_bytes else 0
        if missing_bytes >= MISSING_BYTES_MIN or self._awaited_bytes != 1:
            self._await(missing_bytes)
        self._is_corked = False
        if self._queue and not self._is_waiting_to_write and not self._send_one():
            self._flush()

    def _await(self, missing_bytes: int) -> None:
        """Wake up only for the rest of a large frame: it arrives in many segments, each of which would cost a turn."""
        awaited_bytes = (
            missing_bytes if missing_bytes >= MISSING_BYTES_MIN and self._capabilities.has_low_water_mark else 1
        )
        if awaited_bytes != self._awaited_bytes and not self._is_lost:
            self._awaited_bytes = awaited_bytes
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, awaited_bytes)

    def _reject_frame(self, length: int) -> None:
        self._reason = describe_invalid_length(length, self.frame_bytes_max)
        self._is_closing = True
        self._pause(_FOR_GOOD)
        self._flush()

    def _on_budget_free(self) -> None:
        self._loop.call_soon(self._unpause, _FOR_BUDGET)

    def _pause(self, reason: int) -> None:
        self._stop_reading()
        self._paused |= reason

    def _unpause(self, reason: int) -> None:
        self._paused &= ~reason
        if self._paused or self._is_lost or self._is_closing:
            return
        if not self._transport.is_closing():
            self._start_reading()
        self._deliver()

    def pause_reading(self) -> None:
        if self._resuming is not None:  # a resume is pending
            self._resuming.cancel()
            self._resuming = None
        self._pause(_BY_OWNER)

    def resume_reading(self) -> None:
        if self._paused & _BY_OWNER and self._resuming is None:
            # Not synchronously: the owner may be handling a frame that this connection has just delivered.
            self._resuming = self._loop.call_soon(self._resume)

    def _resume(self) -> None:
        self._resuming = None
        self._unpause(_BY_OWNER)

    # -- pieces out

    @property
    def queued_bytes(self) -> int:
        return self._queued_bytes

    @property
    def queued_memory_bytes(self) -> int:
        return sum(len(piece) for piece in self._queue if not isinstance(piece, FileSlice))

    @property
    def is_in_frame(self) -> bool:
        return self._received.start != self._received.end and not self._paused

    def send(self, pieces: Sequence[Piece]) -> None:
        if self._is_lost or self._is_closing:
            return
        self._queue.extend(pieces)
        for piece in pieces:
            self._queued_bytes += len(piece)
        if not self._is_corked and not self._is_waiting_to_write:
            self._flush()

    def _send_one(self) -> bool:
        """Send the queue if it is a single buffer, as most responses are; False if anything is left."""
        queue = self._queue
        piece = queue[0]
        if len(queue) != 1 or isinstance(piece, FileSlice) or self._is_closing or self._is_lost:
            return False
        try:
            sent = self._socket.send(piece)
        except OSError:
            return False  # `_flush` reports the error
        self._queued_bytes -= sent
        if sent != len(piece):
            queue[0] = memoryview(piece)[sent:]
            return False
        queue.clear()
        return True

    def _flush(self) -> None:
        if self._is_lost:
            return
        try:
            is_empty = self._send_some()
        except OSError as error:  # any send may fail with a reset or a broken pipe
            self._reason = self._reason or f"lost while sending: {error}"
            self._transport.abort()
            return
        if not is_empty:
            if not self._is_waiting_to_write:
                self._is_waiting_to_write = True
                self._loop.add_writer(self._descriptor, self._flush)
            return
        if self._is_waiting_to_write:
            self._stop_writing()
            self._endpoint.drained()
        if self._is_closing and not self._queue:
            self._transport.close()

    def _stop_writing(self) -> None:
        if self._is_waiting_to_write:
            self._is_waiting_to_write = False
            self._loop.remove_writer(self._descriptor)

    def _send_some(self) -> bool:
        """Send a bounded number of bytes per turn, so that no peer starves others; True if the queue is empty."""
        queue = self._queue
        left = SEND_BYTES_PER_TURN_MAX
        try:
            while queue and left > 0:
                head = queue[0]
                sent = self._send_slice(head, left) if isinstance(head, FileSlice) else self._send_buffers()
                self._queued_bytes -= sent
                left -= sent
        except BlockingIOError:
            return False
        return not queue

    def _send_buffers(self) -> int:
        """Send the buffers at the head of the queue in one call, with MSG_MORE if a long file slice follows. Short
        slices are read and sent along: a read is cheaper than another system call."""
        queue = self._queue
        run: list[bytes | bytearray | memoryview] = []
        flags = 0
        for piece in queue:
            if not isinstance(piece, FileSlice):
                run.append(piece)
            elif piece.length <= READ_BYTES_INSTEAD_OF_SENDFILE:
                run.append(_read(piece))
            else:
                flags = self._capabilities.more_flag
                break
            if len(run) == BUFFERS_PER_SEND_MAX:
                break
        sent = self._socket.send(run[0], flags) if len(run) == 1 else self._socket.sendmsg(run, (), flags)
        if sent == self._queued_bytes:
            queue.clear()
        else:
            self._drop_sent(sent)
        return sent

    def _drop_sent(self, sent: int) -> None:
        queue = self._queue
        while sent:
            head = queue[0]
            if sent < len(head):
                queue[0] = rest_of(head, sent) if isinstance(head, FileSlice) else memoryview(head)[sent:]
                return
            sent -= len(head)
            queue.popleft()
        while queue and not len(queue[0]):
            queue.popleft()

    def _send_slice(self, piece: FileSlice, bytes_max: int) -> int:
        descriptor = piece.file.fileno()
        if descriptor < 0:
            data = piece.file.pread(min(piece.length, READ_BYTES_WITHOUT_SENDFILE), piece.position)
            sent = self._socket.send(data) if data else 0
        else:
            sent = os.sendfile(self._descriptor, descriptor, piece.position, min(piece.length, bytes_max))
        if not sent and piece.length:
            raise too_short(piece.length)
        if sent == piece.length:
            self._queue.popleft()
        else:
            self._queue[0] = rest_of(piece, sent)
        return sent

    def close(self) -> None:
        if self._is_closing or self._is_lost:
            return
        self._is_closing = True
        self._pause(_FOR_GOOD)  # or unread data of a flooding peer would pile up
        if not self._is_waiting_to_write:
            self._flush()

    def abort(self) -> None:
        if not self._is_lost:
            self._is_closing = True
            self._queue.clear()
            self._queued_bytes = 0
            self._transport.abort()


def _read(piece: FileSlice) -> bytes:
    data = piece.read()
    if len(data) != piece.length:
        raise too_short(piece.length - len(data))
    return data


def too_short(missing_bytes: int) -> OSError:
    return OSError(f"file ends {missing_bytes} bytes before the end of the slice to send")


def rest_of(piece: FileSlice, sent: int) -> FileSlice:
    return FileSlice(piece.file, piece.position + sent, piece.length - sent)


def _ignore_turn_end() -> None:
    """The default of `on_turn_end`."""


def address_of(name: tuple[str, int] | tuple[str, int, int, int] | None) -> Address:
    return Address(name[0], name[1]) if name else Address("", 0)
