"""Transformer processes, their combined histories, and the expected result."""

import json
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import confluent_kafka as library
from transform_worker import SilentLogger

from moldau_dev.chaos.clients import PATIENCE
from moldau_dev.history.attempts import Attempt, pair
from moldau_dev.history.operations import Operation
from moldau_dev.history.recorder import Recorder

WORKER: Final = Path(__file__).with_name("transform_worker.py")
SESSION_MS: Final = 1_500
TRANSACTION_MS: Final = 10_000
READ_S_MAX: Final = 60.0


class TransformCrew:
    """Each member keeps its name and transactional id over restarts; each of its processes writes its own history."""

    def __init__(self, chance: random.Random, servers: str, source: str, target: str, partitions: int) -> None:
        self.lives: Counter[str] = Counter()
        self.source, self.target, self.partitions = source, target, partitions
        self.group = f"{source}-to-{target}"
        self._chance, self._servers = chance, servers
        self._strategy = chance.choice(["range", "cooperative-sticky"])
        self._protocol = chance.choice(["classic", "consumer"])
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, folder: Path) -> None:
        self.lives[name] += 1
        life = f"{name}-{self.lives[name]}"
        options = {
            "name": life,
            "servers": self._servers,
            "source": self.source,
            "target": self.target,
            "partitions": self.partitions,
            "history": str(folder / f"{life}.jsonl"),
            "consumer": self._consumer(),
            "producer": {
                "transactional.id": f"{self.group}-{name}",
                "transaction.timeout.ms": TRANSACTION_MS,
                "linger.ms": 1,
            },
        }
        with (folder / f"{life}.err").open("wb") as errors:
            self._processes[name] = subprocess.Popen([sys.executable, str(WORKER), json.dumps(options)], stderr=errors)

    def _consumer(self) -> dict[str, object]:
        config: dict[str, object] = {
            "group.id": self.group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "group.protocol": self._protocol,
        }
        if self._protocol == "classic":
            config |= {
                "session.timeout.ms": SESSION_MS,
                "heartbeat.interval.ms": 300,
                "partition.assignment.strategy": self._strategy,
            }
        return config

    def revive(self, folder: Path) -> None:
        """Restart the workers that gave up, as their operator would."""
        for name, process in list(self._processes.items()):
            if process.poll() is None:
                continue
            del self._processes[name]
            if not name.startswith("zombie"):
                self.start(name, folder)

    def kill_one(self, folder: Path) -> None:
        name = self._any()
        self._end(name)
        self.start(name, folder)

    def pause_one(self) -> None:
        """Pause a member beyond its session timeout; it resumes as a zombie."""
        process = self._processes[self._any()]
        process.send_signal(signal.SIGSTOP)
        threading.Event().wait(SESSION_MS * 1.5 / 1000)
        process.send_signal(signal.SIGCONT)

    def replace_one(self, folder: Path) -> None:
        """Start a second process with the same transactional id while the first is running: one of them is fenced."""
        name = self._any()
        old = self._processes.pop(name)
        self.start(name, folder)
        self._processes[f"zombie-{self.lives.total()}"] = old

    def _any(self) -> str:
        names = sorted(name for name, process in self._processes.items() if not name.startswith("zombie"))
        return self._chance.choice(names)

    def _end(self, name: str) -> None:
        process = self._processes.pop(name)
        process.kill()
        process.wait()

    def close(self) -> None:
        for name in list(self._processes):
            self._end(name)


def histories(folder: Path) -> list[Attempt]:
    """All files as one history: the clock is the machine's, so times of several processes can be compared."""
    operations = [
        Operation.parse(line)
        for path in sorted(folder.glob("*.jsonl"))
        for line in path.read_text().splitlines()
        if line.endswith("}")
    ]
    operations.sort(key=lambda each: each.time_ns)
    return pair(replace(each, index=index) for index, each in enumerate(operations))


def read_committed(servers: str, topic: str, partitions: int, recorder: Recorder) -> list[str]:
    """Read all committed records and record the reads."""
    consumer: Any = library.Consumer(
        {
            **PATIENCE,
            "bootstrap.servers": servers,
            "group.id": "unused",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "logger": SilentLogger(),
        }
    )
    seen: list[str] = []
    for index in range(partitions):
        consumer.assign([library.TopicPartition(topic, index, 0)])
        recorder.note("last-reader", "assign", [])
        seen += _read_to_end(consumer, f"{topic}-{index}", recorder)
    consumer.close()
    return seen


def _read_to_end(consumer: Any, key: str, recorder: Recorder) -> Sequence[str]:
    seen: list[str] = []
    while True:
        recorder.invoke("last-reader", "poll")
        messages = consumer.consume(500, READ_S_MAX / 10)
        records = [each for each in messages if each.error() is None]
        recorder.ok("last-reader", "poll", {key: [[each.offset(), each.value().decode()] for each in records]})
        seen += [each.value().decode() for each in records]
        if any(
            each.error() is not None and each.error().code() == library.KafkaError._PARTITION_EOF for each in messages
        ):
            return seen
