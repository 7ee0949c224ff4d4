"""Replicated state of a shard, derived from its records only. Only `apply` changes it."""

from collections.abc import Callable
from typing import Any, Final

from moldau.machines.groups.consumer.group import ConsumerGroup
from moldau.machines.groups.consumer.replay import APPLY as APPLY_CONSUMER
from moldau.machines.groups.consumer.replay import apply_consumer_record
from moldau.machines.groups.pending_offsets import PendingOffsets
from moldau.machines.groups.records import PendingOffset, Record, TransactionEnded
from moldau.machines.groups.share.group import ShareGroup
from moldau.machines.groups.share.replay import APPLY as APPLY_SHARE
from moldau.machines.groups.share.replay import apply_share_record
from moldau.wire import messages

Partitions = dict[int, messages.OffsetCommitValue]
"""A group's offsets of a topic, by partition."""

Offsets = dict[str, Partitions]
"""A group's offsets by topic and partition."""


class GroupsState:
    """Groups and their offsets. Values are messages of the log and immutable once applied."""

    __slots__ = ("classic", "consumer", "offsets", "pending", "share")

    def __init__(self) -> None:
        self.classic: dict[str, messages.GroupMetadataValue] = {}
        self.consumer: dict[str, ConsumerGroup] = {}
        self.share: dict[str, ShareGroup] = {}
        self.offsets: dict[str, Offsets] = {}
        self.pending = PendingOffsets()

    def apply(self, record: Record) -> None:
        """Apply a record; unknown kinds are ignored."""
        if isinstance(record, PendingOffset):
            self.pending.add(record.producer_id, record.key, record.value)
            return
        if isinstance(record, TransactionEnded):
            self._end(record)
            return
        key, value = record
        applier = _APPLY.get(type(key))
        if applier is not None:
            applier(self, key, value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GroupsState) and all(
            getattr(self, name) == getattr(other, name) for name in self.__slots__
        )

    def offset(self, group_id: str, topic: str, partition: int) -> messages.OffsetCommitValue | None:
        """Return the last offset committed for a partition."""
        return self.offsets.get(group_id, {}).get(topic, {}).get(partition)

    def _end(self, ended: TransactionEnded) -> None:
        """Apply an end marker: commit or drop the transaction's pending offsets."""
        if ended.is_commit:
            for key in self.pending.of_producer(ended.producer_id):
                self.pending.supersede(key, by=ended.producer_id)
        for key, value in self.pending.end(ended.producer_id).items():
            if ended.is_commit:
                self._set_offset(*key, value)

    def _apply_offset(self, key: messages.OffsetCommitKey, value: messages.OffsetCommitValue | None) -> None:
        if self.pending:
            self.pending.supersede((key.group, key.topic, key.partition))
        if value is None:
            self._delete_offset(key)
        else:
            self._set_offset(key.group, key.topic, key.partition, value)

    def _set_offset(self, group_id: str, topic: str, partition: int, value: messages.OffsetCommitValue) -> None:
        topics = self.offsets.get(group_id)
        if topics is None:
            topics = self.offsets[group_id] = {}
        partitions = topics.get(topic)
        if partitions is None:
            partitions = topics[topic] = {}
        partitions[partition] = value

    def _delete_offset(self, key: messages.OffsetCommitKey) -> None:
        topics = self.offsets.get(key.group, {})
        partitions = topics.get(key.topic, {})
        if partitions.pop(key.partition, None) is not None and not partitions:
            del topics[key.topic]
            if not topics:
                del self.offsets[key.group]

    def _apply_group(self, key: messages.GroupMetadataKey, value: messages.GroupMetadataValue | None) -> None:
        if value is None:
            self.classic.pop(key.group, None)
        else:
            self.classic[key.group] = value

    def _apply_consumer(self, key: Any, value: Any) -> None:
        apply_consumer_record(self.consumer, (key, value))

    def _apply_share(self, key: Any, value: Any) -> None:
        apply_share_record(self.share, (key, value))


_APPLY: Final[dict[type, Callable[[GroupsState, Any, Any], None]]] = {
    messages.GroupMetadataKey: GroupsState._apply_group,
    messages.LegacyOffsetCommitKey: GroupsState._apply_offset,
    messages.OffsetCommitKey: GroupsState._apply_offset,
    **dict.fromkeys(APPLY_CONSUMER, GroupsState._apply_consumer),
    **dict.fromkeys(APPLY_SHARE, GroupsState._apply_share),
}
