"""State batches are combined as if each offset had its own state."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.machines.share_state.state_batches import combine
from moldau.machines.shares.state import StateBatch

pytestmark = pytest.mark.proves("C8")

batches = st.builds(
    lambda first, length, state, count: StateBatch(first, first + length, state, count),
    st.integers(0, 60),
    st.integers(0, 12),
    st.sampled_from([0, 2, 4]),
    st.integers(0, 3),
)
writes = st.lists(st.lists(batches, max_size=4), max_size=6)


def by_offset(found: tuple[StateBatch, ...]) -> dict[int, tuple[int, int]]:
    return {
        offset: (each.delivery_count, each.delivery_state)
        for each in found
        for offset in range(each.first_offset, each.last_offset + 1)
    }


@given(writes, st.integers(0, 70))
def test_highest_delivery_wins_at_each_offset(groups: list[list[StateBatch]], start_offset: int) -> None:
    combined: tuple[StateBatch, ...] = ()
    expected: dict[int, tuple[int, int]] = {}
    for group in groups:
        combined = combine(combined, group, 0)
        for each in group:
            for offset in range(each.first_offset, each.last_offset + 1):
                expected[offset] = max(expected.get(offset, (-1, -1)), (each.delivery_count, each.delivery_state))
    assert by_offset(combined) == expected
    trimmed = combine(combined, (), start_offset)
    assert by_offset(trimmed) == {offset: each for offset, each in expected.items() if offset >= start_offset}


@given(writes)
def test_batches_are_sorted_disjoint_and_joined(groups: list[list[StateBatch]]) -> None:
    combined = combine((), [each for group in groups for each in group], 0)
    for one, other in pairwise(combined):
        assert one.last_offset < other.first_offset
        assert one.last_offset + 1 < other.first_offset or one[2:] != other[2:]


@given(writes, st.randoms())
def test_order_of_writes_does_not_matter(groups: list[list[StateBatch]], random: object) -> None:
    shuffled = list(groups)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    results = []
    for order in (groups, shuffled):
        combined: tuple[StateBatch, ...] = ()
        for group in order:
            combined = combine(combined, group, 0)
        results.append(combined)
    assert results[0] == results[1]
