"""Elections: candidacy, votes, and what is persisted first."""

from dataclasses import replace

import pytest
from raft_disk import Entry
from raft_scene import Scene, every, key, leads, no_leader, only, static_set, voter_set

from moldau.machines.raft import effects as do
from moldau.machines.raft import events as on
from moldau.machines.raft.effects import ElectionState
from moldau.machines.raft.roles import RoleName
from moldau.machines.raft.voters import ReplicaKey
from moldau.model.errors import ErrorCode
from moldau.model.ids import NO_NODE, NodeId

OLD = [Entry(1, "leader 2"), Entry(1, "a"), Entry(2, "leader 3"), Entry(2, "b")]  # ends at (4, epoch 2)


def rejected(request: do.SendVote, epoch: int | None = None) -> on.VoteResponseReceived:
    return on.VoteResponseReceived(request, ErrorCode.NONE, no_leader(epoch or request.epoch), False)


def granted(request: do.SendVote) -> on.VoteResponseReceived:
    return on.VoteResponseReceived(request, ErrorCode.NONE, no_leader(request.epoch), True)


# Candidacy


@pytest.mark.proves("H6")
def test_single_voter_elects_itself_at_once() -> None:
    scene = Scene(voter_set(1))
    effects = scene.start()
    assert [type(each) for each in effects[:3]] == [do.PersistQuorumState, do.AppendLeaderChange, do.BecomeLeader]
    assert only(effects, do.PersistQuorumState).state == ElectionState(1, NodeId(1), key(1))
    assert only(scene.sync(), do.AdvanceHighWatermark).offset == 3


def test_single_voter_that_led_before_takes_a_new_epoch() -> None:
    scene = Scene(voter_set(1), state=ElectionState(5, NodeId(1), key(1)))
    scene.start()
    assert (scene.machine.role, scene.machine.epoch) == (RoleName.LEADER, 6)


def test_initial_voters_are_written_by_the_first_leader() -> None:
    scene = Scene()
    scene.elect()
    assert [entry.voters for entry in scene.log.entries] == [None, None, scene.voters]


def test_voters_of_a_static_quorum_are_not_written() -> None:
    scene = Scene(static_voters=static_set(1, 2, 3))
    scene.elect()
    assert [entry.value for entry in scene.log.entries] == ["leader 1"]


def test_voter_sends_pre_votes_without_a_new_epoch() -> None:
    scene = Scene(state=ElectionState(7))
    scene.start()
    effects = scene.wait_for_deadline()
    requested = every(effects, do.SendVote)
    assert [(each.to.node_id, each.epoch, each.is_pre_vote) for each in requested] == [(2, 7, True), (3, 7, True)]
    assert not every(effects, do.PersistQuorumState)
    assert scene.machine.role is RoleName.PROSPECTIVE


def test_candidate_persists_vote_before_requesting_votes() -> None:
    scene = Scene(state=ElectionState(7))
    scene.start()
    first = every(scene.wait_for_deadline(), do.SendVote)[0]
    effects = scene.receive(granted(first))
    assert effects[0] == do.PersistQuorumState(ElectionState(8, NO_NODE, key(1)))
    assert [(each.epoch, each.is_pre_vote) for each in every(effects, do.SendVote)] == [(8, False), (8, False)]


def test_majority_of_votes_makes_a_leader_that_announces_itself() -> None:
    scene = Scene()
    scene.start()
    scene.wait_for_deadline()
    effects = scene.win()
    assert only(effects, do.AppendLeaderChange).granting_voters == (1, 2)
    assert only(effects, do.BecomeLeader) == do.BecomeLeader(epoch=1, start_offset=0)
    assert [each.to.node_id for each in every(effects, do.SendBeginQuorum)] == [2, 3]
    assert scene.disk.state == ElectionState(1, NodeId(1), key(1))


@pytest.mark.proves("H6")
def test_votes_of_an_older_epoch_do_not_count() -> None:
    scene = Scene()
    scene.start()
    first = every(scene.wait_for_deadline(), do.SendVote)[0]
    vote = every(scene.receive(granted(first)), do.SendVote)[0]
    again = every(scene.wait_for_deadline(), do.SendVote)[1]
    assert scene.machine.role is RoleName.PROSPECTIVE
    scene.receive(granted(vote), granted(first))
    assert scene.machine.role is RoleName.PROSPECTIVE
    scene.receive(granted(again))
    assert (scene.machine.role.value, scene.machine.epoch) == ("candidate", 2)
    scene.receive(granted(vote))
    assert scene.machine.role.value == "candidate"


@pytest.mark.proves("H6")
def test_pre_vote_does_not_count_as_a_vote() -> None:
    scene = Scene(voter_set(1, 2, 3, 4, 5))
    scene.start()
    requested = every(scene.wait_for_deadline(), do.SendVote)
    scene.receive(*map(granted, requested[:2]))
    assert scene.machine.role is RoleName.CANDIDATE
    late = replace(requested[2], epoch=scene.machine.epoch)
    scene.receive(granted(late), granted(replace(late, to=requested[3].to)))
    assert scene.machine.role is RoleName.CANDIDATE


def test_repeated_vote_counts_once() -> None:
    scene = Scene(voter_set(1, 2, 3, 4, 5))
    scene.start()
    first = every(scene.wait_for_deadline(), do.SendVote)[0]
    scene.receive(granted(first), granted(first), granted(first))
    assert scene.machine.role is RoleName.PROSPECTIVE


def test_lost_pre_vote_backs_off_without_a_new_epoch() -> None:
    scene = Scene()
    scene.start()
    first, second = every(scene.wait_for_deadline(), do.SendVote)
    scene.receive(rejected(first), on.RequestFailed(second))
    paused_ms = scene.machine.deadline_ms - scene.now_ms
    assert 0 < paused_ms <= 2 * scene.settings.retry_backoff_ms
    again = every(scene.wait_for_deadline(), do.SendVote)
    assert [(each.epoch, each.is_pre_vote) for each in again] == [(0, True), (0, True)]


def test_election_backoff_grows_up_to_a_limit() -> None:
    scene = Scene()
    scene.start()
    requested, pauses = every(scene.wait_for_deadline(), do.SendVote), []
    for _ in range(10):
        scene.receive(*map(rejected, requested))
        began_ms = scene.now_ms
        while not (requested := every(scene.wait_for_deadline(), do.SendVote)):
            pass
        pauses.append(scene.now_ms - began_ms)
    assert pauses == sorted(pauses)
    assert pauses[0] < 50 < 500 < pauses[-1] <= scene.settings.election_backoff_max_ms


def test_concurrent_pre_votes_are_won_by_the_lower_id() -> None:
    for rival, is_asking in ((2, True), (0, False)):
        scene = Scene(voter_set(0, 1, 2))
        scene.start()
        mine = every(scene.wait_for_deadline(), do.SendVote)
        assert scene.request_vote(rival, 0, is_pre_vote=True).is_granted
        scene.receive(granted(mine[0]))
        assert (scene.machine.role is RoleName.CANDIDATE) is is_asking


def test_later_epoch_in_response_ends_candidacy() -> None:
    scene = Scene()
    scene.start()
    first = every(scene.wait_for_deadline(), do.SendVote)[0]
    effects = scene.receive(on.VoteResponseReceived(first, ErrorCode.FENCED_LEADER_EPOCH, no_leader(9), False))
    assert effects[0] == do.PersistQuorumState(ElectionState(9))
    assert scene.machine.role is RoleName.UNATTACHED


def test_leader_named_in_response_is_followed() -> None:
    scene = Scene()
    scene.start()
    first = every(scene.wait_for_deadline(), do.SendVote)[0]
    effects = scene.receive(on.VoteResponseReceived(first, ErrorCode.NONE, leads(3, 4), False))
    assert only(effects, do.BecomeFollower).leadership == leads(3, 4)
    assert only(effects, do.SendFetch).to == 3


# Voting


@pytest.mark.proves("H6")
def test_vote_is_persisted_before_its_response() -> None:
    scene = Scene()
    scene.start()
    event = on.VoteRequested(
        ticket=1, epoch=3, candidate=key(2), voter=key(1), last_offset=0, last_epoch=0, is_pre_vote=False
    )
    effects = scene.receive(event)
    assert effects[0] == do.PersistQuorumState(ElectionState(3, NO_NODE, key(2)))
    assert only(effects, do.RespondToVote).is_granted


@pytest.mark.proves("H6")
def test_voter_votes_once_per_epoch_and_repeats_it_for_the_same_candidate() -> None:
    scene = Scene()
    scene.start()
    assert scene.request_vote(2, 3).is_granted
    assert not scene.request_vote(3, 3).is_granted
    assert scene.request_vote(2, 3).is_granted
    assert scene.request_vote(3, 4).is_granted


def test_vote_survives_a_restart() -> None:
    scene = Scene(state=ElectionState(3, NO_NODE, key(2)))
    scene.start()
    assert not scene.request_vote(3, 3).is_granted
    assert scene.request_vote(2, 3).is_granted


@pytest.mark.proves("H6")
def test_vote_is_bound_to_the_directory_id() -> None:
    scene = Scene()
    scene.start()
    assert scene.request_vote(2, 3).is_granted
    assert not scene.request_vote(2, 3, candidate=key(2, disk=1)).is_granted


def test_vote_without_a_directory_id_is_bound_to_the_node() -> None:
    scene = Scene(state=ElectionState(3, NO_NODE, ReplicaKey(NodeId(2))))
    scene.start()
    assert scene.request_vote(2, 3).is_granted


@pytest.mark.proves("H6")
@pytest.mark.parametrize("is_pre_vote", [False, True])
@pytest.mark.parametrize(("last", "is_granted"), [((2, 4), True), ((2, 5), True), ((2, 3), False), ((1, 9), False)])
def test_only_an_up_to_date_log_gets_a_vote(last: tuple[int, int], is_granted: bool, is_pre_vote: bool) -> None:
    scene = Scene(entries=OLD, state=ElectionState(2))
    scene.start()
    assert scene.request_vote(3, 3, last=last, is_pre_vote=is_pre_vote).is_granted is is_granted


def test_pre_vote_is_not_persisted() -> None:
    scene = Scene()
    scene.start()
    assert scene.request_vote(2, 0, is_pre_vote=True).is_granted
    assert scene.request_vote(3, 0, is_pre_vote=True).is_granted
    assert scene.disk.state == ElectionState()


@pytest.mark.proves("H7")
def test_follower_of_live_leader_rejects_pre_vote() -> None:
    scene = Scene()
    request = scene.follow(2, 1)
    assert scene.request_vote(3, 1, is_pre_vote=True).is_granted  # it knows the leader by name only
    scene.fetched(request)
    response = scene.request_vote(3, 1, is_pre_vote=True)
    assert (response.is_granted, response.leadership.leader_id) == (False, 2)


def test_leader_does_not_vote_for_another() -> None:
    scene = Scene()
    scene.elect()
    response = scene.request_vote(3, 1, last=(1, 9), is_pre_vote=True)
    assert (response.is_granted, response.leadership.leader_id) == (False, 1)


def test_no_vote_is_granted_in_an_epoch_with_a_leader() -> None:
    scene = Scene()
    scene.follow(2, 3)
    assert not scene.request_vote(3, 3).is_granted


@pytest.mark.proves("H6")
def test_leader_steps_down_on_later_epoch() -> None:
    scene = Scene()
    scene.elect()
    effects = scene.receive(
        on.VoteRequested(
            ticket=9, epoch=2, candidate=key(3), voter=key(1), last_offset=0, last_epoch=0, is_pre_vote=False
        )
    )
    assert only(effects, do.FailPendingAppends).leadership.leader_id == NO_NODE
    assert [type(each) for each in effects[:2]] == [do.FailPendingAppends, do.PersistQuorumState]
    assert only(effects, do.FailWaitingFetches).error is ErrorCode.FENCED_LEADER_EPOCH
    assert not only(effects, do.RespondToVote).is_granted
    assert (scene.machine.role, scene.machine.epoch) == (RoleName.UNATTACHED, 2)


def test_request_of_an_older_epoch_is_fenced() -> None:
    scene = Scene(state=ElectionState(5))
    scene.start()
    response = scene.request_vote(2, 4)
    assert (response.error, response.leadership.epoch) == (ErrorCode.FENCED_LEADER_EPOCH, 5)


def test_request_for_other_directory_id_is_rejected() -> None:
    scene = Scene()
    scene.start()
    assert scene.request_vote(2, 1, voter=key(1, disk=1)).error is ErrorCode.INVALID_VOTER_KEY
    assert scene.request_vote(2, 1, voter=key(2)).error is ErrorCode.INVALID_VOTER_KEY
    assert scene.request_vote(2, 1, voter=None).is_granted


@pytest.mark.parametrize(("epoch", "last"), [(3, (3, 9)), (3, (-1, 0)), (3, (1, -1))])
def test_candidate_with_impossible_log_end_is_rejected(epoch: int, last: tuple[int, int]) -> None:
    scene = Scene()
    scene.start()
    assert scene.request_vote(2, epoch, last=last).error is ErrorCode.INVALID_REQUEST
    assert scene.machine.epoch == 0
