"""Replay of consumer group records. A tombstone may refer to a missing record: compaction preserves no order."""

from collections.abc import Callable
from typing import Any, Final

from moldau.machines.groups.consumer.group import NO_ASSIGNMENT_EPOCH, ConsumerGroup, Resolved
from moldau.machines.groups.consumer.member import (
    Member,
    with_current_assignment,
    with_metadata,
    without_current_assignment,
)
from moldau.machines.groups.records import KeyedRecord
from moldau.model.ids import TopicId
from moldau.wire import messages

Groups = dict[str, ConsumerGroup]


def apply_consumer_record(groups: Groups, record: KeyedRecord) -> None:
    """Apply a record of a consumer group; a value creates the group if it is missing."""
    key, value = record
    group_id: str = key.group_id  # type: ignore[union-attr]
    group = groups.get(group_id)
    if isinstance(key, messages.ConsumerGroupMetadataKey) and value is None:
        groups.pop(group_id, None)
        return
    if group is None:
        if value is None:
            return
        group = groups[group_id] = ConsumerGroup(group_id)
    APPLY[type(key)](group, key, value)


def _epoch(group: ConsumerGroup, _: Any, value: messages.ConsumerGroupMetadataValue) -> None:
    group.epoch = value.epoch
    group.metadata_hash = value.metadata_hash
    group.creation_time_ms = value.creation_time_ms


def _topics(group: ConsumerGroup, _: Any, value: messages.ConsumerGroupPartitionMetadataValue | None) -> None:
    group.has_partition_metadata = value is not None


def _member(
    group: ConsumerGroup,
    key: messages.ConsumerGroupMemberMetadataKey,
    value: messages.ConsumerGroupMemberMetadataValue | None,
) -> None:
    if value is None:
        group.remove(key.member_id)
    else:
        group.put(with_metadata(group.members.get(key.member_id) or Member(key.member_id), value))


def _target_epoch(
    group: ConsumerGroup, _: Any, value: messages.ConsumerGroupTargetAssignmentMetadataValue | None
) -> None:
    group.assignment_epoch = NO_ASSIGNMENT_EPOCH if value is None else value.assignment_epoch
    group.assignment_time_ms = 0 if value is None else value.assignment_timestamp


def _target(
    group: ConsumerGroup,
    key: messages.ConsumerGroupTargetAssignmentMemberKey,
    value: messages.ConsumerGroupTargetAssignmentMemberValue | None,
) -> None:
    if value is None:
        group.targets.pop(key.member_id, None)
    else:
        group.targets[key.member_id] = {
            TopicId(topic.topic_id): frozenset(topic.partitions) for topic in value.topic_partitions if topic.partitions
        }


def _current_assignment(
    group: ConsumerGroup,
    key: messages.ConsumerGroupCurrentMemberAssignmentKey,
    value: messages.ConsumerGroupCurrentMemberAssignmentValue | None,
) -> None:
    member = group.members.get(key.member_id)
    if value is not None:
        group.put(with_current_assignment(member or Member(key.member_id), value))
    elif member is not None:
        group.put(without_current_assignment(member))


def _regex(
    group: ConsumerGroup,
    key: messages.ConsumerGroupRegularExpressionKey,
    value: messages.ConsumerGroupRegularExpressionValue | None,
) -> None:
    if value is None:
        group.resolved.pop(key.regular_expression, None)
    else:
        group.resolved[key.regular_expression] = Resolved(frozenset(value.topics), value.version, value.timestamp)


APPLY: Final[dict[type, Callable[[ConsumerGroup, Any, Any], None]]] = {
    messages.ConsumerGroupMetadataKey: _epoch,
    messages.ConsumerGroupPartitionMetadataKey: _topics,
    messages.ConsumerGroupMemberMetadataKey: _member,
    messages.ConsumerGroupTargetAssignmentMetadataKey: _target_epoch,
    messages.ConsumerGroupTargetAssignmentMemberKey: _target,
    messages.ConsumerGroupCurrentMemberAssignmentKey: _current_assignment,
    messages.ConsumerGroupRegularExpressionKey: _regex,
}
