"""What ConsumerGroupDescribe tells of a group."""

from collections.abc import Sequence
from typing import Final

from moldau.machines.groups.consumer.group import ConsumerGroup
from moldau.machines.groups.consumer.member import Member
from moldau.machines.groups.consumer.partitions import Assignment
from moldau.machines.groups.consumer.target_assignment import preferred_assignor
from moldau.machines.metadata.image import MetadataImage
from moldau.model.errors import GroupIdNotFound
from moldau.wire import messages

Described = messages.ConsumerGroupDescribeResponse.DescribedGroup
DescribedMember = messages.ConsumerGroupDescribeResponse.Member
DescribedAssignment = messages.ConsumerGroupDescribeResponse.Assignment
DescribedTopic = messages.ConsumerGroupDescribeResponse.TopicPartitions

CLASSIC_MEMBER: Final = 0
CONSUMER_MEMBER: Final = 1


def missing(group_id: str, *, is_other: bool) -> Described:
    """There is no such group, or it is of another type."""
    words = f"Group {group_id} is not a consumer group." if is_other else f"Group {group_id} not found."
    refusal = GroupIdNotFound(words)
    return Described(group_id=group_id, error_code=refusal.code, error_message=refusal.message)


def described(group: ConsumerGroup, image: MetadataImage, assignors: Sequence[str]) -> Described:
    """The group with its members, what they have and what they should have."""
    return Described(
        group_id=group.group_id,
        group_state=group.state,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=preferred_assignor(group.members.values(), assignors),
        members=[_member(member, group.target(member.member_id), image) for member in group.members.values()],
    )


def _member(member: Member, target: Assignment, image: MetadataImage) -> DescribedMember:
    return DescribedMember(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topics),
        subscribed_topic_regex=member.regex,
        assignment=_assignment(_held(member), image),
        target_assignment=_assignment(target, image),
        member_type=CLASSIC_MEMBER if member.is_classic else CONSUMER_MEMBER,
    )


def _held(member: Member) -> Assignment:
    """What nobody else can have yet, also if the member is about to give it up."""
    topic_ids = {*member.assigned, *member.revoking}
    return {each: {*member.assigned.get(each, ()), *member.revoking.get(each, ())} for each in topic_ids}


def _assignment(partitions: Assignment, image: MetadataImage) -> DescribedAssignment:
    """Topics that are gone have no name to tell."""
    named = sorted((image.topic_name(topic_id) or "", topic_id) for topic_id in partitions)
    return DescribedAssignment(
        topic_partitions=[
            DescribedTopic(topic_id=topic_id, topic_name=name, partitions=sorted(partitions[topic_id]))
            for name, topic_id in named
            if name
        ]
    )
