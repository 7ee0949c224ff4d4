"""A client that sends one request at a time and lets the broker's CPU time be charged to it."""

import socket
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Self

from moldau.cli.bench.cluster import Cluster
from moldau.cli.bench.requests import frame_of
from moldau.cli.bench.streams import Address, connected
from moldau.wire.codec import decode_response
from moldau.wire.framing import parse_response_header
from moldau.wire.messages import ApiVersionsRequest, Message

US_PER_S: Final = 1e6
CPU_S_MIN: Final = 0.1  # of the broker, for one figure
REPEATS_MIN: Final = 20
REPEATS_MAX: Final = 4_000
PING_VERSION: Final = 3
PING_PAUSE_S: Final = 0.000_5


class Line:
    """One connection."""

    def __init__(self, address: Address) -> None:
        self._socket: socket.socket = connected(address)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def send(self, frame: bytes) -> None:
        self._socket.sendall(frame)

    def receive(self) -> memoryview:
        size = int.from_bytes(self._receive(4), "big")
        return memoryview(self._receive(size))

    def _receive(self, size: int) -> bytes:
        received = bytearray()
        while len(received) < size:
            part = self._socket.recv(size - len(received))
            if not part:
                raise ConnectionError("the broker closed the connection; see its log")
            received += part
        return bytes(received)

    def ask(self, version: int, request: Message) -> Any:
        self.send(frame_of(version, request))
        reply = self.receive()
        _, position = parse_response_header(request.API_KEY, version, reply)
        return decode_response(request.API_KEY, version, reply[position:])


def cpu_us(cluster: Cluster, operation: Callable[[], None], *, repeats_max: int = REPEATS_MAX) -> float:
    """CPU of the broker for one call of `operation`, which is repeated until the figure is stable."""
    operation()
    before_s = cpu_s(cluster)
    done = 0
    while done < repeats_max and (done < REPEATS_MIN or cpu_s(cluster) - before_s < CPU_S_MIN):
        operation()
        done += 1
    return (cpu_s(cluster) - before_s) / done * US_PER_S


def cpu_s(cluster: Cluster) -> float:
    found = cluster.cpu_s()
    assert found is not None, "the broker is ours"
    return found


class Pings:
    """Small requests on a connection of their own: the longest latency shows how long the loop did nothing else."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.longest_s = 0.0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        with Line(self._address) as line:
            while not self._stopped.is_set():
                started_s = time.perf_counter()
                line.ask(PING_VERSION, ApiVersionsRequest(client_software_name="bench", client_software_version="1"))
                self.longest_s = max(self.longest_s, time.perf_counter() - started_s)
                time.sleep(PING_PAUSE_S)
