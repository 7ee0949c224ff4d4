"""What the members of a group are meant to have, reckoned anew by one of the assignors."""

from collections.abc import Iterable, Mapping, Sequence

from moldau.machines.groups.consumer.assignors import ASSIGNORS, Subscriber
from moldau.machines.groups.consumer.group import ConsumerGroup, Resolved
from moldau.machines.groups.consumer.member import Member
from moldau.machines.groups.consumer.partitions import Assignment
from moldau.machines.groups.consumer.records import target_epoch_record, target_record
from moldau.machines.groups.consumer.subscription_metadata import Reading
from moldau.machines.groups.draft import Draft
from moldau.machines.metadata.image import MetadataImage
from moldau.model.ids import TopicId


def preferred_assignor(members: Iterable[Member], known: Sequence[str]) -> str:
    """The one that most members ask for; of several, the one that the broker names first. Classic ones do not ask."""
    votes = dict.fromkeys(known, 0)
    for member in members:
        if member.assignor in votes:
            votes[member.assignor] += 1
    return max(known, key=lambda name: votes[name])  # the first of the greatest


def reckon_target(
    group: ConsumerGroup,
    members: Mapping[str, Member],
    previous: Mapping[str, Assignment],
    resolved: Mapping[str, Resolved],
    image: MetadataImage,
    assignor: str,
) -> Mapping[str, Assignment]:
    """What these members should have, given what they were meant to have before."""
    reading = Reading(resolved, image.topics)
    subscribers = [
        Subscriber(member_id, reading.by(member), previous.get(member_id, group.target(member_id)), member.instance_id)
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
    """Only what changed goes to the log; `written` is what this decision has put there already."""
    for member_id, partitions in new.items():
        old = written.get(member_id, group.targets.get(member_id))
        if old is None or (old is not partitions and old != partitions):
            draft.records.append(target_record(group.group_id, member_id, partitions))
    draft.records.append(target_epoch_record(group.group_id, epoch, draft.now.wall_ms))
