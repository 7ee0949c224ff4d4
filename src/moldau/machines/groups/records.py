"""Records of `__consumer_offsets` as Kafka writes them: a key, and a value or None for a tombstone."""

from typing import NamedTuple

from moldau.model.ids import NO_TIMESTAMP
from moldau.wire import messages

Key = (
    messages.ConsumerGroupCurrentMemberAssignmentKey
    | messages.ConsumerGroupMemberMetadataKey
    | messages.ConsumerGroupMetadataKey
    | messages.ConsumerGroupPartitionMetadataKey
    | messages.ConsumerGroupRegularExpressionKey
    | messages.ConsumerGroupTargetAssignmentMemberKey
    | messages.ConsumerGroupTargetAssignmentMetadataKey
    | messages.GroupMetadataKey
    | messages.LegacyOffsetCommitKey
    | messages.OffsetCommitKey
    | messages.ShareGroupCurrentMemberAssignmentKey
    | messages.ShareGroupMemberMetadataKey
    | messages.ShareGroupMetadataKey
    | messages.ShareGroupStatePartitionMetadataKey
    | messages.ShareGroupTargetAssignmentMemberKey
    | messages.ShareGroupTargetAssignmentMetadataKey
)
Value = (
    messages.ConsumerGroupCurrentMemberAssignmentValue
    | messages.ConsumerGroupMemberMetadataValue
    | messages.ConsumerGroupMetadataValue
    | messages.ConsumerGroupPartitionMetadataValue
    | messages.ConsumerGroupRegularExpressionValue
    | messages.ConsumerGroupTargetAssignmentMemberValue
    | messages.ConsumerGroupTargetAssignmentMetadataValue
    | messages.GroupMetadataValue
    | messages.OffsetCommitValue
    | messages.ShareGroupCurrentMemberAssignmentValue
    | messages.ShareGroupMemberMetadataValue
    | messages.ShareGroupMetadataValue
    | messages.ShareGroupStatePartitionMetadataValue
    | messages.ShareGroupTargetAssignmentMemberValue
    | messages.ShareGroupTargetAssignmentMetadataValue
)
KeyedRecord = tuple[Key, Value | None]


class PendingOffset(NamedTuple):
    """An offset committed in a transaction: takes effect when the transaction commits."""

    producer_id: int
    producer_epoch: int
    key: messages.OffsetCommitKey
    value: messages.OffsetCommitValue


class TransactionEnded(NamedTuple):
    """The end marker of a producer's transaction: settles its pending offsets."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    is_commit: bool


Record = KeyedRecord | PendingOffset | TransactionEnded


def record_version(value: Value) -> int:
    """Return the version to write a value with: Kafka 4.x's, which older brokers and tools can read."""
    if isinstance(value, messages.OffsetCommitValue):
        return 4 if value.expire_timestamp == NO_TIMESTAMP else 1  # only version 1 has an expire timestamp
    return 3 if isinstance(value, messages.GroupMetadataValue) else 0


def offset_record(group_id: str, topic: str, partition: int, value: messages.OffsetCommitValue | None) -> Record:
    """Build an offset commit, or its tombstone without a value."""
    return messages.OffsetCommitKey(group=group_id, topic=topic, partition=partition), value


def group_record(group_id: str, value: messages.GroupMetadataValue | None) -> Record:
    """Build the metadata of a classic group, or its tombstone without a value."""
    return messages.GroupMetadataKey(group=group_id), value
