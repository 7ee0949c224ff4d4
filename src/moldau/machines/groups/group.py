"""What the rest of a shard asks of any group, whichever protocol its members speak."""

from collections.abc import Callable, Iterable
from enum import Enum
from typing import Protocol

from moldau.machines.groups.records import Record
from moldau.model.ids import TopicId
from moldau.wire import messages

BaseTimestamp = Callable[[messages.OffsetCommitValue], int]
"""From which wall time on the retention of an offset is counted."""

Places = Iterable[tuple[TopicId, int]]
"""Partitions, by the ids of their topics."""


class GroupType(Enum):
    """The kinds of group, as ListGroups names them."""

    CLASSIC = "classic"
    CONSUMER = "consumer"


class Group(Protocol):
    """One group, as commits, admins and the expiry of offsets see it. `check_x` raises what the client is told."""

    @property
    def group_id(self) -> str: ...

    @property
    def group_type(self) -> GroupType: ...

    @property
    def state(self) -> str:
        """Kafka's name for the state it is in."""
        ...

    @property
    def protocol_type(self) -> str:
        """What its members are, "consumer" or otherwise; empty where it never had one."""
        ...

    @property
    def is_empty(self) -> bool:
        """Whether it has neither members nor anybody about to become one."""
        ...

    def check_commit(self, request: messages.OffsetCommitRequest, api_version: int) -> None:
        """Whether whoever commits is entitled to."""
        ...

    def check_commit_in_transaction(self, request: messages.TxnOffsetCommitRequest, places: Places) -> None:
        """Whether whoever commits in a transaction, for these partitions, is the member that it says it is."""
        ...

    def check_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Whether whoever asks for offsets is entitled to."""
        ...

    def check_delete_offsets(self) -> None:
        """Whether offsets of this group may be deleted at all."""
        ...

    def check_delete(self) -> None:
        """Whether the group may be deleted."""
        ...

    def is_subscribed(self, topic: str) -> bool:
        """Whether members read this topic; what cannot be known counts as yes."""
        ...

    def expiry_base(self) -> BaseTimestamp | None:
        """How the age of an offset is told now; None while none of them may expire."""
        ...

    def tombstones(self) -> list[Record]:
        """The records that end the group, its offsets left alone."""
        ...

    def keep_alive(self, member_id: str, now_ms: float) -> None:
        """A commit is a sign of life, where the protocol says so."""
        ...
