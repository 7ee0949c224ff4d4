"""Throughput over TLS 1.3 beside a plain copy by Python's ssl: produce of 64 KiB batches, and fetch of 1 MiB.

One process sends and receives for all: the copy's server is a process that does nothing but read, or write, on a TLS
socket. So broker and copy have the same peer, the same certificate and the same sizes, round by round.
"""

import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from moldau.cli.bench import processes
from moldau.cli.bench.rounds import Tell
from moldau.cli.bench.statistics import Spread, ratios, spread
from moldau.cli.errors import CommandError
from moldau.model.units import KiB, MiB
from moldau.records.builder import build_batch
from moldau.testing import Broker
from moldau.wire.framing import RequestHeader, frame_request
from moldau.wire.messages import FetchRequest, ProduceRequest

TOPIC: Final = "load"
BATCH_BYTES: Final = 64 * KiB
FETCH_BYTES: Final = MiB
LOAD_BYTES: Final = 128 * MiB
PRODUCES_AHEAD: Final = 32  # requests whose responses are outstanding
FETCHES_AHEAD: Final = 4
WAIT_S: Final = 60.0
Transfer = Callable[["Server", int], float]
_LENGTH_BYTES: Final = 4
_PRODUCE_VERSION, _FETCH_VERSION = 9, 11
RETENTION: Final = {"segment.bytes": 64 * MiB, "retention.bytes": 256 * MiB}

_COPY_SERVER: Final = f"""
import socket, ssl, sys
context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
context.minimum_version = ssl.TLSVersion.TLSv1_3
context.load_cert_chain(sys.argv[1])
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
buffer, page = bytearray({MiB}), bytes({FETCH_BYTES})
while True:
    raw, _ = listener.accept()
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with context.wrap_socket(raw, server_side=True) as peer:
        kind, size = peer.recv(1), int.from_bytes(peer.recv(8), "big")
        while size > 0:
            if kind == b"w":
                size -= peer.recv_into(buffer)
            else:
                peer.sendall(page)
                size -= len(page)
        peer.sendall(b"!")
        while peer.recv(1):
            pass
"""


class TlsPeer:
    """A blocking TLS 1.3 connection that counts bytes."""

    def __init__(self, address: tuple[str, int], authority: str) -> None:
        context = ssl.create_default_context(cafile=authority)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        raw = socket.create_connection(address, timeout=WAIT_S)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = context.wrap_socket(raw, server_hostname="localhost")
        self._buffer = memoryview(bytearray(2 * MiB))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._socket.close()

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def receive(self, size: int) -> None:
        """Read that many bytes, and drop them."""
        while size > 0:
            count = self._socket.recv_into(self._buffer, min(size, len(self._buffer)))
            if not count:
                raise CommandError("the server closed the connection")
            size -= count

    def receive_frame(self) -> int:
        """Read a response, and return its size."""
        head = b""
        while len(head) < _LENGTH_BYTES:
            head += self._socket.recv(_LENGTH_BYTES - len(head))
        size = int.from_bytes(head, "big")
        self.receive(size)
        return size


@dataclass(frozen=True, slots=True)
class Server:
    """Where a broker, or the copy, listens with TLS, the authority of its certificate, and its process."""

    address: tuple[str, int]
    authority: str
    pid: int

    def connect(self) -> TlsPeer:
        return TlsPeer(self.address, self.authority)


@dataclass(slots=True)
class Rates:
    """MiB per second, and the CPU seconds of the server per MiB, round by round."""

    written: list[float] = field(default_factory=list)
    read: list[float] = field(default_factory=list)
    cpu_written: list[float] = field(default_factory=list)
    cpu_read: list[float] = field(default_factory=list)

    def measure(self, server: Server, size: int, write: Transfer, read: Transfer) -> None:
        for transfer, rates, costs in ((write, self.written, self.cpu_written), (read, self.read, self.cpu_read)):
            cpu_s = processes.cpu_s(server.pid)
            rates.append(transfer(server, size))
            costs.append((processes.cpu_s(server.pid) - cpu_s) * 1000 / (size / MiB))


@dataclass(frozen=True, slots=True)
class TlsRow:
    """Rate and CPU time over TLS, and their ratios to those of the copy in the same rounds."""

    name: str
    mib_per_s: Spread
    ms_per_mib: Spread
    of_copy: Spread | None = None
    cpu_of_copy: Spread | None = None


def copy_written(server: Server, size: int) -> float:
    return _timed(size, lambda: _copy(server, b"w", size))


def copy_read(server: Server, size: int) -> float:
    return _timed(size, lambda: _copy(server, b"r", size))


def _copy(server: Server, kind: bytes, size: int) -> None:
    with server.connect() as peer:
        peer.send(kind + size.to_bytes(8, "big"))
        if kind == b"w":
            batch = bytes(BATCH_BYTES)
            for _ in range(size // BATCH_BYTES):
                peer.send(batch)
        else:
            peer.receive(size)
        peer.receive(1)


def produced(server: Server, size: int) -> float:
    return _timed(size, lambda: _produce(server, size))


def _produce(server: Server, size: int) -> None:
    batch = build_batch([(0, None, bytes(BATCH_BYTES - 100), ())])
    data = ProduceRequest.PartitionProduceData(index=0, records=batch)
    topic = ProduceRequest.TopicProduceData(name=TOPIC, partition_data=[data])
    frame = _frame(_PRODUCE_VERSION, ProduceRequest(acks=1, timeout_ms=30_000, topic_data=[topic]))
    with server.connect() as peer:
        _converse(peer, frame, size // BATCH_BYTES, PRODUCES_AHEAD)


def fetched(server: Server, size: int) -> float:
    partition = FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=FETCH_BYTES)
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=FETCH_BYTES,
        topics=[FetchRequest.FetchTopic(topic=TOPIC, partitions=[partition])],
    )
    frame = _frame(_FETCH_VERSION, request)
    read = 0

    def work() -> None:
        nonlocal read
        with server.connect() as peer:
            read = _converse(peer, frame, size // FETCH_BYTES, FETCHES_AHEAD)

    return _timed(size, work) * read / size


def _frame(version: int, request: object) -> bytes:
    header = RequestHeader(request.API_KEY, version, 1, "bench")  # type: ignore[attr-defined]
    return b"".join(bytes(piece) for piece in frame_request(header, request))  # type: ignore[arg-type]


def _converse(peer: TlsPeer, frame: bytes, count: int, ahead: int) -> int:
    """Send a request many times, with some outstanding; return the bytes of the responses."""
    size = 0
    for number in range(count):
        peer.send(frame)
        if number >= ahead:
            size += peer.receive_frame()
    for _ in range(min(ahead, count)):
        size += peer.receive_frame()
    return size


def _timed(size: int, work: Callable[[], None]) -> float:
    """MiB per second."""
    started_s = time.perf_counter()
    work()
    return size / MiB / (time.perf_counter() - started_s)


@contextmanager
def copy_server(certificate: Path, authority: Path) -> Iterator[Server]:
    command = [sys.executable, "-c", _COPY_SERVER, str(certificate)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield Server(("127.0.0.1", int(process.stdout.readline())), str(authority), process.pid)
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def measure_tls(
    rounds: int, tell: Tell, others: dict[str, Server] | None = None, *, size: int = LOAD_BYTES
) -> list[TlsRow]:
    """Measure Moldau, the copy, and other brokers with a topic `load` that are at hand."""
    with ExitStack() as stack:
        broker = stack.enter_context(Broker(security="ssl"))
        broker.create_topic(TOPIC, **{name.replace(".", "_"): value for name, value in RETENTION.items()})
        assert broker.security is not None
        authority = Path(broker.security.client_settings["ssl.truststore.location"])
        copy = stack.enter_context(copy_server(authority.with_name("node.pem"), authority))
        port = int(broker.bootstrap_servers.rpartition(":")[2])
        servers = {"Moldau": Server(("127.0.0.1", port), str(authority), broker.pid), **(others or {})}
        rates = {name: Rates() for name in ("copy", *servers)}
        for number in range(rounds + 1):  # the first round warms up
            tell(f"round {number} of {rounds}" if number else "warming up")
            found = rates if number else {name: Rates() for name in rates}
            found["copy"].measure(copy, size, copy_written, copy_read)
            for name, server in servers.items():
                found[name].measure(server, size, produced, fetched)
    return [*_rows("copy", rates), *(row for name in servers for row in _rows(name, rates))]


def _rows(name: str, rates: dict[str, Rates]) -> Iterator[TlsRow]:
    own, copy = rates[name], rates["copy"]
    if name == "copy":
        yield TlsRow("copy, 64 KiB to the server", spread(own.written), spread(own.cpu_written))
        yield TlsRow("copy, 1 MiB from the server", spread(own.read), spread(own.cpu_read))
        return
    for kind, rate, cpu, copied, copied_cpu in (
        ("produce of 64 KiB", own.written, own.cpu_written, copy.written, copy.cpu_written),
        ("fetch of 1 MiB", own.read, own.cpu_read, copy.read, copy.cpu_read),
    ):
        yield TlsRow(f"{name}, {kind}", spread(rate), spread(cpu), ratios(rate, copied), ratios(cpu, copied_cpu))
