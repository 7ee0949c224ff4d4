"""Driver processes of a sink, and its committed output."""

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, IsolationLevel, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from pyspark_moldau.options.kafka_settings import producer_settings
from pyspark_moldau.options.sink_options import COMMIT_TOPIC
from pyspark_moldau.sink.commit_markers import CommitMarker, CommitMarkers

PROGRAM: Final = Path(__file__).with_name("sink_driver.py")
DRIVER_S_MAX: Final = 80.0
READ_S_MAX: Final = 60.0
PARTITIONS: Final = 2


_started: "list[DriverProcess]" = []


def kill_drivers() -> None:
    """Kill all processes of a test, also the stopped ones."""
    while _started:
        _started.pop().kill()


class TrapNotReached(AssertionError):
    """The trap was not reached, so the test is inconclusive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sink:
    """The target of one writer and the plan of its driver processes."""

    servers: str
    topic: str
    writer: str
    staging: Path
    rows: int = 120
    tasks: int = 2
    inline_bytes_max: int = 2000
    sender: str = "raw"

    def driver(self, name: str, batches: list[int], trap: Mapping[str, Any] | None = None) -> "DriverProcess":
        plan = {
            "servers": self.servers,
            "topic": self.topic,
            "writer": self.writer,
            "staging": str(self.staging),
            "rows": self.rows,
            "tasks": self.tasks,
            "inline_bytes_max": self.inline_bytes_max,
            "sender": self.sender,
            "driver": name,
            "batches": batches,
            "trap": trap,
        }
        return DriverProcess(json.dumps(plan))

    def marker(self) -> CommitMarker | None:
        return CommitMarkers(producer_settings({"kafka.bootstrap.servers": self.servers}), COMMIT_TOPIC).newest(
            self.writer
        )

    def staged_files(self) -> list[Path]:
        return sorted(path for path in self.staging.rglob("*") if path.is_file())


@dataclass
class DriverProcess:
    """A process of `sink_driver.py`."""

    plan: str
    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-X", "faulthandler", str(PROGRAM), self.plan],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        _started.append(self)

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()

    def wait(self) -> list[str]:
        """Return its output after a normal exit."""
        code = self._wait()
        assert code == 0, f"ended with {code}: {self.lines}\n{self.errors}"
        return self.lines

    def wait_killed_at(self, place: str) -> list[str]:
        """Return its output after its trap killed it."""
        code = self._wait()
        if code != -signal.SIGKILL or f"at {place}" not in self.lines:
            raise TrapNotReached(f"{place}: code {code}, output {self.lines}\n{self.errors}")
        return self.lines

    def wait_stopped_at(self, place: str) -> None:
        """Wait until its trap has stopped it."""
        _, status = os.waitpid(self._process.pid, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            self._process.returncode = os.waitstatus_to_exitcode(status)
            output = self._process.communicate(timeout=DRIVER_S_MAX)
            raise TrapNotReached(f"{place}: ended, output {output}")

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def _wait(self) -> int:
        try:
            output, self.errors = self._process.communicate(timeout=DRIVER_S_MAX)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGABRT)  # faulthandler prints the stack
            output, self.errors = self._process.communicate()
        self.lines = output.splitlines()
        return self._process.returncode


@dataclass(frozen=True, slots=True)
class Output:
    """The committed rows of a topic."""

    rows: Counter[tuple[int, int]]  # occurrences by batch and row
    drivers: dict[int, set[str]]  # the processes that wrote the rows of each batch

    def assert_exactly_once(self, batches: range, rows: int) -> None:
        wanted = Counter({(batch, row): 1 for batch in batches for row in range(rows)})
        missing, extra = wanted - self.rows, self.rows - wanted
        assert not missing, f"{missing.total()} rows are lost"
        assert not extra, f"{extra.total()} rows are duplicated"
        torn = {batch: drivers for batch, drivers in self.drivers.items() if len(drivers) > 1}
        assert not torn, f"batches of more than one driver: {torn}"


def read_output(servers: str, topic: str) -> Output:
    """Read the topic to its end; no transaction may be open."""
    assert not is_open(servers, topic), "a transaction is open"
    values = _read(servers, topic, _ends(servers, topic, IsolationLevel.READ_COMMITTED))
    rows: Counter[tuple[int, int]] = Counter()
    drivers: dict[int, set[str]] = {}
    for value in values:
        found = re.fullmatch(r"(\d+):(\d+):(\w+):x*", value.decode())
        assert found is not None, f"unexpected row: {value!r}"
        rows[int(found[1]), int(found[2])] += 1
        drivers.setdefault(int(found[1]), set()).add(found[3])
    return Output(rows, drivers)


def is_open(servers: str, topic: str) -> bool:
    """Return whether an open transaction holds back the last stable offset."""
    committed, uncommitted = (
        _ends(servers, topic, each) for each in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)
    )
    return committed != uncommitted


def end_of(servers: str, topic: str) -> int:
    """Return the sum of the end offsets of all partitions, open transactions included."""
    return sum(_ends(servers, topic, IsolationLevel.READ_UNCOMMITTED).values())


def _ends(servers: str, topic: str, isolation: IsolationLevel) -> dict[int, int]:
    admin = AdminClient({"bootstrap.servers": servers})
    partitions = admin.list_topics(topic, timeout=READ_S_MAX).topics[topic].partitions
    specs = {TopicPartition(topic, number): OffsetSpec.latest() for number in partitions}
    futures = admin.list_offsets(specs, isolation_level=isolation, request_timeout=READ_S_MAX)
    return {place.partition: future.result().offset for place, future in futures.items()}


def _read(servers: str, topic: str, ends: dict[int, int]) -> list[bytes]:
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "reader",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 20,
        }
    )
    values: list[bytes] = []
    try:
        consumer.assign([TopicPartition(topic, number, 0) for number in ends])
        missing = set(ends)
        while missing:
            message = consumer.poll(READ_S_MAX)
            assert message is not None, "no message before the end of the partition"
            error = message.error()
            if error is None:
                values.append(message.value() or b"")
            elif error.code() == KafkaError._PARTITION_EOF:
                missing.discard(message.partition() or 0)
    finally:
        consumer.close()
    return values
