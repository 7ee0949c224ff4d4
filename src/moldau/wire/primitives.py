"""Runtime support of compiled codecs: varints, tag sections, and the two errors of this layer."""

import struct
from typing import Final

from moldau.wire.limits import STRING_BYTES_MAX, TAGS_MAX


class Malformed(ValueError):
    """The bytes are not a valid message."""


class Unencodable(ValueError):
    """A message has a value that cannot be represented on the wire."""


# Raised in compiled decoders by reads past the end or invalid UTF-8.
DECODE_FAILURES: Final = (struct.error, IndexError, UnicodeDecodeError, OverflowError)
ENCODE_FAILURES: Final = (struct.error, TypeError, AttributeError, UnicodeEncodeError, OverflowError)

VARINT_BYTES_MAX: Final = 5


def read_uvarint(buffer: bytes | memoryview, position: int) -> tuple[int, int]:
    """Read an unsigned varint of at most 32 bits; return it and the position after it."""
    value = 0
    for shift in range(0, 7 * VARINT_BYTES_MAX, 7):
        byte = buffer[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > 0xFFFFFFFF:
                break
            return value, position
    raise Malformed("a varint does not fit in 32 bits")


def skip_tags(buffer: bytes | memoryview, position: int, end: int) -> int:
    """Skip a tag section; return the position after it."""
    count, position = read_uvarint(buffer, position)
    check_tag_count(count)
    for _ in range(count):
        _, position = read_uvarint(buffer, position)
        size, position = read_uvarint(buffer, position)
        position += size
        if position > end:
            raise Malformed("a tagged field exceeds the message")
    return position


def check_tag_count(count: int) -> None:
    if count > TAGS_MAX:
        raise Malformed(f"{count} tagged fields in one section; {TAGS_MAX} are allowed")


def _uvarint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


# Almost every length on the wire is below this; a table lookup costs a tenth of the loop above.
SMALL_MAX: Final = 0xFFF
SMALL: Final = tuple(_uvarint(value) for value in range(SMALL_MAX + 1))


def uvarint(value: int) -> bytes:
    """Encode an unsigned varint of at most 32 bits."""
    if 0 <= value <= SMALL_MAX:
        return SMALL[value]
    if not 0 <= value <= 0xFFFFFFFF:
        raise OverflowError(f"{value} does not fit in an unsigned varint")
    return _uvarint(value)


def string_length(size: int) -> bytes:
    """Encode the length prefix of a compact string that is too long for the table."""
    if size > STRING_BYTES_MAX:
        raise OverflowError(f"a string of {size} bytes; {STRING_BYTES_MAX} are allowed")
    return _uvarint(size + 1)
