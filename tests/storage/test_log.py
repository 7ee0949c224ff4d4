"""Appends, reads, rolls and follower appends of a log."""

import pytest
from storage_bench import NOW_MS, Bench, read_records

from moldau.model.errors import CorruptMessage, FencedLeaderEpoch, OffsetOutOfRange, RecordListTooLarge
from moldau.model.units import KiB
from moldau.records.builder import build_batch
from moldau.records.compression import Compression
from moldau.records.record import iterate_batches


@pytest.mark.proves("S1")
def test_offsets_increase_by_one_over_all_batches() -> None:
    bench = Bench()
    first = bench.append(b"a", b"b", b"c")
    second = bench.append(b"d")
    assert (first.base_offset, first.last_offset) == (0, 2)
    assert (second.base_offset, second.last_offset) == (3, 3)
    assert bench.log.end_offset == 4
    assert [(record.offset, record.value) for record in bench.records()] == [(0, b"a"), (1, b"b"), (2, b"c"), (3, b"d")]


@pytest.mark.proves("S1")
def test_records_read_the_same_after_more_appends_and_a_restart() -> None:
    bench = Bench(segment_bytes=2 * KiB)
    for number in range(20):
        bench.append(b"%d" % number * 50)
    before = bench.log.read_bytes(0, 1 << 20)
    for number in range(100):
        bench.append(b"x%d" % number)
    assert bench.log.read_bytes(0, len(before)) == before
    bench.restart()
    assert bench.log.read_bytes(0, len(before)) == before


@pytest.mark.proves("S9")
@pytest.mark.parametrize("codec", list(Compression))
def test_compressed_batch_is_stored_as_it_was_sent(codec: Compression) -> None:
    bench = Bench()
    batch = build_batch([(NOW_MS, b"k", b"v" * 500, ())], compression=codec)
    sent = bytes(batch)
    bench.append_batch(batch)
    stored = bench.file("00000000000000000000.log")
    assert stored[16:] == sent[16:]  # all but offset, length (which is equal) and leader epoch
    assert stored[8:12] == sent[8:12]


def test_leader_epoch_is_patched_into_the_batch_and_recorded() -> None:
    bench = Bench()
    bench.append(b"a", epoch=3)
    bench.append(b"b", epoch=3)
    bench.append(b"c", epoch=7)
    headers = [header for header, _ in iterate_batches(bench.file("00000000000000000000.log"))]
    assert [header.partition_leader_epoch for header in headers] == [3, 3, 7]
    assert bench.log.end_offset_for_epoch(3) == (3, 2)
    assert bench.log.end_offset_for_epoch(5) == (3, 2)
    assert bench.log.end_offset_for_epoch(7) == (7, 3)
    assert bench.log.end_offset_for_epoch(8) == (-1, -1)


@pytest.mark.parametrize("is_reopened", [False, True])
@pytest.mark.parametrize("max_bytes", [1, 100, 700, 5000, 1 << 20])
def test_read_returns_whole_batches_and_at_least_one(is_reopened: bool, max_bytes: int) -> None:
    bench = Bench(segment_bytes=8 * KiB, index_interval_bytes=512)
    for number in range(200):
        bench.append(b"%03d" % number * (1 + number % 60))
    if is_reopened:
        bench.restart()
    for offset in range(200):
        data = bench.log.read_bytes(offset, max_bytes)
        headers = [header for header, _ in iterate_batches(data)]
        assert headers[0].base_offset == offset
        assert sum(header.size_bytes for header in headers) == len(data)
        assert len(data) <= max_bytes or len(headers) == 1
    assert [record.offset for record in read_records(bench.log, 0, max_bytes)] == list(range(200))


def test_batch_over_the_limit_is_omitted_when_none_is_required() -> None:
    bench = Bench()
    bench.append(b"x" * 500)
    assert bench.log.read(0, 100, at_least_one=False) is None
    assert bench.log.read(0, 1000, at_least_one=False) is not None
    bench.restart()
    assert bench.log.read(0, 100, at_least_one=False) is None


@pytest.mark.parametrize("is_reopened", [False, True])
def test_read_stops_below_its_end_offset(is_reopened: bool) -> None:
    bench = Bench(segment_bytes=2 * KiB)
    for number in range(60):
        bench.append(b"%d" % number * 20, b"second")
    if is_reopened:
        bench.restart()
    for until in range(121):
        data = bench.log.read_bytes(10, 1 << 20, until_offset=until)
        ends = [header.next_offset for header, _ in iterate_batches(data)]
        assert all(end <= until for end in ends)
        if until >= 12:
            assert ends


def test_read_at_the_tail_stops_below_its_end_offset() -> None:
    bench = Bench()
    for number in range(20):
        bench.append(b"%d" % number * 20, b"second")
    for until in range(41):
        headers = [header for header, _ in iterate_batches(bench.log.read_bytes(6, 1 << 20, until_offset=until))]
        assert [header.base_offset for header in headers] == list(range(6, until - 1, 2))


def test_append_with_fenced_leader_epoch_is_rejected() -> None:
    bench = Bench()
    bench.append(b"a", epoch=4)
    with pytest.raises(FencedLeaderEpoch):
        bench.append(b"b", epoch=3)
    assert bench.append(b"c", epoch=4).base_offset == 1


def test_read_outside_the_log_is_rejected_and_at_its_end_is_empty() -> None:
    bench = Bench()
    bench.append(b"a")
    assert bench.log.read(1, 100) is None
    with pytest.raises(OffsetOutOfRange):
        bench.log.read(2, 100)
    bench.log.advance_start_offset(1)
    with pytest.raises(OffsetOutOfRange):
        bench.log.read(0, 100)


@pytest.mark.proves("S2")
def test_segment_rolls_before_it_exceeds_its_size() -> None:
    bench = Bench(segment_bytes=1 * KiB)
    for _ in range(10):
        bench.append(b"x" * 300)
    logs = [name for name in bench.names() if name.endswith(".log")]
    assert logs == [f"{base:020d}.log" for base in (0, 2, 4, 6, 8)]
    for name in logs:
        assert len(bench.file(name)) <= 1 * KiB
        assert f"{name[:20]}.index" in bench.names()
        assert f"{name[:20]}.timeindex" in bench.names()


@pytest.mark.proves("S2")
def test_segment_rolls_by_the_age_of_its_first_record() -> None:
    bench = Bench(segment_ms=1000)
    bench.append(b"a", timestamp=NOW_MS)
    bench.append(b"b", timestamp=NOW_MS + 1000)
    assert bench.log.segment_base_offsets == [0]
    bench.append(b"c", timestamp=NOW_MS + 1001)
    assert bench.log.segment_base_offsets == [0, 2]
    assert not bench.log.roll_if_due(NOW_MS + 2000)
    assert bench.log.roll_if_due(NOW_MS + 2002)
    assert bench.log.segment_base_offsets == [0, 2, 3]


def test_segment_rolls_when_its_index_is_full() -> None:
    bench = Bench(segment_index_bytes=32, index_interval_bytes=0)
    for _ in range(20):
        bench.append(b"x")
    assert len(bench.log.segment_base_offsets) > 3
    assert all(len(bench.file(name)) <= 40 for name in bench.names() if name.endswith("index"))


def test_batch_larger_than_a_segment_is_rejected() -> None:
    bench = Bench(segment_bytes=1 * KiB)
    with pytest.raises(RecordListTooLarge):
        bench.append(b"x" * 2000)
    bench.append(b"fits")
    assert bench.values() == [b"fits"]


@pytest.mark.proves("H8", part="partitions move by plan")
def test_follower_accepts_a_batch_larger_than_a_segment() -> None:
    leader, follower = Bench(), Bench(segment_bytes=1 * KiB)
    for size in (10, 2000, 10, 3000):
        leader.append(b"x" * size)
    follower.log.append_as_follower(leader.log.read_bytes(0, 1 << 20), leader.now_ms)
    assert follower.values() == leader.values()
    assert follower.log.segment_base_offsets == [0, 1, 2, 3]
    follower.kill()
    assert follower.values() == leader.values()


def test_log_append_time_stamps_the_batch_and_is_returned() -> None:
    bench = Bench(message_timestamp_type="LogAppendTime")
    appended = bench.append(b"a", timestamp=5)
    assert appended.log_append_time_ms == NOW_MS
    assert bench.records()[0].timestamp == NOW_MS
    assert bench.kill().truncated_bytes == 0  # its checksum was recomputed


def test_follower_batches_keep_offsets_and_epochs_and_may_have_gaps() -> None:
    bench = Bench(segment_bytes=1 * KiB)
    batches = b"".join(
        bytes(build_batch([(NOW_MS, None, b"x" * 200, ())], base_offset=base, leader_epoch=base // 10))
        for base in range(5, 60, 5)
    )
    assert bench.log.append_as_follower(batches, NOW_MS) == 56
    assert [record.offset for record in bench.records()] == list(range(5, 60, 5))
    assert bench.log.end_offset_for_epoch(2) == (2, 30)
    bench.restart()
    assert [record.offset for record in bench.records()] == list(range(5, 60, 5))
    assert bench.records(offset=6)[0].offset == 10


def test_follower_batch_with_an_excessive_length_is_rejected() -> None:
    bench = Bench()
    batch = bytearray(build_batch([(NOW_MS, None, b"x" * 200, ())]))
    batch[10] ^= 1
    with pytest.raises(CorruptMessage):
        bench.log.append_as_follower(batch, NOW_MS)
    assert bench.log.append_as_follower(b"", NOW_MS) == 0


@pytest.mark.proves("H3")
@pytest.mark.parametrize("position", [16, 70])  # the magic byte, and a byte of the records
def test_follower_batches_before_a_corrupt_one_are_accepted(position: int) -> None:
    bench = Bench(segment_bytes=1 * KiB)
    batches = [bytearray(build_batch([(NOW_MS, None, b"x" * 200, ())], base_offset=base)) for base in range(8)]
    batches[5][position] ^= 1
    with pytest.raises(CorruptMessage):
        bench.log.append_as_follower(b"".join(batches), NOW_MS)
    assert [record.offset for record in bench.records()] == list(range(5))
    batches[5][position] ^= 1
    assert bench.log.append_as_follower(b"".join(batches[5:]), NOW_MS) == 8
    bench.restart()
    assert [record.offset for record in bench.records()] == list(range(8))


@pytest.mark.proves("H5", part="fencing")
def test_follower_batches_end_before_an_epoch_later_than_the_leaders() -> None:
    bench = Bench()
    epochs = (3, 4, 4, 5, 5)
    batches = [
        bytes(build_batch([(NOW_MS, None, b"x", ())], base_offset=base, leader_epoch=epoch))
        for base, epoch in enumerate(epochs)
    ]
    with pytest.raises(CorruptMessage, match="leader epoch 5 from a leader of epoch 4"):
        bench.log.append_as_follower(b"".join(batches), NOW_MS, 4)
    assert (bench.log.end_offset, bench.log.epochs.latest) == (3, 4)
    assert bench.log.append_as_follower(b"".join(batches[3:]), NOW_MS, 5) == 5
