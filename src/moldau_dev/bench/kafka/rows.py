"""The rows of the comparison. Each prepares a load on one subject and returns a function that measures it once."""

import math
import re
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from moldau.cli.bench import fetch_load
from moldau.cli.bench.bench import Bench, Load
from moldau.cli.bench.open_loop import Pace
from moldau.cli.bench.produce_load import ProduceCase, produce_flows, produce_round
from moldau.cli.bench.requests import Shape
from moldau.cli.bench.rounds import Round
from moldau.cli.bench.statistics import quantile
from moldau.cli.errors import CommandError
from moldau.client.coordinators import TRANSACTION_KEY, Coordinator
from moldau.model.errors import CoordinatorNotAvailable
from moldau.model.units import MiB
from moldau_dev.bench.growth.lines import cpu_s
from moldau_dev.bench.growth.sessions import Consumer
from moldau_dev.bench.kafka import c_client
from moldau_dev.bench.kafka.apache import java
from moldau_dev.bench.transaction_load import Transact

ROUND_BYTES_MAX: Final = 512 * MiB
REPLICATED_BYTES_MAX: Final = 160 * MiB  # three times as many are written
FILLED: Final = Load(in_flight=5, bytes_max=128 * MiB, seconds_max=60.0)
SESSION_PARTITIONS: Final = 1_000
EMPTY_FETCHES: Final = 300
TRANSACTIONS_MAX: Final = 100_000
TOOL_RECORDS_PER_S: Final = 400_000  # how many records a tool gets for each second of a row
TOOL_S_MAX: Final = 300.0
COORDINATOR_S_MAX: Final = 30.0
COORDINATOR_CHECK_S: Final = 0.2
_RECORDS_PER_S: Final = re.compile(r"([\d.]+) records/sec")


@dataclass(frozen=True, slots=True)
class Figures:
    """One measurement: what a row shows of throughput, broker CPU and latency."""

    per_s: float | None = None
    cpu_us: float | None = None  # of the broker or brokers, for each of what is counted
    p50_ms: float | None = None
    p99_ms: float | None = None
    value: float | None = None  # start time, memory: lower is better


Measure = Callable[[], Figures]
Prepare = Callable[[Bench, ExitStack, float], Measure]


@dataclass(frozen=True, slots=True)
class Row:
    """A row: what is counted, on how many brokers, and how it is measured."""

    name: str
    counted: str
    prepare: Prepare
    brokers: int = 1
    needs_compiler: bool = False
    is_of_machine: bool = False  # measured once for the machine, without Kafka


def of_round(found: Round, count: int | None = None) -> Figures:
    counted = found.requests if count is None else count
    cpu_us = None if found.server_cpu_s is None else found.server_cpu_s / counted * 1e6
    samples = sorted(found.samples_ms)
    return Figures(
        None if samples else counted / found.elapsed_s,
        cpu_us,
        quantile(samples, 0.5) if samples else None,
        quantile(samples, 0.99) if samples else None,
    )


def raw_produce(shape: Shape, *, counts_records: bool, bytes_max: int = ROUND_BYTES_MAX) -> Prepare:
    """Prepared batches from four connections, five requests in flight on each, acks=all."""

    def prepare(bench: Bench, _stack: ExitStack, seconds: float) -> Measure:
        batch = shape.batch()
        case = ProduceCase("", shape, Load(5, bytes_max, seconds))

        def measure() -> Figures:
            found = produce_round(bench, case, batch)
            return of_round(found, found.records if counts_records else None)

        return measure

    return prepare


def many_connections(count: int) -> Prepare:
    """One request of one record in flight on each connection."""

    def prepare(bench: Bench, stack: ExitStack, seconds: float) -> Measure:
        topic = stack.enter_context(bench.cluster.topic(4))
        flows = produce_flows(topic, Shape(1, 100).batch())
        spread = [flows[number % len(flows)] for number in range(count)]
        load = Load(1, ROUND_BYTES_MAX, seconds)
        return lambda: of_round(bench.pump(bench.cluster.server, spread, load))

    return prepare


def paced(connections: int, rate: float) -> Prepare:
    """Requests of one record at a fixed rate; latency counts from when each was due."""

    def prepare(bench: Bench, stack: ExitStack, seconds: float) -> Measure:
        topic = stack.enter_context(bench.cluster.topic(4 if connections > 1 else 1))
        flows = produce_flows(topic, Shape(1, 100).batch())
        spread = [flows[number % len(flows)] for number in range(connections)]

        def measure() -> Figures:
            before_s = cpu_s(bench.cluster)
            samples_ms = bench.run(Pace(spread, rate, seconds))
            spent_s = cpu_s(bench.cluster) - before_s
            return of_round(Round(len(samples_ms), seconds, server_cpu_s=spent_s, samples_ms=samples_ms))

        return measure

    return prepare


def paced_batches(shape: Shape, records_per_s: float) -> Prepare:
    """Batches of 64 KiB at a fixed rate over four connections; latency counts from when each was due."""

    def prepare(bench: Bench, _stack: ExitStack, seconds: float) -> Measure:
        batch = shape.batch()

        def measure() -> Figures:
            with bench.cluster.topic(bench.connections) as topic:
                flows = produce_flows(topic, batch)
                before_s = cpu_s(bench.cluster)
                samples_ms = bench.run(Pace(flows, records_per_s / shape.records, seconds))
                spent_s = cpu_s(bench.cluster) - before_s
            found = Round(len(samples_ms), seconds, server_cpu_s=spent_s, samples_ms=samples_ms)
            return of_round(found, len(samples_ms) * shape.records)

        return measure

    return prepare


def fetch(shape: Shape) -> Prepare:
    """Fetches of 1 MiB from four connections, two requests in flight on each, from the page cache."""

    def prepare(bench: Bench, stack: ExitStack, seconds: float) -> Measure:
        topic = stack.enter_context(bench.cluster.topic(bench.connections))
        batch = shape.batch()
        bench.pump(None, produce_flows(topic, batch), FILLED)
        ends = bench.cluster.end_offsets(topic)
        walks = [
            fetch_load.walk(topic, index, ends[index], len(batch), shape.records, MiB) for index in range(len(ends))
        ]
        load = Load(2, 64 * ROUND_BYTES_MAX, seconds)
        return lambda: of_round(bench.pump(bench.cluster.server, [each.flow for each in walks], load))

    return prepare


def transactions(bench: Bench, stack: ExitStack, seconds: float) -> Measure:
    """Transactions of 100 records on one partition, by four producers, version 2."""
    _find_coordinator(bench)
    topic = stack.enter_context(bench.cluster.topic(bench.connections))
    batch = Shape(100, 100).batch()

    def measure() -> Figures:
        before_s = cpu_s(bench.cluster)
        done = bench.generator.run(Transact(topic, batch, 2, TRANSACTIONS_MAX, seconds))
        return of_round(Round(done.requests, done.elapsed_s, server_cpu_s=cpu_s(bench.cluster) - before_s))

    return measure


def _find_coordinator(bench: Bench) -> None:
    """The first request has the broker create the topic of the transactions' state, which takes Kafka some seconds."""
    client = bench.cluster.client
    deadline_s = time.monotonic() + COORDINATOR_S_MAX
    while True:
        try:
            client.run(Coordinator(client.asynchronous, "moldau-bench", TRANSACTION_KEY).find())
        except CoordinatorNotAvailable:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(COORDINATOR_CHECK_S)
        else:
            return


def empty_fetches(bench: Bench, stack: ExitStack, seconds: float) -> Measure:  # noqa: ARG001 - a fixed number
    """Incremental fetches of a session with 1,000 partitions, none of which has news."""
    topic = stack.enter_context(bench.cluster.topic(SESSION_PARTITIONS))
    consumer = Consumer(topic.leaders[0], {topic.name: SESSION_PARTITIONS})
    stack.callback(consumer.close)

    def measure() -> Figures:
        before_s = cpu_s(bench.cluster)
        for _ in range(EMPTY_FETCHES):
            consumer.fetch_nothing()
        return Figures(cpu_us=(cpu_s(bench.cluster) - before_s) / EMPTY_FETCHES * 1e6)

    return measure


def librdkafka_produce(record_bytes: int) -> Prepare:
    def prepare(bench: Bench, _stack: ExitStack, seconds: float) -> Measure:
        program = c_client.build(bench.folder)

        def measure() -> Figures:
            with bench.cluster.topic(bench.connections) as topic:
                where = bench.cluster.bootstrap_servers
                before_s = cpu_s(bench.cluster)
                done = c_client.run(program, "produce", where, topic.name, bench.connections, record_bytes, seconds)
                spent_s = cpu_s(bench.cluster) - before_s
            return of_round(Round(int(done["records"]), done["elapsed_s"], server_cpu_s=spent_s))

        return measure

    return prepare


def librdkafka_latency(rate: float) -> Prepare:
    def prepare(bench: Bench, stack: ExitStack, seconds: float) -> Measure:
        program = c_client.build(bench.folder)
        topic = stack.enter_context(bench.cluster.topic(1))

        def measure() -> Figures:
            where = bench.cluster.bootstrap_servers
            before_s = cpu_s(bench.cluster)
            done = c_client.run(program, "latency", where, topic.name, 1, 100, seconds, rate)
            cpu_us = (cpu_s(bench.cluster) - before_s) / done["records"] * 1e6
            return Figures(cpu_us=cpu_us, p50_ms=done["p50_ms"], p99_ms=done["p99_ms"])

        return measure

    return prepare


def producer_performance(bench: Bench, _stack: ExitStack, seconds: float) -> Measure:
    """Kafka's own tool, with records of 100 B."""
    records = math.ceil(TOOL_RECORDS_PER_S * seconds)

    def measure() -> Figures:
        with bench.cluster.topic(bench.connections) as topic:
            return _produced_by_tool(bench, topic.name, records)

    return measure


def consumer_performance(bench: Bench, stack: ExitStack, seconds: float) -> Measure:
    """Kafka's own tool, which reads records of 100 B."""
    records = math.ceil(TOOL_RECORDS_PER_S * seconds)
    topic = stack.enter_context(bench.cluster.topic(bench.connections))
    _produced_by_tool(bench, topic.name, records)
    servers = bench.cluster.bootstrap_servers
    options = ["--bootstrap-server", servers, "--topic", topic.name, "--num-records", str(records)]

    def measure() -> Figures:
        before_s = cpu_s(bench.cluster)
        output = _tool("org.apache.kafka.tools.ConsumerPerformance", *options, "--timeout", "60000", "--hide-header")
        spent_s = cpu_s(bench.cluster) - before_s
        rates = [line.split(",") for line in output.splitlines() if line.count(",") >= FETCH_RATE_COLUMN]
        if not rates:
            raise CommandError(f"ConsumerPerformance printed no figures: {output[-500:]}")
        return Figures(float(rates[-1][FETCH_RATE_COLUMN]), spent_s / records * 1e6)

    return measure


FETCH_RATE_COLUMN: Final = 9  # fetch.nMsg.sec


def _produced_by_tool(bench: Bench, topic: str, records: int) -> Figures:
    options = ["--topic", topic, "--num-records", str(records), "--record-size", "100", "--throughput", "-1"]
    before_s = cpu_s(bench.cluster)
    output = _tool(
        "org.apache.kafka.tools.ProducerPerformance",
        *options,
        "--bootstrap-server",
        bench.cluster.bootstrap_servers,
    )
    rates = _RECORDS_PER_S.findall(output)
    if not rates:
        raise CommandError(f"ProducerPerformance printed no figures: {output[-500:]}")
    return Figures(float(rates[-1]), (cpu_s(bench.cluster) - before_s) / records * 1e6)


def _tool(main_class: str, *arguments: str) -> str:
    done = subprocess.run(java(main_class, *arguments), capture_output=True, text=True, timeout=TOOL_S_MAX, check=False)
    if done.returncode:
        raise CommandError(f"{main_class} failed: {done.stdout[-500:]}{done.stderr[-500:]}")
    return done.stdout


ROWS: Final = (
    Row("raw produce, 64 KiB of 100 B records", "record", raw_produce(Shape(600, 100), counts_records=True)),
    Row("raw produce, one record", "request", raw_produce(Shape(1, 100), counts_records=False)),
    Row("librdkafka produce, 100 B", "record", librdkafka_produce(100), needs_compiler=True),
    Row("librdkafka produce, 1 KiB", "record", librdkafka_produce(1024), needs_compiler=True),
    Row("one record at 5,000/s, librdkafka", "record", librdkafka_latency(5_000), needs_compiler=True),
    Row("one record at 5,000/s, raw", "request", paced(1, 5_000)),
    Row("fetch 1 MiB of 1 KiB records", "request", fetch(Shape(15, 1024))),
    Row("fetch 1 MiB of 100 B records", "request", fetch(Shape(150, 100))),
    Row("200 connections, one small request each", "request", many_connections(200)),
    Row("1,000 connections, 4,000 requests/s", "request", paced(1_000, 4_000)),
    Row("transactions of 100 records", "transaction", transactions),
    Row("empty fetch, session of 1,000 partitions", "request", empty_fetches),
    Row("ProducerPerformance, 100 B", "record", producer_performance),
    Row("ConsumerPerformance, 100 B", "record", consumer_performance),
    Row(
        "three replicas, 64 KiB of 100 B records",
        "record",
        raw_produce(Shape(600, 100), counts_records=True, bytes_max=REPLICATED_BYTES_MAX),
        brokers=3,
    ),
    Row("three replicas, one record at 2,000/s", "request", paced(1, 2_000), brokers=3),
)


def chosen(words: str) -> list[Row]:
    """The rows whose names contain one of the words, which commas separate; all without any."""
    wanted = [word.strip().lower() for word in words.split(",") if word.strip()]
    rows = [row for row in ROWS if not wanted or any(word in row.name.lower() for word in wanted)]
    if not rows:
        raise CommandError(f"no row is named {words!r}; there are: {'; '.join(row.name for row in ROWS)}")
    return rows
