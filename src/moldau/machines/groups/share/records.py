"""Records of share groups as Kafka writes them: a key, and a value or None for a tombstone."""

from collections.abc import Mapping
from typing import Final

from moldau.machines.groups.consumer.partitions import Assignment
from moldau.machines.groups.records import KeyedRecord
from moldau.machines.groups.share.member import STABLE, ShareMember
from moldau.machines.groups.share.state_partitions import StatePartitions, TopicState
from moldau.model.ids import TopicId
from moldau.wire import messages

_Current: Final = messages.ShareGroupCurrentMemberAssignmentValue.TopicPartitions
_Target: Final = messages.ShareGroupTargetAssignmentMemberValue.TopicPartition
_States: Final = messages.ShareGroupStatePartitionMetadataValue


def epoch_record(group_id: str, epoch: int, metadata_hash: int) -> KeyedRecord:
    """The group epoch, and the hash of the topics it is based on."""
    value = messages.ShareGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash)
    return messages.ShareGroupMetadataKey(group_id=group_id), value


def group_tombstone(group_id: str) -> KeyedRecord:
    return messages.ShareGroupMetadataKey(group_id=group_id), None


def member_record(group_id: str, member: ShareMember) -> KeyedRecord:
    """A member's metadata."""
    value = messages.ShareGroupMemberMetadataValue(
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topics),
    )
    return messages.ShareGroupMemberMetadataKey(group_id=group_id, member_id=member.member_id), value


def target_epoch_record(group_id: str, epoch: int) -> KeyedRecord:
    """The epoch of the target assignment."""
    value = messages.ShareGroupTargetAssignmentMetadataValue(assignment_epoch=epoch)
    return messages.ShareGroupTargetAssignmentMetadataKey(group_id=group_id), value


def target_epoch_tombstone(group_id: str) -> KeyedRecord:
    return messages.ShareGroupTargetAssignmentMetadataKey(group_id=group_id), None


def target_record(group_id: str, member_id: str, partitions: Assignment) -> KeyedRecord:
    """A member's target assignment."""
    topics = [_Target(topic_id=topic_id, partitions=sorted(partitions[topic_id])) for topic_id in sorted(partitions)]
    value = messages.ShareGroupTargetAssignmentMemberValue(topic_partitions=topics)
    return messages.ShareGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), value


def current_assignment_record(group_id: str, member: ShareMember) -> KeyedRecord:
    """A member's epoch and current assignment."""
    assigned = member.assigned
    value = messages.ShareGroupCurrentMemberAssignmentValue(
        member_epoch=member.epoch,
        previous_member_epoch=member.previous_epoch,
        state=STABLE,
        assigned_partitions=[
            _Current(topic_id=topic_id, partitions=sorted(assigned[topic_id])) for topic_id in sorted(assigned)
        ],
    )
    return messages.ShareGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member.member_id), value


def state_partitions_record(group_id: str, states: StatePartitions) -> KeyedRecord:
    """The share partitions whose state the share coordinator has, is to get, or is to delete."""
    value = _States(
        initializing_topics=_topics(states.initializing),
        initialized_topics=_topics(states.initialized),
        deleting_topics=[
            _States.TopicInfo(topic_id=topic_id, topic_name=name) for topic_id, name in sorted(states.deleting.items())
        ],
    )
    return messages.ShareGroupStatePartitionMetadataKey(group_id=group_id), value


def _topics(
    states: Mapping[TopicId, TopicState],
) -> "list[messages.ShareGroupStatePartitionMetadataValue.TopicPartitionsInfo]":
    return [
        _States.TopicPartitionsInfo(
            topic_id=topic_id,
            topic_name=state.name,
            partitions=sorted(state.partitions),
        )
        for topic_id, state in sorted(states.items())
    ]


def state_partitions_tombstone(group_id: str) -> KeyedRecord:
    return messages.ShareGroupStatePartitionMetadataKey(group_id=group_id), None


def removal_tombstones(group_id: str, member_id: str) -> list[KeyedRecord]:
    """Tombstones of a member: current assignment, target assignment, metadata."""
    return [
        (messages.ShareGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id), None),
        (messages.ShareGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), None),
        (messages.ShareGroupMemberMetadataKey(group_id=group_id, member_id=member_id), None),
    ]
