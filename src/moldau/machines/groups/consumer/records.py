"""The records of consumer groups, as Kafka writes them: a key, and a value or None where something ends."""

from collections.abc import Iterable
from typing import Final

from moldau.machines.groups.consumer.member import ClassicTraits, Member
from moldau.machines.groups.consumer.partitions import Assignment, Holding
from moldau.machines.groups.records import KeyedRecord
from moldau.wire import messages

_Held: Final = messages.ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions
_Meant: Final = messages.ConsumerGroupTargetAssignmentMemberValue.TopicPartition
_Traits: Final = messages.ConsumerGroupMemberMetadataValue.ClassicMemberMetadata
_Protocol: Final = messages.ConsumerGroupMemberMetadataValue.ClassicProtocol


def epoch_record(group_id: str, epoch: int, metadata_hash: int, creation_time_ms: int) -> KeyedRecord:
    """The group is in this epoch, reckoned from topics of this hash."""
    value = messages.ConsumerGroupMetadataValue(
        epoch=epoch, metadata_hash=metadata_hash, creation_time_ms=creation_time_ms
    )
    return messages.ConsumerGroupMetadataKey(group_id=group_id), value


def group_end_record(group_id: str) -> KeyedRecord:
    return messages.ConsumerGroupMetadataKey(group_id=group_id), None


def topics_end_record(group_id: str) -> KeyedRecord:
    """Before 4.1 Kafka wrote down the topics themselves, not their hash."""
    return messages.ConsumerGroupPartitionMetadataKey(group_id=group_id), None


def member_record(group_id: str, member: Member) -> KeyedRecord:
    """What a member told of itself."""
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


def member_end_record(group_id: str, member_id: str) -> KeyedRecord:
    return messages.ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member_id), None


def target_epoch_record(group_id: str, epoch: int, wall_ms: int) -> KeyedRecord:
    """What the members are meant to have was reckoned in this epoch."""
    value = messages.ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=epoch, assignment_timestamp=wall_ms)
    return messages.ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id), value


def target_epoch_end_record(group_id: str) -> KeyedRecord:
    return messages.ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id), None


def target_record(group_id: str, member_id: str, partitions: Assignment) -> KeyedRecord:
    """What one member is meant to have."""
    topics = [_Meant(topic_id=topic_id, partitions=sorted(partitions[topic_id])) for topic_id in sorted(partitions)]
    value = messages.ConsumerGroupTargetAssignmentMemberValue(topic_partitions=topics)
    return messages.ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), value


def target_end_record(group_id: str, member_id: str) -> KeyedRecord:
    return messages.ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), None


def holding_record(group_id: str, member: Member) -> KeyedRecord:
    """How far a member has come, and what it holds."""
    value = messages.ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=member.epoch,
        previous_member_epoch=member.previous_epoch,
        state=member.state,
        assigned_partitions=_held(member.assigned),
        partitions_pending_revocation=_held(member.revoking),
    )
    return messages.ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member.member_id), value


def _held(holding: Holding) -> "list[messages.ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions]":
    topics = []
    for topic_id in sorted(holding):
        indexes = sorted(holding[topic_id])
        epochs = [holding[topic_id][index] for index in indexes]
        topics.append(_Held(topic_id=topic_id, partitions=indexes, assignment_epochs=epochs))
    return topics


def holding_end_record(group_id: str, member_id: str) -> KeyedRecord:
    return messages.ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id), None


def regex_record(group_id: str, regex: str, topics: Iterable[str], version: int, wall_ms: int) -> KeyedRecord:
    """The topics that a regular expression matched, in the metadata of this offset."""
    value = messages.ConsumerGroupRegularExpressionValue(topics=sorted(topics), version=version, timestamp=wall_ms)
    return messages.ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=regex), value


def regex_end_record(group_id: str, regex: str) -> KeyedRecord:
    return messages.ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=regex), None


def removal_records(group_id: str, member_id: str) -> list[KeyedRecord]:
    """A member is gone: first what it holds, then what it was meant to have, then itself."""
    return [
        holding_end_record(group_id, member_id),
        target_end_record(group_id, member_id),
        member_end_record(group_id, member_id),
    ]
