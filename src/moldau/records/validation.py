"""Validation of produced batches: header and checksum of one whole batch, and its records where required.

The error codes, and their precedence, are those of Apache Kafka 4.
"""

import sys
from struct import Struct
from typing import Final, NamedTuple, NoReturn

from crc32c import crc32c

from moldau.model.errors import (
    CorruptMessage,
    InvalidRecord,
    InvalidTimestamp,
    KafkaError,
    RecordError,
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
    Buffer,
    checksum,
    read_extent,
    read_header,
    write_checksum,
)
from moldau.records.record import Record, iterate_records, records_body
from moldau.records.record_scan import scan_records

_LEGACY_LENGTH_MIN: Final = 14  # of a message of magic 0: no batch of any magic is shorter
RECORD_BYTES_MIN: Final = 7  # its length, attributes, two deltas, two lengths, a count of headers
COMPRESSED_RECORDS_MAX: Final = OUTPUT_BYTES_MAX // RECORD_BYTES_MIN
RECORD_ERRORS_MAX: Final = 10_000  # that one response names
SHOWN_RECORD_ERRORS: Final = 3  # in the message for the whole batch
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


class RecordRules(NamedTuple):
    """The requirements of a topic for every record; the bounds of timestamps are None where the log sets timestamps."""

    requires_key: bool = False
    timestamp_bounds: tuple[int, int] | None = None


class RecordCheck:
    """Checks the records of one produced batch in order.

    Like Apache Kafka, it looks at all of them and names each invalid one (KIP-467): a client can then send the others
    again. A batch with any invalid timestamp is rejected with INVALID_TIMESTAMP, otherwise with INVALID_RECORD.
    """

    __slots__ = ("_bounds", "_count", "_errors", "_has_invalid_timestamp", "_requires_key", "max_timestamp")

    def __init__(self, rules: RecordRules) -> None:
        self._requires_key, self._bounds = rules
        self._count = 0
        self._errors: list[RecordError] = []
        self._has_invalid_timestamp = False
        self.max_timestamp = -sys.maxsize - 1

    def add(self, record: Record) -> None:
        index = self._count
        self._count = index + 1
        timestamp = record.timestamp
        if timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
        if record.offset != index:  # the base offset of a produced batch is 0
            self._reject(index, f"record {index} has unexpected offset delta {record.offset}")
        elif self._requires_key and record.key is None:
            self._reject(index, f"record {index} has no key, which compacted topics require")
        elif self._bounds is not None and timestamp != NO_TIMESTAMP:
            oldest, newest = self._bounds
            if not oldest <= timestamp <= newest:
                self._has_invalid_timestamp = True
                self._reject(index, f"timestamp {timestamp} of record {index} is outside [{oldest}, {newest}]")

    def _reject(self, index: int, message: str) -> None:
        if len(self._errors) < RECORD_ERRORS_MAX:
            self._errors.append(RecordError(index, message))

    def finish(self) -> None:
        """Raise InvalidTimestamp or InvalidRecord if any record was invalid."""
        errors = self._errors
        if errors:
            kind = InvalidTimestamp if self._has_invalid_timestamp else InvalidRecord
            shown = "; ".join(each.message for each in errors[:SHOWN_RECORD_ERRORS])
            more = f"; and {len(errors) - SHOWN_RECORD_ERRORS} more" if len(errors) > SHOWN_RECORD_ERRORS else ""
            raise kind(f"{shown}{more}", errors)


def check_records(batch: Buffer, rules: RecordRules, output_bytes_max: int = OUTPUT_BYTES_MAX) -> int:
    """Check every record of a produced batch; return the max timestamp.

    The checksum is valid, so the producer created a corrupt batch, and a retry will not help: InvalidRecord.
    """
    check = RecordCheck(rules)
    header = read_header(batch)
    try:
        if header.magic == MAGIC and header.size_bytes == len(batch):
            newest = scan_records(records_body(batch, header, output_bytes_max), header, *rules)
            if newest is not None:
                return newest
        for record in iterate_records(batch, output_bytes_max=output_bytes_max):
            check.add(record)
    except CorruptMessage as error:
        raise InvalidRecord(error.message) from None
    check.finish()
    return check.max_timestamp


def write_max_timestamp(batch: memoryview, max_timestamp: int) -> BatchHeader:
    """Write the max timestamp, which some clients leave unset or compute wrongly, and update the checksum."""
    _MAX_TIMESTAMP.pack_into(batch, _MAX_TIMESTAMP_POSITION, max_timestamp)
    write_checksum(batch, 0, len(batch))
    return read_header(batch)
