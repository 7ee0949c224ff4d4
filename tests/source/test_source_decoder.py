"""Fetched bytes decoded to Arrow columns, compared with the sequential record parser."""

import contextlib
import random
import struct
import tracemalloc
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moldau.client.types import AbortedTransaction
from moldau.model.errors import CorruptMessage, KafkaError, MessageTooLarge
from moldau.records.builder import build_batch
from moldau.records.compression import Compression, compress
from moldau.records.control import build_transaction_marker
from moldau.records.header import HEADER_BYTES, read_header, write_checksum
from moldau.records.record import iterate_batches, iterate_records
from pyspark_moldau.codec import columns
from pyspark_moldau.codec.batch_iterator import BatchIterator
from pyspark_moldau.codec.decoder import ROWS_MAX, DecodeRange, decode

Sample = tuple[int, bytes | None, bytes | None, Sequence[tuple[str, bytes | None]]]

ALL = DecodeRange("clicks", 3, 0, 1 << 62, True)
BYTES = st.none() | st.binary(max_size=200)
HEADERS = st.lists(st.tuples(st.text(max_size=9), st.none() | st.binary(max_size=9)), max_size=4)
SAMPLES = st.lists(st.tuples(st.integers(0, 1 << 50), BYTES, BYTES, HEADERS), min_size=1, max_size=40)


def batch(samples: Sequence[Sample], base_offset: int = 0, codec: int = 0, **more: Any) -> bytes:
    records = [(at, key, value, tuple(headers)) for at, key, value, headers in samples]
    return bytes(build_batch(records, base_offset=base_offset, compression=Compression(codec), **more))


def numbered(count: int, base_offset: int = 0, **more: Any) -> bytes:
    return batch([(1_000 + index, b"k", b"v%d" % index, ()) for index in range(count)], base_offset, **more)


def rows(content: bytes, place: DecodeRange = ALL, aborted: Iterable[AbortedTransaction] = ()) -> list[dict[str, Any]]:
    table = pa.Table.from_batches(
        list(decode(content, place, aborted)), columns.schema(with_headers=place.with_headers)
    )
    table.validate(full=True)
    found: list[dict[str, Any]] = table.to_pylist()
    return found


def offsets(content: bytes, place: DecodeRange = ALL, aborted: Iterable[AbortedTransaction] = ()) -> list[int]:
    return [row["offset"] for row in rows(content, place, aborted)]


def parsed(content: bytes) -> list[tuple[Any, ...]]:
    """Return the rows of the sequential parser."""
    found = []
    for header, raw in iterate_batches(content):
        for record in iterate_records(raw):
            headers = [{"key": key, "value": value} for key, value in record.headers] or None
            kind = int(header.has_log_append_time)
            found.append((record.offset, record.timestamp, record.key, record.value, headers, kind))
    return found


def as_parsed(row: dict[str, Any]) -> tuple[Any, ...]:
    assert (row["topic"], row["partition"]) == ("clicks", 3)
    return row["offset"], row["timestamp"], row["key"], row["value"], row["headers"], row["timestampType"]


def decoded(content: bytes) -> list[tuple[Any, ...]]:
    table = pa.Table.from_batches(list(decode(content, ALL)), columns.ROW_WITH_HEADERS)
    table.validate(full=True)
    times = table["timestamp"].cast(pa.int64()).to_pylist()
    assert all(at % 1000 == 0 for at in times)
    table = table.set_column(5, "timestamp", pa.array([at // 1000 for at in times], pa.int64()))
    return [as_parsed(row) for row in table.to_pylist()]


@pytest.mark.parametrize("codec", list(Compression))
@given(parts=st.lists(SAMPLES, min_size=1, max_size=4))
@settings(max_examples=40, deadline=None)
def test_columns_equal_the_parsed_records(codec: Compression, parts: list[list[Sample]]) -> None:
    content, base_offset = b"", 7
    for samples in parts:
        content += batch(samples, base_offset, codec)
        base_offset += len(samples)
    assert decoded(content) == parsed(content)


@pytest.mark.proves("D1")
def test_null_differs_from_empty() -> None:
    content = batch([(1, None, b"", ()), (1, b"", None, ())])
    assert [(row["key"], row["value"]) for row in rows(content)] == [(None, b""), (b"", None)]


def test_headers_are_null_if_absent_and_keep_their_order() -> None:
    content = batch([(1, b"", b"", ()), (1, b"", b"", (("b", b"2"), ("a", None), ("b", b""))), (1, b"", b"", ())])
    many = [{"key": "b", "value": b"2"}, {"key": "a", "value": None}, {"key": "b", "value": b""}]
    assert [row["headers"] for row in rows(content)] == [None, many, None]


def test_headers_column_exists_only_on_request() -> None:
    (made,) = decode(batch([(1, b"", b"", (("a", b"1"),))]), ALL._replace(with_headers=False))
    assert made.schema.equals(columns.ROW)


def test_record_with_hundreds_of_headers_is_decoded() -> None:
    many = tuple((f"h{index}", b"%d" % index) for index in range(300))
    content = batch([(1, b"", b"", many), (1, b"", b"", (("a", b"1"),))])
    assert decoded(content) == parsed(content)


@pytest.mark.parametrize("more", [0, 100])
def test_invalid_utf8_in_a_header_key_is_replaced(more: int) -> None:
    headers = (("\udcff!", b"1"), *((f"{index}", b"") for index in range(more)))
    assert rows(batch([(1, b"", b"", headers)]))[0]["headers"][0] == {"key": "\ufffd!", "value": b"1"}


@pytest.mark.proves("D1")
def test_log_append_time_is_the_time_of_each_record() -> None:
    content = bytearray(numbered(3))
    struct.pack_into(">h", content, 21, 0x08)
    struct.pack_into(">q", content, 35, 99_000)
    write_checksum(content, 0, len(content))
    assert decoded(bytes(content)) == parsed(bytes(content))
    assert {(at, kind) for _, at, _, _, _, kind in decoded(bytes(content))} == {(99_000, columns.LOG_APPEND_TIME)}


@pytest.mark.proves("D1")
def test_only_offsets_in_the_range_are_returned() -> None:
    content = numbered(10) + numbered(10, 10) + numbered(10, 20)
    assert offsets(content, ALL._replace(from_offset=8, until_offset=21)) == list(range(8, 21))
    assert offsets(content, ALL._replace(from_offset=8)) == list(range(8, 30))
    assert offsets(content, ALL._replace(from_offset=30)) == []


@pytest.mark.proves("D1")
def test_compaction_gaps_are_preserved() -> None:
    content = bytearray(numbered(2, 5))
    struct.pack_into(">i", content, 23, 9)  # the last offset delta, of a record removed by compaction
    write_checksum(content, 0, len(content))
    iterator = BatchIterator(bytes(content), 5, 1 << 40)
    assert len(list(iterator)) == 1
    assert iterator.next_offset == 15
    assert offsets(bytes(content)) == [5, 6]


def test_batch_emptied_by_compaction_advances_without_rows() -> None:
    content = bytearray(numbered(1, 5)[:HEADER_BYTES])
    struct.pack_into(">i", content, 8, HEADER_BYTES - 12)
    struct.pack_into(">i", content, 23, 3)
    struct.pack_into(">i", content, 57, 0)
    write_checksum(content, 0, len(content))
    iterator = BatchIterator(bytes(content), 5, 1 << 40)
    assert (list(iterator), iterator.next_offset) == ([], 9)


def test_truncated_batch_is_left_for_the_next_fetch() -> None:
    iterator = BatchIterator((numbered(3) + numbered(3, 3))[:-1], 0, 1 << 40)
    assert (len(list(iterator)), iterator.next_offset) == (1, 3)


def marker(offset: int, producer_id: int, *, is_commit: bool) -> bytes:
    return bytes(
        build_transaction_marker(
            is_commit=is_commit,
            producer_id=producer_id,
            producer_epoch=0,
            coordinator_epoch=0,
            timestamp_ms=1,
            base_offset=offset,
        )
    )


def transactional(offset: int, producer_id: int) -> bytes:
    return numbered(1, offset, producer_id=producer_id, producer_epoch=0, base_sequence=0, is_transactional=True)


def test_control_batches_advance_without_rows() -> None:
    content = transactional(0, 7) + marker(1, 7, is_commit=True)
    iterator = BatchIterator(content, 0, 1 << 40)
    assert (len(list(iterator)), iterator.next_offset) == (1, 2)
    assert offsets(content) == [0]


@pytest.mark.proves("D1")
def test_aborted_records_are_skipped_up_to_their_marker() -> None:
    content = (
        transactional(0, 7)
        + transactional(1, 8)
        + numbered(1, 2)
        + marker(3, 7, is_commit=False)
        + transactional(4, 7)
        + marker(5, 8, is_commit=True)
        + marker(6, 7, is_commit=True)
    )
    assert offsets(content, ALL, [AbortedTransaction(7, 0)]) == [1, 2, 4]
    assert offsets(content) == [0, 1, 2, 4]


def test_second_aborted_transaction_of_a_producer_is_skipped() -> None:
    content = (
        transactional(0, 7)
        + marker(1, 7, is_commit=False)
        + transactional(2, 7)
        + marker(3, 7, is_commit=True)
        + transactional(4, 7)
        + marker(5, 7, is_commit=False)
    )
    assert offsets(content, ALL, [AbortedTransaction(7, 4), AbortedTransaction(7, 0)]) == [2]


def test_arrow_batch_has_a_bounded_number_of_rows() -> None:
    content = numbered(ROWS_MAX + 5) + numbered(3, ROWS_MAX + 5)
    made = list(decode(content, ALL))
    assert max(each.num_rows for each in made) <= ROWS_MAX
    assert sum(each.num_rows for each in made) == ROWS_MAX + 8


@pytest.mark.parametrize("per_batch", [1, 5, 40])
def test_arrow_batch_has_a_bounded_size(per_batch: int) -> None:
    big = [(1, b"", bytes(1 << 20), ())] * per_batch
    content = b"".join(batch(big, base, Compression.ZSTD) for base in range(0, 40, per_batch))
    assert len(content) < 1 << 20
    made = list(decode(content, ALL))
    assert [offset for each in made for offset in each["offset"].to_pylist()] == list(range(40))
    assert max(each.num_rows for each in made) <= 16


@pytest.mark.proves("D1")
@pytest.mark.parametrize("codec", list(Compression))
def test_flipped_bits_are_found_by_the_checksum(codec: Compression) -> None:
    content = numbered(20, codec=codec)
    for index in range(HEADER_BYTES, len(content), 7):
        damaged = bytearray(content)
        damaged[index] ^= 0x10
        with pytest.raises(CorruptMessage, match="has CRC"):
            list(decode(bytes(damaged), ALL))


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.LZ4])
def test_corrupt_records_with_a_valid_checksum_never_give_other_rows(codec: Compression) -> None:
    """The checksum is recomputed, like an attacker would."""
    chance = random.Random(5)
    headers = (("h", b"1"), ("i", None))
    body = batch([(1_000 + index, b"key", b"value" * (index % 40), headers) for index in range(60)])[HEADER_BYTES:]
    rejected = 0
    for _ in range(800):
        damaged = bytearray(body)
        for _ in range(chance.choice((1, 1, 3))):
            damaged[chance.randrange(len(damaged))] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
        content = wrapped(bytes(damaged), 60, codec)
        try:
            expected: list[tuple[Any, ...]] | None = parsed(content)
        except KafkaError:
            expected = None
        try:
            found: list[tuple[Any, ...]] | None = decoded(content)
        except CorruptMessage:
            found = None
        rejected += found is None
        if found is not None and expected is not None:
            assert [row[:4] for row in found] == [row[:4] for row in expected]
        assert expected is not None or found is None
    assert rejected > 80


@pytest.mark.proves("D1")
def test_record_of_negative_length_is_rejected() -> None:
    body = bytearray(numbered(3)[HEADER_BYTES:])
    body[0] |= 1
    with pytest.raises(CorruptMessage, match="length"):
        list(decode(wrapped(bytes(body), 3, Compression.NONE), ALL))


def wrapped(body: bytes, count: int, codec: Compression) -> bytes:
    content = bytearray(numbered(1)[:HEADER_BYTES]) + compress(codec, body)
    struct.pack_into(">i", content, 8, len(content) - 12)
    struct.pack_into(">h", content, 21, codec)
    struct.pack_into(">i", content, 23, count - 1)
    struct.pack_into(">i", content, 57, count)
    write_checksum(content, 0, len(content))
    return bytes(content)


@pytest.mark.parametrize(
    ("position", "layout", "value"),
    [(57, ">i", -1), (57, ">i", 1 << 30), (23, ">i", -5), (0, ">q", -9), (27, ">q", 1 << 62), (57, ">i", 2)],
)
def test_inconsistent_batch_header_is_rejected(position: int, layout: str, value: int) -> None:
    content = bytearray(numbered(3))
    struct.pack_into(layout, content, position, value)
    write_checksum(content, 0, len(content))
    with pytest.raises(CorruptMessage):
        list(decode(bytes(content), ALL))


def test_false_record_count_in_a_header_allocates_no_memory() -> None:
    body = numbered(3)[HEADER_BYTES:]
    tracemalloc.start()
    try:
        with pytest.raises(CorruptMessage):
            list(decode(wrapped(body, 1 << 30, Compression.NONE), ALL))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("behind", [False, True])
def test_record_that_extends_into_the_next_batch_is_rejected(behind: bool) -> None:
    """A response holds several batches; each is read within its own bounds."""
    good = numbered(3)
    body = bytearray(good[HEADER_BYTES:])
    last = body.rindex(body[0])  # all records have the same length
    body[last] += 2 * (HEADER_BYTES if behind else 1)
    with pytest.raises(CorruptMessage):
        list(decode(wrapped(bytes(body), 3, Compression.NONE) + good, ALL))


@given(st.binary(max_size=300))
@settings(deadline=None)
def test_random_bytes_give_an_error_or_no_rows(noise: bytes) -> None:
    with contextlib.suppress(KafkaError):
        assert list(decode(noise, ALL)) == []


def test_batch_above_the_decompression_limit_is_rejected() -> None:
    content = wrapped(bytes(120 << 20), 1, Compression.ZSTD)
    assert read_header(content).size_bytes < 1 << 20
    with pytest.raises(MessageTooLarge):
        list(decode(content, ALL))
