"""Conversion changes the codec of a batch and nothing else."""

import pytest
from foreign_batches import AIOKAFKA, KAFKA_PYTHON

from moldau.model.errors import InvalidRecord, MessageTooLarge
from moldau.records.builder import NewRecord, build_batch
from moldau.records.compression import Compression
from moldau.records.control import build_transaction_marker
from moldau.records.conversion import recompress
from moldau.records.header import read_header, write_checksum
from moldau.records.record import iterate_records
from moldau.records.validation import validate_produced

RECORDS: list[NewRecord] = [
    (1_000 + index, b"key" if index % 3 else None, b"value" * (index % 7), (("h", b"x"),) if index % 2 else ())
    for index in range(400)
]
UNCHANGED = (
    "base_offset",
    "partition_leader_epoch",
    "magic",
    "last_offset_delta",
    "base_timestamp",
    "max_timestamp",
    "producer_id",
    "producer_epoch",
    "base_sequence",
    "records_count",
    "is_transactional",
)


@pytest.mark.parametrize("target", Compression)
@pytest.mark.parametrize("source", Compression)
def test_conversion_changes_only_the_codec(source: Compression, target: Compression) -> None:
    batch = build_batch(
        RECORDS, compression=source, producer_id=3, producer_epoch=1, base_sequence=8, is_transactional=True
    )
    converted = recompress(memoryview(batch), target)
    header = validate_produced(memoryview(converted))
    assert header.compression == target
    for field in UNCHANGED:
        assert getattr(header, field) == getattr(read_header(batch), field)
    assert list(iterate_records(converted)) == list(iterate_records(batch))
    assert recompress(converted, Compression.NONE) == recompress(batch, Compression.NONE)


@pytest.mark.parametrize("target", Compression)
def test_converted_client_batch_is_read_by_clients(target: Compression) -> None:
    batch = KAFKA_PYTHON.build(RECORDS, compression=Compression.GZIP)
    converted = bytes(recompress(batch, target))
    assert AIOKAFKA.read(converted) == KAFKA_PYTHON.read(converted) == list(iterate_records(batch))


def test_batch_already_in_the_codec_is_copied() -> None:
    batch = build_batch(RECORDS, compression=Compression.LZ4)
    converted = recompress(batch, Compression.LZ4)
    assert converted == batch
    assert converted is not batch


def test_control_batches_are_not_converted() -> None:
    marker = build_transaction_marker(
        is_commit=True, producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp_ms=5
    )
    assert recompress(marker, Compression.ZSTD) == marker


def test_compression_level_is_applied() -> None:
    batch = build_batch(RECORDS * 20)
    quick, small = (len(recompress(batch, Compression.GZIP, level=level)) for level in (1, 9))
    assert small < quick


def test_undecompressable_batch_is_an_invalid_record() -> None:
    batch = build_batch(RECORDS, compression=Compression.ZSTD)
    batch[70] ^= 0xFF
    write_checksum(batch, 0, len(batch))
    with pytest.raises(InvalidRecord):
        recompress(batch, Compression.NONE)


def test_too_large_decompressed_batch_is_rejected() -> None:
    batch = build_batch([(0, None, bytes(1 << 20), ())], compression=Compression.LZ4)
    with pytest.raises(MessageTooLarge):
        recompress(batch, Compression.NONE, output_bytes_max=1 << 18)
