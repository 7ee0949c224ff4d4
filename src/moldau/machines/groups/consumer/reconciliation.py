"""Reconciliation of a member: revoke partitions outside its target first, then add free ones.

A partition belongs to a member while it is assigned to it or being revoked; no other member gets it before the owner
confirms the revocation, by sending owned partitions without it. A member advances to the target epoch as soon as it has
nothing left to revoke, with the partitions that are free by then.

    STABLE --target epoch is newer--> compute next:
        partitions to revoke that it still owns -> UNREVOKED_PARTITIONS  (keeps its epoch until it confirms)
        else some of the target not yet free    -> UNRELEASED_PARTITIONS (new epoch, tries again each heartbeat)
        else                                    -> STABLE                (new epoch, whole target assigned)

Exactly one owner per partition at any time follows from `is_free`, which consults owners including revoking ones.
"""

from collections.abc import Callable, Iterable, Sequence, Set
from typing import NamedTuple

from moldau.machines.groups.consumer.member import Member, MemberState
from moldau.machines.groups.consumer.partitions import (
    NO_CURRENT_ASSIGNMENT,
    NO_INDEXES,
    NO_PARTITIONS,
    Assignment,
    CurrentAssignment,
)
from moldau.model.errors import FencedMemberEpoch
from moldau.model.ids import TopicId

Owned = Sequence[tuple[TopicId, Sequence[int]]]
"""The partitions that a member reports as owned."""


class Target(NamedTuple):
    """A member's target assignment and its epoch."""

    epoch: int
    partitions: Assignment = NO_PARTITIONS


class ReconcileContext(NamedTuple):
    """Inputs of a step besides the member and its target."""

    subscribed: Set[TopicId]  # existing topics that the member subscribes to
    is_free: Callable[[TopicId, int], bool]  # whether no other member owns the partition
    owned: Owned | None = None  # as reported by the member; None if not sent
    has_new_subscription: bool = False  # whether this request changed the subscription


def reconcile(member: Member, target: Target, context: ReconcileContext) -> Member:
    """Return the member after its next step, or the same object if nothing changes."""
    match member.state:
        case MemberState.STABLE:
            if member.epoch != target.epoch:
                return _compute_next(member, member.epoch, target, context)
            return _revoke_unsubscribed(member, context) if context.has_new_subscription else member
        case MemberState.UNREVOKED_PARTITIONS:
            if _owns_any(context.owned, member.revoking):
                return _revoke_unsubscribed(member, context) if context.has_new_subscription else member
            return _compute_next(member, member.epoch, target, context)
        case MemberState.UNRELEASED_PARTITIONS:
            return _compute_next(member, member.epoch, target, context)
        case _:
            if context.owned is None or context.owned:
                raise FencedMemberEpoch(
                    "The consumer group member is in a unknown state. The member must abandon all its partitions "
                    "and rejoin."
                )
            return _compute_next(member, target.epoch, target, context)


def _compute_next(member: Member, epoch: int, target: Target, context: ReconcileContext) -> Member:
    kept: dict[TopicId, dict[int, int]] = {}
    revoking: dict[TopicId, dict[int, int]] = {}
    added: dict[TopicId, list[int]] = {}
    is_waiting = False
    for topic_id in sorted({*target.partitions, *member.assigned}):
        wanted = target.partitions.get(topic_id, frozenset()) if topic_id in context.subscribed else frozenset()
        held = member.assigned.get(topic_id, NO_INDEXES)
        _put(kept, topic_id, {index: since for index, since in held.items() if index in wanted})
        _put(revoking, topic_id, {index: since for index, since in held.items() if index not in wanted})
        for index in sorted(index for index in wanted if index not in held):
            if context.is_free(topic_id, index):
                added.setdefault(topic_id, []).append(index)
            else:
                is_waiting = True
    if revoking and _owns_any(context.owned, revoking):
        return _changed(member, epoch, MemberState.UNREVOKED_PARTITIONS, kept, revoking)
    for topic_id, indexes in added.items():
        kept.setdefault(topic_id, {}).update(dict.fromkeys(indexes, target.epoch))
    state = MemberState.UNRELEASED_PARTITIONS if is_waiting else MemberState.STABLE
    return _changed(member, target.epoch, state, kept, NO_CURRENT_ASSIGNMENT)


def _revoke_unsubscribed(member: Member, context: ReconcileContext) -> Member:
    """Revoke partitions of unsubscribed topics at once, without waiting for a new target."""
    unsubscribed = {topic_id: held for topic_id, held in member.assigned.items() if topic_id not in context.subscribed}
    if not unsubscribed:
        return member
    kept = {topic_id: held for topic_id, held in member.assigned.items() if topic_id in context.subscribed}
    revoking = {topic_id: dict(held) for topic_id, held in member.revoking.items()}
    for topic_id, held in unsubscribed.items():
        revoking.setdefault(topic_id, {}).update(held)
    if _owns_any(context.owned, revoking):
        return _changed(member, member.epoch, MemberState.UNREVOKED_PARTITIONS, kept, revoking)
    return _changed(member, member.epoch, member.state, kept, member.revoking)


def _owns_any(owned: Owned | None, partitions: CurrentAssignment) -> bool:
    """Whether it may still own any of these; True if it did not report its partitions."""
    return owned is None or any(
        index in partitions.get(topic_id, NO_INDEXES) for topic_id, indexes in owned for index in indexes
    )


def _put(into: dict[TopicId, dict[int, int]], topic_id: TopicId, held: dict[int, int]) -> None:
    if held:
        into[topic_id] = held


def _changed(
    member: Member, epoch: int, state: MemberState, assigned: CurrentAssignment, revoking: CurrentAssignment
) -> Member:
    return member.advance(epoch, state, assigned or NO_CURRENT_ASSIGNMENT, revoking or NO_CURRENT_ASSIGNMENT)


def as_owned(topics: Iterable[tuple[bytes, Iterable[int]]] | None) -> Owned | None:
    return None if topics is None else [(TopicId(topic_id), list(indexes)) for topic_id, indexes in topics]
