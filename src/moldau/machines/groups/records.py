"""The records of `__consumer_offsets`: a key and its value, or None where the key is deleted, as Kafka writes them."""

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
)
KeyedRecord = tuple[Key, Value | None]


class PendingOffset(NamedTuple):
    """An offset that is committed in a transaction: it counts once that has been committed."""

    producer_id: int
    producer_epoch: int
    key: messages.OffsetCommitKey
    value: messages.OffsetCommitValue


class TransactionEnded(NamedTuple):
    """The marker of a producer's transaction: what it had pending is settled."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    is_commit: bool


Record = KeyedRecord | PendingOffset | TransactionEnded


def record_version(value: Value) -> int:
    """The version to write a value in: what Kafka 4.x writes, so that older brokers and tools can read it."""
    if isinstance(value, messages.OffsetCommitValue):
        return 4 if value.expire_timestamp == NO_TIMESTAMP else 1  # only version 1 says when an offset expires
    return 3 if isinstance(value, messages.GroupMetadataValue) else 0


def offset_record(group_id: str, topic: str, partition: int, value: messages.OffsetCommitValue | None) -> Record:
    """An offset is committed, or forgotten where there is no value."""
    return messages.OffsetCommitKey(group=group_id, topic=topic, partition=partition), value


def group_record(group_id: str, value: messages.GroupMetadataValue | None) -> Record:
    """A classic group as it is from now on, or its end where there is no value."""
    return messages.GroupMetadataKey(group=group_id), value
