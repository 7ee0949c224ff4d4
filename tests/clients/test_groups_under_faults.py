"""Consumers and the broker are killed, paused and restarted: at-least-once holds, and no group is stuck.

A few runs here; `make soak-groups RUNS=100` for more.
"""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer

from moldau.client.groups import Groups
from moldau.model.errors import KafkaError
from moldau.model.ids import TopicPartition
from moldau.testing import Broker

WORKER = Path(__file__).with_name("group_worker.py")
RUNS = int(os.environ.get("GROUP_FAULT_RUNS", "3"))
PARTITIONS = 4
SESSION_MS = 1500
FAULTS = 4
SETTLED_S_MAX = 60.0
SETTINGS = {
    "group.min.session.timeout.ms": 500,
    "group.consumer.min.session.timeout.ms": 500,
    "group.consumer.session.timeout.ms": SESSION_MS,
    "group.consumer.min.heartbeat.interval.ms": 100,
    "group.consumer.heartbeat.interval.ms": 300,
    "group.initial.rebalance.delay.ms": 100,
    "offsets.topic.num.partitions": 2,
}


class Crew:
    """The consumers of one group, each in a process of its own."""

    def __init__(self, chance: random.Random, broker: Broker, group: str, folder: Path) -> None:
        self._chance = chance
        self._broker = broker
        self._folder = folder
        self.group = group
        self.protocol = chance.choice(["classic", "consumer"])
        self._strategy = chance.choice(["range", "roundrobin", "cooperative-sticky"])
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._files = ExitStack()

    def start(self, name: str) -> None:
        config: dict[str, object] = {
            "bootstrap.servers": self._broker.bootstrap_servers,
            "group.id": self.group,
            "client.id": name,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "group.protocol": self.protocol,
            "reconnect.backoff.max.ms": 300,
        }
        if self.protocol == "classic":
            config |= {
                "session.timeout.ms": SESSION_MS,
                "heartbeat.interval.ms": 300,
                "partition.assignment.strategy": self._strategy,
            }
        if name.startswith("static"):
            config["group.instance.id"] = name
        errors = self._files.enter_context((self._folder / f"{name}.err").open("ab"))
        self._processes[name] = subprocess.Popen(
            [sys.executable, str(WORKER), json.dumps(config), "t", str(self._folder / f"{name}.results")],
            stderr=errors,
        )

    def kill_one(self) -> None:
        name = self._chance.choice(sorted(self._processes))
        self._end(name)
        self.start(name)

    def pause_one(self) -> None:
        """Pause a consumer beyond its session timeout; it resumes as a zombie that must be fenced."""
        process = self._processes[self._chance.choice(sorted(self._processes))]
        process.send_signal(signal.SIGSTOP)
        pause = threading.Event()
        pause.wait(SESSION_MS * 1.5 / 1000)
        process.send_signal(signal.SIGCONT)

    def join_one(self) -> None:
        self.start(f"late-{self._chance.randrange(10**6)}")

    def _end(self, name: str) -> None:
        process = self._processes.pop(name)
        process.kill()
        process.wait()

    def seen(self) -> set[int]:
        lines = [line.split() for path in self._folder.glob("*.results") for line in path.read_text().splitlines()]
        return {int(words[2]) for words in lines if len(words) == 3}

    def close(self) -> None:
        for name in list(self._processes):
            self._end(name)
        self._files.close()


class Publisher:
    """Produces consecutive numbers until stopped; remembers the acknowledged ones."""

    def __init__(self, broker: Broker) -> None:
        self.acknowledged: set[int] = set()
        self._producer = Producer(
            {"bootstrap.servers": broker.bootstrap_servers, "enable.idempotence": True, "reconnect.backoff.max.ms": 300}
        )
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._is_over.wait(0.005):
            self._publish(number)
            number += 1
        self._producer.flush(60)

    def _publish(self, number: int) -> None:
        def delivered(error: object, _: object) -> None:
            if error is None:
                self.acknowledged.add(number)

        self._producer.produce("t", str(number), key=str(number), on_delivery=delivered)
        self._producer.poll(0)

    def finish(self) -> None:
        self._is_over.set()
        self._thread.join()


class OffsetWatcher:
    """Polls the group's committed offsets, which must never decrease."""

    def __init__(self, broker: Broker, group: str) -> None:
        self.decreases: list[str] = []
        self.looks = 0
        self._broker = broker
        self._group = group
        self._last: dict[TopicPartition, int] = {}
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_over.wait(0.05):
            try:
                with self._broker.client() as client:
                    groups = Groups(client.asynchronous)
                    while not self._is_over.wait(0.05):
                        self._note(client.run(groups.offsets(self._group)))
            except (OSError, KafkaError):
                continue  # the broker is down or loading

    def _note(self, committed: dict[TopicPartition, int]) -> None:
        self.looks += 1
        for place, before in self._last.items():
            if committed.get(place, -1) < before:
                self.decreases.append(f"{place}: {before} to {committed.get(place)}")
        self._last = committed

    def finish(self) -> None:
        self._is_over.set()
        self._thread.join()


@contextmanager
def group_at_work(seed: int, folder: Path) -> Iterator[tuple[random.Random, Broker, Crew, Publisher, OffsetWatcher]]:
    chance = random.Random(seed)
    with Broker(settings=SETTINGS) as broker:
        broker.create_topic("t", partitions=PARTITIONS)
        crew = Crew(chance, broker, f"group-{seed}", folder)
        publisher, watcher = Publisher(broker), OffsetWatcher(broker, crew.group)
        try:
            for name in ("plain-1", "plain-2", "static-1"):
                crew.start(name)
            yield chance, broker, crew, publisher, watcher
        finally:
            publisher.finish()
            watcher.finish()
            crew.close()


def crash(broker: Broker) -> None:
    broker.kill()
    broker.start()


def _until_seen(crew: Crew, count: int) -> None:
    deadline = time.monotonic() + SETTLED_S_MAX
    pause = threading.Event()
    while len(crew.seen()) < count:
        assert time.monotonic() < deadline, f"the group is stuck at {len(crew.seen())} of {count} records"
        pause.wait(0.1)


@pytest.mark.proves("C5")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(RUNS))
def test_acknowledged_records_are_processed_under_faults(seed: int, tmp_path: Path) -> None:
    with group_at_work(seed, tmp_path) as (chance, broker, crew, publisher, watcher):
        _until_seen(crew, 50)
        faults: dict[str, Callable[[], object]] = {
            "consumer killed": crew.kill_one,
            "consumer paused": crew.pause_one,
            "consumer joined": crew.join_one,
            "broker restarted": broker.restart,
            "broker killed": lambda: crash(broker),
        }
        fired = [chance.choice(sorted(faults)) for _ in range(FAULTS)]
        for fault in fired:
            reached = len(crew.seen())
            faults[fault]()
            _until_seen(crew, reached + 20)
        publisher.finish()
        assert len(publisher.acknowledged) > 100
        deadline = time.monotonic() + SETTLED_S_MAX
        pause = threading.Event()
        while missing := publisher.acknowledged - crew.seen():
            assert time.monotonic() < deadline, f"{len(missing)} records lost after {fired}: {sorted(missing)[:10]}"
            pause.wait(0.1)
        watcher.finish()
        assert watcher.looks > 0
        assert watcher.decreases == [], fired
