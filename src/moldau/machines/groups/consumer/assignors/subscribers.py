"""What an assignor is told, and what it must answer."""

from collections.abc import Mapping, Sequence, Set
from typing import NamedTuple, Protocol

from moldau.machines.groups.consumer.partitions import NO_PARTITIONS, Assignment
from moldau.model.ids import TopicId


class Subscriber(NamedTuple):
    """One member, as an assignor sees it."""

    member_id: str
    topic_ids: Set[TopicId]  # what it reads; only topics that exist
    previous: Assignment = NO_PARTITIONS  # what it was meant to have before
    instance_id: str | None = None


PartitionCounts = Mapping[TopicId, int]
"""How many partitions each topic has that anybody reads."""


class Assignor(Protocol):
    """Gives every partition that somebody reads to exactly one member that reads its topic.

    The answer has every member. Who keeps what he had gets the same object back.
    """

    def __call__(self, members: Sequence[Subscriber], counts: PartitionCounts) -> Mapping[str, Assignment]: ...


def subscribers_by_topic(members: Sequence[Subscriber]) -> dict[TopicId, list[int]]:
    """The positions of a topic's readers in `members`, by topic; topics in the order of their ids."""
    readers: dict[TopicId, list[int]] = {}
    for position, member in enumerate(members):
        for topic_id in member.topic_ids:
            readers.setdefault(topic_id, []).append(position)
    return {topic_id: readers[topic_id] for topic_id in sorted(readers)}


def is_homogeneous(members: Sequence[Subscriber]) -> bool:
    """Whether all of them read the same topics."""
    return all(member.topic_ids == members[0].topic_ids for member in members)
