"""TLS on our own sockets: a connection that decrypts what it receives and encrypts what it sends.

OpenSSL works on two buffers in memory (`ssl.MemoryBIO`), not on the socket:

    socket ──recv──> incoming ──read──> receive buffer ──> frames
    socket <──send── encrypted <──outgoing <──write── queue of pieces

So one system call fetches many records (OpenSSL alone makes two per record), the bytes that were encrypted once are
sent however often the socket is full, and every rule of `SocketConnection` about turns, pauses and budgets holds
unchanged. Decision 30 has the figures.

- Nothing is left behind: `_pump` decrypts until OpenSSL wants more bytes or reading is paused, and every resume pumps
  again, because bytes in `incoming` make no socket readable. For the same reason SO_RCVLOWAT is not used.
- Reading may produce bytes to send (TLS 1.3 key updates, alerts); they are sent after each pump. Writing never needs
  to read: renegotiation is off, and TLS 1.3 has none.
- A connection is `connected` once the handshake is complete. Until then a server has no endpoint for it, and the limits
  of the broker do not apply: OpenSSL bounds the messages, `Handshakes` their number and time.
- After a failed handshake the peer gets an alert with the cause. Its bytes are read and dropped for a moment: a socket
  that is closed with unread bytes sends a reset, which would overtake the alert.
- Frames have lengths, so a stream that ends without close_notify, as most Kafka clients end it, is cut unnoticed only
  between two frames.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from typing import Any, Final

from moldau.model.ports import Endpoint, FileSlice
from moldau.model.units import KiB
from moldau.node.ports.capabilities import Capabilities
from moldau.node.ports.deferred_reader import DeferredReader
from moldau.node.ports.distinguished_name import MalformedCertificate, subject_of
from moldau.node.ports.receive_buffer import ReceiveBudget
from moldau.node.ports.socket_connection import SEND_BYTES_PER_TURN_MAX, SocketConnection, rest_of, too_short
from moldau.node.ports.tls_errors import ALERT_RECORD, HANDSHAKE_RECORD, describe_plaintext, explain
from moldau.node.ports.tls_handshakes import Handshakes

RECEIVE_BYTES: Final = 64 * KiB  # per system call; a paused connection keeps as much
BULK_BYTES: Final = 256 * KiB  # after a system call that got all it asked for
ENCRYPT_BYTES: Final = 128 * KiB  # in one go: what OpenSSL wrote is then still in the processor's cache
REJECT_S: Final = 1.0  # for the peer to read the alert
JOIN_BYTES_MAX: Final = 4 * KiB  # shorter pieces are joined: each write makes a record

HandshakeFailed = Callable[[str, str], None]  # the peer's address and the cause


class TlsShare:
    """State that the TLS connections of one network share."""

    def __init__(self) -> None:
        self.handshakes = Handshakes()
        self.received = memoryview(bytearray(BULK_BYTES))  # encrypted bytes, which move on at once


class TlsConnection(SocketConnection):
    """A connection with TLS, of a listener or of a client."""

    def __init__(
        self,
        accept: Callable[[], Endpoint],
        context: ssl.SSLContext,
        server_hostname: str | None,
        share: TlsShare,
        on_handshake_failed: HandshakeFailed,
        frame_bytes_max: int,
        budget: ReceiveBudget,
        capabilities: Capabilities,
        descriptor_max: int,
        deferred_reader: DeferredReader | None = None,
    ) -> None:
        """`accept` makes the endpoint once the handshake is complete. Without `server_hostname` we are the server."""
        super().__init__(_NO_ENDPOINT, frame_bytes_max, budget, capabilities, descriptor_max, deferred_reader)
        self._accept = accept
        self._handshakes = share.handshakes
        self._scratch = share.received
        self._on_handshake_failed = on_handshake_failed
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._is_server = server_hostname is None
        self._tls = context.wrap_bio(self._incoming, self._outgoing, self._is_server, server_hostname or None)
        self._encrypted = memoryview(b"")  # not sent yet
        self._is_handshaking = True
        self._receive_bytes = RECEIVE_BYTES
        self._has_received = False
        self._has_sent_close = False
        self._is_pumping = False
        self._rejecting: asyncio.TimerHandle | None = None  # set while the peer may read our alert

    # -- handshake

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self._is_lost:
            self._on_handshake_failed(str(self.peer), "too few file descriptors are left (ulimit -n)")

    def _on_established(self) -> None:
        self._handshakes.begin(self)
        if not self._is_server:
            self._handshakes.queue(self._step)

    def _step(self) -> None:
        """Continue the handshake with the bytes received so far."""
        if not self._is_handshaking or self._is_lost:
            return
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._send_handshake()
            if not self._is_lost and self._is_handshaking and not self._paused:
                self._start_reading()
            return
        except ssl.SSLError as error:
            self._reject(explain(error))
            return
        self._complete()

    def _complete(self) -> None:
        try:
            certificate = self._tls.getpeercert(binary_form=True)
            self.peer_subject = subject_of(certificate) if certificate and self._verifies_peer() else None
        except MalformedCertificate as error:
            self.fail_handshake(str(error))
            return
        self._is_handshaking = False
        self._handshakes.end(self)
        self._endpoint = self._accept()
        self._endpoint.connected(self)
        if self._is_lost or self._is_closing:
            return
        if self._outgoing.pending and not self._is_waiting_to_write:
            self._flush()
        if not self._paused:
            self._start_reading()
            self._pump()  # the first request may have come with the last message of the handshake

    def _verifies_peer(self) -> bool:
        return self._tls.context.verify_mode is not ssl.CERT_NONE

    def _send_handshake(self) -> None:
        """Send what the handshake produced: a few KiB, which fit into the buffer of a new socket."""
        if self._outgoing.pending and not self._is_waiting_to_write:
            self._flush()

    def fail_handshake(self, reason: str) -> None:
        """End the connection; the cause is logged by the listener, or raised where we connect."""
        if self._is_handshaking and not self._is_lost:
            self._handshakes.end(self)
            self._reason = self._reason or reason
            self._stop_reading()
            self._transport.close()

    def _reject(self, reason: str) -> None:
        """Send the alert with the cause, and close once the peer has, or after a second."""
        self._handshakes.end(self)
        self._reason = reason
        self._send_handshake()
        if self._is_lost or self._transport.is_closing():
            return
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            self._transport.close()
            return
        self._rejecting = self._loop.call_later(REJECT_S, self._transport.close)
        self._start_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._handshakes.end(self)
        if self._rejecting is not None:
            self._rejecting.cancel()
        if self._is_handshaking and not self._is_lost:
            self._on_handshake_failed(str(self.peer), self._reason or (str(exc) if exc else ""))
        super().connection_lost(exc)
        self._encrypted = memoryview(b"")

    # -- frames in

    def _readable(self) -> None:
        try:
            count = self._socket.recv_into(self._scratch, self._receive_bytes)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._reason = self._reason or str(error)
            self._stop_reading()
            self._transport.abort()
            return
        if not count:
            self._on_end_of_stream()
            return
        if not self._is_handshaking:
            self._receive_bytes = BULK_BYTES if count >= self._receive_bytes else RECEIVE_BYTES
            self._incoming.write(self._scratch[:count])
            self._pump()
        elif self._rejecting is None:
            self._shake_hands(count)

    def _shake_hands(self, count: int) -> None:
        first = bytes(self._scratch[: min(count, 4)])
        if self._is_server and not self._has_received and first[0] not in (HANDSHAKE_RECORD, ALERT_RECORD):
            self.fail_handshake(describe_plaintext(first))
            return
        self._has_received = True
        self._incoming.write(self._scratch[:count])
        self._stop_reading()  # until the step has run
        self._handshakes.queue(self._step)

    def _on_end_of_stream(self) -> None:
        self._stop_reading()
        if self._is_handshaking and not self._reason:
            if self._has_received:
                self._reason = "the peer closed the connection"
            elif not self._is_server:  # a port scan or a health check of a listener closes without a word
                self._reason = "the peer closed the connection: is its listener plain text (security.protocol)?"
        self._transport.close()

    def _pump(self) -> None:
        """Decrypt and deliver what was received, until reading is paused or OpenSSL wants more bytes."""
        if self._is_pumping or self._is_handshaking:
            return
        self._is_pumping = True
        try:
            while not (self._paused or self._is_closing or self._is_lost):
                wants_more = self._decrypt()
                self._deliver()
                if wants_more:
                    break
        finally:
            self._is_pumping = False
        if self._outgoing.pending and not self._is_waiting_to_write:
            self._flush()

    def _decrypt(self) -> bool:
        """Decrypt into the receive buffer until it is full, or no whole record is left (True)."""
        received = self._received
        read: Any = self._tls.read  # its types do not know that it returns a number where it is given a buffer
        try:
            while True:
                room = received.room()
                if not room:
                    return False
                count = read(len(room), room)
                if not count:
                    break
                received.on_received(count)
        except ssl.SSLWantReadError:
            return True
        except ssl.SSLZeroReturnError:
            pass
        except ssl.SSLError as error:
            self._deliver()
            self._reason = self._reason or f"TLS failed: {explain(error)}"
            self._flush()
            self._stop_reading()
            self._transport.close()
            return True
        self._deliver()  # what came before close_notify
        self._stop_reading()
        self._transport.close()
        return True

    def _unpause(self, reason: int) -> None:
        super()._unpause(reason)
        self._pump()

    def _await(self, missing_bytes: int) -> None:
        """Bytes that count are those of frames, the kernel counts those of records."""

    # -- pieces out

    @property
    def queued_bytes(self) -> int:
        return self._queued_bytes + len(self._encrypted)

    @property
    def queued_memory_bytes(self) -> int:
        return super().queued_memory_bytes + len(self._encrypted)

    def _send_one(self) -> bool:
        return False

    def _send_some(self) -> bool:
        left = SEND_BYTES_PER_TURN_MAX
        try:
            while left > 0:
                if not self._encrypted:
                    self._encrypt()
                    if not self._encrypted:
                        return True
                sent = self._socket.send(self._encrypted)
                self._encrypted = self._encrypted[sent:]
                left -= sent
        except BlockingIOError:
            return False
        return not (self._queue or self._encrypted or self._outgoing.pending)

    def _encrypt(self) -> None:
        """Encrypt a bounded part of the queue; after its end, tell the peer of a connection that closes."""
        if self._is_handshaking:
            pass
        elif self._queue:
            self._write_pieces()
        elif self._is_closing and not self._has_sent_close:
            self._has_sent_close = True
            with contextlib.suppress(ssl.SSLError):  # the peer's close_notify is not awaited
                self._tls.unwrap()
        if self._outgoing.pending:
            self._encrypted = memoryview(self._outgoing.read())

    def _write_pieces(self) -> None:
        queue, left = self._queue, ENCRYPT_BYTES
        short: list[bytes | bytearray | memoryview] = []
        while queue and left > 0:
            piece = queue.popleft()
            if isinstance(piece, FileSlice):
                data: bytes | memoryview = piece.file.pread(min(piece.length, left), piece.position)
                if not data and piece.length:
                    raise too_short(piece.length)
                if len(data) < piece.length:
                    queue.appendleft(rest_of(piece, len(data)))
            else:
                data = memoryview(piece)[:left]
                if len(data) < len(piece):
                    queue.appendleft(memoryview(piece)[left:])
            left -= len(data)
            if len(data) < JOIN_BYTES_MAX:
                short.append(data)
                continue
            self._write_joined(short)
            self._write(data)
        self._write_joined(short)
        self._queued_bytes -= ENCRYPT_BYTES - left

    def _write_joined(self, short: list[bytes | bytearray | memoryview]) -> None:
        if short:
            self._write(short[0] if len(short) == 1 else b"".join(short))
            short.clear()

    def _write(self, data: bytes | bytearray | memoryview) -> None:
        if not len(data):
            return
        written = self._tls.write(data)
        while written < len(data):
            written += self._tls.write(memoryview(data)[written:])


class _NoEndpoint:
    """Stands in until the handshake is complete."""

    def connected(self, connection: object) -> None:
        """The TCP connection is established."""

    def frame_received(self, frame: memoryview) -> None:
        """There are no frames before the end of the handshake."""

    def drained(self) -> None:
        """A part of the handshake was sent."""

    def disconnected(self, reason: str) -> None:
        """The handshake failed, which is reported otherwise."""


_NO_ENDPOINT: Final = _NoEndpoint()


def outcome_of_handshake(endpoint: Endpoint) -> tuple["asyncio.Future[None]", Callable[[], Endpoint], HandshakeFailed]:
    """For a connection that we open: a future of its handshake, and the callbacks that resolve it."""
    outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def accept() -> Endpoint:
        if not outcome.done():
            outcome.set_result(None)
        return endpoint

    def fail(_: str, reason: str) -> None:
        if not outcome.done():
            outcome.set_exception(OSError(f"TLS handshake failed: {reason or 'the connection was lost'}"))

    return outcome, accept, fail
