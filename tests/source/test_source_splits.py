"""Ranges are split into tasks, and the lag into batches."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moldau.model.ids import TopicPartition
from pyspark_moldau.source.offset_ranges import OffsetRange, split
from pyspark_moldau.source.rate_limit import RateLimit, share

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


def sizes(splits: list[OffsetRange]) -> list[int]:
    return [part.size for part in splits]


def test_ranges_are_not_split_by_default_and_empty_ones_are_dropped() -> None:
    ranges = [
        OffsetRange("t", 1, 0, 10),
        OffsetRange("t", 0, 5, 6),
        OffsetRange("t", 2, 7, 7),
        OffsetRange("t", 3, 9, 7),
    ]
    assert split(ranges, None, None) == [OffsetRange("t", 0, 5, 6), OffsetRange("t", 1, 0, 10)]


def test_split_has_at_most_max_records() -> None:
    assert sizes(split([OffsetRange("t", 0, 0, 10)], None, 4)) == [3, 3, 4]
    assert sizes(split([OffsetRange("t", 0, 0, 8)], None, 4)) == [4, 4]


def test_largest_range_is_split_first() -> None:
    splits = split([OffsetRange("t", 0, 0, 100), OffsetRange("t", 1, 0, 300)], 4, None)
    assert [(part.partition, part.size) for part in splits] == [
        (0, 100),
        (1, 100),
        (1, 100),
        (1, 100),
    ]


def test_single_record_is_not_split() -> None:
    assert sizes(split([OffsetRange("t", 0, 0, 3)], 100, None)) == [1, 1, 1]
    assert split([], 100, None) == []


def test_max_records_may_give_more_splits_than_min_partitions() -> None:
    assert len(split([OffsetRange("t", 0, 0, 100)], 2, 10)) == 10


@pytest.mark.proves("D1")
@given(
    st.lists(st.tuples(st.integers(0, 10**12), st.integers(0, 10**6)), max_size=8),
    st.none() | st.integers(1, 50),
    st.none() | st.integers(100_000, 10**7),
)
@settings(deadline=None)
def test_splits_cover_the_ranges_and_respect_both_limits(
    extents: list[tuple[int, int]], partitions_min: int | None, records_max: int | None
) -> None:
    ranges = [OffsetRange("t", index, start, start + size, "id") for index, (start, size) in enumerate(extents)]
    splits = split(ranges, partitions_min, records_max)
    for each in ranges:
        own = [part for part in splits if part.partition == each.partition]
        bounds = [(part.from_offset, part.until_offset) for part in own]
        assert sum(part.size for part in own) == each.size
        assert all(before[1] == after[0] for before, after in pairwise(bounds))
        assert not own or (bounds[0][0], bounds[-1][1]) == (each.from_offset, each.until_offset)
    assert all(0 < part.size <= (records_max or part.size) and part.topic_id == "id" for part in splits)
    assert len(splits) >= min(partitions_min or 0, sum(each.size for each in ranges))


@pytest.mark.proves("D1")
def test_limit_is_shared_in_proportion_to_the_lag() -> None:
    assert share(40, {A: 0, B: 100}, {A: 300, B: 200}) == {A: 30, B: 110}


@pytest.mark.proves("D1")
def test_small_lag_beside_a_large_one_advances() -> None:
    assert share(10, {A: 0, B: 0}, {A: 1_000_000, B: 1}) == {A: 9, B: 1}


def test_partition_without_lag_stays_and_a_truncated_one_moves_back() -> None:
    assert share(10, {A: 0, B: 5}, {A: 100, B: 5}) == {A: 10, B: 5}
    assert share(10, {A: 0, B: 5}, {A: 100, B: 3}) == {A: 10, B: 3}


def test_lag_below_the_limit_is_read_completely() -> None:
    assert share(150, {A: 0, B: 0}, {A: 100, B: 50}) == {A: 100, B: 50}


@pytest.mark.proves("D1")
def test_batch_waits_for_min_offsets_up_to_the_trigger_delay() -> None:
    rate = RateLimit(100, None, 1000)
    assert rate.limit({A: 0}, {A: 1}, 0, waits=True) == {A: 1}  # the first batch does not wait
    assert rate.limit({A: 1}, {A: 50}, 999, waits=True) is None
    assert rate.limit({A: 1}, {A: 101}, 999, waits=True) == {A: 101}
    assert rate.limit({A: 101}, {A: 102}, 1998, waits=True) is None
    assert rate.limit({A: 101}, {A: 102}, 1999, waits=True) == {A: 102}


def test_bounded_run_does_not_wait_for_min_offsets() -> None:
    rate = RateLimit(100, 40, 1000, _last_batch_ms=0)
    assert rate.limit({A: 0}, {A: 50}, 1, waits=False) == {A: 40}
