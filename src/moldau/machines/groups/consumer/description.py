"""Consumer groups as returned by ConsumerGroupDescribe."""

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


def describe_missing(group_id: str, *, is_other_type: bool) -> Described:
    """Describe a group that does not exist or has another type."""
    message = f"Group {group_id} is not a consumer group." if is_other_type else f"Group {group_id} not found."
    error = GroupIdNotFound(message)
    return Described(group_id=group_id, error_code=error.code, error_message=error.message)


def describe_group(group: ConsumerGroup, image: MetadataImage, assignors: Sequence[str]) -> Described:
    """Describe the group with its members, their current and target assignments."""
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
        assignment=_assignment(_owned(member), image),
        target_assignment=_assignment(target, image),
        member_type=CLASSIC_MEMBER if member.is_classic else CONSUMER_MEMBER,
    )


def _owned(member: Member) -> Assignment:
    """Return its assigned partitions, including those it is revoking."""
    topic_ids = {*member.assigned, *member.revoking}
    return {each: {*member.assigned.get(each, ()), *member.revoking.get(each, ())} for each in topic_ids}


def _assignment(partitions: Assignment, image: MetadataImage) -> DescribedAssignment:
    """Deleted topics have no name and are skipped."""
    named = sorted((image.topic_name(topic_id) or "", topic_id) for topic_id in partitions)
    return DescribedAssignment(
        topic_partitions=[
            DescribedTopic(topic_id=topic_id, topic_name=name, partitions=sorted(partitions[topic_id]))
            for name, topic_id in named
            if name
        ]
    )
