"""Consume, transform, produce on three brokers while workers and brokers are killed: each input has one result.

A short run here; `make soak-transactions RUNS=100` for more, FIRST=100 to continue after them.
"""

import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
from transform_crew import TransformCrew, histories, read_committed

from moldau.client.groups import Groups
from moldau.client.transactions import Transactions
from moldau.client.types import LATEST, Isolation
from moldau.model.errors import KafkaError
from moldau.model.ids import TopicPartition
from moldau.testing import BrokerFailed, Cluster
from moldau_dev.chaos.clients import RecordedProducer
from moldau_dev.history.checker import check
from moldau_dev.history.recorder import Recorder

RUNS: Final = int(os.environ.get("MOLDAU_TRANSACTION_RUNS", "1"))
FIRST: Final = int(os.environ.get("MOLDAU_TRANSACTION_FIRST", "0"))
PARTITIONS: Final = 3
WORKERS: Final = ("one", "two")
FAULTS: Final = 3
SHORT: Final = ("transaction coordinator killed", "worker replaced")  # if there is one run only
RECORDS: Final = 60  # transformed between two faults, at least
PAUSE_S: Final = 0.01  # between two inputs
PROGRESS_S_MAX: Final = 90.0
SETTINGS: Final = {
    "offsets.topic.num.partitions": 3,
    "transaction.state.log.num.partitions": 3,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 500,
    "group.initial.rebalance.delay.ms": 100,
    "group.min.session.timeout.ms": 500,
    "group.consumer.min.session.timeout.ms": 500,
    "group.consumer.session.timeout.ms": 1_500,
    "group.consumer.min.heartbeat.interval.ms": 100,
    "group.consumer.heartbeat.interval.ms": 300,
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=3, settings=SETTINGS) as cluster:
        yield cluster


class Run:
    """One run: a producer, transforming workers, and faults."""

    def __init__(self, seed: int, cluster: Cluster, folder: Path) -> None:
        self.chance = random.Random(seed)
        self.fired: list[str] = []
        self._cluster, self._folder = cluster, folder
        cluster.start()  # nodes left dead by a failed run
        source, target = f"orders-{seed}", f"bills-{seed}"
        for topic in (source, target):
            cluster.create_topic(topic, partitions=PARTITIONS, replication_factor=3, min_insync_replicas=2)
        self._crew = TransformCrew(self.chance, cluster.bootstrap_servers, source, target, PARTITIONS)
        self._recorder = Recorder(folder / "here.jsonl")
        self._producer = RecordedProducer(
            "orders", cluster.bootstrap_servers, source, PARTITIONS, self._recorder, 0, pause_s=PAUSE_S
        )

    def __enter__(self) -> "Run":
        self._producer.start()
        for name in WORKERS:
            self._crew.start(name, self._folder)
        return self

    def __exit__(self, *_: object) -> None:
        self._producer.finish()
        self._crew.close()
        self._recorder.close()

    def wait_for_progress(self) -> None:
        """Wait until more records are transformed."""
        goal = self._cluster.wait_for(self._progress, "the group's offsets", PROGRESS_S_MAX) + RECORDS
        try:
            self._cluster.wait_until(
                lambda: self._progress() >= goal, f"more results after {self.fired}", PROGRESS_S_MAX
            )
        except BrokerFailed as failure:
            failure.add_note(self._situation())
            raise

    def _situation(self) -> str:
        """Describe offsets and transactions, for an error message."""
        with self._cluster.client() as client:
            transactions = client.run(Transactions(client.asynchronous).all())
            group = client.run(Groups(client.asynchronous).describe(self._crew.group))
        said = [f"{path.name}: {path.read_text()[-500:]}" for path in sorted(self._folder.glob("*.err"))]
        there = f"inputs: {self._ends(self._crew.source)}, problems {self._producer.problems}"
        return "\n".join([there, f"committed: {self._committed()}", str(group), *map(str, transactions), *said])

    def plan(self) -> list[str]:
        if RUNS == 1:
            return list(SHORT)
        return [self.chance.choice(list(self._faults())) for _ in range(FAULTS)]

    def strike(self, fault: str) -> None:
        self.fired.append(fault)
        self._faults()[fault]()

    def _faults(self) -> dict[str, Callable[[], None]]:
        return {
            "worker killed": lambda: self._crew.kill_one(self._folder),
            "worker paused": self._crew.pause_one,
            "worker replaced": lambda: self._crew.replace_one(self._folder),
            "worker joined": lambda: self._crew.start(f"late-{len(self.fired)}", self._folder),
            "leader killed": lambda: self._kill(self._leader()),
            "transaction coordinator killed": lambda: self._kill(self._coordinator()),
            "broker restarted": lambda: self._restart(self.chance.choice(list(self._cluster.nodes))),
            "all brokers killed": self._kill_all,
        }

    def settle(self) -> None:
        """Wait until all inputs are processed and no transaction is open, then check the results."""
        self._producer.finish()
        assert not self._producer.problems
        source, target = self._crew.source, self._crew.target
        ends = self._ends(source)
        self._cluster.wait_until(lambda: self._progress() == sum(ends.values()), "all is used", PROGRESS_S_MAX)
        assert self._committed() == ends
        self._crew.close()
        self._cluster.wait_until(
            lambda: self._ends(target) == self._ends(target, Isolation.READ_COMMITTED), "nothing is open"
        )
        seen = read_committed(self._cluster.bootstrap_servers, target, PARTITIONS, self._recorder)
        self._recorder.close()
        results = Counter(each.partition("/")[0] for each in seen)
        inputs = [f"{place.partition}-{offset}" for place, end in ends.items() for offset in range(end)]
        assert results == Counter(inputs), f"after {self.fired}"
        history = histories(self._folder)
        report = check(history, is_complete=True)
        assert not report.anomalies, f"after {self.fired}: {report.text()}"
        assert report.proves_something, report.text()
        commits = sum(each.f == "txn" and each.is_ok for each in history)
        print(f"{self.fired}: {len(inputs)} inputs, each with one result, in {commits} transactions")

    # State

    def _progress(self) -> int:
        self._crew.revive(self._folder)
        return sum(self._committed().values())

    def _committed(self) -> dict[TopicPartition, int]:
        with self._cluster.client() as client:
            offsets: dict[TopicPartition, int] = client.run(Groups(client.asynchronous).offsets(self._crew.group))
        return offsets

    def _ends(self, topic: str, isolation: Isolation = Isolation.READ_UNCOMMITTED) -> dict[TopicPartition, int]:
        times = {TopicPartition(topic, index): LATEST for index in range(PARTITIONS)}
        with self._cluster.client() as client:
            return {place: each.offset for place, each in client.list_offsets(times, isolation=isolation).items()}

    def _leader(self) -> int:
        topic = self.chance.choice([self._crew.source, self._crew.target])
        return self._cluster.leader_of(topic, self.chance.randrange(PARTITIONS))

    def _coordinator(self) -> int:
        def look() -> int | None:
            with self._cluster.client() as client:
                described = client.run(
                    Transactions(client.asynchronous).describe(f"{self._crew.group}-{self.chance.choice(WORKERS)}")
                )
            return int(described.coordinator)

        try:
            return self._cluster.wait_for(look, "a transaction coordinator")
        except KafkaError:
            return self._leader()

    # Faults

    def _kill(self, node: int) -> None:
        self._cluster.kill(node)
        self.wait_for_progress()  # the other brokers continue
        self._cluster.start(node)

    def _restart(self, node: int) -> None:
        self._cluster.stop(node)
        self._cluster.start(node)

    def _kill_all(self) -> None:
        self._cluster.kill(*self._cluster.nodes)
        self._cluster.start()


@pytest.mark.proves("C6", "P3", "C7")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(FIRST, FIRST + RUNS))
def test_every_input_has_one_result_under_faults(cluster: Cluster, seed: int, tmp_path: Path) -> None:
    with Run(seed, cluster, tmp_path) as run:
        run.wait_for_progress()
        for fault in run.plan():
            run.strike(fault)
            run.wait_for_progress()
            cluster.wait_until_in_sync()
        run.settle()
