"""Batches are exchanged with client libraries in every codec."""

import gzip
import json

import cramjam
import pytest
import zstandard
from foreign_batches import KAFKA_PYTHON, LIBRARIES, LZ4_FRAME, Library

from moldau.records.builder import NewRecord, build_batch
from moldau.records.compression import Compression, compress, decompress
from moldau.records.control import build_transaction_marker
from moldau.records.header import read_header, stamp_log_append_time, write_offsets
from moldau.records.record import Record, iterate_records
from moldau.records.validation import RecordRules, check_records, validate_produced

NOW_MS = 1_700_000_000_000

SMALL: list[NewRecord] = [
    (NOW_MS, b"key", b"value", ()),
    (NOW_MS + 10_000, None, b"no key", (("trace", b"\x00\x01"), ("empty", b""), ("none", None))),
    (NOW_MS - 70_000, b"tombstone", None, ()),
    (NOW_MS, b"", b"", (("häder-ключ", "wärt".encode()),)),
]
# Several snappy chunks, lz4 blocks and zstd blocks.
LARGE: list[NewRecord] = [
    (NOW_MS + index, str(index % 97).encode(), json.dumps({"page": index * 7919 % 1013, "n": index}).encode() * 3, ())
    for index in range(3_000)
]
LOADS = pytest.mark.parametrize("records", [SMALL, LARGE], ids=["small", "large"])
EVERY_LIBRARY = pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.name)
EVERY_CODEC = pytest.mark.parametrize("compression", Compression, ids=lambda codec: codec.name.lower())


def placed(records: list[NewRecord], base_offset: int = 0) -> list[Record]:
    return [Record(base_offset + index, *record) for index, record in enumerate(records)]


@pytest.mark.proves("S9", part="every codec is supported")
@EVERY_LIBRARY
@EVERY_CODEC
@LOADS
def test_batches_of_client_libraries_are_parsed(
    library: Library, compression: Compression, records: list[NewRecord]
) -> None:
    batch = library.build(
        records, compression=compression, producer_id=77, producer_epoch=2, base_sequence=5, is_transactional=True
    )
    header = validate_produced(memoryview(batch))
    if records is LARGE:
        assert header.compression == compression
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (77, 2, 5)
    assert header.is_transactional
    assert header.max_timestamp == max(record[0] for record in records)
    assert list(iterate_records(batch)) == placed(records)


@EVERY_LIBRARY
@EVERY_CODEC
@LOADS
def test_built_batches_are_parsed_by_client_libraries(
    library: Library, compression: Compression, records: list[NewRecord]
) -> None:
    batch = build_batch(records, compression=compression, producer_id=77, producer_epoch=2, base_sequence=5)
    write_offsets(batch, 0, 1_000_000, 3)
    assert library.read(bytes(batch)) == placed(records, 1_000_000)
    opened = library.open(bytes(batch))
    assert opened.compression_type == compression
    assert (opened.producer_id, opened.producer_epoch, opened.base_sequence) == (77, 2, 5)
    assert opened.max_timestamp == max(record[0] for record in records)


@EVERY_LIBRARY
def test_uncompressed_batches_are_identical_byte_for_byte(library: Library) -> None:
    ours = build_batch(SMALL)
    theirs = bytearray(library.build(SMALL))
    # Some write 0 and some -1 for the leader epoch, which is the broker's to set.
    write_offsets(ours, 0, 0, 0)
    write_offsets(theirs, 0, 0, 0)
    assert ours == theirs


@EVERY_LIBRARY
@EVERY_CODEC
def test_log_append_time_is_read_by_clients(library: Library, compression: Compression) -> None:
    batch = bytearray(library.build(SMALL, compression=compression))
    stamp_log_append_time(batch, NOW_MS + 1)
    assert [record.timestamp for record in library.read(bytes(batch))] == [NOW_MS + 1] * len(SMALL)
    assert [record.timestamp for record in iterate_records(batch)] == [NOW_MS + 1] * len(SMALL)


@EVERY_LIBRARY
@pytest.mark.parametrize("is_commit", [True, False])
def test_transaction_marker_is_a_control_batch_for_clients(library: Library, is_commit: bool) -> None:
    marker = build_transaction_marker(
        is_commit=is_commit, producer_id=5, producer_epoch=1, coordinator_epoch=9, timestamp_ms=NOW_MS
    )
    opened = library.open(bytes(marker))
    assert opened.is_control_batch
    assert opened.is_transactional
    assert opened.validate_crc()
    (record,) = list(opened)
    assert record.key == bytes((0, 0, 0, int(is_commit)))
    if library is KAFKA_PYTHON:
        assert record.commit is is_commit
        assert record.abort is not is_commit


@EVERY_CODEC
def test_keys_are_read_from_a_clients_compressed_batch(compression: Compression) -> None:
    check_records(KAFKA_PYTHON.build(LARGE, compression=compression), RecordRules(requires_key=True))


TEXT = b"".join(json.dumps({"user": n * 7919 % 10_007, "page": "home"}).encode() for n in range(9_000))
STREAMS = {
    "gzip, one member": (Compression.GZIP, gzip.compress(TEXT)),
    "gzip, three members": (
        Compression.GZIP,
        b"".join(map(gzip.compress, (TEXT[:9], TEXT[9:200_000], TEXT[200_000:]))),
    ),
    "raw snappy, as librdkafka sends it": (Compression.SNAPPY, bytes(cramjam.snappy.compress_raw(TEXT))),
    "lz4, independent blocks": (Compression.LZ4, LZ4_FRAME.compress(TEXT, block_linked=False)),
    "lz4, linked blocks": (Compression.LZ4, LZ4_FRAME.compress(TEXT, block_linked=True)),
    "lz4, without a content size": (Compression.LZ4, LZ4_FRAME.compress(TEXT, store_size=False, block_linked=False)),
    "lz4, every checksum": (Compression.LZ4, LZ4_FRAME.compress(TEXT, content_checksum=True, block_checksum=True)),
    "lz4, blocks of 4 MiB": (Compression.LZ4, LZ4_FRAME.compress(TEXT, block_size=LZ4_FRAME.BLOCKSIZE_MAX4MB)),
    "zstd": (Compression.ZSTD, zstandard.compress(TEXT)),
    "zstd, without a content size": (
        Compression.ZSTD,
        zstandard.ZstdCompressor(write_content_size=False, write_checksum=True).compress(TEXT),
    ),
    "zstd, two frames": (Compression.ZSTD, zstandard.compress(TEXT[:99]) + zstandard.compress(TEXT[99:])),
}


@pytest.mark.parametrize("name", STREAMS)
def test_streams_of_other_compressors_are_read(name: str) -> None:
    codec, stream = STREAMS[name]
    assert decompress(codec, memoryview(stream), len(TEXT)) == TEXT


def test_streams_compressed_here_are_read_by_other_decompressors() -> None:
    assert gzip.decompress(compress(Compression.GZIP, TEXT)) == TEXT
    assert LZ4_FRAME.decompress(compress(Compression.LZ4, TEXT)) == TEXT
    assert zstandard.decompress(compress(Compression.ZSTD, TEXT)) == TEXT


def test_lz4_frames_are_readable_by_the_java_client() -> None:
    frame = LZ4_FRAME.get_frame_info(compress(Compression.LZ4, TEXT))
    assert not frame["block_linked"]
    assert frame["block_size"] == 64 * 1024


def test_snappy_is_framed_as_by_the_java_library() -> None:
    stream = compress(Compression.SNAPPY, TEXT)
    assert stream[:16] == b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"
    first_chunk_bytes = int.from_bytes(stream[16:20], "big")
    assert bytes(cramjam.snappy.decompress_raw(stream[20 : 20 + first_chunk_bytes])) == TEXT[: 32 * 1024]


def test_snappy_with_byte_swapped_versions_is_read() -> None:
    stream = compress(Compression.SNAPPY, TEXT)
    assert decompress(Compression.SNAPPY, stream[:8] + b"\x01\x00\x00\x00\x01\x00\x00\x00" + stream[16:]) == TEXT


@pytest.mark.parametrize("level", [1, 9])
@EVERY_CODEC
def test_streams_of_every_level_are_read_back(compression: Compression, level: int) -> None:
    assert decompress(compression, compress(compression, TEXT, level), len(TEXT)) == TEXT


def test_higher_level_compresses_better() -> None:
    for codec in (Compression.GZIP, Compression.ZSTD):
        assert len(compress(codec, TEXT, 9)) < len(compress(codec, TEXT, 1))


def test_header_of_a_clients_batch_is_read_like_the_client_does() -> None:
    batch = KAFKA_PYTHON.build(LARGE, compression=Compression.LZ4)
    theirs = KAFKA_PYTHON.open(batch)
    ours = read_header(batch)
    assert (ours.crc, ours.attributes, ours.records_count) == (theirs.crc, theirs.attributes, theirs.records_count)
    assert (ours.base_timestamp, ours.last_offset_delta) == (theirs.first_timestamp, theirs.last_offset_delta)
