"""Space is reserved ahead of the writes of a large segment, and released when it is closed."""

import os
import sys
from pathlib import Path

import pytest

from moldau.model.units import MiB
from moldau.node.ports.files import SystemDisk
from moldau.records.builder import build_batch
from moldau.records.header import read_header
from moldau.storage.log import Log
from moldau.storage.settings import LogSettings


def _append(log: Log, count: int) -> None:
    for _ in range(count):
        batch = memoryview(build_batch([(1, None, b"x" * 500_000, ())]))
        log.append(batch, read_header(batch), 0, 1)


def _taken_bytes(folder: Path, name: str) -> int:
    return os.stat(folder / name).st_blocks * 512


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux reserves blocks without making the file longer")
def test_growing_segment_reserves_space_and_a_closed_one_does_not(tmp_path: Path) -> None:
    log = Log.open(SystemDisk(), str(tmp_path), LogSettings(segment_bytes=64 * MiB), now_ms=0)
    name = f"{0:020d}.log"
    _append(log, 4)
    assert _taken_bytes(tmp_path, name) < 4 * MiB
    _append(log, 8)
    size = os.stat(tmp_path / name).st_size
    assert size == log.size_bytes
    assert _taken_bytes(tmp_path, name) > size + 8 * MiB
    log.roll(1)
    assert _taken_bytes(tmp_path, name) < size + MiB
    log.close(1)
    again = Log.open(SystemDisk(), str(tmp_path), LogSettings(), now_ms=0, is_clean=True)
    assert again.end_offset == 12
    again.close(1)
