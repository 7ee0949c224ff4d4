"""Validation of produced batches, and the error codes."""

import os
from collections.abc import Callable
from struct import pack_into

import pytest

from moldau.model.errors import CorruptMessage, ErrorCode, InvalidRecord, InvalidTimestamp, KafkaError, MessageTooLarge
from moldau.records.builder import build_batch
from moldau.records.compression import Compression
from moldau.records.header import BatchHeader, checksum, read_header, write_checksum
from moldau.records.record import Record, iterate_records
from moldau.records.validation import (
    RECORD_ERRORS_MAX,
    RecordRules,
    check_records,
    validate_produced,
    write_max_timestamp,
)

NOW_MS = 1_700_000_000_000
WITHIN_A_SECOND = RecordRules(timestamp_bounds=(NOW_MS - 1_000, NOW_MS + 50))
COMPACTED = RecordRules(requires_key=True)


def sample_batch(compression: Compression = Compression.NONE) -> bytearray:
    records = [(NOW_MS + index, b"key", b"value" * 20, ()) for index in range(3)]
    return build_batch(records, compression=compression, producer_id=4, producer_epoch=0, base_sequence=0)


def patched(form: str, position: int, value: int, *, has_valid_checksum: bool = True) -> bytearray:
    batch = sample_batch()
    pack_into(form, batch, position, value)
    if has_valid_checksum:
        write_checksum(batch, 0, len(batch))
    return batch


def validation_error(batch: bytes | bytearray, *, is_zstd_allowed: bool = True) -> KafkaError:
    with pytest.raises(KafkaError) as caught:
        validate_produced(memoryview(batch), is_zstd_allowed=is_zstd_allowed)
    assert caught.value.message
    return caught.value


@pytest.mark.parametrize("compression", Compression)
def test_valid_batch_of_any_codec_is_accepted(compression: Compression) -> None:
    batch = sample_batch(compression)
    assert validate_produced(memoryview(batch)) == read_header(batch)
    assert isinstance(validate_produced(memoryview(batch)), BatchHeader)


def legacy_message(magic: int) -> bytes:
    body = bytes(4) + bytes((magic, 0)) + (bytes(8) if magic else b"") + b"\xff\xff\xff\xff" + b"\x00\x00\x00\x01v"
    return bytes(8) + len(body).to_bytes(4, "big") + body


INVALID = ErrorCode.INVALID_RECORD
CORRUPT = ErrorCode.CORRUPT_MESSAGE
FAULTS: dict[str, tuple[Callable[[], bytes | bytearray], ErrorCode]] = {
    "nothing at all": (lambda: b"", INVALID),
    "only the start of a header": (lambda: sample_batch()[:40], INVALID),
    "the last byte missing": (lambda: sample_batch()[:-1], INVALID),
    "two batches": (lambda: sample_batch() + sample_batch(), INVALID),
    "a byte too many": (lambda: sample_batch() + b"\x00", INVALID),
    "a message of magic 0": (lambda: legacy_message(0), INVALID),
    "a message of magic 1": (lambda: legacy_message(1), INVALID),
    "an unknown magic": (lambda: patched(">b", 16, 3), CORRUPT),
    "a negative magic": (lambda: patched(">b", 16, -1), CORRUPT),
    "a length of zero": (lambda: patched(">i", 8, 0), CORRUPT),
    "a negative length": (lambda: patched(">i", 8, -1), CORRUPT),
    "a length within the header": (lambda: patched(">i", 8, 40), CORRUPT),
    "a length far too large": (lambda: patched(">i", 8, (1 << 31) - 1), INVALID),
    "a wrong checksum": (lambda: patched(">I", 17, 12345, has_valid_checksum=False), CORRUPT),
    "a flipped bit in a record": (lambda: patched(">b", 80, 1, has_valid_checksum=False), CORRUPT),
    "a base offset": (lambda: patched(">q", 0, 5), INVALID),
    "the control bit": (lambda: patched(">h", 21, 0x20), INVALID),
    "the delete horizon bit": (lambda: patched(">h", 21, 0x40), INVALID),
    "the log append time bit": (lambda: patched(">h", 21, 0x08), ErrorCode.INVALID_TIMESTAMP),
    "an unknown codec": (lambda: patched(">h", 21, 5), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
    "more records than offsets": (lambda: patched(">i", 57, 4), INVALID),
    "fewer records than offsets": (lambda: patched(">i", 57, 2), INVALID),
    "no record": (lambda: patched(">i", 57, 0), INVALID),
    "a negative count": (lambda: patched(">i", 57, -1), INVALID),
    "a negative last offset delta": (lambda: patched(">i", 23, -1), INVALID),
    "a producer without a sequence": (lambda: patched(">i", 53, -1), INVALID),
    "a producer with a negative epoch": (lambda: patched(">h", 51, -1), INVALID),
    "a transaction of no producer": (lambda: build_batch([(0, None, b"v", ())], is_transactional=True), INVALID),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_invalid_batch_gets_kafkas_error_code(fault: str) -> None:
    make, code = FAULTS[fault]
    assert validation_error(make()).code == code


def test_empty_batch_is_rejected() -> None:
    assert validation_error(build_batch([], last_offset_delta=-1)).code == INVALID


def test_zstd_is_rejected_for_old_produce_versions() -> None:
    assert (
        validation_error(sample_batch(Compression.ZSTD), is_zstd_allowed=False).code
        == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    )
    validate_produced(memoryview(sample_batch(Compression.LZ4)), is_zstd_allowed=False)


def test_checksum_covers_every_byte_after_it() -> None:
    batch = sample_batch()
    for position in range(21, len(batch)):
        broken = bytearray(batch)
        broken[position] ^= 0x01
        assert checksum(broken, 0, len(broken)) != read_header(batch).crc
        validation_error(broken)


@pytest.mark.parametrize(
    ("timestamp", "is_valid"),
    [
        (NOW_MS, True),
        (NOW_MS - 1_000, True),
        (NOW_MS - 1_001, False),
        (NOW_MS + 50, True),
        (NOW_MS + 51, False),
        (-1, True),
        (-2, False),
        (1 << 62, False),
    ],
)
def test_timestamps_far_from_now_are_rejected(timestamp: int, is_valid: bool) -> None:
    batch = build_batch([(timestamp, None, b"v", ())])
    if is_valid:
        assert check_records(batch, WITHIN_A_SECOND) == timestamp
    else:
        with pytest.raises(InvalidTimestamp):
            check_records(batch, WITHIN_A_SECOND)


@pytest.mark.parametrize("compression", Compression)
def test_every_timestamp_of_a_batch_is_checked(compression: Compression) -> None:
    times = [NOW_MS, NOW_MS - 1_001, NOW_MS, NOW_MS + 51, NOW_MS]
    batch = build_batch([(each, None, b"v", ()) for each in times], compression=compression)
    with pytest.raises(InvalidTimestamp, match=str(NOW_MS - 1_001)) as caught:
        check_records(batch, WITHIN_A_SECOND)
    assert [each.batch_index for each in caught.value.record_errors] == [1, 3]


def test_invalid_timestamp_takes_precedence_over_a_missing_key() -> None:
    batch = build_batch([(NOW_MS, None, b"v", ()), (NOW_MS - 2_000, b"k", b"v", ()), (0, None, b"v", ())])
    with pytest.raises(InvalidTimestamp) as caught:
        check_records(batch, WITHIN_A_SECOND._replace(requires_key=True))
    assert [(each.batch_index, "key" in each.message) for each in caught.value.record_errors] == [
        (0, True),
        (1, False),
        (2, True),
    ]


def test_number_of_record_errors_is_bounded() -> None:
    batch = build_batch([(0, None, b"", ())] * (RECORD_ERRORS_MAX + 1), compression=Compression.ZSTD)
    with pytest.raises(InvalidRecord) as caught:
        check_records(batch, COMPACTED)
    assert len(caught.value.record_errors) == RECORD_ERRORS_MAX
    assert len(caught.value.message) < 300


def test_widest_bounds_accept_every_timestamp() -> None:
    batch = build_batch([(0, None, b"v", ()), ((1 << 62), None, b"v", ())])
    widest = (1 << 63) - 1
    assert check_records(batch, RecordRules(timestamp_bounds=(NOW_MS - widest, NOW_MS + widest))) == 1 << 62


@pytest.mark.parametrize("compression", Compression)
def test_compacted_topic_requires_keys(compression: Compression) -> None:
    check_records(sample_batch(compression), COMPACTED)
    check_records(build_batch([(0, b"", None, ())], compression=compression), COMPACTED)
    records = [(0, b"k", b"v", ()), (0, None, b"v", ())]
    with pytest.raises(InvalidRecord, match="record 1"):
        check_records(build_batch(records, compression=compression), COMPACTED)


def test_compacted_topic_rejects_malformed_records() -> None:
    broken = sample_batch()
    broken[61] = 0x7F
    write_checksum(broken, 0, len(broken))
    with pytest.raises(InvalidRecord):
        check_records(broken, COMPACTED)
    garbage = sample_batch(Compression.GZIP)
    garbage[61:] = os.urandom(len(garbage) - 61)
    with pytest.raises(InvalidRecord):
        check_records(garbage, COMPACTED)


def test_compacted_topic_rejects_non_consecutive_offsets() -> None:
    batch = build_batch([Record(0, 0, b"k", b"v"), Record(2, 0, b"k", b"v")])
    with pytest.raises(InvalidRecord, match="record 1"):
        check_records(batch, COMPACTED)


def test_compacted_topic_rejects_too_large_decompressed_batches() -> None:
    batch = build_batch([(0, b"k", bytes(1 << 20), ())], compression=Compression.ZSTD)
    with pytest.raises(MessageTooLarge):
        check_records(batch, COMPACTED, 1 << 16)


def test_max_timestamp_is_computed_from_the_records() -> None:
    batch = build_batch([(500, None, b"v", ()), (900, None, b"v", ()), (700, None, b"v", ())])
    pack_into(">q", batch, 35, -1)
    write_checksum(batch, 0, len(batch))
    header = write_max_timestamp(memoryview(batch), check_records(batch, RecordRules()))
    assert header == validate_produced(memoryview(batch))
    assert header.max_timestamp == 900
    assert [record.timestamp for record in iterate_records(batch)] == [500, 900, 700]


def test_max_timestamp_of_malformed_records_is_an_error() -> None:
    batch = patched(">b", 61, 127)
    with pytest.raises(InvalidRecord):
        check_records(batch, RecordRules())
    with pytest.raises(CorruptMessage):
        list(iterate_records(batch))
