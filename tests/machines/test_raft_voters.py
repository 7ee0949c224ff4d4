"""Voter changes: one at a time, each based on a committed set (KIP-853)."""

from dataclasses import replace

import pytest
from raft_disk import Entry
from raft_scene import Scene, every, key, leads, only, static_set, voter, voter_set

from moldau.machines.raft import effects as do
from moldau.machines.raft import events as on
from moldau.machines.raft.effects import Effect, ElectionState
from moldau.machines.raft.log_view import OffsetAndEpoch
from moldau.machines.raft.roles import RoleName
from moldau.machines.raft.settings import VOTER_SETS_KEPT
from moldau.machines.raft.voters import ReplicaKey, Voter, VoterHistory, VoterSet
from moldau.model.errors import ErrorCode
from moldau.model.ids import NodeId


def settled(voters: VoterSet | None = None) -> Scene:
    """Lead epoch 1 with everything committed; the log ends at 3."""
    scene = Scene(voters or voter_set(1, 2, 3))
    scene.elect()
    for other in scene.machine.voters:
        if other.node_id != 1:
            scene.fetch(other.node_id, 3, 1)
    assert scene.machine.high_watermark == 3
    return scene


def add(scene: Scene, newcomer: Voter, **fields: bool) -> list[Effect]:
    ticket = scene.next_ticket()
    return scene.receive(on.AddVoterRequested(ticket=ticket, voter=newcomer, timeout_ms=5000, **fields))


def remove(scene: Scene, removed: ReplicaKey) -> list[Effect]:
    return scene.receive(on.RemoveVoterRequested(ticket=scene.next_ticket(), voter=removed, timeout_ms=5000))


def update(scene: Scene, updated: Voter, epoch: int = 1) -> list[Effect]:
    return scene.receive(on.UpdateVoterRequested(ticket=scene.next_ticket(), epoch=epoch, voter=updated))


def error_of(effects: list[Effect]) -> ErrorCode:
    return only(effects, do.RespondToVoterChange).error


# AddRaftVoter


@pytest.mark.proves("H6")
def test_voter_is_added_when_caught_up_and_acknowledged_when_committed() -> None:
    scene = settled()
    scene.fetch(4, 3, 1)
    effects = add(scene, voter(4))
    assert only(effects, do.AppendVoters).voters == scene.machine.voters == voter_set(1, 2, 3, 4)
    assert not every(effects, do.RespondToVoterChange)
    scene.sync()
    scene.fetch(2, 4, 1)
    assert error_of(scene.fetch(4, 4, 1)) is ErrorCode.NONE


@pytest.mark.proves("H6")
def test_add_voter_waits_until_the_new_voter_has_caught_up() -> None:
    scene = settled()
    scene.fetch(4, 0, 0)
    assert not every(add(scene, voter(4)), do.AppendVoters)
    assert only(scene.fetch(4, 3, 1), do.AppendVoters).voters == voter_set(1, 2, 3, 4)


@pytest.mark.proves("H6")
def test_caught_up_new_voter_that_died_is_not_added() -> None:
    scene = settled()
    scene.fetch(4, 3, 1)
    scene.wait(10)
    assert not every(add(scene, voter(4)), do.AppendVoters)
    assert scene.machine.voters == voter_set(1, 2, 3)
    assert only(scene.fetch(4, 3, 1), do.AppendVoters).voters == voter_set(1, 2, 3, 4)


def test_add_voter_times_out_when_it_never_catches_up() -> None:
    scene = settled()
    add(scene, voter(4))
    effects: list[Effect] = []
    for _ in range(5):
        assert not every(effects, do.RespondToVoterChange)
        scene.fetch(2, 3, 1)
        effects = scene.wait(1000)
    response = only(effects, do.RespondToVoterChange)
    assert response.error is ErrorCode.REQUEST_TIMED_OUT
    assert str(key(4)) in response.message
    assert not every(scene.fetch(4, 3, 1), do.AppendVoters)


def test_new_voter_with_another_directory_id_does_not_count() -> None:
    scene = settled()
    scene.fetch(4, 3, 1, replica=key(4, disk=1))
    assert not every(add(scene, voter(4)), do.AppendVoters)


def test_voter_change_may_be_acknowledged_before_commit() -> None:
    scene = settled()
    scene.fetch(4, 3, 1)
    effects = add(scene, voter(4), ack_when_committed=False)
    assert [type(each) for each in effects][:2] == [do.AppendVoters, do.RespondToVoterChange]
    assert error_of(effects) is ErrorCode.NONE
    scene.sync()
    scene.fetch(2, 4, 1)
    assert not every(scene.fetch(3, 4, 1), do.RespondToVoterChange)


@pytest.mark.proves("H6")
def test_new_voters_count_as_soon_as_they_are_in_the_log() -> None:
    scene = settled()
    scene.fetch(4, 3, 1)
    add(scene, voter(4))
    scene.sync()
    assert not every(scene.fetch(2, 4, 1), do.AdvanceHighWatermark)  # two of four
    assert only(scene.fetch(3, 4, 1), do.AdvanceHighWatermark).offset == 4


def test_new_voter_gets_begin_quorum() -> None:
    scene = settled()
    scene.fetch(4, 3, 1)
    assert [each.to.node_id for each in every(add(scene, voter(4)), do.SendBeginQuorum)] == [4]


@pytest.mark.parametrize("disk", [0, 1])
def test_existing_voter_is_not_added_again(disk: int) -> None:
    assert error_of(add(settled(), voter(2, disk))) is ErrorCode.DUPLICATE_VOTER


@pytest.mark.parametrize(
    "newcomer",
    [
        replace(voter(4), directory_id=bytes(16)),
        replace(voter(4), endpoints=()),
        replace(voter(4), kraft_version_max=0),
        replace(voter(4), node_id=NodeId(-1)),
    ],
)
def test_new_voter_needs_directory_id_and_endpoint(newcomer: Voter) -> None:
    assert error_of(add(settled(), newcomer)) is ErrorCode.INVALID_REQUEST


# RemoveRaftVoter


def test_voter_is_removed() -> None:
    scene = settled()
    effects = remove(scene, key(3))
    assert only(effects, do.AppendVoters).voters == voter_set(1, 2)
    scene.sync()
    assert error_of(scene.fetch(2, 4, 1)) is ErrorCode.NONE


@pytest.mark.parametrize("stranger", [key(4), key(3, disk=1)])
def test_only_a_voter_can_be_removed(stranger: ReplicaKey) -> None:
    assert error_of(remove(settled(), stranger)) is ErrorCode.VOTER_NOT_FOUND


def test_last_voter_is_not_removed() -> None:
    assert error_of(remove(settled(voter_set(1)), key(1))) is ErrorCode.INVALID_REQUEST


@pytest.mark.proves("H6")
def test_removed_leader_resigns_once_removal_is_committed() -> None:
    scene = settled()
    remove(scene, key(1))
    scene.sync()
    assert scene.machine.is_leader
    assert not every(scene.fetch(2, 4, 1), do.AdvanceHighWatermark)  # it does not count itself
    effects = scene.fetch(3, 4, 1)
    assert only(effects, do.AdvanceHighWatermark).offset == 4
    assert error_of(effects) is ErrorCode.NONE
    assert [each.to.node_id for each in every(effects, do.SendEndQuorum)] == [2, 3]
    assert only(effects, do.RespondToFetch).error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert not every(effects, do.ServeFetch)
    assert scene.machine.role is RoleName.RESIGNED


def test_removed_voter_becomes_an_observer() -> None:
    scene = settled()
    remove(scene, key(1))
    scene.sync()
    scene.fetch(2, 4, 1)
    scene.fetch(3, 4, 1)
    effects = scene.wait(2 * scene.settings.election_timeout_ms)
    assert not every(effects, do.SendVote)
    assert only(effects, do.SendFetch).to == -1


@pytest.mark.proves("H6")
def test_voter_being_removed_may_stand_without_its_own_vote() -> None:
    entries = [Entry(1, "leader 1"), Entry(1, "version"), Entry(1, "voters", voter_set(1, 2, 3))]
    scene = Scene(entries=[*entries, Entry(1, "voters", voter_set(2, 3))], state=ElectionState(1, NodeId(1), key(1)))
    scene.start()
    requested = every(scene.wait_for_deadline(), do.SendVote)
    assert [each.to.node_id for each in requested] == [2, 3]
    scene.receive(on.VoteResponseReceived(requested[0], ErrorCode.NONE, leads(-1, 1), True))
    assert scene.machine.role is RoleName.PROSPECTIVE
    scene.receive(on.VoteResponseReceived(requested[1], ErrorCode.NONE, leads(-1, 1), True))
    assert scene.machine.role.value == "candidate"


def removed(port: int = 9093) -> Scene:
    """Return a restarted node that does not know whether its removal was committed."""
    entries = [Entry(1, "leader 2"), Entry(1, "version"), Entry(1, "voters", voter_set(1, 2, 3))]
    return Scene(entries=[*entries, Entry(1, "voters", voter_set(2, 3))], state=ElectionState(1), port=port)


@pytest.mark.proves("H6", part="voters change")
@pytest.mark.parametrize("port", [9093, 9999])
def test_leader_being_removed_completes_it_and_resigns(port: int) -> None:
    scene = removed(port)
    scene.start()
    scene.wait(2 * scene.settings.election_timeout_ms)
    change = only([*scene.win(), *scene.sync()], do.AppendLeaderChange)
    assert change.voter_set is None
    assert scene.machine.is_leader
    assert scene.machine.voters == voter_set(2, 3)
    effects = scene.fetch(2, 5, 2) + scene.fetch(3, 5, 2)
    assert only(effects, do.AdvanceHighWatermark).offset == 5
    assert scene.machine.role is RoleName.RESIGNED
    assert not every(scene.wait(2 * scene.settings.election_timeout_ms), do.SendVote)


@pytest.mark.proves("H6", part="voters change")
def test_voter_being_removed_lets_the_others_stand_first() -> None:
    scene = removed()
    scene.drawn = 0.0
    effects = scene.start() + scene.wait(scene.settings.election_timeout_ms - 1)
    assert not every(effects, do.SendVote)
    assert every(scene.wait(1), do.SendVote)


def test_removed_follower_continues_as_observer() -> None:
    scene = Scene()
    request = scene.follow(2, 1)
    scene.fetched(request, Entry(1, "leader 2"), Entry(1, "voters", voter_set(2, 3)), high_watermark=2)
    assert scene.machine.role is RoleName.OBSERVER
    effects = scene.sync() + scene.wait(scene.settings.fetch_timeout_ms)
    assert not every(effects, do.SendVote)


def test_added_observer_becomes_a_follower() -> None:
    scene = Scene(voter_set(2, 3))
    request = scene.follow(2, 1)
    scene.fetched(request, Entry(1, "leader 2"), Entry(1, "voters", voter_set(1, 2, 3)), high_watermark=0)
    assert scene.machine.role is RoleName.FOLLOWER
    scene.sync()
    assert len(every(scene.wait(scene.settings.fetch_timeout_ms), do.SendVote)) == 2


@pytest.mark.proves("H6")
def test_truncated_voter_change_has_no_effect() -> None:
    scene = Scene()
    request = scene.follow(2, 1)
    scene.fetched(request, Entry(1, "leader 2"), Entry(1, "voters", voter_set(2, 3)))
    again = only(scene.sync(), do.SendFetch)
    assert not scene.machine.is_voter
    scene.fetched(again, diverging=OffsetAndEpoch(1, 1))
    assert scene.machine.voters == voter_set(1, 2, 3)


# UpdateRaftVoter


def test_voter_with_new_endpoint_is_updated_at_once() -> None:
    scene = settled()
    effects = update(scene, voter(2, port=9999))
    assert only(effects, do.AppendVoters).voters.endpoints_of(NodeId(2)) == voter(2, port=9999).endpoints
    assert error_of(effects) is ErrorCode.NONE


def test_unchanged_update_is_not_written() -> None:
    effects = update(settled(), voter(2))
    assert error_of(effects) is ErrorCode.NONE
    assert not every(effects, do.AppendVoters)


@pytest.mark.parametrize(
    ("updated", "epoch", "error"),
    [
        (voter(4), 1, ErrorCode.VOTER_NOT_FOUND),
        (voter(2, disk=1), 1, ErrorCode.VOTER_NOT_FOUND),
        (voter(2), 0, ErrorCode.FENCED_LEADER_EPOCH),
        (voter(2), 2, ErrorCode.UNKNOWN_LEADER_EPOCH),
        (replace(voter(2), kraft_version_max=0), 1, ErrorCode.INVALID_REQUEST),
        (replace(voter(2), endpoints=()), 1, ErrorCode.INVALID_REQUEST),
    ],
)
def test_update_is_rejected(updated: Voter, epoch: int, error: ErrorCode) -> None:
    assert error_of(update(settled(), updated, epoch)) is error


def test_moved_voter_reports_its_endpoint_periodically() -> None:
    scene = Scene(port=9999)
    request = scene.follow(2, 1)
    effects = scene.fetched(request, Entry(1, "leader 2"), Entry(1, "voters", voter_set(1, 2, 3)))
    sent = only(effects, do.SendUpdateVoter)
    assert (sent.to, sent.voter) == (2, voter(1, port=9999))
    assert not every(scene.sync(), do.SendUpdateVoter)
    scene.receive(on.UpdateVoterResponseReceived(sent, ErrorCode.REQUEST_TIMED_OUT, leads(2, 1)))
    scene.now_ms += scene.settings.fetch_timeout_ms - 1
    again = scene.fetched(every(scene.effects, do.SendFetch)[-1])
    assert not every(again, do.SendUpdateVoter)
    scene.now_ms += 1
    later = scene.fetched(only(again, do.SendFetch))
    assert every(later, do.SendUpdateVoter)


def test_moved_leader_writes_its_endpoint_at_the_epoch_start() -> None:
    scene = Scene(
        port=9999,
        entries=[Entry(1, "leader 2"), Entry(1, "voters", voter_set(1, 2, 3))],
        state=ElectionState(1),
    )
    scene.elect()
    assert scene.machine.voters.endpoints_of(NodeId(1)) == voter(1, port=9999).endpoints
    assert scene.machine.voters.ids == (1, 2, 3)


# Preconditions of any change


def all_changes(scene: Scene) -> list[ErrorCode]:
    return [
        error_of(add(scene, voter(5))),
        error_of(remove(scene, key(3))),
        error_of(update(scene, voter(2, port=9999), scene.machine.epoch)),
    ]


def test_only_the_leader_changes_voters() -> None:
    scene = Scene()
    scene.follow(2, 1)
    assert all_changes(scene) == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 3
    assert only(remove(scene, key(3)), do.RespondToVoterChange).leadership.leader_id == 2


@pytest.mark.proves("H6")
def test_leader_without_a_commit_in_its_epoch_changes_no_voters() -> None:
    scene = Scene()
    request = scene.follow(2, 1)
    scene.fetched(request, Entry(1, "leader 2"), Entry(1, "voters", voter_set(1, 2, 3)), high_watermark=2)
    scene.sync()
    scene.wait(scene.settings.fetch_timeout_ms)
    scene.win()
    scene.sync()
    scene.fetch(5, 3, 2)
    assert scene.machine.is_leader
    assert scene.machine.high_watermark == 2  # the last change is committed, but others may have more
    assert all_changes(scene) == [ErrorCode.REQUEST_TIMED_OUT] * 3


def test_voter_change_is_rejected_while_a_new_voter_is_awaited() -> None:
    scene = settled()
    add(scene, voter(4))
    assert all_changes(scene) == [ErrorCode.REQUEST_TIMED_OUT] * 3


@pytest.mark.proves("H6")
def test_voter_change_is_rejected_until_the_last_is_committed() -> None:
    scene = settled()
    update(scene, voter(2, port=9999))  # its response is not awaited
    scene.fetch(5, 4, 1)
    assert all_changes(scene) == [ErrorCode.REQUEST_TIMED_OUT] * 3
    scene.sync()
    scene.fetch(2, 4, 1)
    assert every(remove(scene, key(3)), do.AppendVoters)


def test_timed_out_voter_change_still_blocks_others() -> None:
    scene = settled()
    remove(scene, key(3))
    scene.wait(2500)
    scene.fetch(2, 3, 1)
    assert error_of(scene.wait(2500)) is ErrorCode.REQUEST_TIMED_OUT
    assert all_changes(scene) == [ErrorCode.REQUEST_TIMED_OUT] * 3


def test_static_quorum_rejects_voter_changes() -> None:
    scene = Scene(static_voters=static_set(1, 2, 3))
    scene.elect()
    scene.fetch(2, 1, 1)
    assert all_changes(scene) == [ErrorCode.UNSUPPORTED_VERSION] * 3
    assert scene.machine.voters_at(1) is None


def test_pending_voter_change_fails_when_leadership_is_lost() -> None:
    scene = settled()
    add(scene, voter(4))
    response = only(scene.receive(on.ResignRequested()), do.RespondToVoterChange)
    assert response.error is ErrorCode.NOT_LEADER_OR_FOLLOWER


# Voter sets along the log


def test_voter_set_is_found_by_the_end_of_a_snapshot() -> None:
    history = VoterHistory(VoterSet())
    history.add(-1, voter_set(1))
    history.add(5, voter_set(1, 2))
    history.add(9, voter_set(1, 2, 3))
    assert [history.at(end) for end in (0, 5, 6, 9, 10)] == [
        voter_set(1),
        voter_set(1),
        voter_set(1, 2),
        voter_set(1, 2),
        voter_set(1, 2, 3),
    ]


def test_committed_voter_sets_are_bounded_and_uncommitted_ones_kept() -> None:
    history = VoterHistory(VoterSet())
    for offset in range(3 * VOTER_SETS_KEPT):
        history.add(offset, voter_set(offset))
    history.discard_below(high_watermark=0)
    assert history.at(1) == voter_set(0)
    history.discard_below(high_watermark=3 * VOTER_SETS_KEPT)
    assert history.at(2 * VOTER_SETS_KEPT) is None
    assert history.at(2 * VOTER_SETS_KEPT + 1) == voter_set(2 * VOTER_SETS_KEPT)
