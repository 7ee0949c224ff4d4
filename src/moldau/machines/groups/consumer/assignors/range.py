"""The `range` assignor: contiguous ranges per topic, so equal partition numbers go to the same member.

Members with the same subscription to topics of equal partition counts get the same ranges of all of them, so that their
streams can be joined. It ignores previous assignments; static members come first, by instance id, and so keep their
ranges across restarts.
"""

from collections.abc import Mapping, Sequence

from moldau.machines.groups.consumer.assignors.subscribers import PartitionCounts, Subscriber, subscribers_by_topic
from moldau.machines.groups.consumer.partitions import Assignment
from moldau.model.ids import TopicId


def assign_range(members: Sequence[Subscriber], counts: PartitionCounts) -> Mapping[str, Assignment]:
    """Assign contiguous ranges per topic; the first subscribers get one more partition if it does not divide."""
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
