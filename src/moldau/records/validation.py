"""Validation of produced batches: one whole batch, checked by its header and checksum alone.

The error codes, and their precedence, are those of Apache Kafka 4.
"""

from struct import Struct
from typing import Final, NoReturn

from crc32c import crc32c

from moldau.model.errors import (
    CorruptMessage,
    InvalidRecord,
    InvalidTimestamp,
    KafkaError,
    UnsupportedCompressionType,
)
from moldau.model.ids import NO_TIMESTAMP
from moldau.records.compression import OUTPUT_BYTES_MAX, Compression
from moldau.records.header import (
    CHECKED_POSITION,
    COMPRESSION_MASK,
    CONTROL,
    DELETE_HORIZON,
    HEADER_BYTES,
    HEADER_LAYOUT,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_POSITION,
    TRANSACTIONAL,
    BatchHeader,
    checksum,
    read_extent,
    read_header,
    write_checksum,
)
from moldau.records.record import Record, iterate_records

_LEGACY_LENGTH_MIN: Final = 14  # of a message of magic 0: no batch of any magic is shorter
RECORD_BYTES_MIN: Final = 7  # its length, attributes, two deltas, two lengths, a count of headers
COMPRESSED_RECORDS_MAX: Final = OUTPUT_BYTES_MAX // RECORD_BYTES_MIN
_LENGTH_WITHOUT_RECORDS: Final = HEADER_BYTES - LOG_OVERHEAD
_RESERVED_ATTRIBUTES: Final = CONTROL | LOG_APPEND_TIME | DELETE_HORIZON
_LAST_CODEC: Final = max(Compression)
_ZSTD: Final = int(Compression.ZSTD)
_MAX_TIMESTAMP: Final = Struct(">q")
_MAX_TIMESTAMP_POSITION: Final = 35

_unpack_header = HEADER_LAYOUT.unpack_from
_new_tuple = tuple.__new__


def validate_produced(batch: memoryview, *, is_zstd_allowed: bool = True) -> BatchHeader:
    """Return the header of a valid batch; otherwise raise the KafkaError for the producer.

    zstd is allowed from Produce version 7 on. Only the checksum takes time proportional to the size.
    """
    if len(batch) < HEADER_BYTES:
        _reject(batch, is_zstd_allowed)
    header = _new_tuple(BatchHeader, _unpack_header(batch))
    base_offset, length, _, magic, crc, attributes, last, _, _, producer_id, epoch, sequence, count = header
    codec = attributes & COMPRESSION_MASK
    if (
        length + LOG_OVERHEAD != len(batch)
        or magic != MAGIC
        or base_offset
        or attributes & _RESERVED_ATTRIBUTES
        or (codec >= _ZSTD and (codec > _LAST_CODEC or not is_zstd_allowed))
        or last + 1 != count
        or count <= 0
        or (
            count * RECORD_BYTES_MIN > length - _LENGTH_WITHOUT_RECORDS
            and (not codec or count > COMPRESSED_RECORDS_MAX)
        )
        or (producer_id >= 0 and (sequence < 0 or epoch < 0))
        or (producer_id < 0 and attributes & TRANSACTIONAL)
        # Keep the GIL (the last argument): a CRC takes microseconds, less than reacquiring it.
        or crc32c(batch[CHECKED_POSITION:], 0, 0) != crc
    ):
        _reject(batch, is_zstd_allowed)
    return header


def _reject(batch: memoryview, is_zstd_allowed: bool) -> NoReturn:
    raise _format_error(batch) or _content_error(batch, read_header(batch), is_zstd_allowed)


def _format_error(batch: memoryview) -> KafkaError | None:
    """Check that the bytes are one whole batch of the current format."""
    if len(batch) <= MAGIC_POSITION:
        return InvalidRecord("a produce request must have one record batch per partition, this one has none")
    size_bytes = read_extent(batch)[1]
    if size_bytes < LOG_OVERHEAD + _LEGACY_LENGTH_MIN:
        return CorruptMessage(f"invalid batch length {size_bytes - LOG_OVERHEAD}")
    magic = batch[MAGIC_POSITION]
    if magic > MAGIC:
        return CorruptMessage(f"unknown magic {magic}")
    if size_bytes > len(batch):
        return InvalidRecord(f"the batch is truncated: {size_bytes} bytes expected, {len(batch)} received")
    if magic != MAGIC:
        return InvalidRecord(f"unsupported magic {magic}: only record batches of magic {MAGIC} are accepted")
    if size_bytes < HEADER_BYTES:
        return CorruptMessage(f"the batch has {size_bytes} bytes, less than its header of {HEADER_BYTES}")
    return None


def _content_error(batch: memoryview, header: BatchHeader, is_zstd_allowed: bool) -> KafkaError:
    codec = header.compression
    if codec > _LAST_CODEC:
        return UnsupportedCompressionType(f"unknown codec {codec}: must be gzip (1), snappy (2), lz4 (3) or zstd (4)")
    if codec == Compression.ZSTD and not is_zstd_allowed:
        return UnsupportedCompressionType("zstd requires Produce version 7 or later")
    if header.size_bytes != len(batch):
        return InvalidRecord("a produce request must have exactly one record batch per partition")
    if header.base_offset:
        return InvalidRecord(f"the base offset of a produced batch must be 0, not {header.base_offset}")
    computed = checksum(batch, 0, len(batch))
    if computed != header.crc:
        return CorruptMessage(f"checksum mismatch: header {header.crc:#010x}, computed {computed:#010x}")
    return _header_error(header)


def _header_error(header: BatchHeader) -> KafkaError:
    count = header.records_count
    if count <= 0 or count != header.last_offset_delta + 1:
        return InvalidRecord(f"record count {count} does not match last offset delta {header.last_offset_delta}")
    if count > _records_max(header):
        return InvalidRecord(f"{count} records cannot fit in a batch of {header.size_bytes} bytes")
    if header.is_control:
        return InvalidRecord("clients cannot write control records")
    if header.has_producer_id and header.base_sequence < 0:
        return InvalidRecord(f"invalid sequence {header.base_sequence} of producer {header.producer_id}")
    if header.has_producer_id and header.producer_epoch < 0:
        return InvalidRecord(f"invalid epoch {header.producer_epoch} of producer {header.producer_id}")
    if header.is_transactional and not header.has_producer_id:
        return InvalidRecord("a transactional batch requires a producer id")
    if header.has_log_append_time:
        return InvalidTimestamp("producers cannot set the timestamp type to LogAppendTime")
    return InvalidRecord(f"attributes {header.attributes:#06x} cannot be set by producers")


def _records_max(header: BatchHeader) -> int:
    """Bound the record count: a forged one would advance the log's offsets by billions."""
    fitting = (header.size_bytes - HEADER_BYTES) // RECORD_BYTES_MIN
    return fitting if header.compression == Compression.NONE else max(fitting, COMPRESSED_RECORDS_MAX)


def validate_timestamps(header: BatchHeader, now_ms: int, before_max_ms: int, after_max_ms: int) -> None:
    """Reject timestamps further from `now_ms` than `message.timestamp.before.max.ms` and `.after.max.ms` allow."""
    for timestamp in (header.base_timestamp, header.max_timestamp):
        if timestamp != NO_TIMESTAMP and not -after_max_ms <= now_ms - timestamp <= before_max_ms:
            raise InvalidTimestamp(
                f"timestamp {timestamp} is outside [{now_ms - before_max_ms}, {now_ms + after_max_ms}]"
            )


def validate_keys(batch: memoryview, output_bytes_max: int = OUTPUT_BYTES_MAX) -> None:
    """For compacted topics: check that every record is well-formed, has a key, and has consecutive offsets.

    The checksum is valid, so the producer created a corrupt batch, and a retry will not help: InvalidRecord.
    """
    base_offset = read_header(batch).base_offset
    try:
        for index, record in enumerate(iterate_records(batch, output_bytes_max=output_bytes_max)):
            check_key(record, index, base_offset)
    except CorruptMessage as error:
        raise InvalidRecord(error.message) from None


def check_key(record: Record, index: int, base_offset: int) -> None:
    """Check one record for `validate_keys`."""
    if record.key is None:
        raise InvalidRecord(f"record {index} has no key, which compacted topics require")
    if record.offset != base_offset + index:
        raise InvalidRecord(f"record {index} has unexpected offset delta {record.offset - base_offset}")


def lacks_max_timestamp(header: BatchHeader) -> bool:
    """Some clients leave the max timestamp unset and let the broker compute it."""
    return header.max_timestamp < header.base_timestamp


def correct_max_timestamp(batch: memoryview, output_bytes_max: int = OUTPUT_BYTES_MAX) -> BatchHeader:
    """Compute the missing max timestamp of a batch from its records, write it and update the checksum."""
    try:
        newest = max(record.timestamp for record in iterate_records(batch, output_bytes_max=output_bytes_max))
    except CorruptMessage as error:
        raise InvalidRecord(error.message) from None
    return write_max_timestamp(batch, newest)


def write_max_timestamp(batch: memoryview, newest: int) -> BatchHeader:
    """Write the max timestamp and update the checksum."""
    _MAX_TIMESTAMP.pack_into(batch, _MAX_TIMESTAMP_POSITION, newest)
    write_checksum(batch, 0, len(batch))
    return read_header(batch)
