"""Renames fail while segments are replaced: the log keeps working, with the old segments or the new ones."""

import errno

import pytest
from compacted_bench import CompactedBench
from storage_bench import NOW_MS

from moldau.model.errors import StorageFailed
from moldau.storage.renames import UndoFailed
from moldau.testing.disk import SimulatedDisk

pytestmark = pytest.mark.proves("S5", part="a failed swap changes nothing")

RENAMES_OF_A_SWAP = 12


def filled() -> tuple[SimulatedDisk, CompactedBench]:
    disk = SimulatedDisk(seed=1)
    disk.prepare_folder("/data")
    bench = CompactedBench(disk, cleanup_policy=("compact", "delete"), retention_ms=-1)
    for number in range(120):
        bench.put((b"key%d" % (number % 40), b"%03d" % number * 30))
    bench.log.roll(NOW_MS)
    return disk, bench


@pytest.mark.parametrize("failing", range(RENAMES_OF_A_SWAP))
def test_swap_is_undone_when_a_rename_fails(failing: int) -> None:
    disk, bench = filled()
    truth = bench.table()
    disk.fail("rename", errno.EIO, path="/data", skip=failing)
    with pytest.raises(OSError, match="Input/output error") as raised:
        bench.compact()
    assert not isinstance(raised.value, UndoFailed)
    assert not bench.log.must_be_reopened
    assert bench.table() == truth
    bench.put((b"key0", b"new"))
    bench.log.roll(NOW_MS)
    truth = bench.table()
    assert bench.compact() is not None
    assert bench.table() == truth
    bench.open()
    assert bench.table() == truth


@pytest.mark.parametrize("failing", range(1, 9))  # at the next one, a second swap has nothing to undo
def test_log_is_complete_when_opened_again_after_an_undo_that_failed(failing: int) -> None:
    disk, bench = filled()
    bench.log.flush(NOW_MS)
    truth = bench.table()
    disk.fail("rename", errno.EIO, path="/data", skip=failing, times=2)
    with pytest.raises(UndoFailed):
        bench.compact()
    assert bench.log.must_be_reopened
    with pytest.raises(StorageFailed):
        bench.put((b"key0", b"new"))
    bench.open(recovery_point=bench.log.recovery_point)
    assert bench.table() == truth
    bench.put((b"key0", b"new"))


def test_log_keeps_its_segments_when_it_cannot_start_over() -> None:
    disk, bench = filled()
    truth, end_offset = bench.table(), bench.log.end_offset
    disk.fail("open", errno.EMFILE, path=".log")
    with pytest.raises(OSError, match="Too many open files"):
        bench.log.truncate_fully_and_start_at(0)
    assert (bench.table(), bench.log.end_offset) == (truth, end_offset)
    bench.put((b"key0", b"new"))
    bench.log.truncate_fully_and_start_at(0)
    assert (bench.log.start_offset, bench.log.end_offset, bench.log.size_bytes) == (0, 0, 0)
