"""Compaction with little disk space, and leftovers of earlier rounds."""

import errno

import pytest
from compacted_bench import CompactedBench
from storage_bench import NOW_MS

from moldau.storage import segment_swap
from moldau.storage.compaction import compact
from moldau.testing.disk import SimulatedDisk

pytestmark = pytest.mark.proves("S5", part="the newest value of each key is kept")


def _filled(disk: SimulatedDisk | None = None) -> CompactedBench:
    bench = CompactedBench(disk, cleanup_policy=("compact", "delete"), retention_ms=-1)
    for number in range(120):
        bench.put((b"key%d" % (number % 40), b"%03d" % number * 30))
    return bench


def _left(bench: CompactedBench) -> list[str]:
    return [name for name in bench.names() if name.endswith(".cleaned")]


def test_compaction_is_limited_to_the_available_space() -> None:
    disk = SimulatedDisk(seed=1)
    disk.prepare_folder("/data")
    bench = _filled(disk)
    truth, before = bench.table(), bench.log.size_bytes
    bench.log.roll(NOW_MS)
    disk.capacity_bytes = disk.used_bytes + 6_000
    result = bench.compact()
    assert result is not None
    assert (result.is_complete, bench.cleaned_offset) == (False, 0)
    assert 0 < len(result.replacements)
    assert bench.table() == truth
    disk.capacity_bytes = 1 << 40
    result = bench.compact()
    assert result is not None
    assert result.is_complete
    assert bench.table() == truth
    assert bench.log.size_bytes < before / 2


def test_compaction_is_not_started_without_space() -> None:
    disk = SimulatedDisk(seed=1)
    disk.prepare_folder("/data")
    bench = _filled(disk)
    bench.log.roll(NOW_MS)
    disk.capacity_bytes = disk.used_bytes + 1_000
    with pytest.raises(OSError, match="not enough free space") as raised:
        bench.compact()
    assert raised.value.errno == errno.ENOSPC
    assert not _left(bench)


def test_failed_round_leaves_no_files() -> None:
    disk = SimulatedDisk(seed=1)
    disk.prepare_folder("/data")
    bench = _filled(disk)
    bench.log.roll(NOW_MS)
    disk.fail("pwrite", errno.EIO, path=".cleaned", skip=2, times=1)
    with pytest.raises(OSError, match="cleaned"):
        bench.compact()
    assert not _left(bench)


def test_leftovers_of_an_earlier_round_are_removed_first() -> None:
    bench = _filled()
    stale = bench.mounted.open(f"{bench.log.folder}/00000000000000000000.txnindex.cleaned", create=True)
    stale.close()
    bench.compact()
    assert not _left(bench)
    assert "00000000000000000000.txnindex" not in bench.names()


def test_leftover_files_do_not_undo_a_swap_interrupted_by_a_crash(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = _filled()
    bench.log.advance_start_offset(bench.log.segment_base_offsets[2])
    for path in bench.log.apply_retention(bench.now_ms):
        bench.mounted.unlink(path)
    bench.log.roll(NOW_MS)
    bench.log.flush(NOW_MS)
    truth, start_offset = bench.table(), bench.log.start_offset
    job = bench.log.compaction_job(0, bench.log.end_offset, bench.now_ms)
    assert job is not None
    result = compact(bench.mounted, job)
    stale = bench.mounted.open(f"{bench.log.folder}/00000000000000000000.log.cleaned", create=True)
    stale.close()
    rename = bench.mounted.rename

    class Crash(Exception):
        pass

    def until_the_old_are_away(source: str, target: str) -> None:
        if source.endswith(".log.swap"):
            raise Crash
        rename(source, target)

    monkeypatch.setattr(bench.mounted, "rename", until_the_old_are_away)
    with pytest.raises(Crash):
        segment_swap.swap_in(
            bench.mounted,
            bench.log.folder,
            result.replacements[0].base_offset,
            bench.log._segments.all[: len(result.replacements[0].replaced)],
        )
    monkeypatch.undo()
    bench.open(recovery_point=bench.log.recovery_point, log_start_offset=start_offset)
    assert bench.log.start_offset == start_offset
    assert bench.table() == truth
