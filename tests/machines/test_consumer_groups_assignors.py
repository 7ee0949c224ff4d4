"""Properties of the server-side assignors: every partition once, balanced, with few moves."""

from collections import Counter
from collections.abc import Mapping, Sequence

import pytest
from consumer_scene import each_partition
from hypothesis import given, settings
from hypothesis import strategies as st

from moldau.machines.groups.consumer.assignors import Assignor, Subscriber, assign_range, assign_uniform
from moldau.machines.groups.consumer.partitions import Assignment
from moldau.model.ids import TopicId

Partition = tuple[TopicId, int]

TOPICS = [TopicId(bytes([number]) * 16) for number in range(1, 7)]
BOTH = pytest.mark.parametrize("assign", [assign_uniform, assign_range])

counts = st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 12), min_size=1)


def members(
    *member_ids: str, reading: Sequence[TopicId], previous: Mapping[str, Assignment] | None = None
) -> list[Subscriber]:
    return [Subscriber(each, frozenset(reading), (previous or {}).get(each, {})) for each in member_ids]


def names(count: int) -> list[str]:
    return [f"m{number:03}" for number in range(count)]


def owners(assignment: Mapping[str, Assignment]) -> dict[Partition, str]:
    return {partition: member_id for member_id, mine in assignment.items() for partition in each_partition(mine)}


def count_partitions(assignment: Assignment) -> int:
    return len(each_partition(assignment))


def moved(before: Mapping[str, Assignment], after: Mapping[str, Assignment]) -> int:
    """Return how many partitions moved between members that are still there."""
    now = owners(after)
    return sum(
        now[partition] != member_id
        for partition, member_id in owners(before).items()
        if member_id in after and partition in now
    )


def check_valid(
    subscribers: Sequence[Subscriber], partitions: Mapping[TopicId, int], after: Mapping[str, Assignment]
) -> None:
    assert after.keys() == {each.member_id for each in subscribers}
    given_out = Counter(partition for mine in after.values() for partition in each_partition(mine))
    read = {topic_id for each in subscribers for topic_id in each.topic_ids}
    assert set(given_out) == {(topic_id, index) for topic_id in read for index in range(partitions[topic_id])}
    assert set(given_out.values()) <= {1}
    for each in subscribers:
        assert after[each.member_id].keys() <= each.topic_ids
        assert all(after[each.member_id].values()), "no topic without partitions"


@st.composite
def any_group(draw: st.DrawFn) -> tuple[list[Subscriber], dict[TopicId, int]]:
    """Draw members with any subscriptions, and any previous assignment."""
    partitions = draw(counts)
    topic_ids = sorted(partitions)
    readers = {name: frozenset(draw(st.sets(st.sampled_from(topic_ids)))) for name in names(draw(st.integers(1, 8)))}
    earlier = [Subscriber(name, frozenset(draw(st.sets(st.sampled_from(topic_ids))))) for name in readers]
    grown = {topic_id: draw(st.integers(1, 12)) for topic_id in topic_ids}
    previous = assign_uniform(earlier, grown)
    instances = draw(st.sets(st.sampled_from(sorted(readers))))
    return [
        Subscriber(name, topics, previous[name], f"i-{name}" if name in instances else None)
        for name, topics in readers.items()
    ], partitions


class TestAnyAssignor:
    @BOTH
    @settings(max_examples=150, deadline=None)
    @given(group=any_group())
    def test_every_subscribed_partition_has_exactly_one_owner(
        self, assign: Assignor, group: tuple[list[Subscriber], dict[TopicId, int]]
    ) -> None:
        subscribers, partitions = group
        check_valid(subscribers, partitions, assign(subscribers, partitions))

    @BOTH
    @settings(max_examples=50, deadline=None)
    @given(group=any_group(), shuffle=st.randoms(use_true_random=False))
    def test_order_of_members_does_not_matter(
        self, assign: Assignor, group: tuple[list[Subscriber], dict[TopicId, int]], shuffle: "object"
    ) -> None:
        subscribers, partitions = group
        mixed = list(subscribers)
        shuffle.shuffle(mixed)  # type: ignore[attr-defined]
        assert assign(subscribers, partitions) == assign(mixed, partitions)

    @BOTH
    @settings(max_examples=50, deadline=None)
    @given(group=any_group())
    def test_unchanged_input_keeps_the_assignment(
        self, assign: Assignor, group: tuple[list[Subscriber], dict[TopicId, int]]
    ) -> None:
        subscribers, partitions = group
        first = assign(subscribers, partitions)
        again = assign([each._replace(previous=first[each.member_id]) for each in subscribers], partitions)
        assert all(again[name] is mine or again[name] == mine == {} for name, mine in first.items())

    @BOTH
    def test_no_members_get_no_assignment(self, assign: Assignor) -> None:
        assert assign([], {}) == {}

    @BOTH
    def test_member_without_subscription_gets_nothing(self, assign: Assignor) -> None:
        subscribers = [Subscriber("a", frozenset()), Subscriber("b", frozenset(TOPICS[:1]))]
        after = assign(subscribers, {TOPICS[0]: 3})
        assert after == {"a": {}, "b": {TOPICS[0]: {0, 1, 2}}}


class TestUniform:
    @settings(max_examples=150, deadline=None)
    @given(partitions=counts, count=st.integers(1, 12), earlier=st.integers(0, 12))
    def test_counts_differ_by_at_most_one_with_equal_subscriptions(
        self, partitions: dict[TopicId, int], count: int, earlier: int
    ) -> None:
        topic_ids = sorted(partitions)
        previous = assign_uniform(members(*names(earlier), reading=topic_ids), partitions)
        after = assign_uniform(members(*names(count), reading=topic_ids, previous=previous), partitions)
        sizes = [count_partitions(mine) for mine in after.values()]
        assert max(sizes) - min(sizes) <= 1

    @pytest.mark.proves("C2")
    @settings(max_examples=150, deadline=None)
    @given(partitions=counts, before=st.integers(1, 12), after=st.integers(1, 12))
    def test_as_few_partitions_move_as_balance_allows(
        self, partitions: dict[TopicId, int], before: int, after: int
    ) -> None:
        topic_ids = sorted(partitions)
        old = assign_uniform(members(*names(before), reading=topic_ids), partitions)
        new = assign_uniform(members(*names(after), reading=topic_ids, previous=old), partitions)
        assert moved(old, new) == fewest_moves(
            [count_partitions(old[each]) for each in names(min(before, after))], partitions, after
        )

    def test_new_member_gets_its_share_and_others_keep_the_rest(self) -> None:
        partitions = {TOPICS[0]: 6, TOPICS[1]: 6}
        old = assign_uniform(members("a", "b", reading=TOPICS[:2]), partitions)
        new = assign_uniform(members("a", "b", "c", reading=TOPICS[:2], previous=old), partitions)
        assert moved(old, new) == 4
        assert {name: {topic_id: len(mine) for topic_id, mine in each.items()} for name, each in new.items()} == {
            name: {TOPICS[0]: 2, TOPICS[1]: 2} for name in "abc"
        }

    def test_only_partitions_of_a_leaving_member_move(self) -> None:
        partitions = {TOPICS[0]: 12}
        old = assign_uniform(members("a", "b", "c", reading=TOPICS[:1]), partitions)
        new = assign_uniform(members("a", "c", reading=TOPICS[:1], previous=old), partitions)
        assert moved(old, new) == 0
        assert [count_partitions(new[each]) for each in "ac"] == [6, 6]

    def test_topic_is_spread_over_many_members_at_once(self) -> None:
        partitions = {TOPICS[0]: 4, TOPICS[1]: 4}
        after = assign_uniform(members("a", "b", reading=TOPICS[:2]), partitions)
        assert all(len(mine[topic_id]) == 2 for mine in after.values() for topic_id in TOPICS[:2])

    @pytest.mark.proves("C2")
    def test_partition_claimed_by_two_members_goes_to_one(self) -> None:
        previous = {"a": {TOPICS[0]: {0, 1}}, "b": {TOPICS[0]: {1, 2}}}
        after = assign_uniform(members("a", "b", reading=TOPICS[:1], previous=previous), {TOPICS[0]: 4})
        check_valid(members("a", "b", reading=TOPICS[:1]), {TOPICS[0]: 4}, after)

    @pytest.mark.proves("C5")
    @settings(max_examples=200, deadline=None)
    @given(group=any_group())
    def test_no_single_move_improves_the_balance(self, group: tuple[list[Subscriber], dict[TopicId, int]]) -> None:
        subscribers, partitions = group
        after = assign_uniform(subscribers, partitions)
        sizes = {name: count_partitions(mine) for name, mine in after.items()}
        for receiver in subscribers:
            for (topic_id, _), owner in owners(after).items():
                if topic_id in receiver.topic_ids:
                    assert sizes[owner] - sizes[receiver.member_id] <= 1

    def test_member_with_more_topics_gets_only_what_is_left(self) -> None:
        subscribers = [
            Subscriber("a", frozenset(TOPICS[:1])),
            Subscriber("b", frozenset(TOPICS[:2])),
            Subscriber("c", frozenset(TOPICS[:3])),
        ]
        after = assign_uniform(subscribers, {TOPICS[0]: 3, TOPICS[1]: 3, TOPICS[2]: 3})
        assert after == {"a": {TOPICS[0]: {0, 1, 2}}, "b": {TOPICS[1]: {0, 1, 2}}, "c": {TOPICS[2]: {0, 1, 2}}}

    def test_changed_subscription_revokes_only_the_old_topics(self) -> None:
        old = assign_uniform(members("a", "b", reading=TOPICS[:1]), {TOPICS[0]: 4})
        subscribers = [
            Subscriber("a", frozenset(TOPICS[1:2]), old["a"]),
            Subscriber("b", frozenset(TOPICS[:1]), old["b"]),
        ]
        after = assign_uniform(subscribers, {TOPICS[0]: 4, TOPICS[1]: 4})
        assert after["a"] == {TOPICS[1]: {0, 1, 2, 3}}
        assert after["b"] == {TOPICS[0]: {0, 1, 2, 3}}


def fewest_moves(held: list[int], partitions: Mapping[TopicId, int], count: int) -> int:
    """By definition: the shares may be assigned in any order, and the best order keeps the most."""
    least, extra = divmod(sum(partitions.values()), count)
    kept = [min(each, least) for each in held]
    could_keep_one_more = sum(each > least for each in held)
    return sum(held) - sum(kept) - min(extra, could_keep_one_more)


class TestRange:
    @pytest.mark.proves("C2")
    def test_partitions_of_equal_index_are_colocated(self) -> None:
        partitions = {TOPICS[0]: 7, TOPICS[1]: 7, TOPICS[2]: 7}
        after = assign_range(members("a", "b", "c", reading=TOPICS[:3]), partitions)
        assert after == {
            "a": dict.fromkeys(TOPICS[:3], frozenset({0, 1, 2})),
            "b": dict.fromkeys(TOPICS[:3], frozenset({3, 4})),
            "c": dict.fromkeys(TOPICS[:3], frozenset({5, 6})),
        }

    @settings(max_examples=100, deadline=None)
    @given(group=any_group())
    def test_ranges_are_contiguous_and_differ_by_at_most_one(
        self, group: tuple[list[Subscriber], dict[TopicId, int]]
    ) -> None:
        subscribers, partitions = group
        after = assign_range(subscribers, partitions)
        for topic_id in partitions:
            readers = [each for each in subscribers if topic_id in each.topic_ids]
            lengths = [len(after[each.member_id].get(topic_id, ())) for each in readers]
            assert max(lengths, default=0) - min(lengths, default=0) <= 1
            for each in readers:
                indexes = sorted(after[each.member_id].get(topic_id, ()))
                assert indexes == list(range(indexes[0], indexes[-1] + 1)) if indexes else True

    @pytest.mark.proves("C2")
    def test_static_members_are_sorted_first_by_instance_id(self) -> None:
        read = frozenset(TOPICS[:1])
        subscribers = [
            Subscriber("a", read),
            Subscriber("y", read, instance_id="two"),
            Subscriber("z", read, instance_id="one"),
        ]
        assert assign_range(subscribers, {TOPICS[0]: 3}) == {
            "z": {TOPICS[0]: {0}},
            "y": {TOPICS[0]: {1}},
            "a": {TOPICS[0]: {2}},
        }

    def test_each_topic_is_shared_by_its_subscribers(self) -> None:
        subscribers = [Subscriber("a", frozenset(TOPICS[:2])), Subscriber("b", frozenset(TOPICS[1:2]))]
        assert assign_range(subscribers, {TOPICS[0]: 2, TOPICS[1]: 3}) == {
            "a": {TOPICS[0]: {0, 1}, TOPICS[1]: {0, 1}},
            "b": {TOPICS[1]: {2}},
        }

    def test_excess_members_get_nothing(self) -> None:
        assert assign_range(members("a", "b", "c", reading=TOPICS[:1]), {TOPICS[0]: 2}) == {
            "a": {TOPICS[0]: {0}},
            "b": {TOPICS[0]: {1}},
            "c": {},
        }
