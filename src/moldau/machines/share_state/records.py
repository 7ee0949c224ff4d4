"""Records of `__share_group_state` as Kafka writes them: snapshots, and updates that apply to the last snapshot."""

from typing import Final

from moldau.machines.shares.state import StateBatch
from moldau.model.ids import TopicId
from moldau.wire import messages

StateKey = tuple[str, TopicId, int]
"""Group, topic id and partition."""

Key = messages.ShareSnapshotKey | messages.ShareUpdateKey
Value = messages.ShareSnapshotValue | messages.ShareUpdateValue
Record = tuple[Key, Value | None]

NO_COUNT: Final = -1
NOT_UPDATED: Final = -1


def snapshot_tombstone(key: StateKey) -> Record:
    group_id, topic_id, partition = key
    return messages.ShareSnapshotKey(group_id=group_id, topic_id=topic_id, partition=partition), None


def snapshot_record(key: StateKey, value: messages.ShareSnapshotValue) -> Record:
    group_id, topic_id, partition = key
    return messages.ShareSnapshotKey(group_id=group_id, topic_id=topic_id, partition=partition), value


def update_record(key: StateKey, value: messages.ShareUpdateValue) -> Record:
    group_id, topic_id, partition = key
    return messages.ShareUpdateKey(group_id=group_id, topic_id=topic_id, partition=partition), value


def key_of(key: Key) -> StateKey:
    return key.group_id, TopicId(key.topic_id), key.partition


def batches_of(value: Value) -> tuple[StateBatch, ...]:
    return tuple(
        StateBatch(each.first_offset, each.last_offset, each.delivery_state, each.delivery_count)
        for each in value.state_batches
    )
