"""Share groups as returned by ShareGroupDescribe."""

from moldau.machines.groups.consumer.partitions import Assignment
from moldau.machines.groups.share.assignor import SIMPLE
from moldau.machines.groups.share.group import ShareGroup
from moldau.machines.groups.share.member import ShareMember
from moldau.machines.metadata.image import MetadataImage
from moldau.model.errors import GroupIdNotFound
from moldau.wire import messages

Described = messages.ShareGroupDescribeResponse.DescribedGroup
DescribedMember = messages.ShareGroupDescribeResponse.Member
DescribedAssignment = messages.ShareGroupDescribeResponse.Assignment
DescribedTopic = messages.ShareGroupDescribeResponse.TopicPartitions


def describe_missing(group_id: str, *, is_other_type: bool) -> Described:
    """Describe a group that does not exist or has another type."""
    message = f"Group {group_id} is not a share group." if is_other_type else f"Group {group_id} not found."
    error = GroupIdNotFound(message)
    return Described(group_id=group_id, error_code=error.code, error_message=error.message)


def describe_group(group: ShareGroup, image: MetadataImage) -> Described:
    """Describe the group with its members and their assignments."""
    return Described(
        group_id=group.group_id,
        group_state=group.state,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=SIMPLE,
        members=[_member(member, image) for member in group.members.values()],
    )


def _member(member: ShareMember, image: MetadataImage) -> DescribedMember:
    return DescribedMember(
        member_id=member.member_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topics),
        assignment=_assignment(member.assigned, image),
    )


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
