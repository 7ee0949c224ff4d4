"""Reconciliation of a single member with its target assignment, step by step."""

import pytest

from moldau.machines.groups.consumer.member import Member, MemberState
from moldau.machines.groups.consumer.reconciliation import Owned, ReconcileContext, Target, reconcile
from moldau.model.errors import FencedMemberEpoch
from moldau.model.ids import TopicId

A, B = TopicId(b"a" * 16), TopicId(b"b" * 16)
STABLE, UNREVOKED, UNRELEASED = (
    MemberState.STABLE,
    MemberState.UNREVOKED_PARTITIONS,
    MemberState.UNRELEASED_PARTITIONS,
)


def member(state: MemberState = STABLE, epoch: int = 1, **held: list[int]) -> Member:
    """Return a member with partitions of topic A, assigned and being revoked, all since epoch 1."""
    assigned = {A: dict.fromkeys(held["assigned"], 1)} if held.get("assigned") else {}
    revoking = {A: dict.fromkeys(held["revoking"], 1)} if held.get("revoking") else {}
    return Member("m", epoch=epoch, previous_epoch=epoch, state=state, assigned=assigned, revoking=revoking)


def around(
    *,
    owned: Owned | None = None,
    taken: tuple[int, ...] = (),
    subscribed: frozenset[TopicId] = frozenset({A, B}),
    has_new_subscription: bool = False,
) -> ReconcileContext:
    return ReconcileContext(subscribed, lambda _, index: index not in taken, owned, has_new_subscription)


def test_stable_member_in_the_target_epoch_is_unchanged() -> None:
    stable = member(assigned=[0])
    assert reconcile(stable, Target(1, {A: {0, 1}}), around()) is stable


def test_free_partitions_are_assigned_at_once_with_their_epoch() -> None:
    after = reconcile(member(assigned=[0]), Target(2, {A: {0, 1}}), around())
    assert (after.state, after.epoch, after.previous_epoch) == (STABLE, 2, 1)
    assert after.assigned == {A: {0: 1, 1: 2}}


def test_partitions_owned_by_others_are_awaited_in_the_new_epoch() -> None:
    after = reconcile(member(assigned=[0]), Target(2, {A: {0, 1, 2}}), around(taken=(1,)))
    assert (after.state, after.epoch, after.assigned) == (UNRELEASED, 2, {A: {0: 1, 2: 2}})
    assert reconcile(after, Target(2, {A: {0, 1, 2}}), around(taken=(1,))) is after
    done = reconcile(after, Target(2, {A: {0, 1, 2}}), around())
    assert (done.state, done.assigned) == (STABLE, {A: {0: 1, 1: 2, 2: 2}})


def test_revocations_come_first_and_hold_the_epoch() -> None:
    after = reconcile(member(assigned=[0, 1]), Target(2, {A: {1, 2}}), around(owned=[(A, [0, 1])]))
    assert (after.state, after.epoch, after.assigned, after.revoking) == (UNREVOKED, 1, {A: {1: 1}}, {A: {0: 1}})


def test_already_revoked_partitions_need_no_confirmation() -> None:
    after = reconcile(member(assigned=[0, 1]), Target(2, {A: {1, 2}}), around(owned=[(A, [1])]))
    assert (after.state, after.epoch, after.assigned, after.revoking) == (STABLE, 2, {A: {1: 1, 2: 2}}, {})


@pytest.mark.parametrize("owned", [None, [(A, [0, 1])]])
def test_member_stays_unrevoked_until_it_confirms(owned: Owned | None) -> None:
    revoking = member(UNREVOKED, assigned=[1], revoking=[0])
    assert reconcile(revoking, Target(2, {A: {1, 2}}), around(owned=owned)) is revoking


def test_member_advances_to_the_newest_target_after_revocation() -> None:
    revoking = member(UNREVOKED, assigned=[1], revoking=[0])
    after = reconcile(revoking, Target(5, {A: {1, 2}}), around(owned=[(A, [1])]))
    assert (after.state, after.epoch, after.assigned, after.revoking) == (STABLE, 5, {A: {1: 1, 2: 5}}, {})


def test_newest_target_may_revoke_more_partitions() -> None:
    revoking = member(UNREVOKED, assigned=[1], revoking=[0])
    after = reconcile(revoking, Target(5, {A: {2}}), around(owned=[(A, [1])]))
    assert (after.state, after.epoch, after.assigned, after.revoking) == (UNREVOKED, 1, {}, {A: {1: 1}})


def test_revoked_partition_may_be_assigned_again_in_a_new_epoch() -> None:
    revoking = member(UNREVOKED, assigned=[1], revoking=[0])
    after = reconcile(revoking, Target(5, {A: {0, 1}}), around(owned=[(A, [1])]))
    assert after.assigned == {A: {0: 5, 1: 1}}


@pytest.mark.proves("C2")
def test_unsubscribed_topics_of_the_target_are_not_assigned() -> None:
    after = reconcile(member(), Target(2, {A: {0}, B: {0}}), around(subscribed=frozenset({B})))
    assert after.assigned == {B: {0: 2}}


@pytest.mark.parametrize("state", [STABLE, UNREVOKED])
def test_new_subscription_revokes_topics_before_a_new_target(state: MemberState) -> None:
    before = member(state, assigned=[0, 1], revoking=[2] if state is UNREVOKED else [])
    said = around(owned=[(A, [0, 1, 2])], subscribed=frozenset({B}), has_new_subscription=True)
    after = reconcile(before, Target(1, {A: {0, 1}}), said)
    expected = {0: 1, 1: 1, 2: 1} if state is UNREVOKED else {0: 1, 1: 1}
    assert (after.state, after.epoch, after.assigned, after.revoking) == (UNREVOKED, 1, {}, {A: expected})


def test_new_subscription_to_the_same_topics_changes_nothing() -> None:
    before = member(assigned=[0, 1])
    assert reconcile(before, Target(1, {A: {0, 1}}), around(has_new_subscription=True)) is before


def test_already_revoked_unsubscribed_topics_are_removed_at_once() -> None:
    before = member(assigned=[0, 1])
    after = reconcile(before, Target(1, {}), around(owned=[], subscribed=frozenset({B}), has_new_subscription=True))
    assert (after.state, after.epoch, after.assigned, after.revoking) == (STABLE, 1, {}, {})


def test_member_in_unknown_state_rejoins_once_it_owns_nothing() -> None:
    unknown = member(MemberState.UNKNOWN, assigned=[0])
    for owned in (None, [(A, [0])]):
        with pytest.raises(FencedMemberEpoch):
            reconcile(unknown, Target(2, {A: {0}}), around(owned=owned))
    after = reconcile(unknown, Target(2, {A: {0, 1}}), around(owned=[]))
    assert (after.state, after.epoch, after.assigned) == (STABLE, 2, {A: {0: 1, 1: 2}})
