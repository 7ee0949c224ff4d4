"""Records of consumer groups as Kafka writes them: a key, and a value or None for a tombstone."""

from collections.abc import Iterable
from typing import Final

from moldau.machines.groups.consumer.member import ClassicTraits, Member
from moldau.machines.groups.consumer.partitions import Assignment, CurrentAssignment
from moldau.machines.groups.records import KeyedRecord
from moldau.wire import messages

_Current: Final = messages.ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions
_Target: Final = messages.ConsumerGroupTargetAssignmentMemberValue.TopicPartition
_Traits: Final = messages.ConsumerGroupMemberMetadataValue.ClassicMemberMetadata
_Protocol: Final = messages.ConsumerGroupMemberMetadataValue.ClassicProtocol


def epoch_record(group_id: str, epoch: int, metadata_hash: int, creation_time_ms: int) -> KeyedRecord:
    """The group epoch, and the hash of the topics it is based on."""
    value = messages.ConsumerGroupMetadataValue(
        epoch=epoch, metadata_hash=metadata_hash, creation_time_ms=creation_time_ms
    )
    return messages.ConsumerGroupMetadataKey(group_id=group_id), value


def group_tombstone(group_id: str) -> KeyedRecord:
    return messages.ConsumerGroupMetadataKey(group_id=group_id), None


def partition_metadata_tombstone(group_id: str) -> KeyedRecord:
    """Before 4.1 Kafka wrote the topics instead of their hash."""
    return messages.ConsumerGroupPartitionMetadataKey(group_id=group_id), None


def member_record(group_id: str, member: Member) -> KeyedRecord:
    """A member's metadata."""
    value = messages.ConsumerGroupMemberMetadataValue(
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topics),
        subscribed_topic_regex=member.regex,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        server_assignor=member.assignor,
        classic_member_metadata=None if member.classic is None else _traits(member.classic),
    )
    return messages.ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member.member_id), value


def _traits(classic: ClassicTraits) -> messages.ConsumerGroupMemberMetadataValue.ClassicMemberMetadata:
    return _Traits(
        session_timeout_ms=classic.session_timeout_ms,
        supported_protocols=[_Protocol(name=name, metadata=metadata) for name, metadata in classic.protocols],
    )


def member_tombstone(group_id: str, member_id: str) -> KeyedRecord:
    return messages.ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member_id), None


def target_epoch_record(group_id: str, epoch: int, wall_ms: int) -> KeyedRecord:
    """The epoch of the target assignment."""
    value = messages.ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=epoch, assignment_timestamp=wall_ms)
    return messages.ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id), value


def target_epoch_tombstone(group_id: str) -> KeyedRecord:
    return messages.ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id), None


def target_record(group_id: str, member_id: str, partitions: Assignment) -> KeyedRecord:
    """A member's target assignment."""
    topics = [_Target(topic_id=topic_id, partitions=sorted(partitions[topic_id])) for topic_id in sorted(partitions)]
    value = messages.ConsumerGroupTargetAssignmentMemberValue(topic_partitions=topics)
    return messages.ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), value


def target_tombstone(group_id: str, member_id: str) -> KeyedRecord:
    return messages.ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), None


def current_assignment_record(group_id: str, member: Member) -> KeyedRecord:
    """A member's epoch and current assignment."""
    value = messages.ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=member.epoch,
        previous_member_epoch=member.previous_epoch,
        state=member.state,
        assigned_partitions=_current(member.assigned),
        partitions_pending_revocation=_current(member.revoking),
    )
    return messages.ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member.member_id), value


def _current(
    assignment: CurrentAssignment,
) -> "list[messages.ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions]":
    topics = []
    for topic_id in sorted(assignment):
        indexes = sorted(assignment[topic_id])
        epochs = [assignment[topic_id][index] for index in indexes]
        topics.append(_Current(topic_id=topic_id, partitions=indexes, assignment_epochs=epochs))
    return topics


def current_assignment_tombstone(group_id: str, member_id: str) -> KeyedRecord:
    return messages.ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id), None


def regex_record(group_id: str, regex: str, topics: Iterable[str], version: int, wall_ms: int) -> KeyedRecord:
    """The topics matched by a regular expression at a metadata offset."""
    value = messages.ConsumerGroupRegularExpressionValue(topics=sorted(topics), version=version, timestamp=wall_ms)
    return messages.ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=regex), value


def regex_tombstone(group_id: str, regex: str) -> KeyedRecord:
    return messages.ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=regex), None


def removal_tombstones(group_id: str, member_id: str) -> list[KeyedRecord]:
    """Tombstones of a member: current assignment, target assignment, metadata."""
    return [
        current_assignment_tombstone(group_id, member_id),
        target_tombstone(group_id, member_id),
        member_tombstone(group_id, member_id),
    ]
