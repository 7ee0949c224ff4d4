"""A member of a share group: its metadata, epoch and assignment."""

from dataclasses import dataclass, field, replace
from typing import Final

from moldau.machines.groups.consumer.partitions import NO_PARTITIONS, Assignment
from moldau.model.ids import TopicId
from moldau.wire import messages

JOINING_EPOCH: Final = 0
LEAVING_EPOCH: Final = -1
STABLE: Final = 0  # the only state of a share member: it has nothing to revoke


def _no_partitions() -> Assignment:
    return NO_PARTITIONS


@dataclass(frozen=True, slots=True)
class ShareMember:
    """An immutable member. Records are written for the difference between two of them."""

    member_id: str
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: frozenset[str] = frozenset()

    epoch: int = JOINING_EPOCH
    previous_epoch: int = JOINING_EPOCH
    assigned: Assignment = field(default_factory=_no_partitions)

    def has_same_metadata(self, other: "ShareMember") -> bool:
        """Whether the metadata of both is equal, regardless of assignments."""
        return (self.rack_id, self.client_id, self.client_host, self.topics) == (
            other.rack_id,
            other.client_id,
            other.client_host,
            other.topics,
        )

    def advance(self, epoch: int, assigned: Assignment) -> "ShareMember":
        """Return the member in this epoch, or the same object if nothing changes."""
        if (epoch, assigned) == (self.epoch, self.assigned):
            return self
        return replace(self, epoch=epoch, previous_epoch=self.epoch, assigned=assigned)


def with_metadata(member: ShareMember, value: messages.ShareGroupMemberMetadataValue) -> ShareMember:
    """Apply a metadata record; the assignment is kept."""
    return replace(
        member,
        rack_id=value.rack_id,
        client_id=value.client_id,
        client_host=value.client_host,
        topics=frozenset(value.subscribed_topic_names),
    )


def with_current_assignment(member: ShareMember, value: messages.ShareGroupCurrentMemberAssignmentValue) -> ShareMember:
    """Apply a current assignment record; the metadata is kept."""
    return replace(
        member,
        epoch=value.member_epoch,
        previous_epoch=value.previous_member_epoch,
        assigned={
            TopicId(each.topic_id): frozenset(each.partitions) for each in value.assigned_partitions if each.partitions
        },
    )


def without_current_assignment(member: ShareMember) -> ShareMember:
    """Apply a current assignment tombstone: the member has left and its metadata will follow."""
    return replace(member, epoch=LEAVING_EPOCH, previous_epoch=LEAVING_EPOCH, assigned=NO_PARTITIONS)
