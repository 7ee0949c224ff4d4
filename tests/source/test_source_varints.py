"""Varints of all lengths are read for many records at once, like one by one."""

from itertools import accumulate

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from moldau.model.errors import CorruptMessage
from moldau.records.varint import encode_varint
from pyspark_moldau.codec.record_fields import read_varints

ONE_BYTE = st.integers(-64, 63)
TWO_BYTES = st.integers(-8192, 8191)
ANY = st.integers(-(2**63), 2**63 - 1)
LONGEST = 10


@pytest.mark.proves("D1")
@example([1000, 1])
@example([-1000, 1, 1, -1000])
@given(st.one_of([st.lists(each, min_size=1, max_size=40) for each in (ONE_BYTE, TWO_BYTES, ONE_BYTE | ANY, ANY)]))
def test_varints_of_all_lengths_are_read_at_once(numbers: list[int]) -> None:
    written = [encode_varint(each) for each in numbers]
    ends = list(accumulate(len(each) for each in written))
    content = np.frombuffer(b"".join(written), np.uint8)
    found, field_ends = read_varints(content, np.array([0, *ends[:-1]]), LONGEST)
    assert found.tolist() == numbers
    assert field_ends.tolist() == ends


@pytest.mark.parametrize("bytes_max", [5, 10])
def test_varint_without_an_end_is_rejected(bytes_max: int) -> None:
    content = np.frombuffer(b"\x02" + b"\x80" * 20, np.uint8)
    with pytest.raises(CorruptMessage, match=f"longer than {bytes_max} bytes"):
        read_varints(content, np.array([0, 1]), bytes_max)
