"""Producers at a fixed rate while several groups read everything: one reader per group and partition."""

import select
import socket
import struct
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from moldau.cli.bench.bench import Bench
from moldau.cli.bench.cluster import Topic
from moldau.cli.bench.generator import Generator
from moldau.cli.bench.open_loop import Pace
from moldau.cli.bench.produce_load import produce_flows
from moldau.cli.bench.requests import Shape, fetch_frame, probe
from moldau.cli.bench.statistics import quantile
from moldau.cli.bench.streams import Address, connected
from moldau.model.units import MiB
from moldau_dev.bench.growth.lines import cpu_s
from moldau_dev.bench.kafka.rows import Figures, Measure, Prepare

WAIT_MS: Final = 500
RECEIVE_BYTES: Final = 1 * MiB
POLL_MS: Final = 200
OFFSET_MARK: Final = 0x0123456789ABCDEF
KEPT: Final[Mapping[str, str]] = {"segment.bytes": str(64 * MiB), "retention.bytes": str(128 * MiB)}

_scratch = memoryview(bytearray(RECEIVE_BYTES))


class Reader:
    """One connection that fetches one partition from its start, one request after the other."""

    def __init__(self, topic: Topic, partition: int, empty_bytes: int, batch_bytes: int, batch_records: int) -> None:
        self._socket: socket.socket = connected(topic.leaders[partition])
        self._frame = bytearray(fetch_frame(topic.name, partition, OFFSET_MARK, MiB, wait_ms=WAIT_MS))
        self._offset_position = self._frame.index(struct.pack(">q", OFFSET_MARK))
        self._empty_bytes, self._batch_bytes, self._batch_records = empty_bytes, batch_bytes, batch_records
        self._offset = 0
        self._expected_bytes = 0
        self._received_bytes = 0
        self._head = b""
        self.records = 0
        self._request()

    def fileno(self) -> int:
        return self._socket.fileno()

    def _request(self) -> None:
        struct.pack_into(">q", self._frame, self._offset_position, self._offset)
        self._expected_bytes = self._received_bytes = 0
        self._head = b""
        self._socket.sendall(self._frame)

    def receive(self) -> None:
        """Receive what there is; count whole batches at the end of a response, and request what follows them."""
        if not self._expected_bytes:
            self._head += self._socket.recv(4 - len(self._head))
            if len(self._head) == 4:
                self._expected_bytes = int.from_bytes(self._head, "big")
            return
        self._received_bytes += self._socket.recv_into(
            _scratch, min(RECEIVE_BYTES, self._expected_bytes - self._received_bytes)
        )
        if self._received_bytes == self._expected_bytes:
            batches = (self._expected_bytes + 4 - self._empty_bytes) // self._batch_bytes
            self.records += batches * self._batch_records
            self._offset += batches * self._batch_records
            self._request()

    def close(self) -> None:
        self._socket.close()


@dataclass(frozen=True, slots=True)
class ReadGroups:
    """Read each partition once for each group. `run` returns how many records all readers got."""

    topic: Topic
    groups: int
    empty_bytes: int
    batch_bytes: int
    batch_records: int
    seconds: float

    def run(self) -> int:
        readers = [
            Reader(self.topic, partition, self.empty_bytes, self.batch_bytes, self.batch_records)
            for partition in range(len(self.topic.leaders))
            for _ in range(self.groups)
        ]
        by_descriptor = {reader.fileno(): reader for reader in readers}
        poller = select.poll()
        for descriptor in by_descriptor:
            poller.register(descriptor, select.POLLIN)
        ends_s = time.monotonic() + self.seconds
        while time.monotonic() < ends_s:
            for descriptor, _ in poller.poll(POLL_MS):
                by_descriptor[descriptor].receive()
        for reader in readers:
            reader.close()
        return sum(reader.records for reader in readers)


def fan_out(shape: Shape, bytes_per_s: float, groups: int) -> Prepare:
    """Latency of an acknowledgement, and the records per second that each group has read."""

    def prepare(bench: Bench, stack: ExitStack, seconds: float) -> Measure:
        batch = shape.batch()
        generator = stack.enter_context(Generator())

        def measure() -> Figures:
            with bench.cluster.topic(bench.connections, KEPT) as topic:
                return _measure(bench, generator, topic, shape, batch, bytes_per_s, groups, seconds)

        return measure

    return prepare


def _measure(
    bench: Bench,
    generator: Generator,
    topic: Topic,
    shape: Shape,
    batch: bytes,
    bytes_per_s: float,
    groups: int,
    seconds: float,
) -> Figures:
    empty_bytes = _empty_bytes(topic.leaders[0], topic.name)
    flows = produce_flows(topic, batch)
    read: list[int] = []
    job = ReadGroups(topic, groups, empty_bytes, len(batch), shape.records, seconds)
    readers = threading.Thread(target=lambda: read.append(generator.run(job)))
    before_s = cpu_s(bench.cluster)
    readers.start()
    samples_ms = sorted(bench.run(Pace(flows, bytes_per_s / len(batch), seconds)))
    readers.join()
    spent_s = cpu_s(bench.cluster) - before_s
    written = len(samples_ms) * shape.records
    per_s = sum(read) / groups / seconds
    return Figures(per_s, spent_s / written * 1e6, quantile(samples_ms, 0.5), quantile(samples_ms, 0.99))


def _empty_bytes(leader: Address, topic: str) -> int:
    """The size of a response without records, with its length."""
    return probe(leader, fetch_frame(topic, 0, 0, MiB)).reply_bytes
