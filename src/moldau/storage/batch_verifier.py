"""Verification of the batches of a segment, from any batch on: checksums, and what no checksum covers.

The checksum of a batch does not cover its base offset, length, leader epoch and magic. A wrong length or magic makes
the checksum fail or the next header invalid. A wrong base offset or leader epoch breaks the order, and the question is
which of two batches is the wrong one:

    base offset: 0-9 | 10-19 | 4116-4125 | 30-39      after a gap, but the next one does not follow: this one is wrong
                 0-9 | 10-19 |     4-13  | 30-39      goes back, and the one before had no gap: this one is wrong

Compaction leaves gaps, so a gap alone is no corruption. A batch is verified only together with the header after it.
After a corrupt header the scan continues at the next valid batch, so that the corrupt range is as small as possible.
"""

from dataclasses import dataclass, field
from typing import Final

from crc32c import crc32c

from moldau.model.ids import NO_EPOCH, NO_OFFSET
from moldau.model.units import MiB
from moldau.records.header import (
    CHECKED_POSITION,
    HEADER_BYTES,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_POSITION,
    BatchHeader,
    checksum,
    read_header,
)
from moldau.storage.corrupt_range import CorruptRange

READ_BYTES: Final = 4 * MiB
_LENGTH_MIN: Final = HEADER_BYTES - LOG_OVERHEAD


@dataclass(slots=True)
class BatchVerifier:
    """The state of a verification; picklable. `corrupt` has what was found so far."""

    base_offset: int  # of the segment
    bound: int  # the first offset beyond it
    size_bytes: int
    epochs: frozenset[int] = frozenset()  # known leader epochs of the log
    position: int = 0
    next_offset: int = NO_OFFSET  # after the last batch; NO_OFFSET before the first one
    corrupt: list[CorruptRange] = field(default_factory=list)
    wanted_bytes: int = READ_BYTES
    _last_epoch: int = NO_EPOCH
    _gap_from: int = NO_OFFSET  # if there is a gap before the last batch, where it begins
    _last_position: int = 0
    _lost: str = ""  # why no valid batch begins at `_lost_position`; its range begins at `_lost_from`
    _lost_from: int = 0
    _lost_position: int = 0

    @property
    def is_done(self) -> bool:
        return self.position >= self.size_bytes

    @property
    def is_searching(self) -> bool:
        """Whether a corrupt batch was found, but not its end yet."""
        return bool(self._lost)

    def verify(self, data: bytes, start: int, batches_max: int = 1 << 40) -> list[tuple[int, BatchHeader]]:
        """Verify batches in `data`, the bytes of the segment from `start` on; return the valid ones and their
        positions. Fewer than `batches_max`: `data` has no other complete one, continue with `wanted_bytes` from
        `position` on."""
        verified: list[tuple[int, BatchHeader]] = []
        available = start + len(data)
        self.wanted_bytes = READ_BYTES
        with memoryview(data) as view:
            while len(verified) < batches_max and self.position < self.size_bytes:
                at = self.position - start
                if self._lost:
                    if self._search(data, start, at):
                        continue
                    break
                if at + HEADER_BYTES > len(data):
                    if available < self.size_bytes:
                        break
                    self._lose("truncated batch header")
                    continue
                header = read_header(data, at)
                if not self._is_possible(header):
                    self._lose("invalid batch header")
                    continue
                end = at + header.size_bytes
                is_last = start + end == self.size_bytes
                if (
                    available < self.size_bytes
                    and end + HEADER_BYTES > len(data)
                    and not (is_last and available >= end)
                ):
                    self.wanted_bytes = max(READ_BYTES, end - at + HEADER_BYTES)
                    break
                following = None if is_last else read_header(data, end) if end + HEADER_BYTES <= len(data) else None
                if crc32c(view[at + CHECKED_POSITION : end], 0, 0) != header.crc:
                    self._skip(following, end + start, "checksum mismatch")
                elif self._follows(header, following):
                    verified.append((self.position, header))
                    self._accept(header, end + start)
                else:
                    self._skip(following, end + start, "wrong base offset or leader epoch")
        return verified

    def _is_possible(self, header: BatchHeader) -> bool:
        """Whether this may be the header of a batch at `position`."""
        return (
            header.magic == MAGIC
            and header.batch_length >= _LENGTH_MIN
            and self.position + header.size_bytes <= self.size_bytes
            and header.last_offset_delta >= 0
            and header.base_offset >= self.base_offset
            and header.last_offset < self.bound
        )

    def _follows(self, header: BatchHeader, following: BatchHeader | None) -> bool:
        """Whether base offset and leader epoch fit between the batches before and after; may blame the one before."""
        if header.base_offset < self.next_offset:
            continues = following.base_offset if following is not None else self.bound
            if self._gap_from == NO_OFFSET or header.base_offset < self._gap_from or continues != header.next_offset:
                return False
            self._report("wrong base offset", self._gap_from, header.base_offset, self._last_position, self.position)
            self.next_offset = self._gap_from
        epoch, last = header.partition_leader_epoch, self._last_epoch
        after = NO_EPOCH if following is None else following.partition_leader_epoch
        if epoch == last:
            return True
        if last != NO_EPOCH and last <= after:
            return last <= epoch <= after
        return epoch in self.epochs or not (last in self.epochs or after in self.epochs)

    def _accept(self, header: BatchHeader, end: int) -> None:
        has_gap = NO_OFFSET != self.next_offset < header.base_offset
        self._gap_from = self.next_offset if has_gap else NO_OFFSET
        self._last_position = self.position
        self._last_epoch = header.partition_leader_epoch
        self.next_offset = header.next_offset
        self.position = end

    def _skip(self, following: BatchHeader | None, end: int, reason: str) -> None:
        """The batch is corrupt. If its length is right, the next one begins at its end."""
        self._lose(reason)
        if end == self.size_bytes:
            self._end_range(self.bound, end)
            return
        self.position = end
        if following is not None and self._is_possible(following) and following.base_offset > self._floor:
            self._end_range(following.base_offset, end)
        else:
            self.position = self._lost_position + 1

    def _lose(self, reason: str) -> None:
        self._lost = reason
        self._lost_from = self.base_offset if self.next_offset == NO_OFFSET else self.next_offset
        self._lost_position = self.position

    @property
    def _floor(self) -> int:
        """The least base offset of the next valid batch. The batch before the corrupt one may have a wrong one, too."""
        return self._lost_from if self._gap_from == NO_OFFSET else self._gap_from

    def _search(self, data: bytes, start: int, at: int) -> bool:
        """Find the next valid batch from `at` on; return False if that takes more data."""
        available = start + len(data)
        found = data.find(MAGIC, at + MAGIC_POSITION)
        while found >= 0:
            begin = found - MAGIC_POSITION
            if begin + HEADER_BYTES > len(data):
                break
            header = read_header(data, begin)
            self.position = start + begin
            if self._is_possible(header) and header.base_offset >= self._floor:
                if start + begin + header.size_bytes > available:
                    self.wanted_bytes = max(READ_BYTES, header.size_bytes)
                    return False
                if checksum(data, begin, header.size_bytes) == header.crc:
                    self._end_range(header.base_offset, start + begin)
                    return True
            found = data.find(MAGIC, found + 1)
        if available >= self.size_bytes:
            self._end_range(self.bound, self.size_bytes)
            return True
        self.position = max(start + at, available - HEADER_BYTES)
        return False

    def _end_range(self, end_offset: int, end: int) -> None:
        """The corrupt range ends where the next valid batch begins."""
        if end_offset <= self._lost_from and self._gap_from != NO_OFFSET:  # the batch before it is wrong, too
            self._lost_from, self._lost_position = self._gap_from, self._last_position
        self._report(self._lost, self._lost_from, max(end_offset, self._lost_from + 1), self._lost_position, end)
        self._lost = ""
        self._gap_from = NO_OFFSET
        self.next_offset = end_offset
        self.position = end

    def _report(self, reason: str, offset: int, end_offset: int, position: int, end: int) -> None:
        self.corrupt.append(CorruptRange(offset, end_offset, reason, self.base_offset, position, end))
