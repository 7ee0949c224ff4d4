"""Plans of who is to hold which partition, as Kafka's tools write them, and making one that moves little."""

import json
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from moldau.model.ids import TopicPartition

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
    names = [each.get("topic") if isinstance(each, dict) else None for each in _list(_json(text), "topics")]
    if not names or not all(isinstance(each, str) for each in names):
        raise BrokenPlan('the file should read {"version": 1, "topics": [{"topic": "NAME"}]}')
    return [str(each) for each in names]


def decode_places(text: str) -> list[TopicPartition]:
    """The partitions in a file of Kafka's form `{"partitions": [{"topic": "orders", "partition": 0}]}`."""
    try:
        places = [
            TopicPartition(str(each["topic"]), int(each["partition"])) for each in _list(_json(text), "partitions")
        ]
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, BrokenPlan):
            raise
        raise BrokenPlan('the file should read {"partitions": [{"topic": "NAME", "partition": 0}]}') from None
    return places


def _json(text: str) -> dict[str, Any]:
    try:
        told = json.loads(text)
    except ValueError as error:
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
    try:
        place, replicas = TopicPartition(str(told["topic"]), int(told["partition"])), told["replicas"]
        holders = tuple(int(each) for each in replicas)
    except (KeyError, TypeError, ValueError):
        raise BrokenPlan(f"this does not name a topic, a partition and its replicas: {json.dumps(told)}") from None
    if not holders or len(set(holders)) < len(holders):
        raise BrokenPlan(f"{place} has {list(holders)}: replicas are one or more brokers, each once")
    if any(each != ANY_FOLDER for each in told.get("log_dirs") or ()):
        raise BrokenPlan(f'{place} names folders (log_dirs), and only "{ANY_FOLDER}" can be asked for here')
    return place, holders


# Making one -----------------------------------------------------------------------------------------------------------


def drained(current: Assignment, leaving: Iterable[int], racks: Racks) -> Assignment:
    """The partitions that these brokers hold, each with another broker in its place; nothing else moves."""
    going = set(leaving)
    targets = {broker: rack for broker, rack in racks.items() if broker not in going}
    return _Placing(current, targets).without(sorted(going))


def balanced(current: Assignment, racks: Racks) -> Assignment:
    """These partitions spread evenly over these brokers, replicas and preferred leaders, with as few moves as we find.

    Only what changes is in the result; a change may be one of order alone, which moves no records.
    """
    placing = _Placing(current, racks)
    placing.without(sorted({broker for replicas in current.values() for broker in replicas if broker not in racks}))
    placing.even_out()
    placing.share_leaders()
    return {place: replicas for place, replicas in placing.assignment.items() if replicas != current[place]}


class _Placing:
    """An assignment that is being changed, with the counts that say where there is room."""

    def __init__(self, current: Assignment, racks: Racks) -> None:
        self.assignment = dict(sorted(current.items()))
        self._racks = (
            racks if racks and all(racks.values()) else dict.fromkeys(racks)
        )  # all know theirs, or none counts
        self._held = Counter(each for replicas in current.values() for each in replicas)
        self._led = Counter(replicas[0] for replicas in current.values())
        self._per_topic = Counter((place.topic, each) for place, replicas in current.items() for each in replicas)

    def without(self, going: Sequence[int]) -> Assignment:
        """Put others in the place of these."""
        changed: Assignment = {}
        for place in self.assignment:
            for broker in going:
                if broker in self.assignment[place]:
                    self._replace(place, broker, self._best_for(place, broker))
                    changed[place] = self.assignment[place]
        return changed

    def even_out(self) -> None:
        """Move from those who hold most to those who hold least, while that evens anything out."""
        while move := self._next_move():
            self._replace(*move)

    def share_leaders(self) -> None:
        """Change the order of replicas until everybody is the preferred leader of as many."""
        while path := self._path_of_leadership():
            for place, broker in path:
                before = self.assignment[place]
                self._led[before[0]] -= 1
                self._led[broker] += 1
                self.assignment[place] = (broker, *(each for each in before if each != broker))

    def _best_for(self, place: TopicPartition, leaving: int) -> int:
        replicas = self.assignment[place]
        candidates = [each for each in self._racks if each not in replicas]
        if not candidates:
            raise BrokenPlan(
                f"{place} has {len(replicas)} replicas, and without broker {leaving} there are not as many brokers: "
                "add one first, or give the topic fewer replicas"
            )
        leads = replicas[0] == leaving
        return min(candidates, key=lambda each: (*self._cost(place, leaving, each), self._led[each] * leads, each))

    def _cost(self, place: TopicPartition, leaving: int, coming: int) -> tuple[int, int, int]:
        """How many replicas would share a rack, then how much the newcomer holds: of this topic, and of all."""
        after = [coming if each == leaving else each for each in self.assignment[place]]
        return self._crowding(after), self._per_topic[place.topic, coming], self._held[coming]

    def _crowding(self, replicas: Sequence[int]) -> int:
        racks = [self._racks.get(each) for each in replicas]
        known = [each for each in racks if each is not None]
        return len(known) - len(set(known))

    def _next_move(self) -> tuple[TopicPartition, int, int] | None:
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
        places = [
            place
            for place, replicas in self.assignment.items()
            if giver in replicas and taker not in replicas and self._crowds_no_more(replicas, giver, taker)
        ]
        gain = self._per_topic
        return max(places, key=lambda each: gain[each.topic, giver] - gain[each.topic, taker], default=None)

    def _crowds_no_more(self, replicas: Sequence[int], giver: int, taker: int) -> bool:
        after = [taker if each == giver else each for each in replicas]
        return self._crowding(after) <= self._crowding(replicas)

    def _replace(self, place: TopicPartition, giver: int, taker: int) -> None:
        before = self.assignment[place]
        self.assignment[place] = tuple(taker if each == giver else each for each in before)
        for broker, step in ((giver, -1), (taker, 1)):
            self._held[broker] += step
            self._per_topic[place.topic, broker] += step
            self._led[broker] += step * (before[0] == giver)

    def _path_of_leadership(self) -> list[tuple[TopicPartition, int]] | None:
        """A chain of hand-overs from one who leads much to one who leads at least two less."""
        hand_overs: dict[int, dict[int, TopicPartition]] = {}
        for place, replicas in self.assignment.items():
            for each in replicas[1:]:
                hand_overs.setdefault(replicas[0], {}).setdefault(each, place)
        for giver in sorted(self._racks, key=lambda each: (-self._led[each], each)):
            path = self._search(giver, hand_overs)
            if path is not None:
                return path
        return None

    def _search(
        self, giver: int, hand_overs: Mapping[int, Mapping[int, TopicPartition]]
    ) -> list[tuple[TopicPartition, int]] | None:
        came_from: dict[int, tuple[int, TopicPartition]] = {}
        queue = deque([giver])
        while queue:
            broker = queue.popleft()
            if self._led[giver] - self._led[broker] >= 2:
                return _way_back(broker, giver, came_from)
            for taker, place in hand_overs.get(broker, {}).items():
                if taker != giver and taker not in came_from:
                    came_from[taker] = (broker, place)
                    queue.append(taker)
        return None


def _way_back(
    end: int, start: int, came_from: Mapping[int, tuple[int, TopicPartition]]
) -> list[tuple[TopicPartition, int]]:
    steps = []
    while end != start:
        before, place = came_from[end]
        steps.append((place, end))
        end = before
    return steps
