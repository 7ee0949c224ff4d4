"""Start and end of an epoch, silent leaders, and the start of a node."""

import pytest
from raft_disk import Entry
from raft_scene import Scene, every, key, leads, no_leader, only, static_set, voter_set

from moldau.machines.raft import effects as do
from moldau.machines.raft import events as on
from moldau.machines.raft.effects import ElectionState
from moldau.machines.raft.roles import RoleName
from moldau.model.errors import ErrorCode
from moldau.model.ids import NO_NODE, NodeId

OLD = [Entry(1, "leader 2"), Entry(1, "a"), Entry(2, "leader 3"), Entry(2, "b")]  # ends at (4, epoch 2)


# Start and end of an epoch


def begin(node_id: int, epoch: int, disk: int = 0) -> on.BeginQuorumRequested:
    return on.BeginQuorumRequested(
        ticket=1, epoch=epoch, leader_id=NodeId(node_id), voter=key(1, disk), endpoints=leads(node_id, 0).endpoints
    )


def end(node_id: int, epoch: int, *successors: int) -> on.EndQuorumRequested:
    ranked = tuple(key(each) for each in successors)
    return on.EndQuorumRequested(ticket=1, epoch=epoch, leader_id=NodeId(node_id), successors=ranked, endpoints=())


def test_begin_quorum_makes_voter_follow_and_fetch() -> None:
    scene = Scene()
    scene.start()
    effects = scene.receive(begin(2, 4))
    assert effects[0] == do.PersistQuorumState(ElectionState(4, NodeId(2)))
    assert only(effects, do.RespondToQuorumEpoch).error is ErrorCode.NONE
    assert (only(effects, do.SendFetch).to, only(effects, do.SendFetch).epoch) == (2, 4)
    assert scene.machine.role is RoleName.FOLLOWER


@pytest.mark.proves("H6")
def test_stale_leader_gets_the_later_epoch() -> None:
    scene = Scene(state=ElectionState(5))
    scene.start()
    response = only(scene.receive(begin(2, 4)), do.RespondToQuorumEpoch)
    assert (response.error, response.leadership.epoch) == (ErrorCode.FENCED_LEADER_EPOCH, 5)


@pytest.mark.proves("H6")
def test_epoch_has_one_leader() -> None:
    scene = Scene()
    scene.follow(2, 4)
    assert only(scene.receive(begin(3, 4)), do.RespondToQuorumEpoch).error is ErrorCode.INVALID_REQUEST
    assert scene.machine.leadership.leader_id == 2


def test_begin_quorum_for_other_voter_key_is_followed_with_error() -> None:
    scene = Scene()
    scene.start()
    assert only(scene.receive(begin(2, 4, disk=1)), do.RespondToQuorumEpoch).error is ErrorCode.INVALID_VOTER_KEY
    assert scene.machine.leadership.leader_id == 2


@pytest.mark.proves("H6")
def test_first_successor_stands_at_once_when_its_leader_resigns() -> None:
    scene = Scene()
    scene.fetched(scene.follow(2, 4))
    effects = scene.receive(end(2, 4, 1, 3))
    assert [each.is_pre_vote for each in every(effects, do.SendVote)] == [True, True]


def test_later_successor_stands_after_a_delay() -> None:
    scene = Scene()
    scene.fetched(scene.follow(2, 4))
    effects = scene.receive(end(2, 4, 3, 1))
    assert not every(effects, do.SendVote)
    assert scene.request_vote(3, 4, is_pre_vote=True).is_granted
    assert 0 < scene.machine.deadline_ms - scene.now_ms < scene.settings.election_timeout_ms


def test_resigned_leader_is_not_followed_again_on_others_word() -> None:
    scene = Scene()
    scene.fetched(scene.follow(2, 4))
    requested = every(scene.receive(end(2, 4, 1, 3)), do.SendVote)
    scene.receive(on.VoteResponseReceived(requested[1], ErrorCode.NONE, leads(2, 4), False))
    assert scene.machine.role is RoleName.PROSPECTIVE


@pytest.mark.proves("H6")
def test_stopping_leader_hands_over_to_the_longest_log() -> None:
    scene = Scene()
    scene.elect()
    scene.write("a", "b")
    scene.fetch(2, 3, 1)
    scene.fetch(3, 4, 1)
    effects = scene.receive(on.ResignRequested())
    sent = every(effects, do.SendEndQuorum)
    assert [each.to.node_id for each in sent] == [3, 2]
    assert sent[0].successors == (key(3), key(2))
    assert only(effects, do.FailWaitingFetches).error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (scene.machine.role, scene.machine.leadership.leader_id) == (RoleName.RESIGNED, NO_NODE)


def test_resigned_leader_stands_in_a_new_epoch_without_a_successor() -> None:
    scene = Scene()
    scene.elect()
    scene.receive(on.ResignRequested())
    assert scene.machine.deadline_ms - scene.now_ms >= scene.settings.election_timeout_ms
    scene.effects.clear()
    scene.wait_for_deadline()
    scene.win()
    assert (scene.machine.role, scene.machine.epoch) == (RoleName.LEADER, 2)


@pytest.mark.proves("H6")
def test_restarted_leader_does_not_lead_its_old_epoch() -> None:
    scene = Scene(state=ElectionState(4, NodeId(1), key(1)))
    scene.start()
    assert (scene.machine.role, scene.machine.leadership.leader_id) == (RoleName.RESIGNED, NO_NODE)
    scene.wait_for_deadline()
    scene.win()
    assert (scene.machine.role, scene.machine.epoch) == (RoleName.LEADER, 5)


# Silent leaders


def test_follower_of_a_silent_leader_becomes_prospective() -> None:
    scene = Scene()
    scene.fetched(scene.follow(2, 4))
    scene.wait(scene.settings.fetch_timeout_ms - 1)
    assert scene.machine.role is RoleName.FOLLOWER
    assert len(every(scene.wait(1), do.SendVote)) == 2


def test_follower_of_a_vanished_leader_does_not_wait() -> None:
    scene = Scene()
    scene.fetched(scene.follow(2, 4))
    assert len(every(scene.receive(on.PeerStopped(NodeId(2))), do.SendVote)) == 2


def test_vanished_non_leader_is_ignored() -> None:
    scene = Scene()
    scene.fetched(scene.follow(2, 4))
    assert scene.receive(on.PeerStopped(NodeId(3))) == []


@pytest.mark.proves("H6")
def test_only_the_leader_itself_revives_a_stopped_leader() -> None:
    scene = Scene()
    scene.fetched(scene.follow(2, 4))
    requested = every(scene.receive(on.PeerStopped(NodeId(2))), do.SendVote)
    scene.receive(on.VoteResponseReceived(requested[1], ErrorCode.NONE, leads(2, 4), False))
    assert scene.machine.role is RoleName.PROSPECTIVE
    scene.receive(begin(2, 4))
    assert scene.machine.role.value == "follower"


@pytest.mark.proves("H7")
def test_leader_without_fetches_of_a_majority_resigns() -> None:
    scene = Scene(voter_set(1, 2, 3, 4, 5))
    scene.elect()
    patience_ms = scene.settings.fetch_timeout_ms * 1.5
    scene.wait(patience_ms - 1)
    scene.fetch(2, 3, 1)
    assert scene.machine.is_leader
    effects = scene.wait(1)
    assert [each.to.node_id for each in every(effects, do.SendEndQuorum)] == [2, 3, 4, 5]
    assert scene.machine.role is RoleName.RESIGNED


def test_leader_with_fetches_of_a_majority_stays() -> None:
    scene = Scene()
    scene.elect()
    for _ in range(10):
        scene.wait(scene.settings.fetch_timeout_ms)
        scene.fetch(3, 3, 1)
    assert scene.machine.is_leader


def test_leader_repeats_begin_quorum_to_voters_that_do_not_fetch() -> None:
    scene = Scene()
    scene.elect()
    scene.wait(500)
    scene.fetch(2, 3, 1)
    effects = scene.wait(scene.settings.fetch_timeout_ms / 2 - 500)
    assert [each.to.node_id for each in every(effects, do.SendBeginQuorum)] == [3]
    soon = scene.receive(on.RequestFailed(only(effects, do.SendBeginQuorum))) + scene.wait(100)
    assert [each.to.node_id for each in every(soon, do.SendBeginQuorum)] == [3]


# Start


def test_starting_voter_without_leader_sends_pre_votes_soon() -> None:
    scene = Scene(state=ElectionState(4))
    scene.start()
    assert scene.machine.deadline_ms - scene.now_ms <= 100


def test_starting_voter_fetches_from_its_persisted_leader() -> None:
    scene = Scene(state=ElectionState(4, NodeId(3)))
    assert only(scene.start(), do.SendFetch).to == 3


def test_epoch_of_the_log_counts_when_the_state_is_older() -> None:
    scene = Scene(entries=OLD, state=ElectionState(1, NodeId(3), key(3)))
    effects = scene.start()
    assert effects[0] == do.PersistQuorumState(ElectionState(2))


def test_non_voter_never_stands_and_looks_for_a_leader() -> None:
    scene = Scene(voter_set(2, 3))
    request = only(scene.start(), do.SendFetch)
    assert request.to == NO_NODE
    effects = scene.fetched(request, error=ErrorCode.NOT_LEADER_OR_FOLLOWER, leadership=leads(3, 4))
    assert only(effects, do.SendFetch).to == 3
    assert scene.machine.role is RoleName.OBSERVER
    again = every(scene.wait(scene.settings.fetch_timeout_ms), do.SendFetch)
    assert [each.to for each in again] == [NO_NODE]
    assert not every(scene.effects, do.SendVote)


def test_observer_does_not_move_to_an_epoch_without_a_leader() -> None:
    scene = Scene(voter_set(2, 3))
    request = only(scene.start(), do.SendFetch)
    scene.fetched(request, error=ErrorCode.NOT_LEADER_OR_FOLLOWER, leadership=no_leader(7))
    assert scene.machine.epoch == 0
    assert scene.machine.deadline_ms - scene.now_ms == 100


def test_node_grants_vote_before_it_knows_it_is_a_voter() -> None:
    scene = Scene(voter_set(2, 3))
    scene.start()
    assert scene.request_vote(2, 5).is_granted


def test_voter_of_a_static_quorum_may_have_any_directory_id() -> None:
    scene = Scene(static_voters=static_set(1, 2, 3))
    scene.start()
    assert scene.machine.is_voter
    assert scene.request_vote(2, 1, candidate=key(2, disk=7)).is_granted


def test_voter_with_a_new_directory_id_is_no_voter() -> None:
    wiped = Scene()
    wiped.disk.directory_id = key(1, disk=1).directory_id
    assert not Scene(disk=wiped.disk).machine.is_voter
