"""Sets of partitions by topic: what members are meant to have, what they have, and since when."""

from collections.abc import Iterable, Mapping, Set
from types import MappingProxyType
from typing import Final

from moldau.model.ids import TopicId

Assignment = Mapping[TopicId, Set[int]]
"""The partitions of each topic. No topic without partitions; nobody changes one after it was made."""

Holding = Mapping[TopicId, Mapping[int, int]]
"""The partitions that a member holds, each with the epoch in which it was given to it."""

NO_PARTITIONS: Final[Assignment] = MappingProxyType({})
NOTHING_HELD: Final[Holding] = MappingProxyType({})
NO_INDEXES: Final[Mapping[int, int]] = MappingProxyType({})


def is_within(partitions: Iterable[tuple[TopicId, Iterable[int]]], holding: Assignment | Holding) -> bool:
    """Whether all of these are held; topics may be named in any order, and more than once."""
    return all(
        topic_id in holding and all(index in holding[topic_id] for index in indexes) for topic_id, indexes in partitions
    )


def held_since(assignment: Assignment, epoch: int) -> Holding:
    """All of these partitions, given in one epoch."""
    return {topic_id: dict.fromkeys(sorted(indexes), epoch) for topic_id, indexes in assignment.items()}
