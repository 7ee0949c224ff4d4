"""Zigzag varints: the encoding of lengths, counts and deltas in records."""

from typing import Final

from moldau.model.errors import CorruptMessage

_SINGLE: Final = tuple(bytes((encoded,)) for encoded in range(0x80))
_VARINT_BYTES_MAX: Final = 5
_VARLONG_BYTES_MAX: Final = 10


def encode_varint(value: int) -> bytes:
    """Encode a signed number of at most 64 bits; small magnitudes take one byte."""
    encoded = (value << 1) ^ (value >> 63)
    if encoded < 0x80:
        return _SINGLE[encoded]
    if encoded < 0x4000:
        return bytes((encoded & 0x7F | 0x80, encoded >> 7))
    return _encode_long(encoded)


def _encode_long(encoded: int) -> bytes:
    out = bytearray()
    while encoded >= 0x80:
        out.append(encoded & 0x7F | 0x80)
        encoded >>= 7
    out.append(encoded)
    return bytes(out)


def read_varint(buffer: bytes, position: int) -> tuple[int, int]:
    """Read a 32-bit varint; return it and the position after it. IndexError at the end of the buffer."""
    if (encoded := buffer[position]) < 0x80:
        return (encoded >> 1) ^ -(encoded & 1), position + 1
    if (second := buffer[position + 1]) < 0x80:
        encoded = encoded & 0x7F | second << 7
        return (encoded >> 1) ^ -(encoded & 1), position + 2
    return _read_long(buffer, position, _VARINT_BYTES_MAX, 32)


def read_varlong(buffer: bytes, position: int) -> tuple[int, int]:
    """Read a 64-bit varint; return it and the position after it. IndexError at the end of the buffer."""
    first = buffer[position]
    if first >= 0x80 and (second := buffer[position + 1]) < 0x80:
        encoded = first & 0x7F | second << 7
        return (encoded >> 1) ^ -(encoded & 1), position + 2
    return _read_long(buffer, position, _VARLONG_BYTES_MAX, 64)


def _read_long(buffer: bytes, position: int, bytes_max: int, bits: int) -> tuple[int, int]:
    encoded = 0
    for index in range(bytes_max):
        byte = buffer[position + index]
        encoded |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            if encoded >> bits:
                break
            return (encoded >> 1) ^ -(encoded & 1), position + index + 1
    raise CorruptMessage(f"invalid varint of {bits} bits at byte {position} of the records")
