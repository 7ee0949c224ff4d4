"""The simple assignor of share groups: properties over random groups."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.machines.groups.consumer.assignors import Subscriber
from moldau.machines.groups.share.assignor import assign_simple
from moldau.model.ids import TopicId

pytestmark = pytest.mark.proves("C8")

TOPICS = [TopicId(bytes([number] * 16)) for number in range(3)]

counts_of_topics = st.fixed_dictionaries({topic: st.integers(1, 12) for topic in TOPICS})
subscriptions = st.dictionaries(
    st.integers(0, 40).map("m{:02}".format), st.sets(st.sampled_from(TOPICS)).map(frozenset), max_size=15
)


def check(members: list[Subscriber], counts: dict[TopicId, int]) -> dict[str, dict[TopicId, frozenset[int]]]:
    assigned = assign_simple(members, counts)
    assert assigned.keys() == {each.member_id for each in members}
    for topic in TOPICS:
        readers = [each.member_id for each in members if topic in each.topic_ids]
        given_to = {each: assigned[each].get(topic, frozenset()) for each in assigned}
        assert all(not given_to[each] for each in given_to if each not in readers)
        if not readers:
            continue
        per_partition = Counter(index for indexes in given_to.values() for index in indexes)
        assert per_partition.keys() == set(range(counts[topic]))
        assert max(per_partition.values()) - min(per_partition.values()) <= 1
        per_member = [len(given_to[each]) for each in readers]
        assert min(per_member) >= 1 or len(readers) > counts[topic] * max(per_partition.values())
        assert max(per_member) - min(per_member) <= 1
        if len(readers) <= counts[topic]:
            assert set(per_partition.values()) == {1}
    return {member_id: dict(each) for member_id, each in assigned.items()}  # type: ignore[arg-type]


@given(subscriptions, counts_of_topics)
def test_assignment_is_complete_and_balanced(
    subscribed: dict[str, frozenset[TopicId]], counts: dict[TopicId, int]
) -> None:
    check([Subscriber(name, topics) for name, topics in subscribed.items()], counts)


@given(subscriptions, subscriptions, counts_of_topics, counts_of_topics)
def test_assignment_stays_complete_and_balanced_after_changes(
    before: dict[str, frozenset[TopicId]],
    after: dict[str, frozenset[TopicId]],
    old_counts: dict[TopicId, int],
    new_counts: dict[TopicId, int],
) -> None:
    first = check([Subscriber(name, topics) for name, topics in before.items()], old_counts)
    check([Subscriber(name, topics, first.get(name, {})) for name, topics in after.items()], new_counts)


@given(subscriptions, counts_of_topics)
def test_unchanged_group_keeps_its_assignment(
    subscribed: dict[str, frozenset[TopicId]], counts: dict[TopicId, int]
) -> None:
    first = check([Subscriber(name, topics) for name, topics in subscribed.items()], counts)
    again = [Subscriber(name, topics, first[name]) for name, topics in subscribed.items()]
    assert check(again, counts) == first


def test_new_member_moves_only_its_share() -> None:
    members = [Subscriber("a", frozenset(TOPICS[:1])), Subscriber("b", frozenset(TOPICS[:1]))]
    first = assign_simple(members, {TOPICS[0]: 6})
    grown = [Subscriber(each.member_id, each.topic_ids, first[each.member_id]) for each in members]
    second = assign_simple([*grown, Subscriber("c", frozenset(TOPICS[:1]))], {TOPICS[0]: 6})
    for name in ("a", "b"):
        assert second[name][TOPICS[0]] < first[name][TOPICS[0]]
        assert len(second[name][TOPICS[0]]) == 2
