"""Transactions: the cost of one, the memory of many open ones, and the throughput of `read_committed` readers."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from moldau.cli.bench.bench import Bench
from moldau.cli.bench.closed_loop import Pumped
from moldau.cli.bench.cluster import Topic
from moldau.cli.bench.requests import Shape, fetch_frame
from moldau.cli.bench.rounds import Round
from moldau.cli.bench.servers import Server
from moldau.cli.bench.streams import Address
from moldau.cli.errors import CommandError
from moldau.client.coordinators import TRANSACTION_KEY, Coordinator
from moldau.model.units import MiB
from moldau.records.record import iterate_batches
from moldau_dev.bench.conversations import Conversation, Requested, Talk, converse
from moldau_dev.bench.transaction_load import Opened, OpenMany, Transact

SHAPE: Final = Shape(100, 100)
VERSIONS: Final = {2: "transaction of 100 records, version 2", 1: "transaction of 100 records, version 1"}
COMMITTED_NAME: Final = "fetch 1 MiB of transactions, committed only"
UNCOMMITTED_NAME: Final = "fetch 1 MiB of transactions, all"
OPEN_NAME: Final = "{} transactions are begun"
COMMIT_NAME: Final = "{} transactions are committed"

TRANSACTIONS_MAX: Final = 5_000  # in a round
SECONDS_MAX: Final = 2.0
PRODUCERS: Final = 1_000
PARTITIONS: Final = 100  # that they write to
FILLED_BYTES: Final = 64 * MiB
FILLING_S_MAX: Final = 60.0
ABORTS_EVERY: Final = 10
FETCH_BYTES: Final = 1 * MiB
FETCH_S: Final = 1.0
FETCHERS: Final = 2  # for each partition: one is served while the other reads


@dataclass(frozen=True, slots=True)
class Size:
    """The size of the measurement."""

    transactions: int = TRANSACTIONS_MAX
    seconds: float = SECONDS_MAX
    producers: int = PRODUCERS
    filled_bytes: int = FILLED_BYTES


@dataclass(frozen=True, slots=True)
class TransactionsMeasured:
    """The rounds, and the memory of many open transactions if the broker is ours."""

    rounds: dict[str, list[Round]]
    producers: int
    memory_bytes: int | None


def run_transactions(bench: Bench, size: Size | None = None) -> TransactionsMeasured:
    size = size or Size()
    client = bench.cluster.client
    client.run(Coordinator(client.asynchronous, "moldau-bench", TRANSACTION_KEY).find())  # so there is one
    batch = SHAPE.batch()
    rounds = bench.interleave(
        {name: partial(_round, bench, batch, version, size) for version, name in VERSIONS.items()}
    )
    rounds |= _read(bench, batch, size)
    opened = _open_many(bench, batch, size.producers)
    rounds[OPEN_NAME.format(size.producers)] = [_round_of(size.producers, opened.open_s, opened.open_cpu_s)]
    rounds[COMMIT_NAME.format(size.producers)] = [_round_of(size.producers, opened.commit_s, opened.commit_cpu_s)]
    return TransactionsMeasured(rounds, size.producers, opened.memory_bytes)


# Cost of a transaction


def _round(bench: Bench, batch: bytes, version: int, size: Size) -> Round:
    with bench.cluster.topic(bench.connections) as topic:
        before = bench.cluster.cpu_s()
        done = bench.generator.run(Transact(topic, batch, version, size.transactions, size.seconds))
        after = bench.cluster.cpu_s()
    spent = None if before is None or after is None else after - before
    return Round(
        done.requests, done.elapsed_s, done.requests * len(batch), done.requests * SHAPE.records, server_cpu_s=spent
    )


# Open transactions


def _open_many(bench: Bench, batch: bytes, producers: int) -> Opened:
    bench.tell(f"{producers} transactional producers at once")
    server = bench.cluster.server
    with bench.cluster.topic(PARTITIONS) as topic:
        pid = server.pid if isinstance(server, Server) else None
        return bench.generator.run(OpenMany(topic, batch, producers, pid))


def _round_of(transactions: int, elapsed_s: float, cpu_s: float | None) -> Round:
    return Round(transactions, elapsed_s, records=transactions * SHAPE.records, server_cpu_s=cpu_s)


# Readers


@dataclass(frozen=True, slots=True)
class Slice:
    """The part of a partition that one response contains."""

    partition: int
    offset: int
    bytes: int


def _read(bench: Bench, batch: bytes, size: Size) -> dict[str, list[Round]]:
    """Measure both isolation levels on the same data, in which one of ten transactions is aborted."""
    with bench.cluster.topic(bench.connections) as topic:
        bench.tell("filling a topic with transactions")
        transactions = size.filled_bytes // len(batch)
        bench.generator.run(Transact(topic, batch, 2, transactions, FILLING_S_MAX, ABORTS_EVERY))
        slices = [_slices(bench, topic, index, end) for index, end in enumerate(bench.cluster.end_offsets(topic))]
        return bench.interleave(
            {
                COMMITTED_NAME: lambda: _fetch_round(bench, Walk(topic, slices, True, FETCH_S)),
                UNCOMMITTED_NAME: lambda: _fetch_round(bench, Walk(topic, slices, False, FETCH_S)),
            }
        )


def _slices(bench: Bench, topic: Topic, partition: int, end_offset: int) -> list[Slice]:
    """Return all slices, in order."""
    slices = []
    offset = 0
    while offset < end_offset:
        records = bench.cluster.client.fetch(topic.name, partition, offset, max_bytes=FETCH_BYTES).records
        batches = list(iterate_batches(records))
        slices.append(Slice(partition, offset, sum(len(batch) for _, batch in batches)))
        offset = batches[-1][0].last_offset + 1
    return slices


def _fetch_round(bench: Bench, walk: "Walk") -> Round:
    before = bench.cluster.cpu_s()
    walked = bench.generator.run(walk)
    after = bench.cluster.cpu_s()
    spent = None if before is None or after is None else after - before
    return Round(walked.pumped.requests, walked.pumped.elapsed_s, walked.bytes, server_cpu_s=spent)


@dataclass(frozen=True, slots=True)
class Walked:
    """The number of responses, and the bytes of the log in them."""

    pumped: Pumped
    bytes: int


@dataclass(slots=True)
class _Count:
    responses: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Walk:
    """Readers of every partition that read it repeatedly until the time limit."""

    topic: Topic
    slices: Sequence[Sequence[Slice]]  # of each partition
    is_committed_only: bool
    seconds: float

    def run(self) -> Walked:
        count = _Count()
        deadline = time.perf_counter() + self.seconds
        talks = [
            (Talk(), self._reader(self.topic.leaders[index], slices, first, deadline, count))
            for index, slices in enumerate(self.slices)
            for first in range(FETCHERS)
        ]
        try:
            elapsed_s = converse(talks)
        finally:
            for talk, _ in talks:
                talk.close()
        return Walked(Pumped(count.responses, elapsed_s), count.bytes)

    def _reader(
        self, leader: Address, slices: Sequence[Slice], first: int, deadline: float, count: _Count
    ) -> Conversation:
        frames = [self._frame(each) for each in slices]
        position = first * len(slices) // FETCHERS
        while time.perf_counter() < deadline:
            reply = yield Requested(leader, frames[position], is_kept=False)
            if reply.size < slices[position].bytes:
                raise CommandError(f"a reader got {reply.size} bytes where {slices[position].bytes} are in the log")
            count.responses += 1
            count.bytes += slices[position].bytes
            position = (position + 1) % len(slices)

    def _frame(self, wanted: Slice) -> bytes:
        return fetch_frame(
            self.topic.name,
            wanted.partition,
            wanted.offset,
            FETCH_BYTES,
            is_committed_only=self.is_committed_only,
        )
