"""The newest value of each key in a sequence of batches. Batches of a few small records take a fast path.

Records of a transaction count once its commit marker is read; their offsets in the log still decide
which record of a key is the newest one.
"""

from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

from moldau.model.errors import CorruptMessage
from moldau.records.control import ControlType, iterate_control_records
from moldau.records.header import (
    CHECKED_POSITION,
    CONTROL,
    HEADER_BYTES,
    LOG_OVERHEAD,
    MAGIC,
    TRANSACTIONAL,
    BatchHeader,
    read_header,
)
from moldau.records.record import iterate_records

_HEAD: Final = Struct(
    ">qi4xbIhi"
)  # base offset, length, (leader epoch), magic, checksum, attributes, last offset delta
_unpack_head = _HEAD.unpack_from
_RECORD_BYTES_MIN: Final = 8  # smallest record with a two-byte length; shorter ones take the slow path
_ONE_BYTE: Final = 0x80  # below it, a varint is a single byte; half of it if it is even, negative if it is odd
_NOT_SMALL: Final = 0x81  # bits of a varint's first byte that is negative, or has more bytes


class _Pending(NamedTuple):
    """A record of an open transaction."""

    offset: int
    producer_epoch: int
    value: bytes | None


class NewestValues:
    """The newest values by key, in offset order; transactional records count where they were written. Keys whose last
    record is a tombstone are omitted."""

    __slots__ = ("_name", "_newest", "_pending")

    def __init__(self, name: str) -> None:
        self._name = name  # of the log, for error messages
        self._newest: dict[bytes, tuple[int, bytes]] = {}
        self._pending: dict[int, dict[bytes, _Pending]] = {}  # by producer

    def __len__(self) -> int:
        return len(self._newest)

    def __iter__(self) -> Iterator[tuple[int, bytes, bytes]]:
        """Offset, key, value."""
        for key, (offset, value) in self._newest.items():
            yield offset, key, value

    def pending(self) -> list[tuple[int, int, int, bytes, bytes]]:
        """Offset, producer id and epoch, key and value of the records of open transactions, in offset order."""
        return sorted(
            (each.offset, producer_id, each.producer_epoch, key, each.value)
            for producer_id, records in self._pending.items()
            for key, each in records.items()
            if each.value is not None
        )

    def add(self, batches: bytes, position: int, batches_max: int) -> tuple[int, int]:
        """Read `batches_max` whole batches from `position` on; return the position and the offset after them."""
        view = memoryview(batches)
        next_offset = -1
        for _ in range(batches_max):
            if position == len(batches):
                break
            if len(batches) - position < HEADER_BYTES:
                raise CorruptMessage(f"{self._name}: incomplete batch")
            base_offset, length, magic, crc, attributes, delta = _unpack_head(batches, position)
            end = position + LOG_OVERHEAD + length
            if (
                end > len(batches)
                or length < HEADER_BYTES - LOG_OVERHEAD
                or magic != MAGIC
                or crc32c(view[position + CHECKED_POSITION : end], 0, 0) != crc
            ):
                raise CorruptMessage(f"{self._name}: the batch at offset {base_offset} is corrupt")
            if attributes & TRANSACTIONAL:
                self._add_transactional(view[position:end])
            elif not attributes & CONTROL and (
                attributes or not self._add_plain(batches, position + HEADER_BYTES, end, base_offset)
            ):
                self._add_records(view[position:end])
            position, next_offset = end, base_offset + delta + 1
        return position, next_offset

    def _add_plain(self, batches: bytes, position: int, end: int, base_offset: int) -> bool:
        """Add the records of a plain batch; return False if one needs the general decoder. Some may have been added by
        then; adding them again is harmless.
        """
        newest = self._newest
        while position < end:
            if end - position < _RECORD_BYTES_MIN:
                return False
            length, start = batches[position], position + 1
            if length >= _ONE_BYTE:
                length, start = length - _ONE_BYTE + (batches[start] << 7), position + 2
            attributes, _, delta, key_length = batches[start : start + 4]
            if attributes or (delta | key_length) & _NOT_SMALL or batches[start + 1] >= _ONE_BYTE:
                return False
            key_end = start + 4 + (key_length >> 1)
            if key_end >= end:
                return False
            value_length = batches[key_end]
            value_end = key_end + 1 + (value_length >> 1)
            position = value_end + 1
            if value_length & _NOT_SMALL or position > end or position != start + (length >> 1) or batches[value_end]:
                return False
            key, offset = batches[start + 4 : key_end], base_offset + (delta >> 1)
            if self._pending:
                self._supersede(key, offset)
            newest.pop(key, None)  # so that it moves to the end of the order
            newest[key] = offset, batches[key_end + 1 : value_end]
        return True

    def _add_records(self, batch: memoryview) -> None:
        for offset, _, key, value, _ in iterate_records(batch):
            if key is not None:
                self._set(key, offset, value)

    def _set(self, key: bytes, offset: int, value: bytes | None) -> None:
        if self._pending:
            self._supersede(key, offset)
        self._newest.pop(key, None)
        if value is not None:
            self._newest[key] = offset, value

    def _supersede(self, key: bytes, offset: int) -> None:
        """Open transactions' records of a key below this offset no longer count, however they end."""
        for records in self._pending.values():
            if key in records and records[key].offset < offset:
                del records[key]

    def _add_transactional(self, batch: memoryview) -> None:
        header = read_header(batch)
        if header.is_control:
            self._end(header, batch)
            return
        records = self._pending.setdefault(header.producer_id, {})
        for offset, _, key, value, _ in iterate_records(batch):
            if key is not None:
                records.pop(key, None)
                records[key] = _Pending(offset, header.producer_epoch, value)

    def _end(self, header: BatchHeader, batch: memoryview) -> None:
        """A marker. Its records become the newest values, unless a later record of the key has superseded them."""
        kinds = [kind for kind, _ in iterate_control_records(batch)]
        ended = self._pending.pop(header.producer_id, {})
        if ControlType.COMMIT in kinds:
            for key, (offset, _, value) in ended.items():
                self._set(key, offset, value)
