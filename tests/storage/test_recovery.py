"""Opening a log after a clean or unclean shutdown, with torn or corrupt files."""

from typing import Any

import pytest
from storage_bench import FOLDER, NOW_MS, Bench

from moldau.model.units import KiB
from moldau.records.builder import build_batch
from moldau.records.control import build_transaction_marker
from moldau.records.record import iterate_batches
from moldau.storage.recovery import CorruptLog

ACTIVE = "00000000000000000000.log"


def filled(batches: int = 40, **settings: Any) -> Bench:
    bench = Bench(**{"segment_bytes": 4 * KiB, "index_interval_bytes": 256, **settings})
    for number in range(batches):
        bench.append(b"%04d" % number * 30, epoch=number // 10)
    return bench


def chop(bench: Bench, name: str, size: int) -> None:
    file = bench.disk.mount().open(f"{FOLDER}/{name}")
    file.truncate(size)
    file.close()


@pytest.mark.proves("S8")
def test_appended_records_survive_a_kill() -> None:
    bench = filled()
    expected = bench.values()
    bench.kill()
    assert bench.values() == expected
    assert bench.log.end_offset == 40
    assert bench.log.truncated_bytes == 0
    assert bench.append(b"next", epoch=3).base_offset == 40


@pytest.mark.proves("S8")
@pytest.mark.parametrize("kept_bytes", [1, 11, 12, 60, 61, 100, 180])
def test_torn_tail_is_truncated_at_the_last_whole_batch(kept_bytes: int) -> None:
    bench = filled(10, segment_bytes=1 << 20)
    whole = len(bench.file(ACTIVE))
    bench.append(b"torn" * 30)
    bench.disk.crash()
    chop(bench, ACTIVE, whole + kept_bytes)
    bench.open()
    assert bench.log.end_offset == 10
    assert bench.log.truncated_bytes == kept_bytes
    assert len(bench.file(ACTIVE)) == whole
    assert bench.append(b"next").base_offset == 10
    assert bench.values()[-1] == b"next"


@pytest.mark.proves("S8")
def test_zeros_at_the_end_are_truncated() -> None:
    bench = filled(5, segment_bytes=1 << 20)
    whole = len(bench.file(ACTIVE))
    bench.disk.crash()
    file = bench.disk.mount().open(f"{FOLDER}/{ACTIVE}")
    file.pwrite(bytes(5000), whole)
    bench.open()
    assert (bench.log.end_offset, len(bench.file(ACTIVE))) == (5, whole)


@pytest.mark.proves("S8")
def test_bit_flip_in_the_last_batch_counts_as_a_torn_tail() -> None:
    bench = filled(10, segment_bytes=1 << 20)
    bench.disk.crash()
    bench.disk.flip_bit(f"{FOLDER}/{ACTIVE}", len(bench.disk.contents()[f"{FOLDER}/{ACTIVE}"]) - 20)
    bench.open()
    assert bench.log.end_offset == 9


@pytest.mark.proves("S8")
@pytest.mark.parametrize("place", [3, 10, 16, 30, 100])
def test_corruption_before_whole_batches_is_rejected_without_truncation(place: int) -> None:
    bench = filled(10, segment_bytes=1 << 20)
    position = len(bench.file(ACTIVE)) // 10 * 4 + place
    bench.disk.crash()
    bench.disk.flip_bit(f"{FOLDER}/{ACTIVE}", position, bit=6)
    before = bench.disk.contents()[f"{FOLDER}/{ACTIVE}"]
    with pytest.raises(CorruptLog, match="a valid batch follows"):
        bench.open()
    assert bench.disk.contents()[f"{FOLDER}/{ACTIVE}"] == before
    bench.open(allows_data_loss=True)
    assert bench.log.end_offset == 4


@pytest.mark.proves("S8")
def test_corruption_below_the_recovery_point_is_rejected_even_at_the_end() -> None:
    bench = filled(10, segment_bytes=1 << 20)
    bench.log.flush(NOW_MS)
    assert bench.log.recovery_point == 10
    bench.disk.crash()
    chop(bench, ACTIVE, len(bench.disk.contents()[f"{FOLDER}/{ACTIVE}"]) - 5)
    with pytest.raises(CorruptLog, match="below the recovery point"):
        bench.open(recovery_point=10)


@pytest.mark.proves("S8")
def test_segments_below_the_recovery_point_are_not_scanned() -> None:
    bench = filled(60)
    bases = bench.log.segment_base_offsets
    bench.disk.crash()
    for base in bases[:-2]:
        bench.disk.flip_bit(f"{FOLDER}/{base:020d}.log", 100)
    bench.open(recovery_point=bases[-2])
    assert bench.log.end_offset == 60


@pytest.mark.proves("S8")
def test_rebuilt_indexes_equal_those_written_by_appends() -> None:
    bench = filled(60)
    bench.log.close(NOW_MS)
    indexes = {name: data for name, data in bench.disk.contents().items() if name.endswith("index")}
    assert any(len(data) > 8 for data in indexes.values())
    for name in indexes:
        bench.disk.mount().unlink(name)
    bench.open()
    bench.log.close(NOW_MS)
    assert {name: data for name, data in bench.disk.contents().items() if name.endswith("index")} == indexes


def test_truncation_in_an_early_segment_removes_later_ones_after_power_loss() -> None:
    bench = filled(60)
    bases = bench.log.segment_base_offsets
    bench.disk.crash()
    name = f"{bases[1]:020d}.log"
    chop(bench, name, len(bench.disk.contents()[f"{FOLDER}/{name}"]) - 5)
    with pytest.raises(CorruptLog, match="later segments"):
        bench.open()  # a kill leaves no torn end before whole segments
    bench.open(has_lost_power=True)
    assert bench.log.segment_base_offsets == bases[:2]
    assert bench.log.end_offset == bases[2] - 1
    assert [record.offset for record in bench.records()] == list(range(bases[2] - 1))
    assert bench.append(b"x", epoch=9).base_offset == bases[2] - 1


def with_a_gap(**settings: Any) -> tuple[Bench, int]:
    """Return a log whose second segment has lost its last batch, and the offset of the gap."""
    bench = filled(60, **settings)
    bases = bench.log.segment_base_offsets
    bench.disk.crash()
    name = f"{FOLDER}/{bases[1]:020d}.log"
    *_, (last, _) = iterate_batches(bench.disk.contents()[name])
    chop(bench, name.removeprefix(f"{FOLDER}/"), len(bench.disk.contents()[name]) - last.size_bytes)
    return bench, bases[2] - 1


@pytest.mark.proves("S8", part="torn tails are truncated")
@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_batches_behind_a_gap_are_truncated_after_a_power_loss(policy: str) -> None:
    bench, lost = with_a_gap(cleanup_policy=(policy,))
    bench.open(has_lost_power=True, cleaned_offset=0)
    assert [record.offset for record in bench.records()] == list(range(lost))
    assert bench.log.end_offset == lost


@pytest.mark.proves("S8", part="acknowledged records are kept")
@pytest.mark.parametrize(
    "opening",
    [
        {"has_lost_power": True, "cleaned_offset": 40},
        {"has_lost_power": True},  # the compacted range is not known
        {"cleaned_offset": 0},  # a kill loses nothing: the gap is from the leader
    ],
)
def test_batches_behind_a_possible_compaction_gap_are_kept(opening: dict[str, Any]) -> None:
    bench, lost = with_a_gap(cleanup_policy=("compact",))
    bench.open(**opening)
    assert [record.offset for record in bench.records()] == [each for each in range(60) if each != lost]


def test_clean_log_is_opened_without_a_scan() -> None:
    bench = filled(60)
    bases = bench.log.segment_base_offsets
    bench.log.close(NOW_MS)
    # Corruption in the first segment goes unnoticed, as it is not read.
    bench.disk.flip_bit(f"{FOLDER}/{ACTIVE}", 100)
    bench.open(is_clean=True)
    assert bench.log.segment_base_offsets == bases
    assert (bench.log.end_offset, bench.log.recovery_point) == (60, 60)


def test_log_that_differs_from_its_clean_shutdown_is_scanned() -> None:
    bench = filled(10, segment_bytes=1 << 20)
    bench.log.close(NOW_MS)
    file = bench.mounted.open(f"{FOLDER}/{ACTIVE}")
    file.pwrite(b"rubbish", file.size())
    bench.open(is_clean=True)
    assert bench.log.end_offset == 10
    assert bench.log.truncated_bytes == 7


@pytest.mark.proves("S3")
@pytest.mark.parametrize("damage", ["removed", "emptied", "cut", "zeroed", "flipped"])
@pytest.mark.parametrize("number", [0, -1])
def test_corrupt_index_is_detected_and_rebuilt(damage: str, number: int) -> None:
    bench = filled(60)
    expected, base = bench.values(), bench.log.segment_base_offsets[number]
    bench.log.close(NOW_MS)
    for suffix in (".index", ".timeindex"):
        corrupt(bench, f"{FOLDER}/{base:020d}{suffix}", damage)
    bench.open(is_clean=True)
    assert bench.values() == expected
    assert [bench.records(offset)[0].offset for offset in range(60)] == list(range(60))
    found = bench.log.offset_for_timestamp(NOW_MS)
    assert found == (NOW_MS, 0)


def corrupt(bench: Bench, path: str, damage: str) -> None:
    file = bench.mounted.open(path)
    size = file.size()
    match damage:
        case "removed":
            bench.mounted.unlink(path)
        case "emptied":
            file.truncate(0)
        case "cut":
            file.truncate(max(0, size - 3))
        case "zeroed":
            file.pwrite(bytes(size), 0)
        case "flipped":
            for position in range(0, size, 8):
                bench.disk.flip_bit(path, position + 6 if position + 6 < size else position)
    file.close()


@pytest.mark.proves("S8")
def test_leader_epochs_survive_a_kill_and_a_corrupt_checkpoint() -> None:
    bench = filled(40)
    expected = list(zip(bench.log.epochs.epochs, bench.log.epochs.start_offsets, strict=True))
    assert expected == [(0, 0), (1, 10), (2, 20), (3, 30)]
    bench.kill()
    assert list(zip(bench.log.epochs.epochs, bench.log.epochs.start_offsets, strict=True)) == expected
    bench.log.close(NOW_MS)
    assert bench.file("leader-epoch-checkpoint") == b"0\n4\n0 0\n1 10\n2 20\n3 30\n"
    file = bench.mounted.open(f"{FOLDER}/leader-epoch-checkpoint")
    file.pwrite(b"?", 3)
    bench.open(is_clean=True)
    assert list(zip(bench.log.epochs.epochs, bench.log.epochs.start_offsets, strict=True)) == expected


@pytest.mark.proves("S8")
@pytest.mark.parametrize("is_clean", [False, True])
def test_producer_state_survives_a_restart(is_clean: bool) -> None:
    bench = Bench(segment_bytes=2 * KiB)
    for sequence in range(0, 60, 2):
        bench.append(b"a" * 50, b"b" * 50, producer_id=7, producer_epoch=1, base_sequence=sequence)
    last = bench.log.end_offset - 2
    bench.restart() if is_clean else bench.kill()
    again = bench.append(b"a" * 50, b"b" * 50, producer_id=7, producer_epoch=1, base_sequence=58)
    assert (again.is_duplicate, again.base_offset) == (True, last)
    assert bench.append(b"c", producer_id=7, producer_epoch=1, base_sequence=60).base_offset == last + 2


@pytest.mark.proves("S8")
def test_corrupt_snapshot_is_replaced_by_an_older_one_and_the_log() -> None:
    bench = Bench(segment_bytes=2 * KiB)
    for sequence in range(60):
        bench.append(b"a" * 100, producer_id=7, producer_epoch=1, base_sequence=sequence)
    bench.log.close(NOW_MS)
    snapshots = [name for name in bench.names() if name.endswith(".snapshot")]
    for name in snapshots[1:]:
        bench.disk.flip_bit(f"{FOLDER}/{name}", 12)
    bench.open(is_clean=True)
    assert bench.log.producers.by_id[7].next_sequence == 60
    assert [each.last_offset for each in bench.log.producers.by_id[7].batches] == [55, 56, 57, 58, 59]


@pytest.mark.proves("S8")
@pytest.mark.parametrize("is_clean", [False, True])
def test_open_and_aborted_transactions_survive_a_restart(is_clean: bool) -> None:
    bench = Bench(segment_bytes=2 * KiB)
    bench.append(b"a" * 100, producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True)
    bench.append(b"b" * 100, producer_id=2, producer_epoch=0, base_sequence=0, is_transactional=True)
    for number in range(20):
        bench.append(b"plain" * 20 + b"%d" % number)
    marker = build_transaction_marker(
        is_commit=False, producer_id=1, producer_epoch=0, coordinator_epoch=3, timestamp_ms=NOW_MS
    )
    bench.append_batch(marker)
    expected = bench.aborted_transactions(0, 100)
    assert [(each.producer_id, each.first_offset, each.last_offset, each.last_stable_offset) for each in expected] == [
        (1, 0, 22, 1)
    ]
    assert bench.log.last_stable_offset(bench.log.end_offset) == 1
    bench.restart() if is_clean else bench.kill()
    assert bench.log.last_stable_offset(bench.log.end_offset) == 1
    assert bench.aborted_transactions(0, 100) == expected
    assert bench.log.producers.by_id[1].coordinator_epoch == 3


def test_corrupt_transaction_index_is_rebuilt() -> None:
    bench = Bench(segment_bytes=1 * KiB)
    for number in range(10):
        bench.append(b"a" * 100, producer_id=1, producer_epoch=0, base_sequence=number, is_transactional=True)
        marker = build_transaction_marker(
            is_commit=number % 2 == 0, producer_id=1, producer_epoch=0, coordinator_epoch=3, timestamp_ms=NOW_MS
        )
        bench.append_batch(marker)
    expected = bench.aborted_transactions(0, 100)
    assert len(expected) == 5
    bench.log.close(NOW_MS)
    for name in bench.names():
        if name.endswith(".txnindex"):
            bench.disk.flip_bit(f"{FOLDER}/{name}", 1)
    bench.open(is_clean=True)
    assert bench.aborted_transactions(0, 100) == expected


def write_log(bench: Bench, base_offset: int, *batches: bytes) -> None:
    file = bench.disk.mount().open(f"{FOLDER}/{base_offset:020d}.log", create=True)
    file.pwrite(b"".join(batches), file.size())
    file.close()


def batch_at(offset: int, epoch: int, value: bytes) -> bytes:
    return bytes(build_batch([(NOW_MS, None, value, ())], base_offset=offset, leader_epoch=epoch))


@pytest.mark.proves("S8")
def test_surplus_batches_of_a_segment_yield_to_the_next_segment() -> None:
    """A segment was truncated and rolled, and the power failed before the truncation was synced."""
    bench = filled(5, segment_bytes=1 << 20)
    bench.disk.crash()
    write_log(bench, 0, batch_at(5, 0, b"ghost"), batch_at(6, 0, b"ghost"))
    write_log(bench, 5, batch_at(5, 1, b"new"), batch_at(6, 1, b"new"))
    bench.open(has_lost_power=True)
    assert bench.values()[5:] == [b"new", b"new"]
    assert bench.log.segment_base_offsets == [0, 5]


@pytest.mark.proves("S8")
def test_batch_of_an_older_epoch_is_truncated_after_a_power_loss() -> None:
    bench = filled(0)
    bench.disk.crash()
    write_log(bench, 0, batch_at(0, 3, b"a"), batch_at(1, 5, b"b"), batch_at(2, 4, b"ghost"))
    assert bench.open().end_offset == 3  # without a power loss it is intended
    bench.disk.crash()
    bench.open(has_lost_power=True)
    assert bench.values() == [b"a", b"b"]


def test_snapshot_from_before_the_first_batch_is_not_used() -> None:
    bench = Bench(segment_bytes=1 * KiB)
    for sequence in range(12):
        bench.append(b"x" * 200, producer_id=7, producer_epoch=0, base_sequence=sequence)
    bench.log.close(NOW_MS)
    stale = next(name for name in bench.names() if name.endswith(".snapshot"))
    content = bench.file(stale)
    bench.open(is_clean=True)
    bench.log.truncate_fully_and_start_at(100)
    bench.disk.crash()
    bench.disk.mount().open(f"{FOLDER}/{stale}", create=True).pwrite(content, 0)
    bench.open(recovery_point=100)
    assert bench.log.producers.by_id == {}


def test_log_that_ends_before_it_starts_restarts() -> None:
    bench = filled(10)
    bench.log.close(NOW_MS)
    bench.open(is_clean=True, log_start_offset=50)
    assert (bench.log.start_offset, bench.log.end_offset) == (50, 50)
    assert bench.append(b"x").base_offset == 50


def test_leftover_files_are_removed() -> None:
    bench = filled(10)
    for name in ("00000000000000000000.log.deleted", "00000000000000000005.log.cleaned", "00000000000000000077.index"):
        bench.mounted.open(f"{FOLDER}/{name}", create=True)
    bench.restart()
    assert not [name for name in bench.names() if name.endswith((".deleted", ".cleaned")) or "77.index" in name]
