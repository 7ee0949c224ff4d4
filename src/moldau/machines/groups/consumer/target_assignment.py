"""Computation of a group's target assignment by one of the assignors."""

from collections.abc import Iterable, Mapping, Sequence

from moldau.machines.groups.consumer.assignors import ASSIGNORS, Subscriber
from moldau.machines.groups.consumer.group import ConsumerGroup, Resolved
from moldau.machines.groups.consumer.member import Member
from moldau.machines.groups.consumer.partitions import Assignment
from moldau.machines.groups.consumer.records import target_epoch_record, target_record
from moldau.machines.groups.consumer.subscription_metadata import SubscribedTopics
from moldau.machines.groups.draft import Draft
from moldau.machines.metadata.image import MetadataImage
from moldau.model.ids import TopicId


def preferred_assignor(members: Iterable[Member], known: Sequence[str]) -> str:
    """Return the assignor with the most votes, the broker's first on a tie. Classic members do not vote."""
    votes = dict.fromkeys(known, 0)
    for member in members:
        if member.assignor in votes:
            votes[member.assignor] += 1
    return max(known, key=lambda name: votes[name])  # the first maximum


def compute_target(
    group: ConsumerGroup,
    members: Mapping[str, Member],
    previous: Mapping[str, Assignment],
    resolved: Mapping[str, Resolved],
    image: MetadataImage,
    assignor: str,
) -> Mapping[str, Assignment]:
    """Compute the members' target assignments from their previous ones."""
    subscribed_topics = SubscribedTopics(resolved, image.topics)
    subscribers = [
        Subscriber(
            member_id,
            subscribed_topics.of(member),
            previous.get(member_id, group.target(member_id)),
            member.instance_id,
        )
        for member_id, member in members.items()
    ]
    counts: dict[TopicId, int] = {}
    for topic_ids in {id(each.topic_ids): each.topic_ids for each in subscribers}.values():
        for topic_id in topic_ids:
            counts[topic_id] = len(image.topics_by_id[topic_id].partitions)
    return ASSIGNORS[assignor](subscribers, counts)


def write_target(
    group: ConsumerGroup, draft: Draft, epoch: int, new: Mapping[str, Assignment], written: Mapping[str, Assignment]
) -> None:
    """Write the changed target assignments; `written` are those already in this decision."""
    for member_id, partitions in new.items():
        old = written.get(member_id, group.targets.get(member_id))
        if old is None or (old is not partitions and old != partitions):
            draft.records.append(target_record(group.group_id, member_id, partitions))
    draft.records.append(target_epoch_record(group.group_id, epoch, draft.now.wall_ms))
