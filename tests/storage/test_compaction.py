"""Compaction keeps the newest record of each key, at its offset."""

import pickle
import random

import pytest
from compacted_bench import CompactedBench
from storage_bench import FOLDER, NOW_MS

from moldau.model.errors import CorruptMessage
from moldau.model.settings import LONG_MAX
from moldau.model.units import DAY_MS, KiB, MiB
from moldau.records.builder import build_batch
from moldau.records.compression import Compression
from moldau.records.header import write_checksum
from moldau.records.record import Record
from moldau.storage.batch_scan import CorruptBatch
from moldau.storage.compaction import compact
from moldau.storage.corrupt_range import find_corruption_at
from moldau.storage.transaction_index import ENTRY_BYTES
from moldau.testing.disk import Crashed, SimulatedDisk, When


@pytest.mark.proves("S5")
def test_newest_value_of_each_key_survives_at_its_offset() -> None:
    bench = CompactedBench()
    for number in range(200):
        bench.put((b"key%d" % (number % 10), b"value%d" % number))
    before = {record.offset: record for record in bench.records()}
    result = bench.compact()
    assert result is not None
    assert result.bytes_after < result.bytes_before / 5
    assert [record.offset for record in bench.records()] == list(range(190, 200))
    assert all(before[record.offset] == record for record in bench.records())
    assert bench.log.end_offset == 200
    assert bench.put((b"key0", b"next")) == 200


@pytest.mark.proves("S5")
@pytest.mark.parametrize("codec", list(Compression))
def test_batch_that_loses_records_keeps_its_frame_and_codec(codec: Compression) -> None:
    bench = CompactedBench()
    bench.put((b"a", b"1"), (b"b", b"1"), (b"c", b"1"), compression=codec)
    bench.put((b"a", b"2"), (b"c", b"2"))
    bench.compact()
    assert [(record.offset, record.key, record.value) for record in bench.records()] == [
        (1, b"b", b"1"),
        (3, b"a", b"2"),
        (4, b"c", b"2"),
    ]
    first = bench.headers()[0]
    assert (first.base_offset, first.last_offset, first.records_count, first.compression) == (0, 2, 1, codec)
    assert bench.kill().truncated_bytes == 0


@pytest.mark.proves("S5")
def test_tombstone_expires_after_its_retention() -> None:
    bench = CompactedBench(delete_retention_ms=DAY_MS)
    bench.put((b"a", b"1"), (b"b", b"1"))
    bench.put((b"a", None))
    bench.put((b"c", b"1"))
    bench.compact()
    assert bench.table() == {b"b": b"1", b"a": None, b"c": b"1"}
    horizons = [header.delete_horizon_ms for header in bench.headers()]
    assert NOW_MS + DAY_MS in horizons
    bench.now_ms += DAY_MS - 1
    bench.put((b"d", b"1"))
    bench.compact()
    assert bench.table()[b"a"] is None
    assert b"a" in bench.table()
    bench.now_ms += 1
    bench.put((b"e", b"1"))
    bench.compact()
    assert b"a" not in bench.table()
    assert bench.table()[b"e"] == b"1"


@pytest.mark.proves("S5", part="tombstones")
def test_tombstones_with_infinite_retention_stay() -> None:
    bench = CompactedBench(delete_retention_ms=LONG_MAX)
    bench.put((b"a", b"1"), (b"b", b"2"))
    bench.put((b"a", None))
    bench.compact()
    bench.put((b"c", b"3"))
    bench.now_ms += 1000 * 365 * DAY_MS
    bench.compact()
    assert [(record.key, record.value, record.timestamp) for record in bench.records()] == [
        (b"b", b"2", NOW_MS),
        (b"a", None, NOW_MS),
        (b"c", b"3", NOW_MS),
    ]


@pytest.mark.proves("S5", part="the newest value of each key is kept")
@pytest.mark.parametrize("delta", [0, 2, 9])
def test_record_with_a_wrong_offset_delta_hides_no_newer_one(delta: int) -> None:
    bench = CompactedBench()
    claiming = build_batch([(NOW_MS, b"x", b"1", ()), (NOW_MS, b"a", b"old", ()), (NOW_MS, b"b", b"1", ())])
    place = claiming.index(b"\x02a\x06old") - 1
    assert claiming[place] == 2  # its offset delta, as a varint
    claiming[place] = 2 * delta
    write_checksum(claiming, 0, len(claiming))
    bench.append_batch(claiming)
    bench.put((b"a", b"new"))
    with pytest.raises(CorruptMessage, match="has offset"):
        bench.compact()
    assert bench.table()[b"a"] == b"new"


@pytest.mark.proves("S5")
def test_repeated_compaction_gives_the_same_table_as_a_full_replay() -> None:
    chance = random.Random(5)
    bench = CompactedBench(delete_retention_ms=1000)
    truth: dict[bytes | None, bytes | None] = {}
    for _ in range(30):
        for _ in range(chance.randrange(1, 30)):
            pairs = []
            for _ in range(chance.randrange(1, 5)):
                key = b"k%d" % chance.randrange(40)
                value = None if chance.random() < 0.2 else chance.randbytes(chance.randrange(60))
                pairs.append((key, value))
                truth[key] = value
            bench.put(*pairs, compression=chance.choice(list(Compression)))
        bench.now_ms += chance.randrange(900)
        bench.compact()
        if chance.random() < 0.3:
            bench.kill()
        found = bench.table()
        assert {key: value for key, value in found.items() if value is not None} == {
            key: value for key, value in truth.items() if value is not None
        }
        assert all(truth[key] == value for key, value in found.items())
    offsets = [record.offset for record in bench.records()]
    assert offsets == sorted(offsets)


def test_active_segment_and_recent_records_are_not_cleaned() -> None:
    bench = CompactedBench(min_compaction_lag_ms=1000)
    for number in range(40):
        bench.put((b"a", b"%d" % number * 20))
    assert bench.compact() is None
    bench.now_ms += 2000
    assert bench.compact() is not None
    bench = CompactedBench()
    bench.put((b"a", b"1"))
    bench.put((b"a", b"2"))
    assert bench.log.compaction_job(0, 2, NOW_MS) is None


def test_log_is_cleaned_by_dirty_ratio_or_maximum_lag() -> None:
    bench = CompactedBench(min_cleanable_dirty_ratio=0.5, max_compaction_lag_ms=10_000)
    for number in range(100):
        bench.put((b"%d" % number, b"x" * 50))
    assert bench.compact() is not None
    bench.put((b"0", b"y"))
    assert bench.compact() is None
    bench.now_ms += 20_000
    assert bench.compact() is not None
    assert bench.table()[b"0"] == b"y"


def test_small_adjacent_segments_are_merged() -> None:
    bench = CompactedBench()
    for number in range(200):
        bench.put((b"key%d" % (number % 3), b"value%d" % number))
    assert len(bench.log.segment_base_offsets) > 5
    bench.compact()
    # The first groups come out small, so the next compaction merges them.
    bench.put((b"other", b"1"))
    bench.compact()
    assert len(bench.log.segment_base_offsets) <= 3


def test_keys_that_exceed_the_memory_are_cleaned_in_several_rounds() -> None:
    bench = CompactedBench()
    for number in range(300):
        bench.put((b"key%d" % (number % 100), b"value%d" % number))
    bench.log.roll(NOW_MS)
    rounds = 0
    while bench.cleaned_offset < 300:
        assert bench.compact(keys_max=30) is not None
        rounds += 1
    assert rounds >= 10
    # A record is removed only once a newer one has been seen: the last round cleans the keys it knows, not all.
    assert bench.table() == {b"key%d" % (n % 100): b"value%d" % n for n in range(200, 300)}
    assert len(bench.records()) <= 200


def test_long_keys_are_distinguished() -> None:
    bench = CompactedBench(segment_bytes=64 * KiB)
    keys = [b"x" * 100 + b"%d" % number for number in range(50)] + [b"s" * 32, b"s" * 33]
    for value in (b"1", b"2"):
        for key in keys:
            bench.put((key, value))
    bench.compact()
    assert [(record.key, record.value) for record in bench.records()] == [(key, b"2") for key in keys]


def test_last_batch_of_an_active_producer_stays_as_an_empty_frame() -> None:
    bench = CompactedBench()
    for sequence in range(5):
        bench.put((b"a", b"%d" % sequence), producer_id=9, producer_epoch=2, base_sequence=sequence)
    bench.put((b"a", b"other"))
    bench.compact()
    assert bench.table() == {b"a": b"other"}
    frames = [header for header in bench.headers() if header.producer_id == 9]
    assert [(header.base_offset, header.records_count, header.base_sequence) for header in frames] == [(4, 0, 4)]
    bench.kill()
    assert bench.log.producers.by_id[9].next_sequence == 5
    assert bench.append_batch(build_batch([(1, b"a", b"x", ())], producer_id=9, producer_epoch=2, base_sequence=4)) == (
        4,
        4,
        True,
        -1,
    )


def test_aborted_records_are_removed_and_never_hide_committed_ones() -> None:
    bench = CompactedBench(segment_bytes=1 * KiB)
    bench.put((b"a", b"committed"))
    bench.put(
        (b"a", b"aborted"), (b"b", b"aborted"), producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True
    )
    bench.put((b"c", b"in between" * 40))
    bench.put((b"d", b"in between" * 40))
    bench.log.roll(NOW_MS)
    bench.end_transaction(1, is_commit=False)  # its marker is in the active segment, which is not cleaned
    job = bench.log.compaction_job(0, bench.log.end_offset, NOW_MS)
    assert job is not None
    bench.log.replace_segments(compact(bench.mounted, job))
    data = [record for record in bench.records() if record.key in (b"a", b"b")]
    assert [(record.offset, record.value) for record in data] == [(0, b"committed")]


def test_marker_outlives_the_records_of_its_transaction() -> None:
    bench = CompactedBench(delete_retention_ms=DAY_MS)
    bench.put((b"a", b"1"), producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True)
    bench.end_transaction(1, is_commit=True)
    bench.put((b"b", b"1"), producer_id=2, producer_epoch=0, base_sequence=0, is_transactional=True)
    bench.end_transaction(2, is_commit=False)
    bench.log.producers.clear(bench.log.end_offset)  # no producer is active any more
    bench.put((b"z", b"1"))
    bench.compact()
    assert [header.base_offset for header in bench.headers() if header.is_control] == [1, 3]
    assert len(bench.file("00000000000000000000.txnindex")) == ENTRY_BYTES
    bench.put((b"a", b"2"))
    bench.compact()  # the records are removed: the markers get their horizon
    bench.put((b"z", b"2"))
    bench.compact()
    assert [header.base_offset for header in bench.headers() if header.is_control] == [1, 3]
    bench.now_ms += 2 * DAY_MS
    bench.put((b"z", b"3"))
    bench.compact()
    assert not [header for header in bench.headers() if header.is_control]
    assert bench.aborted_transactions(0, 10) == []


def test_last_batch_of_a_round_keeps_its_frame() -> None:
    bench = CompactedBench()
    bench.put((b"a", b"1"))
    bench.put((b"b", b"aborted"), producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True)
    bench.log.roll(NOW_MS)
    bench.end_transaction(1, is_commit=False)
    bench.log.producers.clear(bench.log.end_offset)
    job = bench.log.compaction_job(0, bench.log.end_offset, NOW_MS)
    assert job is not None
    bench.log.replace_segments(compact(bench.mounted, job))
    assert [(header.base_offset, header.records_count) for header in bench.headers()] == [(0, 1), (1, 0), (2, 1)]


def test_open_transaction_stops_the_cleaner() -> None:
    bench = CompactedBench()
    bench.put((b"a", b"1"))
    bench.put((b"a", b"2"), producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True)
    bench.put((b"a", b"3"))
    bench.log.roll(NOW_MS)
    job = bench.log.compaction_job(0, bench.log.end_offset, NOW_MS)
    assert job is not None
    assert job.end_offset == 1


@pytest.mark.proves("S5")
def test_compact_and_delete_also_drops_old_segments() -> None:
    bench = CompactedBench(cleanup_policy=("compact", "delete"), retention_ms=1000)
    for number in range(50):
        bench.put((b"old%d" % number, b"x" * 50))
    bench.now_ms += 5000
    bench.put((b"new", b"1"))
    bench.compact()
    bench.log.apply_retention(bench.now_ms)
    assert bench.log.start_offset > 0
    assert bench.table()[b"new"] == b"1"


def test_earlier_read_stays_valid_after_the_swap() -> None:
    bench = CompactedBench()
    for number in range(100):
        bench.put((b"a", b"%d" % number * 10))
    piece = bench.log.read(0, 10_000)
    assert piece is not None
    before = piece.read()
    bench.compact()
    assert piece.read() == before


def test_result_for_a_changed_log_is_dropped() -> None:
    bench = CompactedBench()
    for number in range(100):
        bench.put((b"a", b"%d" % number * 10))
    bench.log.roll(NOW_MS)
    job = bench.log.compaction_job(0, 100, NOW_MS)
    assert job is not None
    result = compact(bench.mounted, job)
    bench.log.truncate_to(5)
    for path in bench.log.replace_segments(result):
        bench.mounted.unlink(path)
    assert [record.offset for record in bench.records()] == list(range(5))
    assert not [name for name in bench.names() if name.endswith(".cleaned")]


@pytest.mark.proves("S5")
@pytest.mark.parametrize("when", list(When))
@pytest.mark.parametrize("loses_power", [False, True])
def test_crash_at_any_io_point_of_compaction_keeps_the_table(when: When, loses_power: bool) -> None:
    point = 0
    while True:
        disk = SimulatedDisk(seed=point)
        disk.prepare_folder("/data")
        bench = CompactedBench(disk)
        for number in range(48):
            bench.put((b"key%d" % (number % 7), b"value%d" % number * 8))
        bench.log.roll(NOW_MS)
        bench.log.flush(NOW_MS)
        truth, recovery_point = bench.table(), bench.log.recovery_point
        disk.crash_at(disk.points + 1 + point, when, loses_power=loses_power)
        try:
            bench.compact()
        except Crashed:
            pass
        else:
            assert point > 20
            return
        bench.open(recovery_point=recovery_point, has_lost_power=loses_power)
        assert bench.table() == truth
        assert bench.log.end_offset == 48
        bench.compact()
        assert bench.table() == truth
        assert len(bench.records()) == 7
        point += 1


@pytest.mark.proves("H3")
def test_corrupt_batch_does_not_get_a_new_checksum() -> None:
    bench = CompactedBench()
    for number in range(40):
        bench.put((b"key%d" % (number % 4), b"value%d" % number * 8))
    bench.log.roll(NOW_MS)
    bench.disk.flip_bit(f"{FOLDER}/00000000000000000000.log", 200)
    before = bench.disk.contents()
    job = bench.log.compaction_job(0, 40, NOW_MS)
    assert job is not None
    with pytest.raises(CorruptBatch, match="checksum") as broken:
        compact(bench.mounted, job)
    error = pickle.loads(pickle.dumps(broken.value))  # it comes from another process
    assert (str(error), error.position, error.offset) == (str(broken.value), broken.value.position, broken.value.offset)
    damage = find_corruption_at(bench.log, error.offset)
    assert damage is not None
    assert damage.offset == error.offset
    after = bench.disk.contents()
    assert {name: after[name] for name in before} == before


def test_keys_are_compared_uncompressed() -> None:
    bench = CompactedBench()
    bench.append_batch(build_batch([Record(0, 5, b"k", b"v", (("h", b"1"), ("h", None)))]))
    bench.put((b"x", b"y"))
    bench.compact()
    assert bench.records()[0] == Record(0, 5, b"k", b"v", (("h", b"1"), ("h", None)))


def test_large_active_segment_is_rolled_for_cleaning() -> None:
    bench = CompactedBench(segment_bytes=100 * MiB, min_cleanable_dirty_ratio=0.5)
    for number in range(20):
        bench.put((b"key", bytes([number]) * 64 * KiB))
    assert bench.log.compaction_job(0, bench.log.end_offset, bench.now_ms) is None
    assert bench.log.roll_if_due(bench.now_ms)
    assert bench.compact() is not None
    assert bench.table() == {b"key": bytes([19]) * 64 * KiB}
    assert not bench.log.roll_if_due(bench.now_ms), "a small active segment can wait"
