"""Random kills of drivers and executors of a topic-to-topic query: every row is written exactly once.

`make soak-spark RUNS=30 SEED=1`: in each run rows are produced, and a process is killed by
SIGKILL; then every row must be written exactly once. A driver is restarted with other cores and another plan.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, Producer, TopicPartition
from soak_processes import MARK, Found, HitNothing, kill_all, marked

from moldau.testing.broker import Broker
from moldau_dev.spark import DRIVER_SETTINGS, JAVA_OPTIONS, SHAPES

PROGRAM: Final = Path(__file__).with_name("soak_driver.py")
PARTITIONS: Final = 3
ROWS: Final = 900  # in each run
ROWS_PER_BATCH: Final = 100
KILL_BEFORE: Final = 0.7  # maximum share of the rows that is written before the kill
LATER_S_MAX: Final = 0.7
BACK_S_MAX: Final = 420.0
TRIES_MAX: Final = 3
FAILURES_MAX: Final = 5
SILENCE_S: Final = 5.0
MASTERS: Final = ("local-cluster[2,1,1024]", "local-cluster[1,2,1024]", "local-cluster[2,2,1024]")
VICTIMS: Final = ("executor", "executor", "all executors", "driver", "driver", "driver and its workers")
SETTINGS: Final = {
    **DRIVER_SETTINGS,
    "spark.executor.extraJavaOptions": JAVA_OPTIONS,
    "spark.sql.shuffle.partitions": "4",
}


class Wrong(AssertionError):
    """The output does not match the input."""


@dataclass
class Output:
    """The committed rows and how often each was read."""

    servers: str
    topic: str
    isolation: str = "read_committed"
    rows: Counter[int] = field(default_factory=Counter)
    keys: set[bytes] = field(default_factory=set)

    def __post_init__(self) -> None:
        settings: dict[str, Any] = {"bootstrap.servers": self.servers, "group.id": "soak", "log_level": 0}
        settings["enable.auto.commit"] = False
        self._consumer = Consumer({**settings, "isolation.level": self.isolation})
        self._consumer.assign([TopicPartition(self.topic, number, 0) for number in range(PARTITIONS)])

    def read(self, seconds: float) -> bool:
        """Read new rows; return whether there were any."""
        before = self.total
        for message in self._consumer.consume(1000, seconds):
            if message.error() is not None:
                raise Wrong(f"reading failed: {message.error()}")
            self.rows[int(message.value() or b"-1")] += 1
            self.keys.add(message.key() or b"")
        return self.total > before

    @property
    def total(self) -> int:
        return self.rows.total()

    def verdict(self, fed: int) -> str:
        """Return a summary. Raises Wrong for missing, duplicate or foreign rows."""
        twice = sum(count - 1 for count in self.rows.values())
        lost, strange = len(set(range(fed)) - set(self.rows)), len(set(self.rows) - set(range(fed)))
        words = f"in {fed:,} · out {self.total:,} · twice {twice} · lost {lost}"
        if twice or lost or strange or len(self.keys) != fed:
            raise Wrong(f"{words} · strange {strange} · keys {len(self.keys):,}")
        return words


@dataclass
class DriverProcess:
    """One driver with its executors: a mark tells them from all other processes."""

    mark: str
    plan: dict[str, Any]
    words: Path

    def __post_init__(self) -> None:
        with self.words.open("wb") as words:
            self.process = subprocess.Popen(
                [sys.executable, str(PROGRAM), json.dumps(self.plan)],
                env={**os.environ, MARK: self.mark, "SPARK_LOCAL_IP": "127.0.0.1"},
                stdout=words,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def of_kind(self, kind: str) -> list[Found]:
        found = marked(self.mark)
        executors = [each for each in found if each.is_executor]
        match kind:
            case "executor":
                return executors[:1]
            case "all executors":
                return executors
            case "driver":
                return [each for each in found if each.is_driver]
            case _:
                return [each for each in found if each.is_driver or each.is_worker]

    def end(self) -> None:
        for each in marked(self.mark):
            each.kill()
        self.process.wait()


@dataclass
class Soak:
    """One query and all its driver processes."""

    broker: Broker
    folder: Path
    chance: random.Random
    fed: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    failures: int = 0  # drivers that failed without a kill
    lives: list[DriverProcess] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.source = self.broker.create_topic("soak-in", partitions=PARTITIONS)
        self.target = self.broker.create_topic("soak-out", partitions=PARTITIONS)
        self.output = Output(self.broker.bootstrap_servers, self.target)
        self._began, self._mark = time.monotonic(), uuid.uuid4().hex

    def run(self, number: int) -> None:
        """Produce rows, kill a process while they are processed, and wait for all rows."""
        kind, part, later_s = (
            self.chance.choice(VICTIMS),
            self.chance.uniform(0.0, KILL_BEFORE),
            self.chance.uniform(0.0, LATER_S_MAX),
        )
        for _ in range(TRIES_MAX):
            self._feed()
            self._work_until(self.fed - ROWS + int(part * ROWS), later_s)
            left = self.fed - self.output.total
            if left:
                break
        else:
            raise HitNothing(f"run {number}: all rows were out before the kill, {TRIES_MAX} times")
        at_s, life = time.monotonic() - self._began, len(self.lives)
        names = self._kill(kind)
        back_s = self._work_until(self.fed)
        words = self.output.verdict(self.fed)
        report(
            f"run {number} · life {life} · {at_s:.1f} s, {left:,} rows left: {names} · back in {back_s:.1f} s · {words}"
        )

    def status(self) -> str:
        counts = ", ".join(f"{kind} {count}" for kind, count in sorted(self.kills.items()))
        lives = f"{len(self.lives)} lives, {self.failures} of which ended by themselves"
        return f"{self.kills.total()} kills ({counts}) in {lives}"

    def end(self) -> None:
        for life in self.lives:
            life.end()

    def _feed(self) -> None:
        producer = Producer({"bootstrap.servers": self.broker.bootstrap_servers})
        for number in range(self.fed, self.fed + ROWS):
            producer.produce(self.source, b"%d" % number, partition=number % PARTITIONS)
        if producer.flush(60):
            raise Wrong("the input was not taken")
        self.fed += ROWS

    def _work_until(self, rows: int, later_s: float = 0.0) -> float:
        """Wait until this many rows are written, and a little longer; return the seconds. Restart a missing driver."""
        began = time.monotonic()
        while self.output.total < rows or not self._has_executors():
            self._see_that_it_lives()
            if time.monotonic() - began > BACK_S_MAX:
                raise Wrong(
                    f"{self.output.total:,} of {rows:,} rows are out after {BACK_S_MAX:g} s\n{self._output_tail()}"
                )
            self.output.read(0.05)
        took_s, moment = time.monotonic() - began, time.monotonic() + later_s
        while time.monotonic() < moment:
            self.output.read(0.02)
        return took_s

    def _has_executors(self) -> bool:
        return bool(self.lives and self.lives[-1].of_kind("executor"))

    def _see_that_it_lives(self) -> None:
        if self.lives and not self.lives[-1].has_ended:
            return
        if self.lives and self.lives[-1].process.returncode != -signal.SIGKILL:
            self.failures += 1
            code = self.lives[-1].process.returncode
            report(f"run {len(self.lives)} exited with {code}:\n{self._output_tail()}")
            if self.failures > FAILURES_MAX:
                raise Wrong(f"{self.failures} drivers have failed")
        self._begin()

    def _begin(self) -> None:
        number = len(self.lives) + 1
        master = self.chance.choice([each for each in MASTERS if each != self._last("master")])
        shape = self.chance.choice([each for each in SHAPES if each != self._last("shape")])
        adaptive = str(self.chance.random() < 0.5).lower()
        report(f"life {number} · {master} · {shape} · adaptive {adaptive}")
        plan = {
            "servers": self.broker.bootstrap_servers,
            "source": self.source,
            "target": self.target,
            "checkpoint": str(self.folder / "checkpoint"),
            "rows_per_batch": ROWS_PER_BATCH,
            "master": master,
            "shape": shape,
            "settings": {**SETTINGS, "spark.sql.adaptive.enabled": adaptive},
        }
        self.lives.append(DriverProcess(f"{self._mark}-{number}", plan, self.folder / f"life-{number}.txt"))

    def _kill(self, kind: str) -> str:
        victims = self.lives[-1].of_kind(kind)
        kill_all(victims)
        self.kills[kind] += 1
        named, workers = (
            [each.name for each in victims if not each.is_worker],
            [each for each in victims if each.is_worker],
        )
        return f"killed {kind}: {', '.join(named)}" + (f" and {len(workers)} workers" if workers else "")

    def _last(self, name: str) -> Any:
        return self.lives[-1].plan[name] if self.lives else None

    def _output_tail(self) -> str:
        return self.lives[-1].words.read_text(errors="replace")[-3000:] if self.lives else ""


def report(words: str) -> None:
    print(words, flush=True)


def soak(runs: int, seed: int) -> None:
    report(f"seed {seed}, {runs} runs of {ROWS:,} rows")
    with tempfile.TemporaryDirectory(prefix="moldau-soak-") as folder, Broker() as broker:
        query = Soak(broker, Path(folder), random.Random(seed))
        try:
            for number in range(1, runs + 1):
                query.run(number)
        except KeyboardInterrupt:
            report(f"stopped:  {query.status()}")
            raise
        finally:
            query.end()
        if query.kills.total() != runs:
            raise HitNothing(f"{query.kills.total()} kills in {runs} runs")
        everything = Output(broker.bootstrap_servers, query.target, "read_uncommitted")
        while everything.read(SILENCE_S):
            continue
        verdict = query.output.verdict(query.fed)
    report(f"{query.status()}\n{verdict} · of aborted attempts {everything.total - query.fed:,}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--seed", type=int, default=None)
    given = parser.parse_args()
    soak(given.runs, given.seed if given.seed is not None else random.randrange(1_000_000))
