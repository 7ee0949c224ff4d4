"""Input and output of an assignor."""

from collections.abc import Mapping, Sequence, Set
from typing import NamedTuple, Protocol

from moldau.machines.groups.consumer.partitions import NO_PARTITIONS, Assignment
from moldau.model.ids import TopicId


class Subscriber(NamedTuple):
    """A member as input of an assignor."""

    member_id: str
    topic_ids: Set[TopicId]  # subscribed topics that exist
    previous: Assignment = NO_PARTITIONS  # previous target assignment
    instance_id: str | None = None


PartitionCounts = Mapping[TopicId, int]
"""Partition counts of the subscribed topics."""


class Assignor(Protocol):
    """Assigns every partition of a subscribed topic to exactly one of the topic's subscribers.

    The result has every member. An unchanged assignment is returned as the same object.
    """

    def __call__(self, members: Sequence[Subscriber], counts: PartitionCounts) -> Mapping[str, Assignment]: ...


def subscribers_by_topic(members: Sequence[Subscriber]) -> dict[TopicId, list[int]]:
    """Return by topic the positions of its subscribers in `members`, ordered by topic id."""
    readers: dict[TopicId, list[int]] = {}
    for position, member in enumerate(members):
        for topic_id in member.topic_ids:
            readers.setdefault(topic_id, []).append(position)
    return {topic_id: readers[topic_id] for topic_id in sorted(readers)}


def is_homogeneous(members: Sequence[Subscriber]) -> bool:
    """Whether all members have the same subscription."""
    return all(member.topic_ids == members[0].topic_ids for member in members)
