"""Voters that change: one at a time, each on a committed one (KIP-853)."""

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
    """Leads epoch 1 with everything committed; its log ends at 3."""
    scene = Scene(voters or voter_set(1, 2, 3))
    scene.elect()
    for other in scene.machine.voters:
        if other.node_id != 1:
            scene.fetch(other.node_id, 3, 1)
    assert scene.machine.high_watermark == 3
    return scene


def add(scene: Scene, newcomer: Voter, **fields: bool) -> list[Effect]:
    ticket = scene.next_ticket()
    return scene.tell(on.AddVoterRequested(ticket=ticket, voter=newcomer, timeout_ms=5000, **fields))


def remove(scene: Scene, removed: ReplicaKey) -> list[Effect]:
    return scene.tell(on.RemoveVoterRequested(ticket=scene.next_ticket(), voter=removed, timeout_ms=5000))


def update(scene: Scene, updated: Voter, epoch: int = 1) -> list[Effect]:
    return scene.tell(on.UpdateVoterRequested(ticket=scene.next_ticket(), epoch=epoch, voter=updated))


def error_of(effects: list[Effect]) -> ErrorCode:
    return only(effects, do.RespondToVoterChange).error


# Adding


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
def test_a_newcomer_that_has_not_caught_up_is_waited_for() -> None:
    scene = settled()
    scene.fetch(4, 0, 0)
    assert not every(add(scene, voter(4)), do.AppendVoters)
    assert only(scene.fetch(4, 3, 1), do.AppendVoters).voters == voter_set(1, 2, 3, 4)


@pytest.mark.proves("H6")
def test_a_newcomer_that_had_caught_up_and_died_a_moment_ago_is_given_no_vote() -> None:
    scene = settled()
    scene.fetch(4, 3, 1)
    scene.wait(10)
    assert not every(add(scene, voter(4)), do.AppendVoters)
    assert scene.machine.voters == voter_set(1, 2, 3)
    assert only(scene.fetch(4, 3, 1), do.AppendVoters).voters == voter_set(1, 2, 3, 4)


def test_a_newcomer_that_never_catches_up_is_given_up() -> None:
    scene = settled()
    add(scene, voter(4))
    effects: list[Effect] = []
    for _ in range(5):
        assert not every(effects, do.RespondToVoterChange)
        scene.fetch(2, 3, 1)
        effects = scene.wait(1000)
    answer = only(effects, do.RespondToVoterChange)
    assert answer.error is ErrorCode.REQUEST_TIMED_OUT
    assert str(key(4)) in answer.message
    assert not every(scene.fetch(4, 3, 1), do.AppendVoters)


def test_the_newcomer_with_another_disk_is_another_newcomer() -> None:
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
def test_the_new_voters_count_from_the_moment_they_are_in_the_log() -> None:
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
def test_a_node_that_votes_is_not_added_again(disk: int) -> None:
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


# Removing


def test_a_voter_is_removed() -> None:
    scene = settled()
    effects = remove(scene, key(3))
    assert only(effects, do.AppendVoters).voters == voter_set(1, 2)
    scene.sync()
    assert error_of(scene.fetch(2, 4, 1)) is ErrorCode.NONE


@pytest.mark.parametrize("stranger", [key(4), key(3, disk=1)])
def test_only_a_voter_can_be_removed(stranger: ReplicaKey) -> None:
    assert error_of(remove(settled(), stranger)) is ErrorCode.VOTER_NOT_FOUND


def test_the_last_voter_is_not_removed() -> None:
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


def test_who_has_been_removed_becomes_an_observer() -> None:
    scene = settled()
    remove(scene, key(1))
    scene.sync()
    scene.fetch(2, 4, 1)
    scene.fetch(3, 4, 1)
    effects = scene.wait(2 * scene.settings.election_timeout_ms)
    assert not every(effects, do.SendVote)
    assert only(effects, do.SendFetch).to == -1


@pytest.mark.proves("H6")
def test_who_is_being_removed_may_stand_but_does_not_vote_for_itself() -> None:
    entries = [Entry(1, "leader 1"), Entry(1, "version"), Entry(1, "voters", voter_set(1, 2, 3))]
    scene = Scene(entries=[*entries, Entry(1, "voters", voter_set(2, 3))], state=ElectionState(1, NodeId(1), key(1)))
    scene.start()
    asked = every(scene.wait_for_deadline(), do.SendVote)
    assert [each.to.node_id for each in asked] == [2, 3]
    scene.tell(on.VoteResponseReceived(asked[0], ErrorCode.NONE, leads(-1, 1), True))
    assert scene.machine.role is RoleName.PROSPECTIVE
    scene.tell(on.VoteResponseReceived(asked[1], ErrorCode.NONE, leads(-1, 1), True))
    assert scene.machine.role.value == "candidate"


def removed(port: int = 9093) -> Scene:
    """Comes back and does not know whether its removal was ever committed."""
    entries = [Entry(1, "leader 2"), Entry(1, "version"), Entry(1, "voters", voter_set(1, 2, 3))]
    return Scene(entries=[*entries, Entry(1, "voters", voter_set(2, 3))], state=ElectionState(1), port=port)


@pytest.mark.proves("H6", part="voters change")
@pytest.mark.parametrize("port", [9093, 9999])
def test_who_is_being_removed_and_leads_finishes_that_and_is_no_voter_again(port: int) -> None:
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
def test_who_is_being_removed_lets_the_voters_stand_first() -> None:
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


def test_an_observer_that_is_added_becomes_a_follower() -> None:
    scene = Scene(voter_set(2, 3))
    request = scene.follow(2, 1)
    scene.fetched(request, Entry(1, "leader 2"), Entry(1, "voters", voter_set(1, 2, 3)), high_watermark=0)
    assert scene.machine.role is RoleName.FOLLOWER
    scene.sync()
    assert len(every(scene.wait(scene.settings.fetch_timeout_ms), do.SendVote)) == 2


@pytest.mark.proves("H6")
def test_a_change_that_is_cut_off_the_log_never_was() -> None:
    scene = Scene()
    request = scene.follow(2, 1)
    scene.fetched(request, Entry(1, "leader 2"), Entry(1, "voters", voter_set(2, 3)))
    again = only(scene.sync(), do.SendFetch)
    assert not scene.machine.is_voter
    scene.fetched(again, diverging=OffsetAndEpoch(1, 1))
    assert scene.machine.voters == voter_set(1, 2, 3)


# Updating


def test_voter_with_new_endpoint_is_updated_at_once() -> None:
    scene = settled()
    effects = update(scene, voter(2, port=9999))
    assert only(effects, do.AppendVoters).voters.endpoints_of(NodeId(2)) == voter(2, port=9999).endpoints
    assert error_of(effects) is ErrorCode.NONE


def test_an_update_that_changes_nothing_is_not_written() -> None:
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


def test_a_voter_that_has_moved_tells_its_leader_once_in_a_while() -> None:
    scene = Scene(port=9999)
    request = scene.follow(2, 1)
    effects = scene.fetched(request, Entry(1, "leader 2"), Entry(1, "voters", voter_set(1, 2, 3)))
    sent = only(effects, do.SendUpdateVoter)
    assert (sent.to, sent.voter) == (2, voter(1, port=9999))
    assert not every(scene.sync(), do.SendUpdateVoter)
    scene.tell(on.UpdateVoterResponseReceived(sent, ErrorCode.REQUEST_TIMED_OUT, leads(2, 1)))
    scene.now_ms += scene.settings.fetch_timeout_ms - 1
    again = scene.fetched(every(scene.effects, do.SendFetch)[-1])
    assert not every(again, do.SendUpdateVoter)
    scene.now_ms += 1
    later = scene.fetched(only(again, do.SendFetch))
    assert every(later, do.SendUpdateVoter)


def test_a_leader_that_has_moved_writes_that_when_its_epoch_begins() -> None:
    scene = Scene(
        port=9999,
        entries=[Entry(1, "leader 2"), Entry(1, "voters", voter_set(1, 2, 3))],
        state=ElectionState(1),
    )
    scene.elect()
    assert scene.machine.voters.endpoints_of(NodeId(1)) == voter(1, port=9999).endpoints
    assert scene.machine.voters.ids == (1, 2, 3)


# What stands against any change


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
def test_a_leader_that_has_committed_nothing_in_its_epoch_changes_no_voters() -> None:
    scene = Scene()
    request = scene.follow(2, 1)
    scene.fetched(request, Entry(1, "leader 2"), Entry(1, "voters", voter_set(1, 2, 3)), high_watermark=2)
    scene.sync()
    scene.wait(scene.settings.fetch_timeout_ms)
    scene.win()
    scene.sync()
    scene.fetch(5, 3, 2)
    assert scene.machine.is_leader
    assert scene.machine.high_watermark == 2  # the last change is committed, but others may be elsewhere
    assert all_changes(scene) == [ErrorCode.REQUEST_TIMED_OUT] * 3


def test_one_change_at_a_time_while_a_newcomer_is_waited_for() -> None:
    scene = settled()
    add(scene, voter(4))
    assert all_changes(scene) == [ErrorCode.REQUEST_TIMED_OUT] * 3


@pytest.mark.proves("H6")
def test_one_change_at_a_time_until_it_is_committed() -> None:
    scene = settled()
    update(scene, voter(2, port=9999))  # nobody waits for this one
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


def test_a_fixed_quorum_does_not_change() -> None:
    scene = Scene(static_voters=static_set(1, 2, 3))
    scene.elect()
    scene.fetch(2, 1, 1)
    assert all_changes(scene) == [ErrorCode.UNSUPPORTED_VERSION] * 3
    assert scene.machine.voters_at(1) is None


def test_pending_voter_change_fails_when_leadership_is_lost() -> None:
    scene = settled()
    add(scene, voter(4))
    answer = only(scene.tell(on.ResignRequested()), do.RespondToVoterChange)
    assert answer.error is ErrorCode.NOT_LEADER_OR_FOLLOWER


# Sets along the log


def test_sets_are_found_by_where_a_snapshot_ends() -> None:
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


def test_only_so_many_committed_sets_are_remembered_but_all_that_are_not() -> None:
    history = VoterHistory(VoterSet())
    for offset in range(3 * VOTER_SETS_KEPT):
        history.add(offset, voter_set(offset))
    history.discard_below(high_watermark=0)
    assert history.at(1) == voter_set(0)
    history.discard_below(high_watermark=3 * VOTER_SETS_KEPT)
    assert history.at(2 * VOTER_SETS_KEPT) is None
    assert history.at(2 * VOTER_SETS_KEPT + 1) == voter_set(2 * VOTER_SETS_KEPT)
