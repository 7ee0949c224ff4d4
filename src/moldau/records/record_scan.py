"""A quick check of the records of a produced batch: it skips over keys and values instead of reading them.

Nearly every batch is valid. The scan says so for certain, or leaves the batch to `validation.check_records`, which
parses record by record, names the invalid ones, and takes three times as long. It knows varints of one and two bytes
only: longer ones belong to large records, of which a batch has few.
"""

from typing import Final

from moldau.model.errors import CorruptMessage
from moldau.records.header import BatchHeader
from moldau.records.record import TIMESTAMP_MAX, TIMESTAMP_MIN, read_headers

TWO_BYTES_MAX: Final = 0x3FFF
RECORDS_MAX: Final = (TWO_BYTES_MAX + 1) // 2  # so that every offset delta has at most two bytes


def scan_records(
    body: bytes, header: BatchHeader, requires_key: bool, timestamp_bounds: tuple[int, int] | None
) -> int | None:
    """Return the max timestamp if every record is valid; None if one may not be."""
    if header.has_log_append_time or not 0 < header.records_count <= RECORDS_MAX:
        return None
    oldest, newest = timestamp_bounds or (TIMESTAMP_MIN, TIMESTAMP_MAX)
    try:
        deltas = _scan(body, header.records_count, requires_key)
    except (IndexError, CorruptMessage):
        return None
    if deltas is None:
        return None
    least, most = header.base_timestamp + deltas[0], header.base_timestamp + deltas[1]
    return most if oldest <= least and most <= newest else None


def _scan(body: bytes, count: int, requires_key: bool) -> tuple[int, int] | None:
    """Return the least and the greatest timestamp delta; None if a record is invalid or has a long varint."""
    position, least, most = 0, TWO_BYTES_MAX, -TWO_BYTES_MAX
    # Numbers are zigzag-encoded: n is 2 * n, and odd ones are negative. A second byte replaces the mark of the first.
    for expected in range(0, 2 * count, 2):
        if (length := body[position]) >= 0x80:
            position += 1
            length += (body[position] - 1) << 7
        end = position + 1 + (length >> 1)
        position += 2  # the attributes are unused
        if (delta := body[position]) >= 0x80:
            position += 1
            delta += (body[position] - 1) << 7
        if (offset := body[position + 1]) >= 0x80:
            position += 1
            offset += (body[position + 1] - 1) << 7
        position += 2
        if (key := body[position]) >= 0x80:
            position += 1
            key += (body[position] - 1) << 7
        if key != 1:
            position += key >> 1
        elif requires_key:
            return None
        position += 1
        if (value := body[position]) >= 0x80:
            position += 1
            value += (body[position] - 1) << 7
        if value != 1:
            position += value >> 1
        position += 1
        if body[position]:
            position = read_headers(body, position, end)[1]
        else:
            position += 1
        is_long = (length | delta | key | value) > TWO_BYTES_MAX
        if is_long or position != end or offset != expected or length & 1:
            return None
        if (key & 1 and key != 1) or (value & 1 and value != 1):  # another null than -1: rare
            return None
        timestamp = (delta >> 1) ^ -(delta & 1)
        if timestamp > most:
            most = timestamp
        if timestamp < least:
            least = timestamp
    return (least, most) if position == len(body) else None
