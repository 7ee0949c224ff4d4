"""Runs the rows: starts both subjects, warms them up, and measures them in turn."""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from moldau.cli.bench.bench import Bench
from moldau.cli.bench.cluster import Cluster, bench_folder, own_broker, own_cluster
from moldau.cli.bench.generator import Generator
from moldau.cli.bench.rounds import Tell
from moldau.cli.bench.servers import Server, Servers
from moldau.cli.cluster_client import connect
from moldau_dev.bench.kafka.apache import ApacheCluster
from moldau_dev.bench.kafka.rows import Figures, Measure, Row
from moldau_dev.bench.kafka.subject import Subject

MOLDAU: Final = "moldau"
KAFKA: Final = "kafka"
CONNECTIONS: Final = 4
STABLE_RATIO: Final = 0.1  # a warm-up ends when two rounds in a row differ by less
PAUSED: Final = {  # as for Kafka
    "broker.session.timeout.ms": "1200000",  # outlasts a SIGSTOP
    "log.retention.check.interval.ms": "5000",  # retention deletes during a long row
}
MANY_CONNECTIONS: Final = {"max.connections.per.ip": "10000", "max.connections": "10000"}
QUIET_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to measure."""

    seconds: float = 2.0  # of one round
    rounds: int = 5
    warm_up_rounds_max: int = 6


@dataclass(slots=True)
class Compared:
    """The rounds of one row, by subject."""

    name: str
    counted: str
    rounds: dict[str, list[Figures]] = field(default_factory=dict)


def compare(
    rows: Sequence[Row], effort: Effort, tell: Tell, folder: Path | None = None, *, with_kafka: bool = True
) -> list[Compared]:
    """All rows on their clusters. A cluster of each size is started once, before its first row."""
    compared: list[Compared] = []
    for brokers in sorted({row.brokers for row in rows}):
        with subjects(brokers, tell, folder, with_kafka=with_kafka) as both:
            if brokers == 1:
                compared += _start_and_memory(both)
            compared += [_row(row, both, effort, tell) for row in rows if row.brokers == brokers]
            if brokers == 1:
                compared.append(_memory("memory after all rows, MB", both))
    return compared


@contextmanager
def subjects(brokers: int, tell: Tell, where: Path | None, *, with_kafka: bool = True) -> Iterator[list[Subject]]:
    """Start Moldau and Apache Kafka, one after the other."""
    with ExitStack() as stack:
        folder = stack.enter_context(bench_folder(where))
        generator = stack.enter_context(Generator())
        tell(f"starting Moldau, {brokers} broker(s)")
        settings = {**PAUSED, **MANY_CONNECTIONS}
        own = own_broker(folder, settings) if brokers == 1 else own_cluster(folder, brokers, settings)
        bench = Bench(stack.enter_context(own), generator, folder, CONNECTIONS, 1, tell)
        moldau = subject_of(MOLDAU, bench)
        if not with_kafka:
            yield [moldau]
            return
        moldau.stop()
        stack.callback(moldau.resume)
        tell(f"starting Apache Kafka, {brokers} broker(s)")
        kafka_server = stack.enter_context(ApacheCluster(folder, brokers))
        client = stack.enter_context(connect(kafka_server.bootstrap_servers))
        cluster = Cluster(client, kafka_server.bootstrap_servers, kafka_server, replicas=brokers)
        kafka = subject_of(KAFKA, replace(bench, cluster=cluster))
        moldau.resume()
        yield [moldau, kafka]


def subject_of(name: str, bench: Bench) -> Subject:
    server = bench.cluster.server
    match server:
        case Server():
            return Subject(name, bench, [server.pid], server.started_in_s)
        case Servers():
            return Subject(
                name, bench, [each.pid for each in server.all], max(each.started_in_s for each in server.all)
            )
        case ApacheCluster():
            return Subject(name, bench, [node.pid for node in server.nodes], server.started_in_s)
        case _:
            raise TypeError(f"{name} was not started here")


def _start_and_memory(both: Sequence[Subject]) -> list[Compared]:
    start = Compared("start, s", "", {each.name: [Figures(value=each.started_in_s)] for each in both})
    time.sleep(QUIET_S)
    return [start, _memory("memory after the start, MB", both)]


def _memory(name: str, both: Sequence[Subject]) -> Compared:
    return Compared(name, "", {each.name: [Figures(value=each.memory_bytes / 1e6)] for each in both})


def _row(row: Row, both: Sequence[Subject], effort: Effort, tell: Tell) -> Compared:
    if row.is_of_machine:
        both = both[:1]
    compared = Compared(row.name, row.counted, {each.name: [] for each in both})
    with ExitStack() as stack:
        prepared: dict[str, Measure] = {}
        for subject in both:
            with subject.running_alone([each for each in both if each is not subject]):
                tell(f"{row.name}: {subject.name} warms up")
                prepared[subject.name] = row.prepare(subject.bench, stack, effort.seconds)
                _warm_up(prepared[subject.name], effort.warm_up_rounds_max)
        for number in range(effort.rounds):
            for subject in both:
                tell(f"{row.name}: {subject.name}, round {number + 1} of {effort.rounds}")
                with subject.running_alone([each for each in both if each is not subject]):
                    if row.brokers > 1:
                        prepared[subject.name]()  # followers reconnect after the pause
                    compared.rounds[subject.name].append(prepared[subject.name]())
    return compared


def _warm_up(measure: Measure, rounds_max: int) -> None:
    """Until two rounds in a row are alike: a JVM compiles for some seconds."""
    before = _speed(measure())
    for _ in range(rounds_max - 1):
        speed = _speed(measure())
        if abs(speed - before) <= STABLE_RATIO * max(speed, before):
            return
        before = speed


def _speed(figures: Figures) -> float:
    return figures.per_s or figures.p50_ms or figures.cpu_us or 0.0
