"""The vectorised search for record starts finds the same ones as a sequential search."""

import random
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moldau.model.errors import CorruptMessage
from moldau.records.varint import encode_varint
from pyspark_moldau.codec.record_starts import Span, find_record_starts

# Count and length of equal neighbours; from 8,192 on, a length is encoded in three bytes.
NEIGHBOURS = st.lists(
    st.tuples(st.integers(1, 300), st.integers(1, 200) | st.sampled_from([63, 64, 8191, 8192])), min_size=1, max_size=5
)


def records(lengths: list[int]) -> list[bytes]:
    chance = random.Random(7)
    return [encode_varint(each) + b"\x00" + chance.randbytes(each - 1) for each in lengths]


def concatenate(batches: list[list[bytes]]) -> tuple[bytes, list[Span], list[int]]:
    """Concatenate batches with other bytes before each; return the content, its batches and the record starts."""
    content, spans, starts = b"", [], []
    for batch in batches:
        content += b"in front"
        start = len(content)
        for record in batch:
            starts.append(len(content))
            content += record
        spans.append(Span(start, len(content), len(batch)))
    return content, spans, starts


@given(st.lists(NEIGHBOURS, min_size=1, max_size=3))
@settings(max_examples=25, deadline=None)
def test_record_starts_are_found_for_any_neighbouring_lengths(batches: list[list[tuple[int, int]]]) -> None:
    lengths = [[length for count, length in batch for _ in range(count)] for batch in batches]
    content, spans, starts = concatenate([records(each) for each in lengths])
    assert find_record_starts(content, spans).tolist() == starts


def test_single_different_length_among_equal_ones_is_found() -> None:
    for index in (0, 1, 62, 63, 64, 65, 298, 299):
        lengths = [100] * 300
        lengths[index] = 101
        content, spans, starts = concatenate([records(lengths)])
        assert find_record_starts(content, spans).tolist() == starts


@pytest.mark.parametrize("lengths", [[100] * 200, list(range(1, 200))])
@pytest.mark.parametrize("more", [-1, 1])
def test_records_that_do_not_end_with_their_batch_are_rejected(lengths: list[int], more: int) -> None:
    content, (span,), _ = concatenate([records(lengths)])
    with pytest.raises(CorruptMessage, match="their batch at"):
        find_record_starts(content + b"\x02\x00" * 20, [span._replace(records=span.records + more)])
    with pytest.raises(CorruptMessage, match="their batch at"):
        find_record_starts(content + b"\x02\x00" * 20, [span._replace(end=span.end + more)])


def test_false_record_count_uses_no_more_memory_than_the_batch() -> None:
    for content, (span,), _ in (concatenate([records([100] * 200)]), concatenate([records(list(range(1, 200)))])):
        tracemalloc.start()
        try:
            with pytest.raises((IndexError, CorruptMessage)):
                find_record_starts(content, [span._replace(records=1 << 30)])
            assert tracemalloc.get_traced_memory()[1] < 16 * len(content)
        finally:
            tracemalloc.stop()


def test_record_chain_beyond_the_content_is_an_error() -> None:
    content, (span,), _ = concatenate([records(list(range(1, 200)))])
    with pytest.raises(IndexError):
        find_record_starts(content, [span._replace(records=1 << 30)])
    with pytest.raises((IndexError, CorruptMessage)):
        find_record_starts(b"\x00" * 500, [Span(0, 500, 501)])
