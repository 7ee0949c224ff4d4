"""The 61 bytes of a batch header, and its mutable fields."""

import pytest

from moldau.model.errors import CorruptMessage
from moldau.records.builder import build_batch
from moldau.records.header import (
    HEADER_BYTES,
    BatchHeader,
    checksum,
    read_extent,
    read_header,
    stamp_log_append_time,
    write_offsets,
)
from moldau.records.record import iterate_records
from moldau.records.validation import validate_produced


def sample_batch() -> bytearray:
    return build_batch(
        [(1_000, b"k", b"v", ()), (1_500, None, b"w", ()), (1_200, b"k", None, (("h", b"x"),))],
        producer_id=9,
        producer_epoch=3,
        base_sequence=40,
        is_transactional=True,
        leader_epoch=7,
    )


def test_every_field_is_read_from_its_position() -> None:
    batch = sample_batch()
    header = read_header(batch)
    assert header == BatchHeader(
        base_offset=0,
        batch_length=len(batch) - 12,
        partition_leader_epoch=7,
        magic=2,
        crc=checksum(batch, 0, len(batch)),
        attributes=0x10,
        last_offset_delta=2,
        base_timestamp=1_000,
        max_timestamp=1_500,
        producer_id=9,
        producer_epoch=3,
        base_sequence=40,
        records_count=3,
    )
    assert isinstance(header, BatchHeader)
    assert (header.size_bytes, header.last_offset, header.next_offset) == (len(batch), 2, 3)
    assert (header.compression, header.last_sequence) == (0, 42)
    assert header.is_transactional
    assert header.has_producer_id
    assert not header.is_control
    assert not header.has_log_append_time
    assert header.delete_horizon_ms is None


def test_header_is_read_from_the_middle_of_a_buffer() -> None:
    batch = sample_batch()
    buffer = b"\xff" * 13 + bytes(batch) + b"\xff"
    assert read_header(memoryview(buffer), 13) == read_header(batch)
    assert read_extent(buffer, 13) == (0, len(batch))
    assert checksum(buffer, 13, len(batch)) == read_header(batch).crc


def test_truncated_header_is_corrupt() -> None:
    with pytest.raises(CorruptMessage):
        read_header(bytes(HEADER_BYTES - 1))
    with pytest.raises(CorruptMessage):
        read_header(bytes(HEADER_BYTES), 1)
    with pytest.raises(CorruptMessage):
        read_extent(bytes(11))


def test_offset_and_epoch_change_without_touching_the_checksum() -> None:
    batch = sample_batch()
    buffer = bytearray(5) + batch
    write_offsets(buffer, 5, 1 << 40, 99)
    header = read_header(buffer, 5)
    assert (header.base_offset, header.partition_leader_epoch) == (1 << 40, 99)
    assert header.crc == checksum(buffer, 5, len(batch))
    assert buffer[5 + 16 :] == batch[16:]


def test_log_append_time_replaces_the_time_of_every_record() -> None:
    batch = sample_batch()
    stamp_log_append_time(memoryview(batch), 77_000)
    header = read_header(batch)
    assert header.has_log_append_time
    assert header.max_timestamp == 77_000
    assert header.base_timestamp == 1_000
    assert header.is_transactional
    assert header.crc == checksum(batch, 0, len(batch))
    assert [record.timestamp for record in iterate_records(batch)] == [77_000] * 3


@pytest.mark.parametrize(
    ("base_sequence", "last_sequence"), [(-1, -1), (0, 1), ((1 << 31) - 2, (1 << 31) - 1), ((1 << 31) - 1, 0)]
)
def test_sequences_wrap_to_zero(base_sequence: int, last_sequence: int) -> None:
    batch = build_batch([(0, None, b"", ())] * 2, producer_id=1, producer_epoch=0, base_sequence=base_sequence)
    assert read_header(batch).last_sequence == last_sequence


def test_delete_horizon_is_stored_in_the_base_timestamp() -> None:
    batch = build_batch([(5_000, b"k", None, ())], delete_horizon_ms=9_000)
    assert read_header(batch).delete_horizon_ms == 9_000
    assert next(iterate_records(batch)).timestamp == 5_000


def test_built_batch_has_the_documented_bytes() -> None:
    # Written by hand from the format's description, so that reader and writer cannot be wrong together.
    expected = bytes.fromhex(
        "0000000000000000"  # base offset
        "00000039"  # length
        "ffffffff"  # leader epoch
        "02"
        "00000000"  # crc, left out of the comparison
        "0000"
        "00000000"  # last offset delta
        "0000018bcfe56800"  # base timestamp 1_700_000_000_000
        "0000018bcfe56800"
        "ffffffffffffffff"
        "ffff"
        "ffffffff"
        "00000001"
        "0e"  # seven bytes of record follow
        "00"
        "00"
        "00"  # attributes, timestamp delta, offset delta
        "02"
        "6b"  # key
        "01"  # no value
        "00"  # no headers
    )
    batch = build_batch([(1_700_000_000_000, b"k", None, ())])
    assert batch[:17] + bytes(4) + batch[21:] == expected
    assert validate_produced(memoryview(batch)).records_count == 1
