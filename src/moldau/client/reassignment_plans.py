"""Plans of who is to hold which partition, as Kafka's tools write them, and making one that moves little."""

import json
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from moldau.machines.metadata.topic_names import is_topic_name
from moldau.model.ids import TopicPartition
from moldau.model.settings import INT_MAX

Assignment = dict[TopicPartition, tuple[int, ...]]
Racks = Mapping[int, str | None]  # of every broker that may hold something

VERSION: Final = 1
ANY_FOLDER: Final = "any"


class BrokenPlan(ValueError):
    """A plan that cannot be read, or that nobody could carry out."""


# Files ----------------------------------------------------------------------------------------------------------------


def encode_plan(assignment: Mapping[TopicPartition, Sequence[int]]) -> str:
    partitions = [
        {
            "topic": place.topic,
            "partition": place.partition,
            "replicas": list(replicas),
            "log_dirs": [ANY_FOLDER] * len(replicas),
        }
        for place, replicas in sorted(assignment.items())
    ]
    return json.dumps({"version": VERSION, "partitions": partitions})


def decode_plan(text: str) -> Assignment:
    """What a plan's file says; `BrokenPlan` tells what is wrong with it."""
    told = _json(text)
    assignment: Assignment = {}
    for each in _list(told, "partitions"):
        place, replicas = _row(each)
        if place in assignment:
            raise BrokenPlan(f"the plan names {place} twice")
        assignment[place] = replicas
    if not assignment:
        raise BrokenPlan("the plan names no partitions")
    return assignment


def decode_topics(text: str) -> list[str]:
    """The topics in a file of Kafka's form `{"version": 1, "topics": [{"topic": "orders"}]}`."""
    rows = _list(_json(text), "topics")
    if not rows or not all(_has_topic(each) for each in rows):
        raise BrokenPlan('the file should read {"version": 1, "topics": [{"topic": "NAME"}]}')
    return [_topic(each) for each in rows]


def decode_places(text: str) -> list[TopicPartition]:
    """The partitions in a file of Kafka's form `{"partitions": [{"topic": "orders", "partition": 0}]}`."""
    rows = _list(_json(text), "partitions")
    if not all(_has_topic(each) and "partition" in each for each in rows):
        raise BrokenPlan('the file should read {"partitions": [{"topic": "NAME", "partition": 0}]}')
    return [_place(each) for each in rows]


def _json(text: str) -> dict[str, Any]:
    try:
        told = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BrokenPlan(f"it is no JSON: {error}") from None
    if not isinstance(told, dict):
        raise BrokenPlan("it is no JSON object")
    if told.get("version", VERSION) != VERSION:
        raise BrokenPlan(f"it has version {told['version']}, and only {VERSION} is known")
    return told


def _list(told: Mapping[str, Any], name: str) -> list[Any]:
    found = told.get(name)
    if not isinstance(found, list):
        raise BrokenPlan(f'it has no list "{name}"')
    return found


def _row(told: Any) -> tuple[TopicPartition, tuple[int, ...]]:
    if not _has_topic(told) or "partition" not in told or "replicas" not in told:
        raise BrokenPlan(f"this does not name a topic, a partition and its replicas: {json.dumps(told)}")
    place, replicas = _place(told), told["replicas"]
    if not isinstance(replicas, list) or not replicas:
        raise BrokenPlan(f"{place} has {json.dumps(replicas)}: replicas are one or more brokers, each once")
    holders = tuple(_number(each, f"the broker {json.dumps(each)} of {place}") for each in replicas)
    if len(set(holders)) < len(holders):
        raise BrokenPlan(f"{place} has {list(holders)}: replicas are one or more brokers, each once")
    _check_folders(place, told.get("log_dirs"))
    return place, holders


def _has_topic(told: Any) -> bool:
    return isinstance(told, dict) and isinstance(told.get("topic"), str)


def _topic(told: Mapping[str, Any]) -> str:
    name = str(told["topic"])
    if not is_topic_name(name):
        raise BrokenPlan(f"no topic can have the name {json.dumps(name)}")
    return name


def _place(told: Mapping[str, Any]) -> TopicPartition:
    topic, index = _topic(told), told["partition"]
    return TopicPartition(topic, _number(index, f"the partition {json.dumps(index)} of {topic}"))


def _number(told: Any, what: str) -> int:
    """As it is, or not at all: 1.5 is not 1, and a true is no number though Python has it for one."""
    if type(told) is not int or not 0 <= told <= INT_MAX:
        raise BrokenPlan(f"{what} is no number from 0 to {INT_MAX}")
    return told


def _check_folders(place: TopicPartition, told: Any) -> None:
    if told is not None and not isinstance(told, list):
        raise BrokenPlan(f'{place} has log_dirs that are not a list: write "{ANY_FOLDER}" for each replica, or nothing')
    if any(each != ANY_FOLDER for each in told or ()):
        raise BrokenPlan(f'{place} names folders (log_dirs), and only "{ANY_FOLDER}" can be asked for here')


# Making one -----------------------------------------------------------------------------------------------------------


def drained(current: Assignment, leaving: Iterable[int], racks: Racks) -> Assignment:
    """The partitions that these brokers hold, each with another broker in its place; nothing else moves."""
    going = sorted(set(leaving))
    placing = _Placing(current, {broker: rack for broker, rack in racks.items() if broker not in going})
    placing.replace_all(going)
    placing.place_better()
    return placing.changes


def balanced(current: Assignment, racks: Racks, count: int | None = None) -> Assignment:
    """These partitions spread evenly over these brokers, replicas and preferred leaders, with as few moves as we find.

    Each gets `count` replicas if that is given, or keeps as many as it has. Only what changes is in the result; a
    change may be one of order alone, which moves no records.
    """
    if count is not None and count > len(racks):
        raise BrokenPlan(f"{count} replicas need as many brokers, and there are {len(racks)} to choose from")
    placing = _Placing(current, racks)
    if count is not None:
        placing.resize(count)
    placing.replace_all(sorted({broker for replicas in current.values() for broker in replicas if broker not in racks}))
    placing.place_better()
    placing.even_out()
    placing.share_leaders()
    return placing.changes


Step = tuple[TopicPartition, int, int]  # a partition, who gives it or its lead away, who takes it
Edges = dict[int, dict[int, TopicPartition]]  # what could be handed from one to another


class _Placing:
    """An assignment that is being changed, with the counts that say where there is room."""

    def __init__(self, current: Assignment, racks: Racks) -> None:
        self._current = current
        self._assignment = dict(sorted(current.items()))
        self._racks = racks if all(racks.values()) else dict.fromkeys(racks)  # all know theirs, or it counts for none
        self._held = Counter(each for replicas in current.values() for each in replicas)
        self._led = Counter(replicas[0] for replicas in current.values())
        self._per_topic = Counter((place.topic, each) for place, replicas in current.items() for each in replicas)

    @property
    def changes(self) -> Assignment:
        return {place: replicas for place, replicas in self._assignment.items() if replicas != self._current[place]}

    def resize(self, count: int) -> None:
        """As many replicas for each partition; of too many, those first that are to go anyway, and who leads last."""
        for place in self._assignment:
            while len(self._assignment[place]) > count:
                self._remove(place, self._least_missed(place))
            while len(self._assignment[place]) < count:
                self._add(place, self._most_welcome(place))

    def replace_all(self, going: Sequence[int]) -> None:
        """Put somebody else in the place of each of these."""
        for place in self._assignment:
            for broker in going:
                if broker in self._assignment[place]:
                    self._move(place, broker, self._best_for(place, broker))

    def place_better(self) -> None:
        """Copies that must be made anyway may go elsewhere at no cost: hand them on while that evens anything out."""
        while path := _first_path(self._racks, self._copies_to_hand_on(), self._held):
            for step in path:
                self._move(*step)

    def even_out(self) -> None:
        """Move from those who hold most to those who hold least, while that evens anything out."""
        while step := self._next_move():
            self._move(*step)

    def share_leaders(self) -> None:
        """Change the order of replicas until everybody is the preferred leader of as many."""
        while path := _first_path(self._racks, self._leads_to_hand_on(), self._led):
            for place, giver, taker in path:
                self._led[giver] -= 1
                self._led[taker] += 1
                others = (each for each in self._assignment[place] if each != taker)
                self._assignment[place] = (taker, *others)

    def _best_for(self, place: TopicPartition, leaving: int) -> int:
        replicas = self._assignment[place]
        candidates = [each for each in self._racks if each not in replicas]
        if not candidates:
            raise BrokenPlan(
                f"{place} has {len(replicas)} replicas, and without broker {leaving} there are not as many brokers: "
                "add one first, or give the topic fewer replicas"
            )
        leads = replicas[0] == leaving
        return min(candidates, key=lambda each: (*self._cost(place, leaving, each), self._led[each] * leads, each))

    def _most_welcome(self, place: TopicPartition) -> int:
        replicas = self._assignment[place]
        return min(
            (each for each in self._racks if each not in replicas),
            key=lambda each: (
                self._crowding((*replicas, each)),
                self._per_topic[place.topic, each],
                self._held[each],
                each,
            ),
        )

    def _least_missed(self, place: TopicPartition) -> int:
        replicas = self._assignment[place]

        def regret(broker: int) -> tuple[bool, bool, int, int]:
            others = tuple(each for each in replicas if each != broker)
            return broker in self._racks, broker == replicas[0], self._crowding(others), -self._held[broker]

        return min(reversed(replicas), key=regret)

    def _add(self, place: TopicPartition, broker: int) -> None:
        self._assignment[place] = (*self._assignment[place], broker)
        self._held[broker] += 1
        self._per_topic[place.topic, broker] += 1

    def _remove(self, place: TopicPartition, broker: int) -> None:
        before = self._assignment[place]
        after = self._assignment[place] = tuple(each for each in before if each != broker)
        self._held[broker] -= 1
        self._per_topic[place.topic, broker] -= 1
        self._led[before[0]] -= 1
        self._led[after[0]] += 1

    def _cost(self, place: TopicPartition, leaving: int, coming: int) -> tuple[int, int, int]:
        """How many replicas would share a rack, then how much the newcomer holds: of this topic, and of all."""
        after = _with(self._assignment[place], leaving, coming)
        return self._crowding(after), self._per_topic[place.topic, coming], self._held[coming]

    def _crowding(self, replicas: Sequence[int]) -> int:
        racks = [rack for each in replicas if (rack := self._racks.get(each)) is not None]
        return len(racks) - len(set(racks))

    def _may_move(self, replicas: Sequence[int], giver: int, taker: int) -> bool:
        if giver not in replicas or taker in replicas:
            return False
        return self._crowding(_with(replicas, giver, taker)) <= self._crowding(replicas)

    def _next_move(self) -> Step | None:
        """A replica to take from one who holds at least two more than another."""
        ordered = sorted(self._racks, key=lambda each: (self._held[each], each))
        for giver in reversed(ordered):
            for taker in ordered:
                if self._held[giver] - self._held[taker] < 2:
                    break
                if place := self._movable(giver, taker):
                    return place, giver, taker
        return None

    def _movable(self, giver: int, taker: int) -> TopicPartition | None:
        """The partition whose move helps its own topic's balance most and crowds no rack."""
        places = (place for place, replicas in self._assignment.items() if self._may_move(replicas, giver, taker))
        gain = self._per_topic
        return max(places, key=lambda each: gain[each.topic, giver] - gain[each.topic, taker], default=None)

    def _move(self, place: TopicPartition, giver: int, taker: int) -> None:
        before = self._assignment[place]
        self._assignment[place] = _with(before, giver, taker)
        for broker, step in ((giver, -1), (taker, 1)):
            self._held[broker] += step
            self._per_topic[place.topic, broker] += step
            self._led[broker] += step * (before[0] == giver)

    def _copies_to_hand_on(self) -> Edges:
        edges: Edges = {}
        for place, replicas in self._assignment.items():
            for giver in (each for each in replicas if each not in self._current[place]):
                for taker in self._racks:
                    if self._may_move(replicas, giver, taker):
                        edges.setdefault(giver, {}).setdefault(taker, place)
        return edges

    def _leads_to_hand_on(self) -> Edges:
        edges: Edges = {}
        for place, replicas in self._assignment.items():
            for taker in replicas[1:]:
                edges.setdefault(replicas[0], {}).setdefault(taker, place)
        return edges


def _with(replicas: Sequence[int], leaving: int, coming: int) -> tuple[int, ...]:
    return tuple(coming if each == leaving else each for each in replicas)


def _first_path(brokers: Iterable[int], edges: Edges, load: Mapping[int, int]) -> list[Step] | None:
    """A chain of hand-overs from one with much to one with at least two less; those with most are relieved first."""
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
        for taker, place in edges.get(broker, {}).items():
            if taker != start and taker not in came:
                came[taker] = (place, broker, taker)
                queue.append(taker)
    return None


def _way_back(end: int, start: int, came: Mapping[int, Step]) -> list[Step]:
    steps = []
    while end != start:
        steps.append(came[end])
        end = came[end][1]
    return steps
