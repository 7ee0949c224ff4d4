"""Leads one member towards its target: it gives up what it should not have, and only then gets what is free.

A partition that a member holds or is giving up belongs to it until it says that it stopped; nobody else gets it before.
A member moves to the target's epoch as soon as it has nothing left to give up, with whatever is free by then.
"""

from collections.abc import Callable, Iterable, Sequence, Set
from typing import NamedTuple

from moldau.machines.groups.consumer.member import Member, MemberState
from moldau.machines.groups.consumer.partitions import NO_INDEXES, NO_PARTITIONS, NOTHING_HELD, Assignment, Holding
from moldau.model.errors import FencedMemberEpoch
from moldau.model.ids import TopicId

Owned = Sequence[tuple[TopicId, Sequence[int]]]
"""The partitions that a member says it works on."""


class Target(NamedTuple):
    """What a member is meant to have, and since which epoch."""

    epoch: int
    partitions: Assignment = NO_PARTITIONS


class Surroundings(NamedTuple):
    """What a step depends on besides the member and its target."""

    readable: Set[TopicId]  # the topics that the member reads and that exist
    is_free: Callable[[TopicId, int], bool]  # whether no other member holds the partition
    owned: Owned | None = None  # what the member says it works on; None if it said nothing
    is_subscription_new: bool = False  # whether it changed what it reads with this very request


def reconcile(member: Member, target: Target, around: Surroundings) -> Member:
    """The member after the next step, or the same object if it cannot take one."""
    match member.state:
        case MemberState.STABLE:
            if member.epoch != target.epoch:
                return _step(member, member.epoch, target, around)
            return _without_unread(member, around) if around.is_subscription_new else member
        case MemberState.UNREVOKED_PARTITIONS:
            if _works_on(around.owned, member.revoking):
                return _without_unread(member, around) if around.is_subscription_new else member
            return _step(member, member.epoch, target, around)
        case MemberState.UNRELEASED_PARTITIONS:
            return _step(member, member.epoch, target, around)
        case _:
            if around.owned is None or around.owned:
                raise FencedMemberEpoch(
                    "The consumer group member is in a unknown state. The member must abandon all its partitions "
                    "and rejoin."
                )
            return _step(member, target.epoch, target, around)


def _step(member: Member, epoch: int, target: Target, around: Surroundings) -> Member:
    kept: dict[TopicId, dict[int, int]] = {}
    revoking: dict[TopicId, dict[int, int]] = {}
    coming: dict[TopicId, list[int]] = {}
    is_waiting = False
    for topic_id in sorted({*target.partitions, *member.assigned}):
        wanted = target.partitions.get(topic_id, frozenset()) if topic_id in around.readable else frozenset()
        held = member.assigned.get(topic_id, NO_INDEXES)
        _put(kept, topic_id, {index: since for index, since in held.items() if index in wanted})
        _put(revoking, topic_id, {index: since for index, since in held.items() if index not in wanted})
        for index in sorted(index for index in wanted if index not in held):
            if around.is_free(topic_id, index):
                coming.setdefault(topic_id, []).append(index)
            else:
                is_waiting = True
    if revoking and _works_on(around.owned, revoking):
        return _changed(member, epoch, MemberState.UNREVOKED_PARTITIONS, kept, revoking)
    for topic_id, indexes in coming.items():
        kept.setdefault(topic_id, {}).update(dict.fromkeys(indexes, target.epoch))
    state = MemberState.UNRELEASED_PARTITIONS if is_waiting else MemberState.STABLE
    return _changed(member, target.epoch, state, kept, NOTHING_HELD)


def _without_unread(member: Member, around: Surroundings) -> Member:
    """Take away the topics that it no longer reads, without waiting for a target that says so."""
    unread = {topic_id: held for topic_id, held in member.assigned.items() if topic_id not in around.readable}
    if not unread:
        return member
    kept = {topic_id: held for topic_id, held in member.assigned.items() if topic_id in around.readable}
    revoking = {topic_id: dict(held) for topic_id, held in member.revoking.items()}
    for topic_id, held in unread.items():
        revoking.setdefault(topic_id, {}).update(held)
    if _works_on(around.owned, revoking):
        return _changed(member, member.epoch, MemberState.UNREVOKED_PARTITIONS, kept, revoking)
    return _changed(member, member.epoch, member.state, kept, member.revoking)


def _works_on(owned: Owned | None, partitions: Holding) -> bool:
    """Whether it may still be at work on any of these; who says nothing may."""
    return owned is None or any(
        index in partitions.get(topic_id, NO_INDEXES) for topic_id, indexes in owned for index in indexes
    )


def _put(into: dict[TopicId, dict[int, int]], topic_id: TopicId, held: dict[int, int]) -> None:
    if held:
        into[topic_id] = held


def _changed(member: Member, epoch: int, state: MemberState, assigned: Holding, revoking: Holding) -> Member:
    return member.advanced(epoch, state, assigned or NOTHING_HELD, revoking or NOTHING_HELD)


def as_owned(topics: Iterable[tuple[bytes, Iterable[int]]] | None) -> Owned | None:
    return None if topics is None else [(TopicId(topic_id), list(indexes)) for topic_id, indexes in topics]
