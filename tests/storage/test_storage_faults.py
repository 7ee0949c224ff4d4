"""Disk faults: failures, full disks and crashes lose nothing acknowledged."""

import errno
from typing import Any

import pytest
from storage_bench import FOLDER, NOW_MS, Bench

from moldau.model.errors import StorageFailed
from moldau.model.units import KiB
from moldau.records.builder import build_batch
from moldau.records.control import build_transaction_marker
from moldau.records.header import read_header
from moldau.storage.files import SyncFailed
from moldau.testing.disk import Crashed, IoPoint, SimulatedDisk, When

ACTIVE = "00000000000000000000.log"
SETTINGS: dict[str, Any] = {
    "segment_bytes": 1 * KiB,
    "index_interval_bytes": 100,
    "retention_bytes": 3 * KiB,
    "preallocate": True,
}


class Workload:
    """Runs every operation of a log, and records what was acknowledged and synced."""

    def __init__(self, seed: int) -> None:
        self.disk = SimulatedDisk(seed=seed)
        self.disk.prepare_folder(FOLDER)
        self.appended: dict[int, bytes] = {}  # acknowledged: survives a kill
        self.synced_offset = 0  # flushed: survives a power loss
        self.recovery_point = 0
        self.bench: Bench | None = None

    def run(self) -> None:
        bench = self.bench = Bench(self.disk, **SETTINGS)
        for number in range(12):
            self._append(b"first %d" % number * 12, epoch=number // 5)
        self._flush()
        for number in range(12):
            self._append(b"second %d" % number * 12, epoch=3)
        self._transaction()
        self._truncate(18)
        for number in range(20):
            self._append(b"third %d" % number * 12, epoch=4)
        self._flush()
        for path in bench.log.apply_retention(NOW_MS):
            bench.mounted.unlink(path)
        self._append(b"last", epoch=5)
        bench.log.close(NOW_MS)

    def _append(self, value: bytes, **batch: Any) -> None:
        assert self.bench is not None
        appended = self.bench.append(value, **batch)
        self.appended[appended.base_offset] = value

    def _transaction(self) -> None:
        assert self.bench is not None
        self.bench.append(b"t", epoch=3, producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True)
        marker = build_transaction_marker(
            is_commit=False, producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp_ms=NOW_MS
        )
        self.bench.append_batch(marker, epoch=3)

    def _flush(self) -> None:
        assert self.bench is not None
        self.bench.log.flush(NOW_MS)
        self.synced_offset = self.recovery_point = self.bench.log.recovery_point

    def _truncate(self, offset: int) -> None:
        assert self.bench is not None
        self.synced_offset = min(self.synced_offset, offset)
        self.appended = {key: value for key, value in self.appended.items() if key < offset}
        self.bench.log.truncate_to(offset)
        self.recovery_point = self.bench.log.recovery_point

    def check(self, *, lost_power: bool, start_offset_max: int) -> None:
        """Open the log as the broker does, and compare."""
        bench = Bench(self.disk, recovery_point=self.recovery_point, has_lost_power=lost_power, **SETTINGS)
        log = bench.log
        records = bench.records()
        offsets = [record.offset for record in records]
        values = {record.offset: record.value for record in records}
        assert offsets == sorted(set(offsets))
        survivors = [
            offset
            for offset in self.appended
            if offset >= log.start_offset and (offset < self.synced_offset or not lost_power)
        ]
        assert {offset: values.get(offset) for offset in survivors} == {each: self.appended[each] for each in survivors}
        assert log.start_offset <= start_offset_max
        assert log.end_offset >= (self.synced_offset if lost_power else max([*self.appended, -1]) + 1)
        self._check_derived(bench, records)

    def _check_derived(self, bench: Bench, records: list[Any]) -> None:
        """Every offset is found, and appends work, after any fault of the indexes."""
        for record in records[:: max(1, len(records) // 10)]:
            assert bench.records(record.offset)[0].offset == record.offset
        log = bench.log
        assert log.epochs.start_offsets == sorted(log.epochs.start_offsets)
        assert all(start < log.end_offset for start in log.epochs.start_offsets)
        end = log.end_offset
        assert bench.append(b"goes on", epoch=9).base_offset == end
        log.close(NOW_MS)
        assert bench.open(is_clean=True).end_offset == end + 1


@pytest.mark.proves("S8")
@pytest.mark.proves("S6")
@pytest.mark.parametrize("loses_power", [False, True], ids=["kill", "power"])
@pytest.mark.parametrize("when", list(When))
def test_crash_at_any_io_point_loses_nothing_acknowledged(when: When, loses_power: bool) -> None:
    whole = Workload(seed=0)
    before = whole.disk.points
    whole.run()
    assert whole.bench is not None
    assert whole.disk.points - before > 150
    assert whole.bench.log.start_offset > 0
    for point in range(before + 1, whole.disk.points + 1):
        script = Workload(seed=point)
        script.disk.crash_at(point, when, loses_power=loses_power)
        with pytest.raises(Crashed):
            script.run()
        script.check(lost_power=loses_power, start_offset_max=whole.bench.log.start_offset)


@pytest.mark.proves("S8")
def test_power_loss_above_the_recovery_point_never_leaves_a_hole() -> None:
    for seed in range(60):
        disk = SimulatedDisk(seed=seed)
        disk.prepare_folder(FOLDER)
        bench = Bench(disk, segment_bytes=1 * KiB)
        for number in range(40):
            bench.append(b"%d" % number * 40)
            if number == seed % 30:
                bench.log.flush(NOW_MS)
        recovery_point = bench.log.recovery_point
        disk.power_loss()
        bench.open(recovery_point=recovery_point, has_lost_power=True)
        assert bench.log.end_offset >= recovery_point > 0
        assert [record.offset for record in bench.records()] == list(range(bench.log.end_offset))


@pytest.mark.proves("S6")
def test_short_write_is_continued() -> None:
    bench = Bench()
    bench.disk.shorten_write(10, path=".log", times=3)
    bench.append(b"x" * 500)
    bench.append(b"y" * 500)
    assert bench.disk.fired["short write"] == 3
    assert bench.values() == [b"x" * 500, b"y" * 500]
    assert bench.kill().truncated_bytes == 0


@pytest.mark.proves("S6")
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_failed_write_leaves_the_log_unchanged(error: int) -> None:
    bench = Bench()
    bench.append(b"a")
    size = len(bench.file(ACTIVE))
    bench.disk.shorten_write(20, path=".log")
    bench.disk.fail("pwrite", error, path=".log", skip=1)
    with pytest.raises(OSError, match=r".*") as raised:
        bench.append(b"b" * 300)
    assert raised.value.errno == error
    assert len(bench.file(ACTIVE)) == size
    assert bench.log.end_offset == 1
    assert bench.append(b"c").base_offset == 1
    assert bench.values() == [b"a", b"c"]


def append_many(bench: Bench, count: int) -> None:
    for number in range(count):
        bench.append(b"%04d" % number * 30)


@pytest.mark.proves("S6")
def test_full_disk_rejects_appends_and_serves_reads() -> None:
    disk = SimulatedDisk(seed=3, capacity_bytes=20 * KiB)
    disk.prepare_folder(FOLDER)
    bench = Bench(disk, segment_bytes=2 * KiB, index_interval_bytes=100)
    with pytest.raises(OSError, match=r".*") as raised:
        append_many(bench, 1000)
    assert raised.value.errno == errno.ENOSPC
    acknowledged = bench.log.end_offset
    assert acknowledged > 20
    for _ in range(20):
        with pytest.raises(OSError, match=r".*"):
            bench.append(b"more" * 30)
        assert [record.offset for record in bench.records()] == list(range(acknowledged))
    disk.capacity_bytes *= 2
    assert bench.append(b"room").base_offset == acknowledged
    bench.kill()
    assert [record.offset for record in bench.records()] == list(range(acknowledged + 1))


@pytest.mark.proves("S6")
def test_buffered_batches_are_discarded_on_a_full_disk() -> None:
    bench = Bench(index_interval_bytes=100)
    for number in range(10):
        bench.append(b"." * 100, producer_id=1, producer_epoch=0, base_sequence=number)
    bench.disk.capacity_bytes = bench.disk.used_bytes
    for number in (10, 11):
        batch = build_batch([(NOW_MS, None, b"." * 100, ())], producer_id=1, producer_epoch=0, base_sequence=number)
        bench.log.append(memoryview(batch), read_header(batch), 0, NOW_MS, is_buffered=True)
    with pytest.raises(OSError, match="No space left"):
        bench.log.write_buffered()
    assert bench.log.end_offset == 10
    bench.disk.capacity_bytes *= 2
    assert bench.append(b"again", producer_id=1, producer_epoch=0, base_sequence=10).base_offset == 10
    bench.kill()
    assert [record.offset for record in bench.records()] == list(range(11))


@pytest.mark.proves("S6")
def test_roll_on_a_full_disk_leaves_no_files() -> None:
    for skip in range(12):
        bench = Bench(segment_bytes=1 * KiB)
        for number in range(4):
            bench.append(b"%d" % number * 200)
        full_at = bench.disk.points + 1 + skip

        def reject(point: IoPoint, full_at: int = full_at) -> None:
            if point.number == full_at and point.operation != "unlink":
                raise OSError(errno.ENOSPC, "full", point.path)

        bench.disk.on_io = reject
        rejected = 0
        for number in range(4, 10):
            try:
                bench.append(b"%d" % number * 200)
            except OSError:
                rejected += 1
        end = bench.log.end_offset
        assert end + rejected == 10
        assert [record.offset for record in bench.records()] == list(range(end))
        bench.kill()
        assert [record.offset for record in bench.records()] == list(range(end))


@pytest.mark.proves("S6")
@pytest.mark.parametrize("suffix", [".log", ".index", ".timeindex"])
def test_old_segment_continues_after_a_failed_roll(suffix: str) -> None:
    bench = Bench(segment_bytes=1 * KiB)
    for number in range(3):
        bench.append(b"%d" % number * 200)
    bench.disk.fail("create", errno.ENOSPC, path=f"{3:020d}{suffix}")
    with pytest.raises(OSError, match=r".*"):
        bench.append(b"too large for what is left" * 10)
    bench.append(b"fits")
    bench.append(b"fits")
    bench.kill()
    assert [record.offset for record in bench.records()] == list(range(5))
    assert bench.log.segment_base_offsets == [0]


@pytest.mark.proves("S8", part="acknowledged records are kept")
@pytest.mark.parametrize("is_clean", [False, True])
@pytest.mark.parametrize("more", [0, 5])
def test_leftovers_of_a_failed_roll_hide_no_later_records(is_clean: bool, more: int) -> None:
    bench = Bench()
    bench.append(b"0")
    for number in range(1, 4):
        bench.disk.fail("create", errno.ENOSPC, path=f"{number:020d}.index")
        bench.disk.fail("unlink", errno.EIO, path=f"{number:020d}.log")
        with pytest.raises(OSError, match="Input/output error"):
            bench.log.roll(bench.now_ms)
        bench.append(b"%d" % number)
    if more:
        bench.log.roll(bench.now_ms)
    for number in range(4, 4 + more):
        bench.append(b"%d" % number)
    if is_clean:
        bench.restart()
    else:
        bench.kill()
    assert [record.offset for record in bench.records()] == list(range(4 + more))


@pytest.mark.proves("S6")
def test_failed_sync_is_not_retried_and_stops_the_log() -> None:
    bench = Bench()
    bench.append(b"a")
    bench.disk.fail("fsync", path=".log")
    with pytest.raises(SyncFailed):
        bench.log.flush(NOW_MS)
    assert bench.log.recovery_point == 0
    with pytest.raises(StorageFailed):
        bench.append(b"b")
    with pytest.raises(StorageFailed):
        bench.log.flush(NOW_MS)
    assert bench.values() == [b"a"]
    with pytest.raises(StorageFailed):
        bench.log.close(NOW_MS)  # it closes the files, without a clean shutdown


@pytest.mark.proves("S6")
@pytest.mark.parametrize("seed", range(20))
def test_records_found_after_a_failed_sync_are_rewritten_before_the_next(seed: int) -> None:
    disk = SimulatedDisk(seed=seed)
    disk.prepare_folder(FOLDER)
    disk.faults.scatters = True
    bench = Bench(disk, segment_bytes=1 * KiB)
    values = [b"%d" % number * 100 for number in range(24)]
    for value in values:
        bench.append(value)
    disk.fail("fsync", path=".log")
    with pytest.raises(SyncFailed):
        bench.log.flush(NOW_MS)
    disk.crash()  # and the next process sees all of it, or what is on the platter
    bench.log = bench.open(has_lost_power=True, has_sync_failure=True)
    found = bench.values()
    assert found == values[: len(found)]
    bench.log.flush(NOW_MS)
    recovery_point = bench.log.recovery_point
    disk.power_loss()
    bench.log = bench.open(has_lost_power=True, recovery_point=recovery_point)
    assert bench.values() == found


def test_flush_without_space_for_the_epoch_checkpoint_is_retried() -> None:
    bench = Bench()
    bench.append(b"a", epoch=4)
    bench.disk.fail("pwrite", errno.ENOSPC, path="leader-epoch")
    with pytest.raises(OSError, match=r".*"):
        bench.log.flush(NOW_MS)
    assert bench.log.recovery_point == 0
    bench.append(b"b", epoch=4)
    bench.log.flush(NOW_MS)
    assert bench.log.recovery_point == 2
    assert bench.file("leader-epoch-checkpoint") == b"0\n1\n4 0\n"


def test_failed_index_write_does_not_fail_the_append() -> None:
    bench = Bench(index_interval_bytes=0)
    bench.disk.fail("pwrite", errno.ENOSPC, path=".index")
    for number in range(600):
        bench.append(b"%d" % number)
    assert bench.log.end_offset == 600
    bench.restart()
    assert [record.offset for record in bench.records(offset=550)] == list(range(550, 600))


@pytest.mark.proves("S6")
def test_truncation_during_a_flush_does_not_raise_the_recovery_point() -> None:
    bench = Bench()
    for number in range(10):
        bench.append(b"%d" % number)
    flush = bench.log.begin_flush(NOW_MS)
    bench.log.truncate_to(3)
    for number in range(10):
        bench.append(b"new %d" % number)
    flush.run()
    bench.log.finish_flush(flush)
    assert bench.log.recovery_point == 0
