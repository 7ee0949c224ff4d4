"""The 61-byte header of a record batch: reading it, and patching the fields that a broker sets.

The checksum starts at byte 21, so base offset and leader epoch can change without touching it:

    0         8       12            16     17   21          23                 27
    | base    | batch | leader      | magic| crc| attributes| last offset delta|
    | offset  | length| epoch       |      |    |           |                  |
    27              35             43           51               53              57             61
    | base timestamp| max timestamp| producer id| producer epoch | base sequence | records count|
"""

import struct
from struct import Struct
from typing import Final, NamedTuple, TypeAlias

from crc32c import crc32c

from moldau.model.errors import CorruptMessage

Buffer: TypeAlias = bytes | bytearray | memoryview

LOG_OVERHEAD: Final = 12  # base offset and batch length, which determine where a batch ends
HEADER_BYTES: Final = 61
MAGIC: Final = 2

MAGIC_POSITION: Final = 16
CRC_POSITION: Final = 17
CHECKED_POSITION: Final = 21  # the first byte that the checksum covers

COMPRESSION_MASK: Final = 0x07
LOG_APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
DELETE_HORIZON: Final = 0x40  # the base timestamp is then the time from which compaction may remove tombstones

SEQUENCE_MODULUS: Final = 1 << 31

# Indices into a BatchHeader for code that runs once per batch: an index is cheaper than an attribute of a named tuple.
BASE_OFFSET_FIELD: Final = 0
BATCH_LENGTH_FIELD: Final = 1
MAGIC_FIELD: Final = 3
ATTRIBUTES_FIELD: Final = 5
LAST_OFFSET_DELTA_FIELD: Final = 6
BASE_TIMESTAMP_FIELD: Final = 7
MAX_TIMESTAMP_FIELD: Final = 8
PRODUCER_ID_FIELD: Final = 9
PRODUCER_EPOCH_FIELD: Final = 10
BASE_SEQUENCE_FIELD: Final = 11

HEADER_LAYOUT: Final = Struct(">qiibIhiqqqhii")
PLACE_LAYOUT: Final = Struct(">qii")  # the first fields: base offset, length, leader epoch
_UINT32: Final = Struct(">I")
_INT16: Final = Struct(">h")
_INT64: Final = Struct(">q")
_INT32: Final = Struct(">i")
_EXTENT: Final = Struct(">qi")
_unpack_header = HEADER_LAYOUT.unpack_from
_new_tuple = tuple.__new__


class BatchHeader(NamedTuple):
    """The header of a batch; the broker does not parse the records after it."""

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records_count: int

    @property
    def size_bytes(self) -> int:
        return LOG_OVERHEAD + self.batch_length

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def compression(self) -> int:
        return self.attributes & COMPRESSION_MASK

    @property
    def has_log_append_time(self) -> bool:
        return self.attributes & LOG_APPEND_TIME != 0

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & CONTROL != 0

    @property
    def delete_horizon_ms(self) -> int | None:
        return self.base_timestamp if self.attributes & DELETE_HORIZON else None

    @property
    def has_producer_id(self) -> bool:
        return self.producer_id >= 0

    @property
    def last_sequence(self) -> int:
        """The sequence of the last record; sequences wrap from 2^31 - 1 to 0."""
        if self.base_sequence < 0:
            return self.base_sequence
        return (self.base_sequence + self.last_offset_delta) % SEQUENCE_MODULUS


def read_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """Read the header at `position`. Only its length is checked: see validation.py for the rest."""
    try:
        return _new_tuple(BatchHeader, _unpack_header(buffer, position))
    except struct.error:
        raise CorruptMessage(
            f"truncated batch header: {HEADER_BYTES} bytes expected, {max(0, len(buffer) - position)} left"
        ) from None


def read_extent(buffer: Buffer, position: int = 0) -> tuple[int, int]:
    """Read base offset and total size of the batch at `position` from its first twelve bytes."""
    try:
        base_offset, batch_length = _EXTENT.unpack_from(buffer, position)
    except struct.error:
        raise CorruptMessage(f"truncated batch: fewer than {LOG_OVERHEAD} bytes left") from None
    return base_offset, LOG_OVERHEAD + batch_length


def checksum(buffer: Buffer, position: int, size: int) -> int:
    """Compute the CRC32C of the batch of `size` bytes at `position`."""
    # Keep the GIL (the last argument): a CRC takes microseconds, less than reacquiring it.
    return crc32c(memoryview(buffer)[position + CHECKED_POSITION : position + size], 0, 0)


def write_offsets(buffer: bytearray | memoryview, position: int, base_offset: int, leader_epoch: int) -> None:
    """Set base offset and leader epoch of the batch at `position`. The checksum covers neither."""
    _INT64.pack_into(buffer, position, base_offset)
    _INT32.pack_into(buffer, position + 12, leader_epoch)


def write_checksum(buffer: bytearray | memoryview, position: int, size: int) -> None:
    """Update the checksum of a modified batch."""
    _UINT32.pack_into(buffer, position + CRC_POSITION, checksum(buffer, position, size))


def stamp_log_append_time(buffer: bytearray | memoryview, now_ms: int) -> None:
    """Set the timestamp type to LogAppendTime and the max timestamp to the broker's time; update the checksum."""
    (attributes,) = _INT16.unpack_from(buffer, 21)
    _INT16.pack_into(buffer, 21, attributes | LOG_APPEND_TIME)
    _INT64.pack_into(buffer, 35, now_ms)
    write_checksum(buffer, 0, len(buffer))
