"""The log on the operating system's files: descriptors and mapped indexes."""

from pathlib import Path

import pytest
from storage_bench import NOW_MS, read_records

from moldau.model.units import KiB
from moldau.node.ports.files import SystemDisk
from moldau.records.builder import build_batch
from moldau.records.header import read_header
from moldau.storage.compaction import compact
from moldau.storage.log import Log
from moldau.storage.open_segments import OpenSegments
from moldau.storage.settings import LogSettings

SETTINGS = LogSettings(segment_bytes=16 * KiB, index_interval_bytes=512, cleanup_policy=("compact", "delete"))


def fill(log: Log, count: int) -> None:
    for number in range(count):
        batch = build_batch([(NOW_MS + number, b"key%d" % (number % 50), b"value%d" % number * 5, ())])
        log.append(memoryview(batch), read_header(batch), 0, NOW_MS)


@pytest.mark.proves("S2")
@pytest.mark.proves("S3")
def test_log_survives_restart_kill_compaction_and_retention(tmp_path: Path) -> None:
    disk, folder = SystemDisk(), str(tmp_path / "topic-0")
    log = Log.open(disk, folder, SETTINGS, now_ms=NOW_MS)
    fill(log, 2000)
    log.close(NOW_MS)

    open_segments = OpenSegments(capacity=2)
    log = Log.open(disk, folder, SETTINGS, now_ms=NOW_MS, is_clean=True, open_segments=open_segments)
    pieces = [log.read(offset, 1000) for offset in range(0, 2000, 7)]
    assert len(open_segments) == 2
    assert [record.offset for record in read_records(log, 0, 900)] == list(range(2000))
    assert log.offset_for_timestamp(NOW_MS + 1234) == (NOW_MS + 1234, 1234)
    assert all(
        piece is not None and read_header(piece.read()).base_offset == 7 * number for number, piece in enumerate(pieces)
    )
    log.abandon()

    log = Log.open(disk, folder, SETTINGS, now_ms=NOW_MS, recovery_point=0)
    assert log.end_offset == 2000
    job = log.compaction_job(0, 2000, NOW_MS)
    assert job is not None
    for path in log.replace_segments(compact(disk, job)):
        disk.unlink(path)
    kept = {record.key: record.value for record in read_records(log, 0)}
    assert kept == {b"key%d" % (n % 50): b"value%d" % n * 5 for n in range(1950, 2000)}
    piece = log.read(log.start_offset, 1 << 20)
    assert piece is not None
    before = piece.read()
    for path in log.apply_retention(NOW_MS + 100 * SETTINGS.retention_ms):
        disk.unlink(path)
    assert log.start_offset == log.end_offset == 2000
    assert piece.read() == before
    log.close(NOW_MS)
    assert {path.suffix for path in (tmp_path / "topic-0").iterdir()} == {
        ".log",
        ".index",
        ".timeindex",
        ".snapshot",
        "",
    }


def test_slice_has_a_descriptor_for_sendfile(tmp_path: Path) -> None:
    log = Log.open(SystemDisk(), str(tmp_path / "topic-0"), LogSettings(), now_ms=NOW_MS)
    fill(log, 3)
    piece = log.read(0, 1 << 20)
    assert piece is not None
    assert piece.file.fileno() > 0
    assert len(piece) == log.size_bytes
    log.abandon()
