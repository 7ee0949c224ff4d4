"""The wire format of Confluent's serializers: a zero byte, the id of the schema in four bytes, and the encoded value.

With Protobuf, the indexes of the message within its file come before the value: `[1, 0]` is the first message that is
nested in the second one of the file. `[0]`, the first message of the file, is written as a single zero byte.
"""

import struct
from collections.abc import Sequence
from typing import Final

from moldau.schemas.types import UndecodableValue

MAGIC: Final = 0
HEADER: Final = struct.Struct(">bi")
NESTING_MAX: Final = 100
VARINT_BITS_MAX: Final = 35


def schema_id_of(data: bytes | None) -> int | None:
    """Return the id of the schema if bytes begin with the header."""
    if data is None or len(data) < HEADER.size or data[0] != MAGIC:
        return None
    _, schema_id = HEADER.unpack_from(data)
    return int(schema_id) if schema_id > 0 else None


def frame(schema_id: int, payload: bytes) -> bytes:
    """Return an encoded value with its header."""
    return HEADER.pack(MAGIC, schema_id) + payload


def payload_of(data: bytes) -> bytes:
    """Return what follows the header."""
    return data[HEADER.size :]


def indexes_as_bytes(indexes: Sequence[int]) -> bytes:
    """Return the place of a Protobuf message in its file, as it is written before the message."""
    if tuple(indexes) == (0,):
        return b"\0"
    return b"".join(_varint(each) for each in (len(indexes), *indexes))


def split_indexes(payload: bytes) -> tuple[tuple[int, ...], bytes]:
    """Return the place of a Protobuf message in its file, and the bytes of the message."""
    count, position = _read_varint(payload, 0)
    if not 0 <= count <= NESTING_MAX:
        raise UndecodableValue(f"{count} is not a number of message indexes")
    indexes = []
    for _ in range(count):
        index, position = _read_varint(payload, position)
        indexes.append(index)
    return tuple(indexes) or (0,), payload[position:]


def _varint(number: int) -> bytes:
    """Encode as a zigzag varint."""
    rest, found = number << 1, bytearray()  # never negative
    while rest > 0x7F:
        found.append(rest & 0x7F | 0x80)
        rest >>= 7
    found.append(rest)
    return bytes(found)


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while shift < VARINT_BITS_MAX and position < len(data):
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position
        shift += 7
    raise UndecodableValue("the message indexes are cut off")
