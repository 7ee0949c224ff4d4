"""Conversion of a batch to another codec, for topics whose `compression.type` is not the producer's."""

from struct import Struct
from typing import Final

from moldau.model.errors import CorruptMessage, InvalidRecord
from moldau.records.compression import OUTPUT_BYTES_MAX, compress
from moldau.records.header import (
    COMPRESSION_MASK,
    HEADER_BYTES,
    LOG_OVERHEAD,
    Buffer,
    read_header,
    write_checksum,
)
from moldau.records.record import records_body

_LENGTH: Final = Struct(">i")
_LENGTH_POSITION: Final = 8
_ATTRIBUTES: Final = Struct(">h")
_ATTRIBUTES_POSITION: Final = 21


def recompress(
    batch: Buffer, codec: int, *, level: int | None = None, output_bytes_max: int = OUTPUT_BYTES_MAX
) -> bytearray:
    """Recompress a batch with `codec` and update its checksum.

    Records are not parsed: offsets, timestamps, headers and producer fields are preserved byte for byte.
    Control batches are never compressed; a batch already in `codec` is copied.
    """
    header = read_header(batch)
    if header.compression == codec or header.is_control or header.records_count == 0:
        return bytearray(batch)
    try:
        body = records_body(batch, header, output_bytes_max)
    except CorruptMessage as error:
        # The checksum is valid, so the producer created a corrupt batch: a retry will not help.
        raise InvalidRecord(error.message) from None
    converted = bytearray(memoryview(batch)[:HEADER_BYTES])
    converted += compress(codec, body, level)
    _LENGTH.pack_into(converted, _LENGTH_POSITION, len(converted) - LOG_OVERHEAD)
    _ATTRIBUTES.pack_into(converted, _ATTRIBUTES_POSITION, header.attributes & ~COMPRESSION_MASK | codec)
    write_checksum(converted, 0, len(converted))
    return converted
