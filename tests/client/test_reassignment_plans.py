"""Reassignment plans: Kafka's file format, balanced plans with few moves."""

import json
from collections import Counter
from itertools import cycle, islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moldau.client.reassignment_plans import (
    Assignment,
    InvalidPlan,
    decode_partitions,
    decode_plan,
    decode_topics,
    encode_plan,
    plan_balance,
    plan_drain,
)
from moldau.model.ids import TopicPartition

pytestmark = pytest.mark.proves("H8")

NO_RACKS = dict.fromkeys((1, 2, 3, 4))
RACKS = {1: "a", 2: "a", 3: "b", 4: "b", 5: "c", 6: "c"}


def assigned(*replicas: tuple[int, ...], topic: str = "t") -> Assignment:
    return {TopicPartition(topic, index): each for index, each in enumerate(replicas)}


def spread(brokers: list[int], partitions: int, replicas: int, topic: str = "t") -> Assignment:
    """Assign replicas round-robin, as for a new topic."""
    rounds = cycle(brokers)
    rows = []
    for _ in range(partitions):
        rows.append(tuple(islice(rounds, replicas)))
        if len(brokers) % replicas == 0:
            next(rounds)
    return assigned(*rows, topic=topic)


def copies(before: Assignment, after: Assignment) -> int:
    return sum(broker not in before[place] for place, replicas in after.items() for broker in replicas)


def loads(assignment: Assignment, brokers: list[int]) -> list[int]:
    counts = Counter(each for replicas in assignment.values() for each in replicas)
    return [counts[each] for each in brokers]


def leads(assignment: Assignment, brokers: list[int]) -> list[int]:
    counts = Counter(replicas[0] for replicas in assignment.values())
    return [counts[each] for each in brokers]


# Files


def test_plan_round_trips() -> None:
    plan = assigned((1, 2), (3, 1))
    assert decode_plan(encode_plan(plan)) == plan
    first = json.loads(encode_plan(plan))["partitions"][0]
    assert first == {"topic": "t", "partition": 0, "replicas": [1, 2], "log_dirs": ["any", "any"]}


def test_plan_of_kafkas_tools_is_parsed() -> None:
    text = '{"version":1,"partitions":[{"topic":"foo1","partition":2,"replicas":[5,6],"log_dirs":["any","any"]}]}'
    assert decode_plan(text) == {TopicPartition("foo1", 2): (5, 6)}
    assert decode_plan('{"partitions":[{"topic":"a","partition":0,"replicas":[1]}]}') == assigned((1,), topic="a")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[", "not JSON"),
        ("[]", "not a JSON object"),
        ("{}", 'no list "partitions"'),
        ('{"version": 2, "partitions": []}', "version 2"),
        ('{"partitions": []}', "no partitions"),
        ('{"partitions": [{"topic": "t"}]}', "replicas missing"),
        ('{"partitions": [{"topic": "t", "partition": 0, "replicas": []}]}', "distinct brokers"),
        ('{"partitions": [{"topic": "t", "partition": 0, "replicas": [1, 1]}]}', "distinct brokers"),
        ('{"partitions": [{"topic": "t", "partition": 0, "replicas": [1], "log_dirs": ["/d"]}]}', "has log_dirs"),
        (
            '{"partitions": [{"topic":"t","partition":0,"replicas":[1]},{"topic":"t","partition":0,"replicas":[2]}]}',
            "t-0 twice",
        ),
        ('{"partitions": ["t-0"]}', "replicas missing"),
        ('{"partitions": [{"topic": 5, "partition": 0, "replicas": [1]}]}', "replicas missing"),
        ('{"partitions": [{"topic": "\\ud800", "partition": 0, "replicas": [1]}]}', "invalid topic name"),
        (
            '{"partitions": [{"topic": "t", "partition": 1.5, "replicas": [1]}]}',
            "the partition 1.5 of t is not a number",
        ),
        ('{"partitions": [{"topic": "t", "partition": true, "replicas": [1]}]}', "the partition true of t is no"),
        ('{"partitions": [{"topic": "t", "partition": -1, "replicas": [1]}]}', "the partition -1 of t is no"),
        (f'{{"partitions": [{{"topic": "t", "partition": {2**31}, "replicas": [1]}}]}}', "from 0 to 2147483647"),
        (
            '{"partitions": [{"topic": "t", "partition": 0, "replicas": "12"}]}',
            "replicas must be one or more distinct brokers",
        ),
        (
            '{"partitions": [{"topic": "t", "partition": 0, "replicas": {"1": 2}}]}',
            "replicas must be one or more distinct brokers",
        ),
        (
            '{"partitions": [{"topic": "t", "partition": 0, "replicas": [1.5]}]}',
            "the broker 1.5 of t-0 is not a number",
        ),
        (
            '{"partitions": [{"topic": "t", "partition": 0, "replicas": ["1"]}]}',
            'the broker "1" of t-0 is not a number',
        ),
        ('{"partitions": [{"topic": "t", "partition": 0, "replicas": [1], "log_dirs": 5}]}', "t-0 .* a list"),
        ('{"partitions": [{"topic": "t", "partition": 0, "replicas": [1], "log_dirs": "any"}]}', "t-0 .* a list"),
    ],
)
def test_invalid_plan_error_explains_the_problem(text: str, words: str) -> None:
    with pytest.raises(InvalidPlan, match=words):
        decode_plan(text)


def test_topic_and_partition_lists_use_kafkas_format() -> None:
    assert decode_topics('{"version": 1, "topics": [{"topic": "a"}, {"topic": "b"}]}') == ["a", "b"]
    assert decode_partitions('{"partitions": [{"topic": "a", "partition": 3}]}') == [TopicPartition("a", 3)]
    with pytest.raises(InvalidPlan, match="should read"):
        decode_topics('{"topics": ["a"]}')
    with pytest.raises(InvalidPlan, match="should read"):
        decode_partitions('{"partitions": [{"topic": "a"}]}')
    with pytest.raises(InvalidPlan, match="invalid topic name"):
        decode_topics('{"topics": [{"topic": "a b"}]}')


@pytest.mark.parametrize("number", ["1.5", "-1", '"1"', "true", "1e400", str(2**31)])
def test_partition_must_be_a_valid_number(number: str) -> None:
    with pytest.raises(InvalidPlan, match=r"the partition .* of a is not a number from 0 to 2147483647"):
        decode_partitions(f'{{"partitions": [{{"topic": "a", "partition": {number}}}]}}')


# Drain


def test_drain_moves_replicas_to_the_least_loaded_brokers() -> None:
    current = assigned((1, 2), (2, 3), (3, 1), (1, 4))
    plan = plan_drain(current, [1], NO_RACKS)
    assert set(plan) == {TopicPartition("t", index) for index in (0, 2, 3)}
    assert all(1 not in replicas for replicas in plan.values())
    assert copies(current, plan) == 3
    assert max(loads({**current, **plan}, [2, 3, 4])) - min(loads({**current, **plan}, [2, 3, 4])) <= 1


def test_drain_balances_all_replicas_together() -> None:
    current = assigned((2, 1), (3, 4), (1, 4), (2, 3), (2, 4), (3, 1))
    after = {**current, **plan_drain(current, [4], NO_RACKS)}
    assert loads(after, [1, 2, 3, 4]) == [4, 4, 4, 0]


@pytest.mark.parametrize("leaving", [1, 2, 3, 4])
def test_drain_leaves_leaders_balanced(leaving: int) -> None:
    topics = {"a": [1, 2, 3, 4], "b": [3, 4, 1, 2], "c": [2, 3, 4, 1]}
    current = {place: row for name, order in topics.items() for place, row in spread(order, 19, 3, name).items()}
    plan = plan_drain(current, [leaving], NO_RACKS)
    assert copies(current, plan) == sum(leaving in replicas for replicas in current.values())
    remaining = [each for each in NO_RACKS if each != leaving]
    assert leads({**current, **plan}, remaining) == [19, 19, 19]


def test_drain_keeps_the_order_of_other_replicas() -> None:
    assert plan_drain(assigned((1, 2, 3)), [2], NO_RACKS) == assigned((1, 4, 3))


def test_drain_is_rejected_when_too_few_brokers_remain() -> None:
    with pytest.raises(InvalidPlan, match=r"t-0 has 4 replicas.*add a broker"):
        plan_drain(assigned((1, 2, 3, 4)), [2], NO_RACKS)


def test_drain_keeps_racks_distinct() -> None:
    assert plan_drain(assigned((1, 3, 5)), [1], RACKS) == assigned((2, 3, 5))


# Balance


def test_balanced_assignment_does_not_change() -> None:
    assert plan_balance(assigned((1, 2), (2, 3), (3, 1)), dict.fromkeys((1, 2, 3))) == {}


def test_new_broker_gets_its_share_with_minimal_moves() -> None:
    current = spread([1, 2, 3], 12, 2)
    plan = plan_balance(current, NO_RACKS)
    after = {**current, **plan}
    assert loads(after, [1, 2, 3, 4]) == [6, 6, 6, 6]
    assert copies(current, plan) == 6
    assert leads(after, [1, 2, 3, 4]) == [3, 3, 3, 3]


def test_each_topic_is_balanced() -> None:
    current = {**spread([1, 2, 3], 4, 1, "a"), **spread([3, 2, 1], 4, 1, "b")}
    after = {**current, **plan_balance(current, NO_RACKS)}
    for topic in ("a", "b"):
        assert loads({place: each for place, each in after.items() if place.topic == topic}, [1, 2, 3, 4]) == [1] * 4


def test_replicas_leave_brokers_that_are_not_listed() -> None:
    current = spread([1, 2, 3, 4], 8, 2)
    after = {**current, **plan_balance(current, dict.fromkeys((1, 2)))}
    assert loads(after, [1, 2, 3, 4]) == [8, 8, 0, 0]
    assert leads(after, [1, 2]) == [4, 4]


def test_leadership_moves_along_chains_of_brokers() -> None:
    current = assigned((1, 2), (1, 2), (2, 3), (2, 3))
    after = {**current, **plan_balance(current, dict.fromkeys((1, 2, 3)))}
    assert copies(current, after) == 1
    assert sorted(leads(after, [1, 2, 3])) == [1, 1, 2]


@pytest.mark.proves("H8", part="partitions move by plan")
def test_increased_replication_keeps_existing_replicas() -> None:
    current = {**assigned((1,), (1,), (1,)), **spread([1, 2, 3], 3, 2, "b")}
    plan = plan_balance(current, dict.fromkeys((1, 2, 3)), 3)
    after = {**current, **plan}
    assert loads(after, [1, 2, 3]) == [6, 6, 6]
    assert leads(after, [1, 2, 3]) == [2, 2, 2]
    assert copies(current, plan) == 9


def test_decreased_replication_removes_leaving_brokers_and_keeps_the_leader() -> None:
    assert plan_balance(assigned((4, 1, 2)), dict.fromkeys((1, 2)), 2) == assigned((1, 2))
    assert plan_balance(assigned((1, 2, 3)), dict.fromkeys((1, 2, 3)), 1) == assigned((1,))
    assert plan_balance(assigned((1, 2, 3)), {1: "a", 2: "a", 3: "b"}, 2) == assigned((1, 3))


def test_more_replicas_than_brokers_are_rejected() -> None:
    with pytest.raises(InvalidPlan, match="4 replicas require 4 brokers, but only 3"):
        plan_balance(assigned((1, 2)), dict.fromkeys((1, 2, 3)), 4)


replicas_of_three = st.permutations([1, 2, 3, 4, 5, 6]).map(lambda each: tuple(each[:3]))


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(replicas_of_three, min_size=1, max_size=24),
    brokers=st.sets(st.integers(1, 6), min_size=3),
    has_racks=st.booleans(),
    count=st.none() | st.integers(1, 3),
)
def test_any_assignment_is_balanced_with_the_replication_factor(
    rows: list[tuple[int, ...]], brokers: set[int], has_racks: bool, count: int | None
) -> None:
    current = assigned(*rows)
    racks = {each: RACKS[each] if has_racks else None for each in sorted(brokers)}
    plan = plan_balance(current, racks, count)
    after = {**current, **plan}
    assert all(len(set(replicas)) == len(replicas) == (count or 3) for replicas in after.values())
    assert all(set(replicas) <= brokers for replicas in after.values())
    assert all(current[place] != replicas for place, replicas in plan.items())
    if not has_racks:
        counts = loads(after, sorted(brokers))
        assert max(counts) - min(counts) <= 1
    led = Counter(replicas[0] for replicas in after.values())
    assert all(led[replicas[0]] - led[each] <= 1 for replicas in after.values() for each in replicas)


@settings(max_examples=60, deadline=None)
@given(rows=st.lists(replicas_of_three, min_size=1, max_size=24))
def test_balancing_never_adds_rack_conflicts(rows: list[tuple[int, ...]]) -> None:
    current = assigned(*rows)
    for place, replicas in plan_balance(current, RACKS).items():
        assert len({RACKS[each] for each in replicas}) >= len({RACKS[each] for each in current[place]})


@settings(max_examples=60, deadline=None)
@given(rows=st.lists(replicas_of_three, min_size=1, max_size=24), leaving=st.integers(1, 6))
def test_drain_copies_each_replica_once(rows: list[tuple[int, ...]], leaving: int) -> None:
    current = assigned(*rows)
    plan = plan_drain(current, [leaving], RACKS)
    assert copies(current, plan) == sum(leaving in replicas for replicas in rows)
    assert all(leaving not in replicas for replicas in plan.values())
    assert set(plan) == {place for place, replicas in current.items() if leaving in replicas}
