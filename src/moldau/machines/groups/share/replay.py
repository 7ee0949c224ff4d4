"""Replay of share group records. A tombstone may refer to a missing record: compaction preserves no order."""

from collections.abc import Callable
from typing import Any, Final

from moldau.machines.groups.records import KeyedRecord
from moldau.machines.groups.share.group import NO_ASSIGNMENT_EPOCH, ShareGroup
from moldau.machines.groups.share.member import (
    ShareMember,
    with_current_assignment,
    with_metadata,
    without_current_assignment,
)
from moldau.machines.groups.share.state_partitions import StatePartitions, read_state_partitions
from moldau.model.ids import TopicId
from moldau.wire import messages


def apply_share_record(groups: dict[str, ShareGroup], record: KeyedRecord) -> None:
    """Apply a record of a share group; a value creates the group if it is missing."""
    key, value = record
    group_id: str = key.group_id  # type: ignore[union-attr]
    group = groups.get(group_id)
    if isinstance(key, messages.ShareGroupMetadataKey) and value is None:
        groups.pop(group_id, None)
        return
    if group is None:
        if value is None:
            return
        group = groups[group_id] = ShareGroup(group_id)
    APPLY[type(key)](group, key, value)


def _epoch(group: ShareGroup, _: Any, value: messages.ShareGroupMetadataValue) -> None:
    group.epoch = value.epoch
    group.metadata_hash = value.metadata_hash


def _member(
    group: ShareGroup,
    key: messages.ShareGroupMemberMetadataKey,
    value: messages.ShareGroupMemberMetadataValue | None,
) -> None:
    if value is None:
        group.remove(key.member_id)
    else:
        group.put(with_metadata(group.members.get(key.member_id) or ShareMember(key.member_id), value))


def _target_epoch(group: ShareGroup, _: Any, value: messages.ShareGroupTargetAssignmentMetadataValue | None) -> None:
    group.assignment_epoch = NO_ASSIGNMENT_EPOCH if value is None else value.assignment_epoch


def _target(
    group: ShareGroup,
    key: messages.ShareGroupTargetAssignmentMemberKey,
    value: messages.ShareGroupTargetAssignmentMemberValue | None,
) -> None:
    if value is None:
        group.targets.pop(key.member_id, None)
    else:
        group.targets[key.member_id] = {
            TopicId(topic.topic_id): frozenset(topic.partitions) for topic in value.topic_partitions if topic.partitions
        }


def _current_assignment(
    group: ShareGroup,
    key: messages.ShareGroupCurrentMemberAssignmentKey,
    value: messages.ShareGroupCurrentMemberAssignmentValue | None,
) -> None:
    member = group.members.get(key.member_id)
    if value is not None:
        group.put(with_current_assignment(member or ShareMember(key.member_id), value))
    elif member is not None:
        group.put(without_current_assignment(member))


def _states(group: ShareGroup, _: Any, value: messages.ShareGroupStatePartitionMetadataValue | None) -> None:
    group.states = StatePartitions() if value is None else read_state_partitions(value)


APPLY: Final[dict[type, Callable[[ShareGroup, Any, Any], None]]] = {
    messages.ShareGroupMetadataKey: _epoch,
    messages.ShareGroupMemberMetadataKey: _member,
    messages.ShareGroupTargetAssignmentMetadataKey: _target_epoch,
    messages.ShareGroupTargetAssignmentMemberKey: _target,
    messages.ShareGroupCurrentMemberAssignmentKey: _current_assignment,
    messages.ShareGroupStatePartitionMetadataKey: _states,
}
