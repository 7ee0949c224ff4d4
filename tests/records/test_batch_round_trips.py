"""Batches round-trip."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moldau.model.errors import CorruptMessage
from moldau.records.builder import NewRecord, build_batch
from moldau.records.compression import Compression
from moldau.records.header import checksum, read_header
from moldau.records.record import Record, iterate_batches, iterate_records
from moldau.records.validation import validate_produced

TIMESTAMPS = st.integers(-1, 1 << 50)
CONTENT = st.none() | st.binary(max_size=300)
HEADERS = st.lists(st.tuples(st.text(max_size=12), CONTENT), max_size=4).map(tuple)
NEW_RECORDS = st.lists(st.tuples(TIMESTAMPS, CONTENT, CONTENT, HEADERS), min_size=1, max_size=20)
CODECS = st.sampled_from(Compression)


@settings(max_examples=150, deadline=None)
@given(NEW_RECORDS, CODECS)
def test_produced_records_round_trip(records: list[NewRecord], compression: Compression) -> None:
    batch = build_batch(records, compression=compression)
    header = validate_produced(memoryview(batch))
    assert header.compression == compression
    assert header.records_count == len(records)
    assert header.max_timestamp == max(timestamp for timestamp, *_ in records)
    assert list(iterate_records(batch)) == [Record(index, *record) for index, record in enumerate(records)]


@settings(max_examples=100, deadline=None)
@given(NEW_RECORDS, st.lists(st.integers(1, 1 << 20), min_size=20, max_size=20), st.integers(0, 1 << 60), CODECS)
def test_offset_gaps_round_trip(
    new: list[NewRecord], steps: list[int], base_offset: int, compression: Compression
) -> None:
    offset = base_offset
    records = []
    for step, record in zip(steps, new, strict=False):
        records.append(Record(offset, *record))
        offset += step
    batch = build_batch(records, base_offset=base_offset, compression=compression)
    assert list(iterate_records(batch)) == records
    assert read_header(batch).last_offset == records[-1].offset


def test_batch_keeps_its_offset_range_after_compaction() -> None:
    batch = build_batch(
        [Record(103, 50, b"k", b"v")],
        base_offset=100,
        last_offset_delta=9,
        producer_id=1,
        producer_epoch=0,
        base_sequence=20,
    )
    header = read_header(batch)
    assert (header.base_offset, header.last_offset, header.records_count) == (100, 109, 1)
    assert (header.base_sequence, header.last_sequence) == (20, 29)
    assert [record.offset for record in iterate_records(batch)] == [103]


@pytest.mark.parametrize("compression", Compression)
def test_emptied_batch_keeps_producer_and_timestamp(compression: Compression) -> None:
    batch = build_batch(
        [],
        base_offset=100,
        compression=compression,
        last_offset_delta=9,
        max_timestamp=777,
        producer_id=1,
        producer_epoch=0,
        base_sequence=20,
    )
    header = read_header(batch)
    assert len(batch) == 61
    assert (header.last_offset, header.records_count, header.base_timestamp, header.max_timestamp) == (109, 0, -1, 777)
    assert header.last_sequence == 29
    assert list(iterate_records(batch)) == []


def test_records_out_of_order_are_rejected() -> None:
    with pytest.raises(ValueError, match="offset 4"):
        build_batch([Record(5, 0, b"", b""), Record(4, 0, b"", b"")])
    with pytest.raises(ValueError, match="offset 4"):
        build_batch([Record(4, 0, b"", b"")], base_offset=5)
    with pytest.raises(ValueError, match="empty batch"):
        build_batch([])


def test_header_key_that_is_not_utf8_round_trips() -> None:
    batch = build_batch([(0, None, None, (("\udcff\udcfe", b""),))])
    assert b"\x04\xff\xfe" in batch
    assert build_batch(iterate_records(batch)) == batch


def test_extreme_timestamps_round_trip() -> None:
    records: list[NewRecord] = [(-(1 << 62), None, b"", ()), ((1 << 62) - 1, None, b"", ())]
    batch = build_batch(records)
    assert [record.timestamp for record in iterate_records(batch)] == [-(1 << 62), (1 << 62) - 1]


def test_log_append_time_updates_the_checksum() -> None:
    batch = build_batch([(5, None, b"", ())], log_append_time_ms=900)
    header = read_header(batch)
    assert header.has_log_append_time
    assert (header.base_timestamp, header.max_timestamp) == (5, 900)
    assert header.crc == checksum(batch, 0, len(batch))


def two_batches() -> bytearray:
    return build_batch([(0, b"a", b"1", ())]) + build_batch([(0, b"b", b"2", ())] * 2, base_offset=1)


def test_consecutive_batches_are_iterated() -> None:
    walked = list(iterate_batches(two_batches()))
    assert [header.base_offset for header, _ in walked] == [0, 1]
    assert [[record.key for record in iterate_records(batch)] for _, batch in walked] == [[b"a"], [b"b", b"b"]]


@pytest.mark.parametrize("truncated_bytes", [1, 10, 40, 70])
def test_truncated_batch_ends_the_iteration(truncated_bytes: int) -> None:
    buffer = two_batches()[:-truncated_bytes]
    assert [header.base_offset for header, _ in iterate_batches(buffer)] == [0]


@pytest.mark.parametrize(("position", "value"), [(8, 0xFF), (16, 1), (16, 3)])
def test_invalid_batch_raises_during_iteration(position: int, value: int) -> None:
    buffer = two_batches()
    buffer[position] = value
    with pytest.raises(CorruptMessage):
        list(iterate_batches(buffer))


def test_batch_with_trailing_bytes_is_parsed() -> None:
    assert [record.key for record in iterate_records(two_batches())] == [b"a"]
