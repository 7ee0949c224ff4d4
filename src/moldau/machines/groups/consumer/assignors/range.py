"""The `range` assignor: each topic is cut into ranges, so partitions of equal number meet at the same member.

Members that read the same topics with the same number of partitions get the same ranges of all of them: their streams
can be joined. It does not look at who had what; static members come first, by instance id, and so keep their ranges
over restarts.
"""

from collections.abc import Mapping, Sequence

from moldau.machines.groups.consumer.assignors.subscribers import PartitionCounts, Subscriber, subscribers_by_topic
from moldau.machines.groups.consumer.partitions import Assignment
from moldau.model.ids import TopicId


def assign_range(members: Sequence[Subscriber], counts: PartitionCounts) -> Mapping[str, Assignment]:
    """Contiguous ranges per topic; the first readers of a topic get one partition more where it does not divide."""
    members = sorted(members, key=_rank)
    assigned: list[dict[TopicId, frozenset[int]]] = [{} for _ in members]
    for topic_id, readers in subscribers_by_topic(members).items():
        least, extra = divmod(counts[topic_id], len(readers))
        start = 0
        for rank, position in enumerate(readers):
            end = start + least + (rank < extra)
            if end > start:
                assigned[position][topic_id] = frozenset(range(start, end))
            start = end
    return {member.member_id: _kept(member, new) for member, new in zip(members, assigned, strict=True)}


def _rank(member: Subscriber) -> tuple[bool, str]:
    is_dynamic = member.instance_id is None
    return is_dynamic, member.member_id if member.instance_id is None else member.instance_id


def _kept(member: Subscriber, new: Assignment) -> Assignment:
    return member.previous if new == member.previous else new
