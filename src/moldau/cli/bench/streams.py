"""Connections that send prepared requests and count responses.

This module is independent of Kafka: requests are prepared bytes of one size, and responses, also of one size, are only
counted. The same code loads the broker and the baselines, at almost no cost of its own.
"""

import select
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from moldau.model.units import MiB

RING_BYTES: Final = 1 * MiB  # upper limit of one send
RECEIVE_BYTES: Final = 4 * MiB
SILENCE_S_MAX: Final = 20.0

Address = tuple[str, int]

_scratch = memoryview(bytearray(RECEIVE_BYTES))


class NoResponse(OSError):
    """The expected responses did not arrive."""


@dataclass(frozen=True, slots=True)
class Flow:
    """The requests of one connection, sent cyclically, and the size of their responses."""

    address: Address
    frames: Sequence[bytes]
    reply_bytes: int

    @property
    def frame_bytes(self) -> int:
        (size,) = {len(frame) for frame in self.frames}
        return size


def connected(address: Address) -> socket.socket:
    connection = socket.create_connection(address, timeout=SILENCE_S_MAX)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


class Stream:
    """A flow on its connection, with the progress of requests and responses."""

    __slots__ = (
        "_frame_bytes",
        "_is_blocked",
        "_received_bytes",
        "_reply_bytes",
        "_ring",
        "_ring_bytes",
        "_sent_bytes",
        "_socket",
        "allowed",
        "completed",
    )

    def __init__(self, flow: Flow) -> None:
        self._socket = connected(flow.address)
        self._socket.setblocking(False)
        self._frame_bytes = flow.frame_bytes
        self._reply_bytes = flow.reply_bytes
        cycle = b"".join(flow.frames)
        self._ring = memoryview(cycle * -(-RING_BYTES // len(cycle)))
        self._ring_bytes = len(self._ring)
        self._sent_bytes = 0
        self._received_bytes = 0
        self._is_blocked = False
        self.allowed = 0  # requests that may be sent, including completed ones
        self.completed = 0

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def interest(self) -> int:
        return select.POLLIN | select.POLLOUT if self._is_blocked else select.POLLIN

    @property
    def begun(self) -> int:
        """Requests that are sent at least in part."""
        return -(-self._sent_bytes // self._frame_bytes)

    @property
    def is_blocked(self) -> bool:
        return self._is_blocked

    def send(self) -> None:
        """Send as many allowed bytes as the socket accepts."""
        limit_bytes = self.allowed * self._frame_bytes
        try:
            while self._sent_bytes < limit_bytes:
                start = self._sent_bytes % self._ring_bytes
                rest_bytes = limit_bytes - self._sent_bytes
                self._sent_bytes += self._socket.send(self._ring[start : start + rest_bytes])
        except BlockingIOError:
            self._is_blocked = True
        else:
            self._is_blocked = False

    def receive(self) -> int:
        """Receive available bytes; return the number of completed responses."""
        try:
            count = self._socket.recv_into(_scratch)
        except BlockingIOError:
            return 0
        if not count:
            raise NoResponse(f"the server closed the connection after {self.completed} responses; see its log")
        self._received_bytes += count
        completed = self._received_bytes // self._reply_bytes - self.completed
        self.completed += completed
        if self.completed > self.begun:
            raise NoResponse("received unexpected responses, or responses that differ in size from the first one")
        return completed

    def close(self) -> None:
        self._socket.close()
