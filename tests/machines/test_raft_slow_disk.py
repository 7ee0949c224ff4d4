"""Events between an effect and its completion: the disk may be full or slow."""

import pytest
from raft_disk import Entry
from raft_scene import Scene, every, key, leads, only, static_set, voter, voter_set

from moldau.machines.raft import effects as do
from moldau.machines.raft import events as on
from moldau.machines.raft.effects import Effect, ElectionState
from moldau.machines.raft.events import Event
from moldau.machines.raft.log_view import OffsetAndEpoch
from moldau.machines.raft.roles import RoleName
from moldau.model.errors import ErrorCode
from moldau.model.ids import NodeId

SNAPSHOT = OffsetAndEpoch(6, 3)


def effects_of(scene: Scene, event: Event) -> list[Effect]:
    """Return the effects of an event, without executing them."""
    return scene.machine.step(event, scene.now_ms)


def learn_leader(scene: Scene, node_id: int, epoch: int) -> list[Effect]:
    return effects_of(
        scene, on.BeginQuorumRequested(ticket=9, epoch=epoch, leader_id=NodeId(node_id), voter=None, endpoints=())
    )


# A voter change that is not in the log yet


def settled() -> Scene:
    """Lead epoch 1 with everything committed; the log ends at 3. Node 4 has caught up."""
    scene = Scene()
    scene.elect()
    for node_id in (2, 3, 4):
        scene.fetch(node_id, 3, 1)
    assert scene.machine.high_watermark == 3
    return scene


ADD = on.AddVoterRequested(ticket=101, voter=voter(4), timeout_ms=5000, ack_when_committed=False)
REMOVE = on.RemoveVoterRequested(ticket=102, voter=key(3), timeout_ms=5000)
UPDATE = on.UpdateVoterRequested(ticket=103, epoch=1, voter=voter(2, port=9999))


@pytest.mark.proves("H6", part="voters change")
@pytest.mark.parametrize("first", [ADD, UPDATE])
@pytest.mark.parametrize("second", [ADD, REMOVE, UPDATE])
def test_unwritten_voter_change_blocks_the_next(first: Event, second: Event) -> None:
    scene = settled()
    due = effects_of(scene, first)
    voters = only(due, do.AppendVoters).voters
    assert only(due, do.RespondToVoterChange).error is ErrorCode.NONE
    rejected = effects_of(scene, second)
    assert only(rejected, do.RespondToVoterChange).error is ErrorCode.REQUEST_TIMED_OUT
    assert not every(rejected, do.AppendVoters)
    scene.node.append([Entry(1, "voters", voters)])
    scene.node.step()
    assert not every(scene.receive(REMOVE), do.AppendVoters)  # it is in the log, and not committed
    scene.sync()
    for node_id in (2, 3):
        scene.fetch(node_id, 4, 1)
    assert only(scene.receive(REMOVE), do.AppendVoters).voters == voters.without(key(3))


def test_timed_out_unwritten_voter_change_still_blocks_the_next() -> None:
    scene = settled()
    effects_of(scene, REMOVE)
    for _ in range(5):
        scene.fetch(2, 3, 1)
        scene.now_ms += 1000
    assert only(effects_of(scene, on.TimedOut()), do.RespondToVoterChange).error is ErrorCode.REQUEST_TIMED_OUT
    assert not every(effects_of(scene, UPDATE), do.AppendVoters)


# A voter change after a stall


@pytest.mark.proves("H6", part="voters change")
@pytest.mark.parametrize("change", [ADD, REMOVE, UPDATE])
def test_stalled_leader_resigns_before_it_changes_voters(change: Event) -> None:
    scene = settled()
    scene.fetch(4, 3, 1)
    scene.now_ms = scene.machine.deadline_ms + 4 * scene.settings.fetch_timeout_ms
    effects = effects_of(scene, change)
    assert scene.machine.role is RoleName.RESIGNED
    assert not every(effects, do.AppendVoters)
    assert only(effects, do.RespondToVoterChange).error is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_stalled_leader_resigns_before_it_writes_the_initial_voters() -> None:
    scene = Scene(static_voters=static_set(1, 2, 3))
    scene.elect()
    for node_id in (2, 3):
        scene.fetch(node_id, 1, 1)
    scene.now_ms += 4 * scene.settings.fetch_timeout_ms
    effects = effects_of(scene, on.KRaftUpgradeRequested(ticket=104, timeout_ms=5000))
    assert not every(effects, do.AppendVoters)
    assert only(effects, do.RespondToVoterChange).error is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_add_voter_fails_once_when_stalled_leader_resigns() -> None:
    scene = settled()
    effects_of(scene, on.AddVoterRequested(ticket=105, voter=voter(5), timeout_ms=60_000))
    scene.now_ms += 4 * scene.settings.fetch_timeout_ms
    responses = every(effects_of(scene, REMOVE), do.RespondToVoterChange)
    assert [(each.ticket, each.error) for each in responses] == [
        (105, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (102, ErrorCode.NOT_LEADER_OR_FOLLOWER),
    ]


# Voter records between elections


@pytest.mark.proves("H6", part="voters change")
def test_observer_promoted_without_a_leader_stands_at_its_timeout() -> None:
    scene = Scene(voter_set(2, 3))
    request = scene.follow(2, 1)
    entries = [Entry(1, "leader 2"), Entry(1, "voters", voter_set(1, 2, 3))]
    wanted = effects_of(
        scene,
        on.FetchResponseReceived(
            request=request, error=ErrorCode.NONE, leadership=leads(2, 1), high_watermark=0, has_records=True
        ),
    )
    assert only(wanted, do.AppendFetched)
    effects_of(
        scene,
        on.VoteRequested(
            ticket=9, epoch=2, candidate=key(3), voter=None, last_offset=9, last_epoch=1, is_pre_vote=False
        ),
    )
    scene.node.append(entries)
    scene.node.step()
    scene.sync()
    assert scene.machine.is_voter
    assert scene.machine.role is RoleName.UNATTACHED
    wait_ms = scene.settings.election_timeout_ms * (1 + scene.drawn)
    assert scene.machine.deadline_ms == scene.now_ms + wait_ms
    assert [each.to.node_id for each in every(scene.wait_for_deadline(), do.SendVote)] == [2, 3]


def test_voter_whose_removal_is_truncated_stands_at_its_timeout() -> None:
    older = [Entry(1, "leader 2"), Entry(1, "voters", voter_set(1, 2, 3)), Entry(1, "voters", voter_set(2, 3))]
    scene = Scene(entries=[*older, Entry(1, "voters", voter_set(2, 3, 4))], state=ElectionState(1))
    request = scene.follow(2, 2)
    assert not scene.machine.is_voter
    wanted = effects_of(
        scene,
        on.FetchResponseReceived(
            request=request,
            error=ErrorCode.NONE,
            leadership=leads(2, 2),
            high_watermark=0,
            diverging=OffsetAndEpoch(2, 1),
        ),
    )
    cut = only(wanted, do.TruncateLog)
    effects_of(
        scene,
        on.VoteRequested(
            ticket=9, epoch=3, candidate=key(3), voter=None, last_offset=9, last_epoch=2, is_pre_vote=False
        ),
    )
    scene.node.execute(cut)
    scene.node.step()
    assert scene.machine.is_voter
    assert len(every(scene.wait_for_deadline(), do.SendVote)) == 2


# Snapshot chunks that cannot be stored


def piece(request: do.SendFetchSnapshot, next_position: int) -> on.FetchSnapshotResponseReceived:
    return on.FetchSnapshotResponseReceived(
        request=request, error=ErrorCode.NONE, leadership=leads(2, 4), next_position=next_position, size_bytes=250
    )


def fetch_second_piece(scene: Scene) -> do.SendFetchSnapshot:
    first = only(scene.fetched(scene.follow(2, 4), snapshot=SNAPSHOT), do.SendFetchSnapshot)
    return only(scene.receive(piece(first, 100)), do.SendFetchSnapshot)


@pytest.mark.proves("H6", part="snapshots")
def test_chunk_failing_twice_restarts_the_snapshot_download() -> None:
    scene = Scene()
    scene.receive(on.RequestFailed(fetch_second_piece(scene)))
    again = only(scene.wait(scene.settings.retry_backoff_ms), do.SendFetchSnapshot)
    assert again.position == 100
    scene.receive(on.RequestFailed(again))
    request = only(scene.wait(scene.settings.retry_backoff_ms), do.SendFetch)
    assert only(scene.fetched(request, leadership=leads(2, 4), snapshot=SNAPSHOT), do.SendFetchSnapshot).position == 0


def test_each_failed_snapshot_chunk_is_retried() -> None:
    scene = Scene()
    request = fetch_second_piece(scene)
    for position in (110, 120, 130):
        scene.receive(on.RequestFailed(request))
        again = only(scene.wait(scene.settings.retry_backoff_ms), do.SendFetchSnapshot)
        assert again.position == request.position
        request = only(scene.receive(piece(again, position)), do.SendFetchSnapshot)


@pytest.mark.proves("H6", part="snapshots")
def test_failed_snapshot_load_fetches_from_the_current_leader() -> None:
    scene = Scene()
    last = fetch_second_piece(scene)
    assert every(effects_of(scene, piece(last, 250)), do.LoadSnapshot)
    learn_leader(scene, 3, 5)
    scene.receive(on.RequestFailed(last))
    assert only(scene.wait(scene.settings.retry_backoff_ms), do.SendFetch).to == 3
