"""Chaos on real processes: `python -m moldau_dev.chaos.run --minutes 5 [--namespaces] [--seed 7] [--keep DIR]`.

Three nodes, three partitions with three replicas, two idempotent producers and a consumer group of librdkafka, all
recorded. Faults strike one after the other; then all is healed, everything is read, the brokers are stopped, the
history is checked and the replicas are compared.
"""

import argparse
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from moldau_dev.chaos.audit import Audit, audit
from moldau_dev.chaos.clients import RecordedConsumer, RecordedProducer, read_everything
from moldau_dev.chaos.faults import FaultCase, Faults, fault_cases, wait
from moldau_dev.chaos.faulty_cluster import FaultyCluster, faulty_cluster
from moldau_dev.chaos.faulty_disks import FaultyDisks
from moldau_dev.chaos.namespaces import Wires
from moldau_dev.history.anomalies import Report
from moldau_dev.history.attempts import load
from moldau_dev.history.checker import check
from moldau_dev.history.recorder import Recorder

TOPIC: Final = "chaos"
GROUP: Final = "readers"
GROUP_PROTOCOLS: Final = (
    {"partition.assignment.strategy": "range,roundrobin", "session.timeout.ms": 10_000},
    {"partition.assignment.strategy": "cooperative-sticky", "session.timeout.ms": 10_000},
    {"group.protocol": "consumer"},
)
PARTITIONS: Final = 3
PRODUCERS: Final = 2
CONSUMERS: Final = 3
VALUES_PER_PRODUCER: Final = 1_000_000_000
PROGRESS_RECORDS: Final = 100
PROGRESS_S_MAX: Final = 60.0
CAUGHT_UP_S_MAX: Final = 120.0
SETTINGS: Final = {
    "offsets.topic.num.partitions": 3,
    "group.initial.rebalance.delay.ms": 200,
    "log.segment.bytes": 1_048_576,
    "min.insync.replicas": 2,
}


@dataclass(slots=True)
class Result:
    """The result of a run."""

    seconds: float = 0.0
    fired: dict[str, int] = field(default_factory=dict)
    gaps_s: dict[str, list[float]] = field(default_factory=dict)  # times without an acknowledgement, by fault
    problems: list[str] = field(default_factory=list)
    report: Report | None = None
    audit: Audit | None = None

    @property
    def is_good(self) -> bool:
        proved = self.report is not None and self.report.is_valid and self.report.proves_something
        return proved and self.audit is not None and not self.audit.findings and not self.problems

    def text(self) -> str:
        faults = sum(self.fired.values())
        lines = [f"{'good' if self.is_good else 'BAD'}: {faults} faults in {self.seconds:.0f} s"]
        for cell, count in sorted(self.fired.items()):
            lines.append(f"  {count:4} x {cell}{gap_figures(self.gaps_s.get(cell, []))}")
        lines += [self._availability_text()] if self.gaps_s and self.seconds else []
        lines += [f"problem: {problem}" for problem in self.problems]
        lines += [self.report.text()] if self.report else []
        lines += [self.audit.text()] if self.audit else []
        if self.is_good and faults:
            lines.append(f"no failure in {faults} faults: at most {3 / faults:.4f} of them fail, at 95 %")
        return "\n".join(lines)

    def _availability_text(self) -> str:
        """Count the whole longest gap after each fault as unavailable, though two thirds of the partitions go on."""
        gaps = [gap for each in self.gaps_s.values() for gap in each]
        available = 1 - sum(gaps) / self.seconds
        return f"available for {available:.2%} of the time, with a fault every {self.seconds / len(gaps):.0f} s"


def gap_figures(gaps_s: Sequence[float]) -> str:
    """Return the times without an acknowledgement after one kind of fault."""
    if not gaps_s:
        return ""
    ordered = sorted(gaps_s)
    p99 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    figures = f"median {statistics.median(ordered):.2f} s, p99 {p99:.2f} s, max {ordered[-1]:.2f} s"
    return f": without an acknowledgement {figures}"


class Chaos:
    """One run, from the first write to the audit."""

    def __init__(self, cluster: FaultyCluster, faults: Faults, folder: Path, rng: random.Random) -> None:
        self.cluster, self.faults, self.rng = cluster, faults, rng
        self.result = Result()
        self._history = folder / "history.jsonl"
        self._recorder = Recorder(self._history)
        servers = cluster.bootstrap_servers
        self.producers = [
            RecordedProducer(
                f"producer-{number}", servers, TOPIC, PARTITIONS, self._recorder, number * VALUES_PER_PRODUCER
            )
            for number in range(1, PRODUCERS + 1)
        ]
        protocol = rng.choice(GROUP_PROTOCOLS)
        self.consumers = [
            RecordedConsumer(f"member-{number}", servers, GROUP, TOPIC, self._recorder, protocol)
            for number in range(1, CONSUMERS + 1)
        ]

    def run(self, plan: Iterator[FaultCase], seconds: float) -> Result:
        started = time.monotonic()
        for client in self._clients():
            client.start()
        self._await_progress("at the start")
        while time.monotonic() - started < seconds and not self.result.problems:
            self._inject(next(plan))
        self.result.seconds = time.monotonic() - started
        self.result.fired = dict(self.faults.fired)
        self._finish()
        self._check()
        return self.result

    def _clients(self) -> "list[RecordedProducer | RecordedConsumer]":
        return [*self.producers, *self.consumers]

    def _inject(self, cell: FaultCase) -> None:
        """Inject one fault, heal it, and wait for progress."""
        for producer in self.producers:
            producer.longest_gap_s()
        nodes = self.faults.strike(cell)
        wait(self.faults.outage_s())
        self.faults.heal()
        self._await_progress(f"after {cell} on {nodes}")
        gap = max(producer.longest_gap_s() for producer in self.producers)
        self.result.gaps_s.setdefault(str(cell), []).append(gap)
        if self.rng.random() < 0.5:
            self.cluster.wait_until_in_sync()

    def _await_progress(self, when: str) -> None:
        for producer in self.producers:
            if not producer.wait_for_more(PROGRESS_RECORDS, PROGRESS_S_MAX):
                self.result.problems.append(f"{producer.name} makes no progress {when}")

    def _finish(self) -> None:
        """Finish all clients; a final reader reads all records."""
        self.faults.heal()
        self.cluster.wait_until_in_sync()
        for producer in self.producers:
            producer.finish()
        ends = read_everything(self.cluster.bootstrap_servers, TOPIC, PARTITIONS, self._recorder, 30.0)
        self._await_group(ends)
        for consumer in self.consumers:
            consumer.finish()
            consumer.close()
        self._recorder.close()
        for client in self._clients():
            self.result.problems += client.problems
        self.cluster.wait_until_in_sync()
        self.cluster.stop()

    def _await_group(self, ends: dict[int, int]) -> None:
        deadline = time.monotonic() + CAUGHT_UP_S_MAX
        while any(self._read_up_to(index) < end for index, end in ends.items()):
            if time.monotonic() > deadline:
                self.result.problems.append(f"the group did not read everything in {CAUGHT_UP_S_MAX:.0f} s")
                return
            wait(0.2)

    def _read_up_to(self, partition: int) -> int:
        return max(consumer.ends.get(f"{TOPIC}-{partition}", 0) for consumer in self.consumers)

    def _check(self) -> None:
        self.result.report = check(load(self._history), is_complete=True)
        self.result.audit = audit([self.cluster[node].data for node in self.cluster.nodes])


def chaos(minutes: float, *, seed: int, uses_namespaces: bool, folder: Path, only: str = "") -> Result:
    """Run a cluster under faults for a time, and check the result."""
    rng = random.Random(seed)
    has_disks = FaultyDisks.are_possible()
    with faulty_cluster(settings=SETTINGS, has_wires=uses_namespaces, has_disks=has_disks) as cluster:
        cluster.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=3, min_insync_replicas=2)
        faults = Faults(cluster, TOPIC, rng)
        chosen = [cell for cell in fault_cases(has_wires=uses_namespaces, has_disks=has_disks) if only in str(cell)]
        return Chaos(cluster, faults, folder, rng).run(_plan(chosen, rng), minutes * 60)


def _plan(chosen: Sequence[FaultCase], rng: random.Random) -> Iterator[FaultCase]:
    """Yield every fault once in random order, then again."""
    while True:
        yield from rng.sample(chosen, len(chosen))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m moldau_dev.chaos.run", description=__doc__)
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--namespaces", action="store_true", help="run nodes in network namespaces, with cuts")
    parser.add_argument("--only", default="", help="only faults whose name contains this: 'kill', 'leader'")
    parser.add_argument("--keep", type=Path, help="directory for the history")
    options = parser.parse_args(arguments)
    uses_namespaces = options.namespaces and Wires.are_allowed()
    if options.namespaces and not uses_namespaces:
        sys.stdout.write("no network namespaces on this machine: cables stay in\n")
    folder = options.keep or Path(tempfile.mkdtemp(prefix="moldau-chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    sys.stdout.write(f"seed {options.seed}\n")
    result = chaos(
        options.minutes, seed=options.seed, uses_namespaces=uses_namespaces, folder=folder, only=options.only
    )
    sys.stdout.write(result.text() + "\n")
    if result.is_good and options.keep is None:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        sys.stdout.write(f"the history is in {folder}\n")
    return 0 if result.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
