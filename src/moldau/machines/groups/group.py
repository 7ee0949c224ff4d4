"""The interface of a group to the rest of the shard, independent of its protocol."""

from collections.abc import Callable, Iterable
from enum import Enum
from typing import Protocol

from moldau.machines.groups.records import Record
from moldau.model.ids import TopicId
from moldau.wire import messages

BaseTimestamp = Callable[[messages.OffsetCommitValue], int]
"""Returns the wall time from which an offset's retention counts."""

TopicIdPartitions = Iterable[tuple[TopicId, int]]
"""Partitions by topic id."""


class GroupType(Enum):
    """Group types, as named by ListGroups."""

    CLASSIC = "classic"
    CONSUMER = "consumer"
    SHARE = "share"


class Group(Protocol):
    """A group as seen by offset commits, admin requests and offset expiration. `check_x` raises the error to return."""

    @property
    def group_id(self) -> str: ...

    @property
    def group_type(self) -> GroupType: ...

    @property
    def state(self) -> str:
        """Kafka's name of the group state."""
        ...

    @property
    def protocol_type(self) -> str:
        """Protocol type of its members, such as "consumer"; empty if it never had any."""
        ...

    @property
    def is_empty(self) -> bool:
        """Whether it has no members and no pending ones."""
        ...

    def check_commit(self, request: messages.OffsetCommitRequest, api_version: int) -> None:
        """Validate an offset commit."""
        ...

    def check_commit_in_transaction(
        self, request: messages.TxnOffsetCommitRequest, topic_partitions: TopicIdPartitions
    ) -> None:
        """Validate a transactional offset commit for these partitions."""
        ...

    def check_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Validate an offset fetch."""
        ...

    def check_delete_offsets(self) -> None:
        """Validate deleting offsets of this group."""
        ...

    def check_delete(self) -> None:
        """Validate deleting the group."""
        ...

    def is_subscribed(self, topic: str) -> bool:
        """Whether members subscribe to this topic; True if unknown."""
        ...

    def expiry_base(self) -> BaseTimestamp | None:
        """Return how offsets age; None if none may expire now."""
        ...

    def tombstones(self) -> list[Record]:
        """Return the tombstones of the group, without those of its offsets."""
        ...

    def keep_alive(self, member_id: str, now_ms: float) -> None:
        """Extend the member's session on a commit, if the protocol does so."""
        ...
