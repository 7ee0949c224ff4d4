"""End-to-end latency: batches are produced at a fixed rate and returned by a waiting fetch."""

import select
import socket
import time
from dataclasses import dataclass
from typing import Final

from moldau.cli.bench.bench import Bench
from moldau.cli.bench.latency import LatencyCase
from moldau.cli.bench.produce_load import produce_flows
from moldau.cli.bench.requests import FETCH_VERSION, fetch_frame
from moldau.cli.bench.rounds import Round
from moldau.cli.bench.streams import SILENCE_S_MAX, Flow, NoResponse, Stream, connected
from moldau.client.errors import error_of
from moldau.model.units import MiB
from moldau.records.record import iterate_batches
from moldau.wire.codec import decode_response
from moldau.wire.framing import parse_response_header
from moldau.wire.messages import FetchRequest

NAME: Final = "end to end"
WAIT_MS: Final = 500
FETCH_BYTES_MAX: Final = 4 * MiB


def run_end_to_end(bench: Bench, case: LatencyCase) -> dict[str, list[Round]]:
    batch = case.shape.batch()
    return bench.interleave({NAME: lambda: _round(bench, case, batch)})


def _round(bench: Bench, case: LatencyCase, batch: bytes) -> Round:
    with bench.cluster.topic(1) as topic:
        (flow,) = produce_flows(topic, batch, case.acks)
        (first_offset,) = bench.cluster.end_offsets(topic)
        rate = case.bytes_per_s / len(batch)
        samples_ms = bench.run(Follow(flow, topic.name, first_offset, case.shape.records, rate, case.seconds))
    return Round(len(samples_ms), case.seconds, len(samples_ms) * len(batch), samples_ms=samples_ms)


@dataclass(frozen=True, slots=True)
class Follow:
    """Produce to partition 0 at a fixed rate and fetch at the log end. `run` returns latencies in milliseconds, from
    the time a batch was due to its delivery."""

    flow: Flow
    topic: str
    first_offset: int
    records_per_batch: int
    requests_per_s: float
    seconds: float

    def run(self) -> list[float]:
        producer = Stream(self.flow)
        consumer = _Follower(self.flow, self.topic, self.first_offset)
        try:
            return self._run(producer, consumer)
        finally:
            producer.close()
            consumer.close()

    def _run(self, producer: Stream, consumer: "_Follower") -> list[float]:
        total = int(self.requests_per_s * self.seconds)
        samples_ms: list[float] = []
        started = time.perf_counter()
        received_s = started
        sent = 0
        while len(samples_ms) < total:
            now = time.perf_counter()
            next_due = started + sent / self.requests_per_s
            if sent < total and now >= next_due:
                producer.allowed += 1
                producer.send()
                sent += 1
                continue
            if now > received_s + SILENCE_S_MAX:
                raise NoResponse(f"{total - len(samples_ms)} batches were not delivered")
            wait_s = next_due - now if sent < total else SILENCE_S_MAX
            blocked = [producer] if producer.is_blocked else []
            both: list[Stream | _Follower] = [producer, consumer]
            readable, writable, _ = select.select(both, blocked, [], wait_s)
            if producer in readable:
                producer.receive()
            if writable:
                producer.send()
            if consumer in readable and consumer.receive():
                received_s = time.perf_counter()
                delivered = (consumer.offset - self.first_offset) // self.records_per_batch
                fresh = range(len(samples_ms), delivered)
                samples_ms += [(received_s - started - each / self.requests_per_s) * 1000 for each in fresh]
        return samples_ms


class _Follower:
    """A consumer's connection, which always has one fetch in flight."""

    def __init__(self, flow: Flow, topic: str, offset: int) -> None:
        self._socket: socket.socket = connected(flow.address)
        self._topic = topic
        self._received = bytearray()
        self.offset = offset
        self._fetch()

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def receive(self) -> bool:
        """Receive available bytes; return whether a complete response contained records."""
        part = self._socket.recv(FETCH_BYTES_MAX)
        if not part:
            raise NoResponse("the server closed the consumer's connection; see its log")
        self._received += part
        size = int.from_bytes(self._received[:4], "big")
        if len(self._received) < max(size + 4, 8):
            return False
        before = self.offset
        self._take(memoryview(bytes(self._received))[4 : 4 + size])
        del self._received[: 4 + size]
        self._fetch()
        return self.offset > before

    def _take(self, frame: memoryview) -> None:
        _, position = parse_response_header(FetchRequest.API_KEY, FETCH_VERSION, frame)
        response = decode_response(FetchRequest.API_KEY, FETCH_VERSION, frame[position:])
        partition = response.responses[0].partitions[0]
        if partition.error_code:
            raise error_of(partition.error_code)
        for header, _ in iterate_batches(partition.records):
            self.offset = header.next_offset

    def _fetch(self) -> None:
        self._socket.sendall(fetch_frame(self._topic, 0, self.offset, FETCH_BYTES_MAX, wait_ms=WAIT_MS))
