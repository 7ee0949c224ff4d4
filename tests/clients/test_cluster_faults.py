"""Three brokers under a recorded load of librdkafka: leader, controller and follower are killed, all are restarted.

`make soak-cluster ROUNDS=20` does the same many times over.
"""

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from moldau.testing import Cluster
from moldau_dev.chaos.audit import audit
from moldau_dev.chaos.clients import RecordedConsumer, RecordedProducer, read_everything
from moldau_dev.history.attempts import load
from moldau_dev.history.checker import check
from moldau_dev.history.recorder import Recorder

ROUNDS: Final = int(os.environ.get("MOLDAU_ROUNDS", "1"))
TOPIC: Final = "load"
PARTITIONS: Final = 3
RECORDS: Final = 200  # acknowledged between two faults, at least
PROGRESS_S_MAX: Final = 30.0
SETTINGS: Final = {
    "offsets.topic.num.partitions": 3,
    "group.initial.rebalance.delay.ms": 200,
    "log.segment.bytes": 1_048_576,
}
COOPERATIVE = {"partition.assignment.strategy": "cooperative-sticky", "session.timeout.ms": 10_000}


class Load:
    """An idempotent producer and a consumer group, with a recorded history."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self._history = folder / "history.jsonl"
        self._recorder = Recorder(self._history)
        servers = cluster.bootstrap_servers
        self.producer = RecordedProducer("producer", servers, TOPIC, PARTITIONS, self._recorder, 0)
        self._consumers = [
            RecordedConsumer(f"member-{number}", servers, "readers", TOPIC, self._recorder, COOPERATIVE)
            for number in range(2)
        ]

    def __enter__(self) -> "Load":
        self.producer.start()
        for consumer in self._consumers:
            consumer.start()
        self.wait_for_progress()
        return self

    def __exit__(self, *_: object) -> None:
        self.producer.finish()
        for consumer in self._consumers:
            consumer.finish()

    def wait_for_progress(self) -> None:
        """Wait until more records are acknowledged."""
        assert self.producer.wait_for_more(RECORDS, PROGRESS_S_MAX), "no further writes are acknowledged"

    def settle(self) -> None:
        """Send and read all records; then check that none is lost, duplicated or reordered, and that replicas agree."""
        self.producer.finish()
        ends = read_everything(self.cluster.bootstrap_servers, TOPIC, PARTITIONS, self._recorder, 30.0)
        self.cluster.wait_until(lambda: all(self._has_read(*each) for each in ends.items()), "the group reads all")
        for consumer in self._consumers:
            consumer.finish()
            consumer.close()
        self._recorder.close()
        assert not self.producer.problems
        assert not [problem for consumer in self._consumers for problem in consumer.problems]
        self.cluster.wait_until_in_sync()
        self.cluster.stop()
        report = check(load(self._history), is_complete=True)
        assert report.is_valid, report.text()
        assert report.proves_something, report.text()
        found = audit([self.cluster[node].data for node in self.cluster.nodes])
        assert not found.findings, found.text()

    def _has_read(self, partition: int, end: int) -> bool:
        return max(each.ends.get(f"{TOPIC}-{partition}", 0) for each in self._consumers) >= end


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=3, settings=SETTINGS) as cluster:
        cluster.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=3, min_insync_replicas=2)
        yield cluster


@pytest.mark.proves("H3", "H2", "H5")
@pytest.mark.timeout(120 + 60 * ROUNDS)
def test_killed_leader_controller_or_follower_loses_no_record(cluster: Cluster, tmp_path: Path) -> None:
    chance = random.Random(0)
    with Load(cluster, tmp_path) as running:
        for _ in range(ROUNDS):
            for victim in ("leader", "controller", "follower"):
                node = _find(cluster, victim, chance)
                cluster.kill(node)
                running.wait_for_progress()  # the other brokers continue
                cluster.start(node)
                cluster.wait_until_in_sync()
        running.settle()


@pytest.mark.proves("H3")
@pytest.mark.timeout(120 + 60 * ROUNDS)
def test_killed_cluster_loses_no_record(cluster: Cluster, tmp_path: Path) -> None:
    with Load(cluster, tmp_path) as running:
        for _ in range(ROUNDS):
            cluster.kill(*cluster.nodes)
            cluster.start()
            running.wait_for_progress()
        running.settle()


@pytest.mark.proves("H9")
@pytest.mark.timeout(120 + 60 * ROUNDS)
def test_rolling_restart_only_pauses_clients(cluster: Cluster, tmp_path: Path) -> None:
    with Load(cluster, tmp_path) as running:
        for _ in range(ROUNDS):
            for node in cluster.nodes:
                cluster.stop(node)
                running.wait_for_progress()
                cluster.start(node)
                cluster.wait_until_in_sync()
        running.settle()


def _find(cluster: Cluster, victim: str, chance: random.Random) -> int:
    if victim == "controller":
        return cluster.controller_id
    leader = cluster.leader_of(TOPIC, chance.randrange(PARTITIONS))
    return leader if victim == "leader" else chance.choice([node for node in cluster.nodes if node != leader])
