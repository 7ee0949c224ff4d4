"""Reassignment plans in Kafka's format, and planning with few moves."""

import json
from collections import Counter, deque
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, Final

from moldau.machines.metadata.topic_names import is_topic_name
from moldau.model.ids import TopicPartition
from moldau.model.settings import INT_MAX

Assignment = dict[TopicPartition, tuple[int, ...]]
Racks = Mapping[int, str | None]  # of every candidate broker

VERSION: Final = 1
ANY_LOG_DIR: Final = "any"


class InvalidPlan(ValueError):
    """The plan is malformed or cannot be executed."""


# Files ----------------------------------------------------------------------------------------------------------------


def encode_plan(assignment: Mapping[TopicPartition, Sequence[int]]) -> str:
    partitions = [
        {
            "topic": topic_partition.topic,
            "partition": topic_partition.partition,
            "replicas": list(replicas),
            "log_dirs": [ANY_LOG_DIR] * len(replicas),
        }
        for topic_partition, replicas in sorted(assignment.items())
    ]
    return json.dumps({"version": VERSION, "partitions": partitions})


def decode_plan(text: str) -> Assignment:
    """Parse a plan; `InvalidPlan` explains what is wrong."""
    document = _json(text)
    assignment: Assignment = {}
    for each in _list(document, "partitions"):
        topic_partition, replicas = _row(each)
        if topic_partition in assignment:
            raise InvalidPlan(f"the plan contains {topic_partition} twice")
        assignment[topic_partition] = replicas
    if not assignment:
        raise InvalidPlan("the plan contains no partitions")
    return assignment


def decode_topics(text: str) -> list[str]:
    """Parse topics in Kafka's format `{"version": 1, "topics": [{"topic": "orders"}]}`."""
    rows = _list(_json(text), "topics")
    if not rows or not all(_has_topic(each) for each in rows):
        raise InvalidPlan('the file should read {"version": 1, "topics": [{"topic": "NAME"}]}')
    return [_topic(each) for each in rows]


def decode_partitions(text: str) -> list[TopicPartition]:
    """Parse partitions in Kafka's format `{"partitions": [{"topic": "orders", "partition": 0}]}`."""
    rows = _list(_json(text), "partitions")
    if not all(_has_topic(each) and "partition" in each for each in rows):
        raise InvalidPlan('the file should read {"partitions": [{"topic": "NAME", "partition": 0}]}')
    return [_place(each) for each in rows]


def _json(text: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidPlan(f"not JSON: {error}") from None
    if not isinstance(document, dict):
        raise InvalidPlan("not a JSON object")
    if document.get("version", VERSION) != VERSION:
        raise InvalidPlan(f"unsupported version {document['version']}: must be {VERSION}")
    return document


def _list(document: Mapping[str, Any], name: str) -> list[Any]:
    found = document.get(name)
    if not isinstance(found, list):
        raise InvalidPlan(f'it has no list "{name}"')
    return found


def _row(document: Any) -> tuple[TopicPartition, tuple[int, ...]]:
    if not _has_topic(document) or "partition" not in document or "replicas" not in document:
        raise InvalidPlan(f"topic, partition or replicas missing: {json.dumps(document)}")
    topic_partition, replicas = _place(document), document["replicas"]
    if not isinstance(replicas, list) or not replicas:
        raise InvalidPlan(
            f"{topic_partition} has {json.dumps(replicas)}: replicas must be one or more distinct brokers"
        )
    holders = tuple(_number(each, f"the broker {json.dumps(each)} of {topic_partition}") for each in replicas)
    if len(set(holders)) < len(holders):
        raise InvalidPlan(f"{topic_partition} has {list(holders)}: replicas must be one or more distinct brokers")
    _check_log_dirs(topic_partition, document.get("log_dirs"))
    return topic_partition, holders


def _has_topic(document: Any) -> bool:
    return isinstance(document, dict) and isinstance(document.get("topic"), str)


def _topic(document: Mapping[str, Any]) -> str:
    name = str(document["topic"])
    if not is_topic_name(name):
        raise InvalidPlan(f"invalid topic name {json.dumps(name)}")
    return name


def _place(document: Mapping[str, Any]) -> TopicPartition:
    topic, index = _topic(document), document["partition"]
    return TopicPartition(topic, _number(index, f"the partition {json.dumps(index)} of {topic}"))


def _number(document: Any, what: str) -> int:
    """Reject values that are not integers, such as 1.5 and true."""
    if type(document) is not int or not 0 <= document <= INT_MAX:
        raise InvalidPlan(f"{what} is not a number from 0 to {INT_MAX}")
    return document


def _check_log_dirs(topic_partition: TopicPartition, document: Any) -> None:
    if document is not None and not isinstance(document, list):
        raise InvalidPlan(
            f'{topic_partition} has log_dirs that are not a list: write "{ANY_LOG_DIR}" for each replica, or nothing'
        )
    if any(each != ANY_LOG_DIR for each in document or ()):
        raise InvalidPlan(f'{topic_partition} has log_dirs, but only "{ANY_LOG_DIR}" is supported')


# Planning -------------------------------------------------------------------------------------------------------------


def plan_drain(current: Assignment, leaving: Iterable[int], racks: Racks) -> Assignment:
    """Replace these brokers in all partitions, and balance the preferred leaders; no other replica moves.

    The order of replicas changes only in partitions of which a replica is replaced.
    """
    going = sorted(set(leaving))
    placing = _Placement(current, {broker: rack for broker, rack in racks.items() if broker not in going})
    placing.replace_all(going)
    placing.place_better()
    placing.share_leaders(of=set(placing.changes))
    return placing.changes


def plan_balance(current: Assignment, racks: Racks, count: int | None = None) -> Assignment:
    """Balance replicas and preferred leaders of these partitions over the brokers, with few moves.

    Each partition gets `count` replicas, or keeps its number. The result has only changed partitions; a change of order
    alone moves no records.
    """
    if count is not None and count > len(racks):
        raise InvalidPlan(f"{count} replicas require {count} brokers, but only {len(racks)} are available")
    placing = _Placement(current, racks)
    if count is not None:
        placing.resize(count)
    placing.replace_all(sorted({broker for replicas in current.values() for broker in replicas if broker not in racks}))
    placing.place_better()
    placing.even_out()
    placing.share_leaders()
    return placing.changes


Step = tuple[
    TopicPartition, int, int
]  # partition, source broker, target broker (of a replica or the preferred leadership)
Edges = dict[int, dict[int, TopicPartition]]  # possible moves from one broker to another


class _Placement:
    """An assignment under change, with its counts per broker."""

    def __init__(self, current: Assignment, racks: Racks) -> None:
        self._current = current
        self._assignment = dict(sorted(current.items()))
        self._racks = racks if all(racks.values()) else dict.fromkeys(racks)  # racks count only if all brokers have one
        self._held = Counter(each for replicas in current.values() for each in replicas)
        self._led = Counter(replicas[0] for replicas in current.values())
        self._per_topic = Counter(
            (topic_partition.topic, each) for topic_partition, replicas in current.items() for each in replicas
        )

    @property
    def changes(self) -> Assignment:
        return {
            topic_partition: replicas
            for topic_partition, replicas in self._assignment.items()
            if replicas != self._current[topic_partition]
        }

    def resize(self, count: int) -> None:
        """Set the number of replicas; remove those on leaving brokers first, and the preferred leader last."""
        for topic_partition in self._assignment:
            while len(self._assignment[topic_partition]) > count:
                self._remove(topic_partition, self._least_missed(topic_partition))
            while len(self._assignment[topic_partition]) < count:
                self._add(topic_partition, self._most_welcome(topic_partition))

    def replace_all(self, going: Sequence[int]) -> None:
        """Replace each of these brokers in all partitions."""
        for topic_partition in self._assignment:
            for broker in going:
                if broker in self._assignment[topic_partition]:
                    self._move(topic_partition, broker, self._best_for(topic_partition, broker))

    def place_better(self) -> None:
        """Redirect replicas that must be copied anyway, at no cost, while that improves the balance."""
        while path := _first_path(self._racks, self._copies_to_hand_on(), self._held):
            for step in path:
                self._move(*step)

    def even_out(self) -> None:
        """Move replicas from the most to the least loaded brokers while that improves the balance."""
        while step := self._next_move():
            self._move(*step)

    def share_leaders(self, of: Container[TopicPartition] | None = None) -> None:
        """Reorder replicas, of these partitions or of all, until preferred leaders are balanced."""
        movable = self._assignment if of is None else of
        while path := _first_path(self._racks, self._leads_to_hand_on(movable), self._led):
            for topic_partition, giver, taker in path:
                self._led[giver] -= 1
                self._led[taker] += 1
                others = (each for each in self._assignment[topic_partition] if each != taker)
                self._assignment[topic_partition] = (taker, *others)

    def _best_for(self, topic_partition: TopicPartition, leaving: int) -> int:
        replicas = self._assignment[topic_partition]
        candidates = [each for each in self._racks if each not in replicas]
        if not candidates:
            raise InvalidPlan(
                f"{topic_partition} has {len(replicas)} replicas, but too few brokers are left without broker "
                f"{leaving}: add a broker, or reduce the replication factor"
            )
        leads = replicas[0] == leaving
        return min(
            candidates, key=lambda each: (*self._cost(topic_partition, leaving, each), self._led[each] * leads, each)
        )

    def _most_welcome(self, topic_partition: TopicPartition) -> int:
        replicas = self._assignment[topic_partition]
        return min(
            (each for each in self._racks if each not in replicas),
            key=lambda each: (
                self._crowding((*replicas, each)),
                self._per_topic[topic_partition.topic, each],
                self._held[each],
                each,
            ),
        )

    def _least_missed(self, topic_partition: TopicPartition) -> int:
        replicas = self._assignment[topic_partition]

        def regret(broker: int) -> tuple[bool, bool, int, int]:
            others = tuple(each for each in replicas if each != broker)
            return broker in self._racks, broker == replicas[0], self._crowding(others), -self._held[broker]

        return min(reversed(replicas), key=regret)

    def _add(self, topic_partition: TopicPartition, broker: int) -> None:
        self._assignment[topic_partition] = (*self._assignment[topic_partition], broker)
        self._held[broker] += 1
        self._per_topic[topic_partition.topic, broker] += 1

    def _remove(self, topic_partition: TopicPartition, broker: int) -> None:
        before = self._assignment[topic_partition]
        after = self._assignment[topic_partition] = tuple(each for each in before if each != broker)
        self._held[broker] -= 1
        self._per_topic[topic_partition.topic, broker] -= 1
        self._led[before[0]] -= 1
        self._led[after[0]] += 1

    def _cost(self, topic_partition: TopicPartition, leaving: int, coming: int) -> tuple[int, int, int]:
        """The rack conflicts, then the new broker's replicas of this topic, and of all topics."""
        after = _with(self._assignment[topic_partition], leaving, coming)
        return self._crowding(after), self._per_topic[topic_partition.topic, coming], self._held[coming]

    def _crowding(self, replicas: Sequence[int]) -> int:
        racks = [rack for each in replicas if (rack := self._racks.get(each)) is not None]
        return len(racks) - len(set(racks))

    def _may_move(self, replicas: Sequence[int], giver: int, taker: int) -> bool:
        if giver not in replicas or taker in replicas:
            return False
        return self._crowding(_with(replicas, giver, taker)) <= self._crowding(replicas)

    def _next_move(self) -> Step | None:
        """Return a move between brokers whose replica counts differ by at least two."""
        ordered = sorted(self._racks, key=lambda each: (self._held[each], each))
        for giver in reversed(ordered):
            for taker in ordered:
                if self._held[giver] - self._held[taker] < 2:
                    break
                if topic_partition := self._movable(giver, taker):
                    return topic_partition, giver, taker
        return None

    def _movable(self, giver: int, taker: int) -> TopicPartition | None:
        """Return the partition whose move improves its topic's balance most without a rack conflict."""
        topic_partitions = (
            topic_partition
            for topic_partition, replicas in self._assignment.items()
            if self._may_move(replicas, giver, taker)
        )
        gain = self._per_topic
        return max(topic_partitions, key=lambda each: gain[each.topic, giver] - gain[each.topic, taker], default=None)

    def _move(self, topic_partition: TopicPartition, giver: int, taker: int) -> None:
        before = self._assignment[topic_partition]
        self._assignment[topic_partition] = _with(before, giver, taker)
        for broker, step in ((giver, -1), (taker, 1)):
            self._held[broker] += step
            self._per_topic[topic_partition.topic, broker] += step
            self._led[broker] += step * (before[0] == giver)

    def _copies_to_hand_on(self) -> Edges:
        edges: Edges = {}
        for topic_partition, replicas in self._assignment.items():
            for giver in (each for each in replicas if each not in self._current[topic_partition]):
                for taker in self._racks:
                    if self._may_move(replicas, giver, taker):
                        edges.setdefault(giver, {}).setdefault(taker, topic_partition)
        return edges

    def _leads_to_hand_on(self, movable: Container[TopicPartition]) -> Edges:
        edges: Edges = {}
        for topic_partition, replicas in self._assignment.items():
            for taker in replicas[1:] if topic_partition in movable else ():
                edges.setdefault(replicas[0], {}).setdefault(taker, topic_partition)
        return edges


def _with(replicas: Sequence[int], leaving: int, coming: int) -> tuple[int, ...]:
    return tuple(coming if each == leaving else each for each in replicas)


def _first_path(brokers: Iterable[int], edges: Edges, load: Mapping[int, int]) -> list[Step] | None:
    """Find a chain of moves between brokers whose load differs by at least two; most loaded brokers first."""
    for giver in sorted(brokers, key=lambda each: (-load[each], each)):
        path = _path(giver, edges, load)
        if path is not None:
            return path
    return None


def _path(start: int, edges: Edges, load: Mapping[int, int]) -> list[Step] | None:
    came: dict[int, Step] = {}
    queue = deque([start])
    while queue:
        broker = queue.popleft()
        if load[start] - load[broker] >= 2:
            return _way_back(broker, start, came)
        for taker, topic_partition in edges.get(broker, {}).items():
            if taker != start and taker not in came:
                came[taker] = (topic_partition, broker, taker)
                queue.append(taker)
    return None


def _way_back(end: int, start: int, came: Mapping[int, Step]) -> list[Step]:
    steps = []
    while end != start:
        steps.append(came[end])
        end = came[end][1]
    return steps
