"""Zigzag varints at their edges."""

import pytest
from foreign_batches import decode_varint_elsewhere, encode_varint_elsewhere
from hypothesis import given
from hypothesis import strategies as st

from moldau.model.errors import CorruptMessage
from moldau.records.varint import encode_varint, read_varint, read_varlong

INT32 = [0, -1, 1, 63, -64, 64, -65, 8191, -8192, 8192, -8193, 1 << 20, (1 << 31) - 1, -(1 << 31)]
INT64 = [*INT32, 1 << 31, 1 << 62, (1 << 63) - 1, -(1 << 63)]


@pytest.mark.parametrize("value", INT32)
def test_edges_of_32_bits_round_trip(value: int) -> None:
    encoded = encode_varint(value)
    assert read_varint(b"\xff" + encoded + b"\xff", 1) == (value, 1 + len(encoded))


@pytest.mark.parametrize("value", INT64)
def test_edges_of_64_bits_round_trip(value: int) -> None:
    encoded = encode_varint(value)
    assert read_varlong(b"\xff" + encoded + b"\xff", 1) == (value, 1 + len(encoded))


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_kafka_python_agrees(value: int) -> None:
    theirs = encode_varint_elsewhere(value)
    assert encode_varint(value) == theirs
    assert decode_varint_elsewhere(theirs) == (value, len(theirs))


@pytest.mark.parametrize("encoded", [b"", b"\x80", b"\xff\xff", b"\xff\xff\xff\xff"])
def test_truncated_varint_is_an_index_error(encoded: bytes) -> None:
    for read in (read_varint, read_varlong):
        with pytest.raises(IndexError):
            read(encoded, 0)


@pytest.mark.parametrize("encoded", [b"\x80" * 5 + b"\x00", b"\xff\xff\xff\xff\x1f"])
def test_more_than_32_bits_are_rejected(encoded: bytes) -> None:
    with pytest.raises(CorruptMessage):
        read_varint(encoded, 0)


@pytest.mark.parametrize("encoded", [b"\x80" * 10 + b"\x00", b"\xff" * 9 + b"\x02"])
def test_more_than_64_bits_are_rejected(encoded: bytes) -> None:
    with pytest.raises(CorruptMessage):
        read_varlong(encoded, 0)
