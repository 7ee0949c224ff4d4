"""Sets of partitions by topic: target assignments, and current ones with epochs."""

from collections.abc import Iterable, Mapping, Set
from types import MappingProxyType
from typing import Final

from moldau.model.ids import TopicId

Assignment = Mapping[TopicId, Set[int]]
"""Partitions by topic. Without empty topics; immutable."""

CurrentAssignment = Mapping[TopicId, Mapping[int, int]]
"""A member's partitions, each with the epoch of its assignment."""

NO_PARTITIONS: Final[Assignment] = MappingProxyType({})
NO_CURRENT_ASSIGNMENT: Final[CurrentAssignment] = MappingProxyType({})
NO_INDEXES: Final[Mapping[int, int]] = MappingProxyType({})


def is_within(partitions: Iterable[tuple[TopicId, Iterable[int]]], assigned: Assignment | CurrentAssignment) -> bool:
    """Whether all of these are in `assigned`; topics may repeat."""
    return all(
        topic_id in assigned and all(index in assigned[topic_id] for index in indexes)
        for topic_id, indexes in partitions
    )


def assigned_since(assignment: Assignment, epoch: int) -> CurrentAssignment:
    """Return these partitions as assigned in one epoch."""
    return {topic_id: dict.fromkeys(sorted(indexes), epoch) for topic_id, indexes in assignment.items()}
