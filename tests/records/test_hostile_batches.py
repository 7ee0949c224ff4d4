"""Hostile bytes raise only KafkaError, in bounded time and memory."""

import random
import resource
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from textwrap import dedent

import cramjam
import pytest
import zstandard
from foreign_batches import KAFKA_PYTHON
from hypothesis import given, settings
from hypothesis import strategies as st

from moldau.model.errors import CorruptMessage, InvalidRecord, KafkaError, MessageTooLarge, UnsupportedCompressionType
from moldau.model.units import KiB, MiB
from moldau.records.builder import NewRecord, assemble_batch, build_batch
from moldau.records.compression import Compression, compress, decompress
from moldau.records.conversion import recompress
from moldau.records.header import HEADER_BYTES, checksum, read_header, write_checksum
from moldau.records.record import iterate_batches, iterate_records
from moldau.records.validation import RecordRules, check_records, validate_produced
from moldau.records.varint import encode_varint

RECORDS: list[NewRecord] = [
    (1_000 + 5_000 * index, b"key" * (index % 3), b"value" * index * 3, (("header", b"x" * index),) * (index % 3))
    for index in range(30)
]
SAMPLES = [
    *(bytes(build_batch(RECORDS, compression=codec)) for codec in Compression),
    KAFKA_PYTHON.build(RECORDS, compression=Compression.LZ4),
    bytes(build_batch(RECORDS[:2])),
]
OUTPUT_BYTES_MAX = 256 * KiB
CODECS = [codec for codec in Compression if codec is not Compression.NONE]


def read_in_every_way(batch: bytes) -> None:
    """Read a batch through every function; only a KafkaError may be raised."""
    view = memoryview(bytearray(batch))
    ways: tuple[Callable[[], object], ...] = (
        lambda: validate_produced(view),
        lambda: list(iterate_batches(view)),
        lambda: list(iterate_records(view, output_bytes_max=OUTPUT_BYTES_MAX)),
        lambda: check_records(view, RecordRules(requires_key=True), OUTPUT_BYTES_MAX),
        lambda: recompress(view, Compression.NONE, output_bytes_max=OUTPUT_BYTES_MAX),
    )
    for way in ways:
        with suppress(KafkaError):
            way()


def mutated(chance: random.Random) -> bytes:
    batch = bytearray(chance.choice(SAMPLES))
    for _ in range(chance.choice((1, 1, 2, 8))):
        start = chance.choice((0, 0, HEADER_BYTES))
        batch[chance.randrange(start, len(batch))] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
    if chance.random() < 0.2:
        del batch[chance.randrange(len(batch)) :]
    if chance.random() < 0.2:
        batch += chance.randbytes(chance.randrange(70))
    if len(batch) > HEADER_BYTES and chance.random() < 0.7:
        write_checksum(batch, 0, len(batch))
    return bytes(batch)


def test_mutated_batches_raise_nothing_but_kafka_errors() -> None:
    chance = random.Random(20_240_601)
    for _ in range(6_000):
        read_in_every_way(mutated(chance))


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=400))
def test_random_bytes_raise_nothing_but_kafka_errors(content: bytes) -> None:
    read_in_every_way(content)


def around(body: bytes, *, codec: int = 0, count: int = 1) -> bytes:
    """Return a batch with a valid header and checksum around any body."""
    batch = assemble_batch(
        body,
        base_offset=0,
        leader_epoch=-1,
        attributes=codec,
        last_offset_delta=count - 1,
        base_timestamp=0,
        max_timestamp=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        records_count=count,
    )
    assert checksum(batch, 0, len(batch)) == read_header(batch).crc
    return bytes(batch)


@settings(max_examples=400, deadline=None)
@given(st.binary(max_size=200), st.sampled_from(Compression), st.integers(1, 5))
def test_random_bodies_with_valid_checksum_raise_only_kafka_errors(body: bytes, codec: Compression, count: int) -> None:
    read_in_every_way(around(body, codec=codec, count=count))
    read_in_every_way(around(compress(codec, body), codec=codec, count=count))


def record_of(*parts: bytes) -> bytes:
    body = b"".join(parts)
    return encode_varint(len(body)) + body


BODIES = {
    "a record longer than the batch": (encode_varint(1 << 30), "record of 1073741824 bytes, but 0 are left"),
    "a record of negative length": (encode_varint(-5) + bytes(20), "record of -5 bytes"),
    "a record of length zero": (encode_varint(0) + bytes(20), "record of 0 bytes"),
    "a key longer than its record": (record_of(b"\x00\x00\x00", encode_varint(1 << 30)), "field of 1073741824 bytes"),
    "a value longer than its record": (
        record_of(b"\x00\x00\x00\x01", encode_varint(9), bytes(4)) + bytes(20),
        "field of 9 bytes, but 4 are left",
    ),
    "a billion headers": (record_of(b"\x00\x00\x00\x01\x01", encode_varint(1 << 30)) + bytes(30), "1073741824 headers"),
    "a negative count of headers": (record_of(b"\x00\x00\x00\x01\x01", encode_varint(-1), bytes(9)), "-1 headers"),
    "a header without a key": (record_of(b"\x00\x00\x00\x01\x01\x02", encode_varint(-1), b"\x01"), "without a key"),
    "a header value out of bounds": (record_of(b"\x00\x00\x00\x01\x01\x02\x00", encode_varint(99)), "field of 99"),
    "a record that leaves bytes unused": (record_of(b"\x00\x00\x00\x01\x01\x00", bytes(5)), "11 bytes has fields of 6"),
    "a record that exceeds its length": (
        encode_varint(6) + b"\x00\x80\x01\x00\x01\x01\x00",
        "6 bytes has fields of 7",
    ),
    "bytes behind the last record": (record_of(b"\x00\x00\x00\x01\x01\x00") + b"\x00", "1 trailing bytes"),
    "a varint without an end": (b"\xff" * 40, "invalid varint"),
    "a time beyond 64 bits": (record_of(b"\x00", encode_varint((1 << 63) - 1), b"\x00\x01\x01\x00"), "64 bits"),
    "nothing": (b"", "ends inside"),
}


@pytest.mark.parametrize("name", BODIES)
def test_invalid_record_body_is_corrupt(name: str) -> None:
    body, words = BODIES[name]
    batch = bytearray(around(body))
    batch[34] = 1  # so that the largest delta exceeds 64 bits
    with pytest.raises(CorruptMessage, match=words):
        list(iterate_records(batch))


def test_huge_record_count_allocates_nothing() -> None:
    body = record_of(b"\x00\x00\x00\x01\x01\x00")
    tracemalloc.start()
    try:
        with pytest.raises(CorruptMessage):
            list(iterate_records(around(body, count=(1 << 31) - 1)))
        assert tracemalloc.get_traced_memory()[1] < MiB
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("body", "codec", "count", "is_taken"),
    [
        (bytes(70), Compression.NONE, 10, True),
        (bytes(70), Compression.NONE, 11, False),
        (bytes(70), Compression.NONE, (1 << 31) - 1, False),
        (bytes(70), Compression.ZSTD, 14_000_000, True),
        (bytes(70), Compression.ZSTD, (1 << 31) - 1, False),
    ],
)
def test_impossible_record_count_is_rejected(body: bytes, codec: Compression, count: int, is_taken: bool) -> None:
    batch = memoryview(around(body, codec=codec, count=count))
    if is_taken:
        assert validate_produced(batch).records_count == count
    else:
        with pytest.raises(InvalidRecord, match=f"{count} records cannot fit"):
            validate_produced(batch)


def test_unknown_codec_is_reported() -> None:
    with pytest.raises(UnsupportedCompressionType, match="codec 7"):
        decompress(7, b"")
    with pytest.raises(UnsupportedCompressionType, match="codec 7"):
        compress(7, b"")


@pytest.mark.parametrize("codec", CODECS)
def test_truncated_stream_is_corrupt(codec: Compression) -> None:
    stream = compress(codec, bytes(range(256)) * 400)
    for size in (0, 1, 5, 17, len(stream) // 2, len(stream) - 1):
        with pytest.raises(CorruptMessage):
            decompress(codec, stream[:size])


@pytest.mark.parametrize("codec", Compression)
def test_decompression_limit_is_exact(codec: Compression) -> None:
    for size in (0, 1, 1_000, 300_000):
        content = random.Random(size).randbytes(size // 2) + bytes(size - size // 2)
        stream = compress(codec, content)
        assert decompress(codec, stream, size) == content
        if size:
            with pytest.raises(MessageTooLarge):
                decompress(codec, stream, size - 1)


def test_forged_snappy_length_allocates_nothing() -> None:
    claim = b"\xff\xff\xff\xff\x0f" + bytes(20)  # four gigabytes out of twenty bytes
    chunk = b"\x82SNAPPY\x00" + bytes(8) + len(claim).to_bytes(4, "big") + claim
    for stream in (claim, chunk):
        with pytest.raises(CorruptMessage):
            decompress(Compression.SNAPPY, stream)


@pytest.mark.parametrize("length", [-4, -1, 0, 1 << 30])
def test_snappy_chunk_of_an_impossible_length_is_corrupt(length: int) -> None:
    stream = b"\x82SNAPPY\x00" + bytes(8) + length.to_bytes(4, "big", signed=True) + bytes(8)
    with pytest.raises(CorruptMessage, match=f"snappy chunk of {length} bytes"):
        decompress(Compression.SNAPPY, stream)


def test_zstd_window_of_a_gigabyte_is_rejected() -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=20, write_content_size=False)
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    frame = bytearray(compressor.compress(bytes(1_000)) + compressor.flush())
    frame[5] = (30 - 10) << 3
    with pytest.raises(CorruptMessage):
        decompress(Compression.ZSTD, frame)


def bomb(codec: Compression, size: int) -> bytes:
    if codec is Compression.SNAPPY:
        return bytes(cramjam.snappy.compress_raw(bytes(size)))
    return compress(codec, bytes(size))


@pytest.mark.parametrize("codec", CODECS)
def test_memory_of_a_decompression_bomb_is_bounded(codec: Compression) -> None:
    # In its own process: this one's peak would hide it, and decompressors do not allocate through Python.
    program = dedent(
        """
        import resource, sys
        from moldau.model.errors import MessageTooLarge
        from moldau.records.compression import decompress
        stream = sys.stdin.buffer.read()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        try:
            decompress(int(sys.argv[1]), stream, 4 << 20)
        except MessageTooLarge:
            print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
        """
    )
    command = [sys.executable, "-c", program, str(int(codec))]
    done = subprocess.run(command, input=bomb(codec, 256 * MiB), capture_output=True, check=True, timeout=60)
    grown = int(done.stdout) * (1 if sys.platform == "darwin" else KiB)
    assert grown < 16 * MiB


def test_many_tiny_gzip_members_are_read_in_linear_time() -> None:
    # Each empty gzip member is 20 bytes; a reader that copies the rest for each would need minutes.
    stream = compress(Compression.GZIP, b"") * 50_000
    before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    assert decompress(Compression.GZIP, stream) == b""
    assert resource.getrusage(resource.RUSAGE_SELF).ru_utime - before < 2
