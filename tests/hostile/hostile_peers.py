"""Peers of a live broker: hostile ones, and a well-behaved one that measures its latency."""

import errno
import socket
import struct
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from moldau.testing import Broker
from moldau.wire.codec import decode_response
from moldau.wire.framing import RequestHeader, frame_request, parse_response_header

RESPONSE_S_MAX = 20.0


def address_of(broker: Broker) -> tuple[str, int]:
    host, _, port = broker.bootstrap_servers.rpartition(":")
    return host, int(port)


def connect(where: tuple[str, int]) -> socket.socket:
    peer = socket.create_connection(where, timeout=RESPONSE_S_MAX)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return peer


def pour(where: tuple[str, int], frames: Iterable[bytes]) -> None:
    """Send everything on one connection, half-close it, and read until the broker closes."""
    with connect(where) as peer:
        try:
            peer.sendall(b"".join(frames))
            peer.shutdown(socket.SHUT_WR)
            while peer.recv(1 << 20):
                pass
        except OSError as error:
            if error.errno not in (errno.ECONNRESET, errno.EPIPE, errno.ENOTCONN):
                raise


class Caller:
    """One blocking connection that measures the latency of requests."""

    def __init__(self, where: tuple[str, int]) -> None:
        self.socket = connect(where)
        self._count = 0

    def __enter__(self) -> "Caller":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, version: int, request: Any) -> None:
        self._count += 1
        header = RequestHeader(request.API_KEY, version, self._count, "caller")
        self.socket.sendall(b"".join(bytes(piece) for piece in frame_request(header, request)))  # type: ignore[arg-type]

    def receive(self, version: int, request: Any) -> Any:
        (length,) = struct.unpack(">i", self._read(4))
        frame = memoryview(self._read(length))
        _, position = parse_response_header(request.API_KEY, version, frame)
        return decode_response(request.API_KEY, version, frame[position:])

    def ask(self, version: int, request: Any) -> Any:
        self.send(version, request)
        return self.receive(version, request)

    def seconds_to_response(self, version: int, request: Any) -> float:
        began = time.perf_counter()
        self.send(version, request)
        (length,) = struct.unpack(">i", self._read(4))
        self._read(length)
        return time.perf_counter() - began

    def _read(self, count: int) -> bytes:
        got = bytearray()
        while len(got) < count:
            part = self.socket.recv(min(count - len(got), 1 << 20))
            if not part:
                raise ConnectionResetError("closed by the broker")
            got += part
        return bytes(got)


def memory_mib(broker: Broker) -> float:
    """Return the resident memory of the broker's process."""
    for line in Path(f"/proc/{broker.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("no VmRSS in /proc")


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]
