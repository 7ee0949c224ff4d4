"""Log replication: fetches, commits, truncation, snapshots."""

import pytest
from raft_disk import Entry, MemoryDisk
from raft_scene import Scene, every, key, leads, no_leader, only, voter_set

from moldau.machines.raft import effects as do
from moldau.machines.raft import events as on
from moldau.machines.raft.effects import ElectionState
from moldau.machines.raft.follower_role import CommittedRecordsLost
from moldau.machines.raft.log_view import OffsetAndEpoch
from moldau.machines.raft.quorum_description import NEVER_MS
from moldau.machines.raft.roles import RoleName
from moldau.machines.raft.settings import OBSERVERS_MAX
from moldau.machines.raft.voters import ReplicaKey
from moldau.model.errors import ErrorCode
from moldau.model.ids import NO_NODE, NodeId

OLD = [Entry(1, "leader 2"), Entry(1, "a"), Entry(2, "leader 3"), Entry(2, "b")]  # ends at (4, epoch 2)


def elected(**fields: object) -> Scene:
    """Lead epoch 3 after OLD, with the leader change at 4 and the voters at 6; the log ends at 7."""
    scene = Scene(entries=OLD, state=ElectionState(2), **fields)  # type: ignore[arg-type]
    scene.elect()
    assert (scene.machine.epoch, scene.log.end_offset) == (3, 7)
    return scene


def compacted() -> Scene:
    """Lead epoch 3; the log starts at 6, after a snapshot of everything below."""
    scene = elected()
    scene.fetch(2, 7, 3)
    scene.log.take_snapshot(6, scene.machine.voters_at(6), kept=1)
    return scene


# Fetch requests


def test_matching_fetch_is_served_from_the_log() -> None:
    served = only(elected().fetch(2, 4, 2), do.ServeFetch)
    assert served.offset == 4


def test_fetch_at_the_end_waits_for_records_or_a_high_watermark() -> None:
    scene = elected()
    assert only(scene.fetch(2, 7, 3, high_watermark=4), do.ServeFetch).high_watermark == 4
    assert only(scene.fetch(2, 7, 3), do.ServeFetch).high_watermark == scene.machine.high_watermark == 7


@pytest.mark.proves("H6")
@pytest.mark.parametrize(
    ("epoch", "error"), [(2, ErrorCode.FENCED_LEADER_EPOCH), (4, ErrorCode.UNKNOWN_LEADER_EPOCH), (3, ErrorCode.NONE)]
)
def test_fetch_of_another_epoch_is_rejected(epoch: int, error: ErrorCode) -> None:
    effects = elected().fetch(9, 4, 2, epoch=epoch)
    assert [each.error for each in every(effects, do.RespondToFetch)] == ([] if error is ErrorCode.NONE else [error])


def test_non_leader_responds_with_the_leader() -> None:
    scene = Scene()
    scene.follow(2, 4)
    response = only(scene.fetch(3, 0, 0), do.RespondToFetch)
    assert (response.error, response.leadership.leader_id) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, 2)


@pytest.mark.parametrize(("offset", "last_epoch"), [(-1, 0), (0, -1), (4, 4)])
def test_fetch_of_an_impossible_position_is_rejected(offset: int, last_epoch: int) -> None:
    response = only(elected().fetch(2, offset, last_epoch), do.RespondToFetch)
    assert response.error is ErrorCode.INVALID_REQUEST


@pytest.mark.proves("H5")
@pytest.mark.parametrize(
    ("offset", "last_epoch", "end"),
    [
        (5, 2, OffsetAndEpoch(4, 2)),  # more of epoch 2 than the leader has
        (3, 1, OffsetAndEpoch(2, 1)),
        (9, 3, OffsetAndEpoch(7, 3)),
        (4, 0, OffsetAndEpoch(0, 0)),
    ],
)
def test_diverging_replica_gets_the_epoch_end(offset: int, last_epoch: int, end: OffsetAndEpoch) -> None:
    response = only(elected().fetch(2, offset, last_epoch), do.RespondToFetch)
    assert (response.error, response.diverging) == (ErrorCode.NONE, end)


@pytest.mark.proves("H6")
@pytest.mark.parametrize(("offset", "last_epoch"), [(0, 0), (5, 3), (6, 2), (7, 2)])
def test_replica_below_log_start_gets_the_snapshot_id(offset: int, last_epoch: int) -> None:
    response = only(compacted().fetch(3, offset, last_epoch), do.RespondToFetch)
    assert response.snapshot == OffsetAndEpoch(6, 3)


def test_replica_at_the_end_of_the_snapshot_continues_from_there() -> None:
    assert only(compacted().fetch(3, 6, 3), do.ServeFetch).offset == 6


def test_snapshot_is_served_by_the_leader_only() -> None:
    scene = compacted()
    wanted = on.FetchSnapshotRequested(ticket=1, replica=key(3), epoch=3, snapshot=OffsetAndEpoch(6, 3))
    assert only(scene.receive(wanted), do.ServeSnapshot).snapshot == OffsetAndEpoch(6, 3)
    scene.receive(on.ResignRequested())
    assert only(scene.receive(wanted), do.RespondToFetchSnapshot).error is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_replica_that_loads_a_snapshot_counts_as_fetching() -> None:
    scene = compacted()
    for _ in range(10):
        scene.wait(scene.settings.fetch_timeout_ms)
        wanted = on.FetchSnapshotRequested(ticket=1, replica=key(3), epoch=3, snapshot=OffsetAndEpoch(6, 3))
        scene.receive(wanted)
    assert scene.machine.is_leader


def test_voter_with_a_later_epoch_triggers_an_election() -> None:
    scene = elected()
    response = only(scene.fetch(2, 4, 2, epoch=5), do.RespondToFetch)
    assert response.error is ErrorCode.UNKNOWN_LEADER_EPOCH
    assert (scene.machine.role, scene.machine.epoch) == (RoleName.UNATTACHED, 5)


# Commits


@pytest.mark.proves("H6")
def test_records_synced_by_a_majority_are_committed() -> None:
    scene = elected()
    assert scene.machine.high_watermark == 0
    assert only(scene.fetch(2, 7, 3), do.AdvanceHighWatermark).offset == 7
    scene.write("c")
    assert not every(scene.fetch(2, 8, 3), do.AdvanceHighWatermark)  # the leader's own is not synced yet
    assert only(scene.sync(), do.AdvanceHighWatermark).offset == 8


@pytest.mark.proves("H6")
def test_old_epochs_are_committed_only_with_a_record_of_this_epoch() -> None:
    scene = elected()
    assert not every(scene.fetch(2, 4, 2), do.AdvanceHighWatermark)
    assert only(scene.fetch(2, 5, 3), do.AdvanceHighWatermark).offset == 5


def test_two_followers_commit_before_the_leaders_sync() -> None:
    scene = elected()
    scene.write("c")
    scene.fetch(2, 8, 3)
    assert only(scene.fetch(3, 8, 3), do.AdvanceHighWatermark).offset == 8


@pytest.mark.proves("H6")
def test_observer_does_not_count_towards_a_commit() -> None:
    assert not every(elected().fetch(9, 7, 3), do.AdvanceHighWatermark)


@pytest.mark.proves("H6")
def test_voter_with_another_directory_id_does_not_count() -> None:
    assert not every(elected().fetch(2, 7, 3, replica=key(2, disk=1)), do.AdvanceHighWatermark)


def test_replica_without_directory_id_is_not_a_voter() -> None:
    assert not every(elected().fetch(2, 7, 3, replica=ReplicaKey(NodeId(2))), do.AdvanceHighWatermark)


@pytest.mark.proves("H6")
def test_fetch_without_an_epoch_is_served_and_not_counted() -> None:
    effects = elected().fetch(2, 7, 3, epoch=-1)
    assert every(effects, do.ServeFetch)
    assert not every(effects, do.AdvanceHighWatermark)


@pytest.mark.proves("H6")
def test_high_watermark_does_not_decrease_with_a_replica() -> None:
    scene = elected()
    scene.fetch(2, 7, 3)
    assert not every(scene.fetch(2, 5, 3), do.AdvanceHighWatermark)
    assert scene.machine.high_watermark == 7


def test_progress_of_an_older_epoch_does_not_count() -> None:
    scene = elected()
    scene.write("c")
    scene.sync()
    scene.fetch(2, 8, 3)
    scene.receive(on.ResignRequested())
    scene.effects.clear()
    scene.wait_for_deadline()
    scene.win()
    assert not every(scene.sync(), do.AdvanceHighWatermark)


@pytest.mark.proves("H6")
def test_progress_of_an_older_epoch_does_not_count_for_replaced_records() -> None:
    scene = elected(voters=voter_set(1, 2, 3, 4, 5))
    scene.write("c", "d", "e")
    scene.sync()
    scene.fetch(2, 10, 3)
    begin = on.BeginQuorumRequested(ticket=1, epoch=5, leader_id=NodeId(3), voter=None, endpoints=())
    scene.fetched(only(scene.receive(begin), do.SendFetch), diverging=OffsetAndEpoch(7, 3))
    scene.effects.clear()
    scene.receive(on.PeerStopped(NodeId(3)))
    scene.win()
    scene.write("f")
    scene.sync()
    assert (scene.machine.is_leader, scene.log.end_offset) == (True, 9)
    assert not every(scene.fetch(4, 9, 6), do.AdvanceHighWatermark)


# Followers


@pytest.mark.proves("H6")
def test_fetched_records_count_once_synced() -> None:
    scene = Scene()
    effects = scene.fetched(scene.follow(2, 1), Entry(1, "leader 2"), Entry(1, "a"), high_watermark=1)
    assert only(effects, do.AppendFetched)
    assert only(effects, do.AdvanceHighWatermark).offset == 1
    assert not every(effects, do.SendFetch)
    request = only(scene.sync(), do.SendFetch)
    assert (request.offset, request.last_epoch, request.high_watermark) == (2, 1, 1)


@pytest.mark.proves("H6")
def test_high_watermark_of_a_follower_is_bounded_by_its_log() -> None:
    scene = Scene()
    effects = scene.fetched(scene.follow(2, 1), Entry(1, "leader 2"), high_watermark=9)
    assert only(effects, do.AdvanceHighWatermark).offset == 1


def test_follower_learns_high_watermark_without_records() -> None:
    scene = Scene(entries=OLD, state=ElectionState(2))
    effects = scene.fetched(scene.follow(3, 2), high_watermark=3)
    assert only(effects, do.AdvanceHighWatermark).offset == 3
    assert only(effects, do.SendFetch).offset == 4


@pytest.mark.parametrize(("end", "end_offset"), [((4, 1), 2), ((1, 1), 1), ((3, 2), 3), ((0, 0), 0)])
@pytest.mark.proves("H5")
def test_diverging_records_are_truncated_at_the_epoch_boundary(end: tuple[int, int], end_offset: int) -> None:
    scene = Scene(entries=OLD, state=ElectionState(2))
    effects = scene.fetched(scene.follow(3, 4), diverging=OffsetAndEpoch(*end))
    assert only(effects, do.TruncateLog).end_offset == end_offset
    assert only(effects, do.SendFetch).offset == end_offset


@pytest.mark.proves("H6")
def test_committed_records_are_never_truncated() -> None:
    scene = Scene(entries=OLD, state=ElectionState(2))
    effects = scene.fetched(scene.follow(3, 4), high_watermark=3)
    request = only(effects, do.SendFetch)
    with pytest.raises(CommittedRecordsLost):
        scene.fetched(request, diverging=OffsetAndEpoch(2, 1))


def test_divergence_without_truncation_is_retried_later() -> None:
    scene = Scene(entries=OLD, state=ElectionState(2))
    effects = scene.fetched(scene.follow(3, 4), diverging=OffsetAndEpoch(9, 2))
    assert not every(effects, do.SendFetch)
    assert every(scene.wait(scene.settings.retry_backoff_ms), do.SendFetch)


@pytest.mark.proves("H5")
def test_response_to_abandoned_fetch_is_not_appended() -> None:
    scene = Scene()
    request = scene.follow(2, 1)
    scene.receive(on.RequestFailed(request))
    again = only(scene.wait(scene.settings.retry_backoff_ms), do.SendFetch)
    assert not scene.fetched(request, Entry(1, "leader 2"))
    assert only(scene.fetched(again, Entry(1, "leader 2")), do.AppendFetched).request == again


def test_fetch_response_of_older_epoch_is_not_appended() -> None:
    scene = Scene()
    request = scene.follow(2, 1)
    scene.request_vote(3, 2)
    assert not every(scene.fetched(request, Entry(1, "leader 2")), do.AppendFetched)


def test_fetch_response_is_appended_once() -> None:
    scene = Scene()
    request = scene.follow(2, 1)
    scene.fetched(request, Entry(1, "leader 2"))
    assert not every(scene.fetched(request, Entry(1, "leader 2")), do.AppendFetched)


def test_records_that_fail_to_be_appended_are_fetched_again() -> None:
    scene = Scene()
    request = scene.follow(2, 1)
    scene.machine.step(
        on.FetchResponseReceived(
            request=request, error=ErrorCode.NONE, leadership=leads(2, 1), high_watermark=9, has_records=True
        ),
        scene.now_ms,
    )
    assert not scene.receive(on.RequestFailed(request))
    assert only(scene.wait(scene.settings.retry_backoff_ms), do.SendFetch).offset == 0
    assert scene.machine.high_watermark == 0


def test_failed_fetch_is_retried_after_a_backoff() -> None:
    scene = Scene()
    scene.receive(on.RequestFailed(scene.follow(2, 1)))
    assert scene.machine.deadline_ms - scene.now_ms == scene.settings.retry_backoff_ms
    assert only(scene.wait_for_deadline(), do.SendFetch).to == 2


def test_failed_fetches_do_not_extend_the_fetch_timeout() -> None:
    scene = Scene()
    request = scene.follow(2, 1)
    while scene.machine.role is RoleName.FOLLOWER:
        scene.receive(on.RequestFailed(request))
        sent = every(scene.wait_for_deadline(), do.SendFetch)
        request = sent[-1] if sent else request
    assert scene.now_ms == pytest.approx(1000 + scene.settings.fetch_timeout_ms)


def test_resigned_leader_is_not_awaited() -> None:
    scene = Scene()
    request = scene.follow(2, 1)
    scene.fetched(request, error=ErrorCode.NOT_LEADER_OR_FOLLOWER, leadership=no_leader(1))
    assert scene.machine.role is RoleName.UNATTACHED
    assert scene.machine.deadline_ms - scene.now_ms <= 100


def test_leader_of_later_epoch_in_response_is_followed() -> None:
    scene = Scene()
    request = scene.follow(2, 1)
    effects = scene.fetched(request, error=ErrorCode.FENCED_LEADER_EPOCH, leadership=leads(3, 5))
    assert effects[0] == do.PersistQuorumState(ElectionState(5, NodeId(3)))
    assert only(effects, do.SendFetch).to == 3


def test_deposed_leader_syncs_its_log_before_it_fetches() -> None:
    scene = elected()
    scene.write("c")
    effects = scene.receive(on.BeginQuorumRequested(ticket=1, epoch=5, leader_id=NodeId(3), voter=key(1), endpoints=()))
    assert not every(effects, do.SendFetch)
    assert only(scene.sync(), do.SendFetch).offset == 8


# Snapshots


def chunk(
    request: do.SendFetchSnapshot, error: ErrorCode = ErrorCode.NONE, **fields: int
) -> on.FetchSnapshotResponseReceived:
    return on.FetchSnapshotResponseReceived(
        request=request,
        error=error,
        leadership=leads(2, 4),
        next_position=fields.get("next_position", request.position + 100),
        size_bytes=250,
    )


def test_snapshot_is_fetched_in_chunks_and_loaded() -> None:
    source = compacted().log.snapshots[0]
    scene = Scene()
    effects = scene.fetched(scene.follow(2, 4), snapshot=source.end)
    positions = []
    for _ in range(3):
        request = only(effects, do.SendFetchSnapshot)
        positions.append(request.position)
        scene.node.snapshot = source
        effects = scene.receive(chunk(request))
    assert positions == [0, 100, 200]
    assert only(effects, do.LoadSnapshot).request == request
    assert only(effects, do.AdvanceHighWatermark).offset == 6
    after = only(effects, do.SendFetch)
    assert (after.offset, after.last_epoch) == (6, 3)


@pytest.mark.proves("H6")
def test_voters_of_a_snapshot_replace_those_of_the_log() -> None:
    scene = Scene()
    effects = scene.fetched(scene.follow(2, 4), snapshot=OffsetAndEpoch(6, 3))
    assert only(effects, do.SendFetchSnapshot)
    scene.log.start_offset = 6
    scene.receive(on.SnapshotLoaded(OffsetAndEpoch(6, 3), voter_set(2, 3, 4)))
    assert scene.machine.voters == scene.machine.voters_at(6) == voter_set(2, 3, 4)
    assert scene.machine.role is RoleName.OBSERVER


def test_failed_snapshot_chunk_is_fetched_again() -> None:
    scene = Scene()
    first = only(scene.fetched(scene.follow(2, 4), snapshot=OffsetAndEpoch(6, 3)), do.SendFetchSnapshot)
    second = only(scene.receive(chunk(first)), do.SendFetchSnapshot)
    scene.receive(on.RequestFailed(second))
    again = only(scene.wait(scene.settings.retry_backoff_ms), do.SendFetchSnapshot)
    assert (again.position, again.snapshot) == (100, OffsetAndEpoch(6, 3))


@pytest.mark.parametrize("error", [ErrorCode.SNAPSHOT_NOT_FOUND, ErrorCode.POSITION_OUT_OF_RANGE])
def test_missing_snapshot_is_abandoned_for_a_fetch(error: ErrorCode) -> None:
    scene = Scene()
    first = only(scene.fetched(scene.follow(2, 4), snapshot=OffsetAndEpoch(6, 3)), do.SendFetchSnapshot)
    scene.receive(chunk(first, error))
    assert only(scene.wait(scene.settings.retry_backoff_ms), do.SendFetch).offset == 0


def test_snapshot_of_an_older_leader_is_abandoned() -> None:
    scene = Scene()
    first = only(scene.fetched(scene.follow(2, 4), snapshot=OffsetAndEpoch(6, 3)), do.SendFetchSnapshot)
    effects = scene.receive(on.BeginQuorumRequested(ticket=1, epoch=5, leader_id=NodeId(3), voter=None, endpoints=()))
    assert only(effects, do.SendFetch).to == 3
    assert not scene.receive(chunk(first))


def test_unloadable_snapshot_is_abandoned_for_a_fetch() -> None:
    scene = Scene()
    request = only(scene.fetched(scene.follow(2, 4), snapshot=OffsetAndEpoch(6, 3)), do.SendFetchSnapshot)
    assert every(scene.machine.step(chunk(request, next_position=250), scene.now_ms), do.LoadSnapshot)
    scene.receive(on.RequestFailed(request))
    assert only(scene.wait(scene.settings.retry_backoff_ms), do.SendFetch).offset == 0


def test_snapshot_chunks_extend_the_fetch_timeout() -> None:
    scene = Scene()
    request = only(scene.fetched(scene.follow(2, 4), snapshot=OffsetAndEpoch(6, 3)), do.SendFetchSnapshot)
    for position in range(1, 9):
        scene.now_ms += scene.settings.fetch_timeout_ms - 1
        request = only(scene.receive(chunk(request, next_position=position)), do.SendFetchSnapshot)
    assert scene.machine.role is RoleName.FOLLOWER


def test_node_starts_with_its_snapshot_committed() -> None:
    disk = MemoryDisk(key(1).directory_id)
    disk.log.append(*OLD)
    disk.log.take_snapshot(3, None, kept=1)
    scene = Scene(disk=disk)
    assert only(scene.start(), do.AdvanceHighWatermark).offset == 3


# DescribeQuorum


def test_leader_describes_the_progress_of_all_replicas() -> None:
    scene = elected()
    scene.wait(10)
    scene.fetch(2, 7, 3)
    scene.wait(10)
    scene.fetch(9, 5, 3)
    described = scene.machine.describe(scene.now_ms)
    assert (described.leadership.leader_id, described.high_watermark) == (1, 7)
    now_ms = scene.now_ms
    rows = [
        (each.key.node_id, each.end_offset, each.last_fetch_ms, each.last_caught_up_ms) for each in described.voters
    ]
    assert rows == [(1, 7, now_ms, now_ms), (2, 7, now_ms - 10, now_ms - 10), (3, -1, NEVER_MS, NEVER_MS)]
    assert [(each.key.node_id, each.end_offset) for each in described.observers] == [(9, 5)]


def test_replica_with_everything_at_its_last_fetch_is_caught_up() -> None:
    scene = elected()
    scene.fetch(2, 6, 3)
    first_ms = scene.now_ms
    scene.write("c")
    scene.wait(10)
    scene.fetch(2, 7, 3)
    assert scene.machine.describe(scene.now_ms).voters[1].last_caught_up_ms == first_ms


def test_silent_observers_are_dropped_and_their_number_is_bounded() -> None:
    scene = elected()
    scene.fetch(9, 7, 3)
    for at in range(OBSERVERS_MAX + 10):
        scene.fetch(10 + at, 7, 3)
    assert len(scene.machine.describe(scene.now_ms).observers) <= OBSERVERS_MAX + 1
    for _ in range(200):
        scene.now_ms += 2000
        scene.fetch(2, 7, 3)
    assert scene.machine.describe(scene.now_ms).observers == ()
    assert scene.machine.describe(scene.now_ms).voters[1].end_offset == 7


@pytest.mark.proves("H6", part="the controller moves")
def test_observer_is_described_for_five_minutes_after_its_last_fetch() -> None:
    scene = elected()
    scene.fetch(9, 7, 3)
    until_ms = scene.now_ms + 300_000
    assert [each.key.node_id for each in scene.machine.describe(until_ms - 1).observers] == [9]
    assert scene.machine.describe(until_ms).observers == ()


def test_non_leader_describes_no_progress() -> None:
    scene = Scene()
    scene.start()
    described = scene.machine.describe(scene.now_ms)
    assert described.leadership.leader_id == NO_NODE
    assert [each.key for each in described.voters] == [key(1), key(2), key(3)]
    assert described.voters[0].end_offset == -1
    assert described.observers == ()


def test_replica_key_is_formatted_as_node_and_directory() -> None:
    assert str(ReplicaKey(NodeId(3))) == "3"
    assert str(key(3)) == f"3/{'01' * 16}"
