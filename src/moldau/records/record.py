"""Parsing of records in a batch: for compaction, conversion, tools and tests, never on the hot path.

    length | attributes | timestamp delta | offset delta | key length, key | value length, value | headers

Every number but the attributes byte is a varint; a length of -1 means null.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple, TypeAlias

from moldau.model.errors import CorruptMessage
from moldau.records.compression import OUTPUT_BYTES_MAX, Compression, decompress
from moldau.records.header import HEADER_BYTES, LOG_OVERHEAD, MAGIC, BatchHeader, Buffer, read_extent, read_header
from moldau.records.varint import read_varint, read_varlong

Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]

# Like Kafka, preserve header keys that are not valid UTF-8.
HEADER_KEY_ERRORS: Final = "surrogateescape"

_RECORD_BYTES_MIN: Final = 6  # attributes, two deltas, two lengths, a count of headers
TIMESTAMP_MIN: Final = -(1 << 63)
TIMESTAMP_MAX: Final = (1 << 63) - 1
_new_tuple = tuple.__new__


class Record(NamedTuple):
    """One record. The key may be null; without a value it is a tombstone."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


def iterate_batches(buffer: Buffer) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Yield every whole batch of the buffer, up to a truncated batch at the end, which a fetch may return."""
    view = memoryview(buffer)
    position = 0
    while len(view) - position >= HEADER_BYTES:
        _, size_bytes = read_extent(view, position)
        if size_bytes < HEADER_BYTES:
            raise CorruptMessage(f"invalid length {size_bytes - LOG_OVERHEAD} of the batch at byte {position}")
        if size_bytes > len(view) - position:
            return
        header = read_header(view, position)
        if header.magic != MAGIC:
            raise CorruptMessage(f"the batch at byte {position} has magic {header.magic} instead of {MAGIC}")
        yield header, view[position : position + size_bytes]
        position += size_bytes


def records_body(batch: Buffer, header: BatchHeader, output_bytes_max: int = OUTPUT_BYTES_MAX) -> bytes:
    """Return the decompressed body of a batch."""
    body = memoryview(batch)[HEADER_BYTES : header.size_bytes]
    if header.compression == Compression.NONE:
        return bytes(body)
    if header.records_count == 0:
        return b""
    return decompress(header.compression, body, output_bytes_max)


def iterate_records(batch: Buffer, *, output_bytes_max: int = OUTPUT_BYTES_MAX) -> Iterator[Record]:
    """Yield the records of a batch without checking its checksum; CorruptMessage if they cannot be parsed."""
    header = read_header(batch)
    if not HEADER_BYTES <= header.size_bytes <= len(batch) or header.magic != MAGIC:
        raise CorruptMessage(f"no batch of magic {MAGIC} in {len(batch)} bytes")
    body = records_body(batch, header, output_bytes_max)
    try:
        yield from _parse(body, header)
    except IndexError:
        raise CorruptMessage(f"the batch ends inside one of its {header.records_count} records") from None


def _parse(body: bytes, header: BatchHeader) -> Iterator[Record]:
    # The one-byte case of varints is inlined: calls dominate the cost of parsing small records.
    base_offset, base_timestamp = header.base_offset, header.base_timestamp
    append_time = header.max_timestamp if header.has_log_append_time else None
    position, body_end = 0, len(body)
    for _ in range(header.records_count):
        length, position = read_varint(body, position)
        end = position + length
        if length < _RECORD_BYTES_MIN or end > body_end:
            raise CorruptMessage(f"record of {length} bytes, but {body_end - position} are left")
        position += 1  # attributes, all unused
        if (byte := body[position]) < 0x80:
            timestamp, position = base_timestamp + ((byte >> 1) ^ -(byte & 1)), position + 1
        else:
            timestamp, position = read_varlong(body, position)
            timestamp += base_timestamp
        if (byte := body[position]) < 0x80:
            offset, position = base_offset + ((byte >> 1) ^ -(byte & 1)), position + 1
        else:
            offset, position = read_varint(body, position)
            offset += base_offset
        key, position = _read_bytes(body, position, end)
        value, position = _read_bytes(body, position, end)
        headers: Headers = ()
        if body[position] == 0:
            position += 1
        else:
            headers, position = read_headers(body, position, end)
        if position != end:
            raise CorruptMessage(f"record of {length} bytes has fields of {length + position - end} bytes")
        if not TIMESTAMP_MIN <= timestamp <= TIMESTAMP_MAX:
            raise CorruptMessage(f"timestamp {timestamp} does not fit in 64 bits")
        yield _new_tuple(Record, (offset, timestamp if append_time is None else append_time, key, value, headers))
    if position != body_end:
        raise CorruptMessage(f"{body_end - position} trailing bytes after {header.records_count} records")


def _read_bytes(body: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    if (byte := body[position]) < 0x80:
        length, position = (byte >> 1) ^ -(byte & 1), position + 1
    else:
        length, position = read_varint(body, position)
    stop = position + length
    if stop > end:
        raise CorruptMessage(f"field of {length} bytes, but {end - position} are left in its record")
    # Any negative length means null, as for the Java clients.
    return (None, position) if length < 0 else (body[position:stop], stop)


def read_headers(body: bytes, position: int, end: int) -> tuple[Headers, int]:
    count, position = read_varint(body, position)
    # A header takes at least two bytes.
    if not 0 <= count <= (end - position) // 2:
        raise CorruptMessage(f"record has {count} headers in {end - position} bytes")
    headers = []
    for _ in range(count):
        key, position = _read_bytes(body, position, end)
        if key is None:
            raise CorruptMessage("record header without a key")
        value, position = _read_bytes(body, position, end)
        headers.append((key.decode("utf-8", HEADER_KEY_ERRORS), value))
    return tuple(headers), position
