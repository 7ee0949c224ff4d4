"""Building batches: for producers, for compaction, and for control batches of the broker."""

from collections.abc import Iterable
from typing import Final, TypeAlias

from moldau.model.ids import NO_EPOCH, NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, NO_TIMESTAMP
from moldau.records.compression import Compression, compress
from moldau.records.header import (
    CONTROL,
    DELETE_HORIZON,
    HEADER_BYTES,
    HEADER_LAYOUT,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    MAGIC,
    TRANSACTIONAL,
    Buffer,
    write_checksum,
)
from moldau.records.record import HEADER_KEY_ERRORS, Headers, Record
from moldau.records.varint import encode_varint

# (timestamp, key, value, headers); its offset is the next one.
NewRecord: TypeAlias = tuple[int, bytes | None, bytes | None, Headers]

_NONE: Final = encode_varint(-1)
_NO_ATTRIBUTES: Final = b"\x00"
_NO_HEADERS: Final = b"\x00"


def build_batch(
    records: Iterable[Record | NewRecord],
    *,
    base_offset: int = 0,
    compression: int = Compression.NONE,
    level: int | None = None,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    is_transactional: bool = False,
    is_control: bool = False,
    leader_epoch: int = NO_EPOCH,
    log_append_time_ms: int | None = None,
    last_offset_delta: int | None = None,
    max_timestamp: int | None = None,
    delete_horizon_ms: int | None = None,
) -> bytearray:
    """Build a batch with its checksum.

    A `Record` keeps its offset, which preserves gaps. Compaction also passes `last_offset_delta`, to keep the range
    of offsets and sequences when the last records are removed, and `max_timestamp`, when all are.
    """
    placed = _assign_offsets(records, base_offset)
    if last_offset_delta is None:
        if not placed:
            raise ValueError("an empty batch requires last_offset_delta")
        last_offset_delta = placed[-1].offset - base_offset
    base_timestamp = placed[0].timestamp if placed else NO_TIMESTAMP
    if delete_horizon_ms is not None:
        base_timestamp = delete_horizon_ms
    if max_timestamp is None:
        max_timestamp = max((record.timestamp for record in placed), default=NO_TIMESTAMP)
    if log_append_time_ms is not None:
        max_timestamp = log_append_time_ms

    body = b"".join([encode_record(record, base_offset, base_timestamp) for record in placed])
    attributes = (
        (compression if placed else Compression.NONE)
        | (LOG_APPEND_TIME if log_append_time_ms is not None else 0)
        | (TRANSACTIONAL if is_transactional else 0)
        | (CONTROL if is_control else 0)
        | (DELETE_HORIZON if delete_horizon_ms is not None else 0)
    )
    return assemble_batch(
        compress(compression, body, level) if placed else body,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        attributes=attributes,
        last_offset_delta=last_offset_delta,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        records_count=len(placed),
    )


def assemble_batch(
    body: Buffer,
    *,
    base_offset: int,
    leader_epoch: int,
    attributes: int,
    last_offset_delta: int,
    base_timestamp: int,
    max_timestamp: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    records_count: int,
) -> bytearray:
    """Prepend a header to an already compressed body."""
    batch = bytearray(HEADER_BYTES)
    batch += body
    HEADER_LAYOUT.pack_into(
        batch,
        0,
        base_offset,
        len(batch) - LOG_OVERHEAD,
        leader_epoch,
        MAGIC,
        0,
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        records_count,
    )
    write_checksum(batch, 0, len(batch))
    return batch


def _assign_offsets(records: Iterable[Record | NewRecord], base_offset: int) -> list[Record]:
    placed: list[Record] = []
    next_offset = base_offset
    for record in records:
        if not isinstance(record, Record):
            record = Record(next_offset, *record)
        if record.offset < next_offset:
            raise ValueError(f"offset {record.offset} is below the next offset {next_offset}")
        placed.append(record)
        next_offset = record.offset + 1
    return placed


def encode_record(record: Record, base_offset: int, base_timestamp: int) -> bytes:
    """Encode a record of a batch, with its length prefix."""
    offset, timestamp, key, value, headers = record
    pieces = [_NO_ATTRIBUTES, encode_varint(timestamp - base_timestamp), encode_varint(offset - base_offset)]
    pieces += (_NONE,) if key is None else (encode_varint(len(key)), key)
    pieces += (_NONE,) if value is None else (encode_varint(len(value)), value)
    pieces += _encode_headers(headers) if headers else (_NO_HEADERS,)
    body = b"".join(pieces)
    return encode_varint(len(body)) + body


def _encode_headers(headers: Headers) -> list[bytes]:
    pieces = [encode_varint(len(headers))]
    for name, value in headers:
        key = name.encode("utf-8", HEADER_KEY_ERRORS)
        pieces += (encode_varint(len(key)), key)
        pieces += (_NONE,) if value is None else (encode_varint(len(value)), value)
    return pieces
