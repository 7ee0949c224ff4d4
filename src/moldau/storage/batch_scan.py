"""Iteration over the batches of a log file by their headers, without reading records."""

from collections.abc import Iterator
from typing import Final

from crc32c import crc32c

from moldau.model.errors import CorruptMessage, StorageFailed
from moldau.model.ids import NO_OFFSET
from moldau.model.ports import File
from moldau.model.units import KiB
from moldau.records.header import (
    BASE_OFFSET_FIELD,
    BATCH_LENGTH_FIELD,
    CHECKED_POSITION,
    HEADER_BYTES,
    HEADER_LAYOUT,
    LAST_OFFSET_DELTA_FIELD,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_FIELD,
    BatchHeader,
    read_header,
)

ANY_EPOCH: Final = 2**31 - 1
_READ_BYTES: Final = 4 * KiB
_ITERATE_BYTES: Final = 64 * KiB
_LENGTH_MIN: Final = HEADER_BYTES - LOG_OVERHEAD

_unpack = HEADER_LAYOUT.unpack_from
_new_tuple = tuple.__new__


class CorruptBatch(StorageFailed):
    """The bytes at a position are not a valid batch."""

    def __init__(self, position: int, reason: str, offset: int = NO_OFFSET) -> None:
        """`offset` is the batch's, if known."""
        super().__init__(f"{reason} at position {position}")
        self.position = position
        self.reason = reason
        self.offset = offset

    def __reduce__(self) -> tuple[type["CorruptBatch"], tuple[int, str, int]]:
        """Worker processes raise it too."""
        return CorruptBatch, (self.position, self.reason, self.offset)


def validate_replicated(
    batches: memoryview, next_offset: int, epoch_max: int
) -> tuple[list[BatchHeader], CorruptMessage | None]:
    """Validate replicated batches; return the headers of the valid prefix and the error of the first invalid one.

    A leader has no batch of a later epoch than its own. But its response may be so late that it was deposed, truncated
    its log, and sends what the next leader wrote there: valid in its log, but perhaps not in this one.

    A batch cut off at the end, as fetches may return, is skipped. This runs for every replicated batch, so it is one
    loop without function calls of its own.
    """
    headers: list[BatchHeader] = []
    total = len(batches)
    position = 0
    while total - position >= HEADER_BYTES:
        header = _unpack(batches, position)
        base_offset, length, epoch, magic, crc, _, delta, _, _, _, _, _, _ = header
        end = position + LOG_OVERHEAD + length
        if length < _LENGTH_MIN:
            return headers, CorruptMessage(f"the batch at byte {position} has a length of {length}")
        if end > total:
            break
        if magic != MAGIC:
            return headers, CorruptMessage(f"the batch at byte {position} has magic {magic}, not {MAGIC}")
        if base_offset < next_offset or delta < 0:
            return headers, CorruptMessage(f"a batch at offset {base_offset} instead of {next_offset}")
        if epoch > epoch_max:
            return headers, CorruptMessage(f"a batch of leader epoch {epoch} from a leader of epoch {epoch_max}")
        if crc32c(batches[position + CHECKED_POSITION : end], 0, 0) != crc:  # holds the GIL, see `checksum`
            return headers, CorruptMessage(f"checksum mismatch of the batch at offset {base_offset}")
        headers.append(_new_tuple(BatchHeader, header))
        next_offset = base_offset + delta + 1
        position = end
    is_cut_off = total > 0 and not headers
    return headers, CorruptMessage("the batch is longer than the response") if is_cut_off else None


def find_batch(file: File, position: int, end: int, offset: int) -> tuple[int, int] | None:
    """Return position and size of the first batch that ends at `offset` or later, searching from `position`."""
    buffer = b""
    start = position
    while position + HEADER_BYTES <= end:
        at = position - start
        if at + HEADER_BYTES > len(buffer):
            start, at = position, 0
            buffer = file.pread(min(_READ_BYTES, end - position), position)
            if len(buffer) < HEADER_BYTES:
                raise CorruptBatch(position, "the file is shorter than its log")
        header = _unpack(buffer, at)
        size = header[BATCH_LENGTH_FIELD] + LOG_OVERHEAD
        if header[MAGIC_FIELD] != MAGIC or size < HEADER_BYTES:
            raise CorruptBatch(position, "no batch")
        if header[BASE_OFFSET_FIELD] + header[LAST_OFFSET_DELTA_FIELD] >= offset:
            return position, size
        position += size
    return None


def iterate_headers(file: File, position: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
    """Yield position and header of every batch between two positions, without verifying checksums."""
    buffer = b""
    start = position
    while position < end:
        at = position - start
        if at + HEADER_BYTES > len(buffer):
            start, at = position, 0
            buffer = file.pread(min(_ITERATE_BYTES, end - position), position)
            if len(buffer) < HEADER_BYTES:
                raise CorruptBatch(position, "a batch header is cut off")
        header = read_header(buffer, at)
        if header.magic != MAGIC or header.batch_length < _LENGTH_MIN or position + header.size_bytes > end:
            raise CorruptBatch(position, "no complete batch")
        yield position, header
        position += header.size_bytes
