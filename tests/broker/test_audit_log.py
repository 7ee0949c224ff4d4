"""The audit log: bounded in rate and size, and never in the way of requests."""

import json
import logging
import random
from typing import Any, NamedTuple

import pytest

from moldau.broker.access import CLUSTER, Client, Operation, Resource, ResourceKind
from moldau.broker.audit_log import AuditLog, AuditLogSettings
from moldau.model.ports import Disk
from moldau.testing.clock import SimulatedClock
from moldau.testing.disk import SimulatedDisk

pytestmark = pytest.mark.proves("O4", part="audit log")

PATH = "/data/audit.jsonl"


class Time(SimulatedClock):
    """Stands still until it is advanced."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        super().__init__(lambda: self.now_ms)

    def advance(self, by_ms: float) -> None:
        self.now_ms += by_ms


def new_disk() -> Disk:
    disk = SimulatedDisk(random.Random(1))
    disk.prepare_folder("/data")
    return disk.mount()


class Request(NamedTuple):
    api_key: int = 1
    client_id: str | None = "c"
    listener: str = "L"


def make(disk: Disk, clock: Time, **changed: Any) -> AuditLog:
    settings = AuditLogSettings(PATH, records_allowed=False, max_bytes=100_000, files=3, lines_per_second=2)
    return AuditLog(disk, clock, settings._replace(**changed))


def write(log: AuditLog, resource: Resource = CLUSTER) -> None:
    log.write(Request(), Client("User:a", "h"), Operation.ALTER, resource, is_allowed=False)


def lines(disk: Disk, path: str = PATH) -> list[dict[str, object]]:
    return [json.loads(line) for line in disk.read(path).splitlines()]


def test_lines_beyond_the_rate_are_counted_and_left_out() -> None:
    disk, clock = new_disk(), Time()
    log = make(disk, clock)
    for _ in range(50):
        write(log)
    assert len(lines(disk)) == 20
    clock.advance(500)
    write(log)
    assert lines(disk)[-1]["left_out_before"] == 30
    assert len(lines(disk)) == 21


def test_full_file_is_rotated_and_the_oldest_is_dropped() -> None:
    disk, clock = new_disk(), Time()
    log = make(disk, clock, max_bytes=700, lines_per_second=1000)
    for number in range(20):
        write(log, Resource(ResourceKind.TOPIC, f"t{number}"))
    names = [name for name in disk.list("/data") if name.startswith("audit")]
    assert names == ["audit.jsonl", "audit.jsonl.1", "audit.jsonl.2"]
    kept = [line["resource_name"] for name in reversed(names) for line in lines(disk, f"/data/{name}")]
    assert kept == [f"t{number}" for number in range(20 - len(kept), 20)]
    assert 3 <= len(kept) < 20
    assert all(disk.size(f"/data/{name}") <= 700 for name in names)


def test_single_file_starts_over() -> None:
    disk, clock = new_disk(), Time()
    log = make(disk, clock, max_bytes=400, lines_per_second=1000, files=1)
    for _ in range(10):
        write(log)
    assert [name for name in disk.list("/data") if name.startswith("audit")] == ["audit.jsonl"]
    assert disk.size(PATH) <= 400


def test_restarted_log_continues_its_file() -> None:
    disk, clock = new_disk(), Time()
    for _ in range(2):
        log = make(disk, clock)
        write(log)
        log.close()
    assert len(lines(disk)) == 2


def test_long_and_odd_names_fit_into_one_line() -> None:
    disk, clock = new_disk(), Time()
    write(make(disk, clock), Resource(ResourceKind.GROUP, "a\n\x00ž" * 10_000))
    (line,) = lines(disk)
    assert len(str(line["resource_name"])) == 500


def test_unwritable_log_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    disk, clock = new_disk(), Time()
    log = make(disk, clock, path="/missing/folder/audit.jsonl")
    with caplog.at_level(logging.ERROR):
        write(log)
        write(log)
    assert len(caplog.records) == 1


def test_empty_path_writes_nothing() -> None:
    disk, clock = new_disk(), Time()
    write(make(disk, clock, path=""))
    assert not disk.exists(PATH)
