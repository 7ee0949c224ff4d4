"""The raft machine of a node: events in, effects out (KIP-595, KIP-853, KIP-996).

`step` dispatches an event to the part of the machine in charge (elections, leader role, follower role, voter changes)
and then polls all of them for the time, because any event can make another part due. The parts share a `Quorum`, which
holds the role and collects effects; `Quorum.take_effects` puts the effects of a step in their final order. The machine
never reads a clock or the disk: time is an argument, the log a `LogView`, and all output a list of effects.
"""

from collections.abc import Callable
from typing import assert_never

from moldau.machines.raft import events
from moldau.machines.raft.effects import (
    Effect,
    Leadership,
    Send,
    SendBeginQuorum,
    SendFetch,
    SendFetchSnapshot,
    SendVote,
)
from moldau.machines.raft.elections import Elections
from moldau.machines.raft.events import Event
from moldau.machines.raft.follower_role import FollowerRole
from moldau.machines.raft.leader_role import LeaderRole
from moldau.machines.raft.leader_state import Leader
from moldau.machines.raft.log_view import LogView
from moldau.machines.raft.quorum import Quorum
from moldau.machines.raft.quorum_description import NEVER_MS, QuorumDescription, ReplicaDescription
from moldau.machines.raft.roles import Candidate, Follower, Prospective, Resigned, RoleName, Unattached
from moldau.machines.raft.settings import QuorumSettings
from moldau.machines.raft.voter_changes import VoterChanges
from moldau.machines.raft.voters import Voter, VoterSet
from moldau.model.ids import NO_NODE, NO_OFFSET
from moldau.model.protocol import KRAFT_VERSION


class RaftMachine:
    """Decides the leader of the metadata quorum and how far its log is committed. The first event is `Started`."""

    def __init__(
        self,
        me: Voter,
        log: LogView,
        settings: QuorumSettings,
        randomness: Callable[[], float],
        *,
        static_voters: VoterSet | None = None,
    ) -> None:
        """`me` has the endpoints of this node's controller listener (none for a broker); `randomness` draws from [0,
        1); `static_voters` come from `controller.quorum.voters` and apply until a voters record exists."""
        self._quorum = Quorum(me, log, settings, randomness, static_voters or VoterSet())
        self._changes = VoterChanges(self._quorum)
        self._leader_role = LeaderRole(self._quorum, self._changes)
        self._elections = Elections(self._quorum, self._leader_role)
        self._follower_role = FollowerRole(self._quorum)

    def step(self, event: Event, now_ms: float) -> list[Effect]:
        """Handle an event. `now_ms` is a monotonic time that never decreases."""
        self._dispatch(event, now_ms)
        self._elections.poll(now_ms)
        self._leader_role.poll(now_ms)
        is_lost, self._elections.has_lost_election = self._elections.has_lost_election, False
        self._follower_role.poll(now_ms, is_lost=is_lost)
        return self._quorum.take_effects()

    @property
    def deadline_ms(self) -> float:
        """When the machine needs `TimedOut` next; may change with every step. `inf` if never."""
        return min(self._elections.deadline_ms, self._leader_role.deadline_ms, self._follower_role.deadline_ms)

    # State

    @property
    def epoch(self) -> int:
        return self._quorum.epoch

    @property
    def leadership(self) -> Leadership:
        """The current leader, with endpoints if known. Unknown after the leader resigned."""
        return self._quorum.leadership

    @property
    def role(self) -> RoleName:
        match self._quorum.role:
            case Leader():
                return RoleName.LEADER
            case Follower():
                return RoleName.FOLLOWER if self.is_voter else RoleName.OBSERVER
            case Unattached():
                return RoleName.UNATTACHED
            case Prospective():
                return RoleName.PROSPECTIVE
            case Candidate():
                return RoleName.CANDIDATE
            case Resigned():
                return RoleName.RESIGNED
            case role:
                assert_never(role)

    @property
    def is_leader(self) -> bool:
        return isinstance(self._quorum.role, Leader)

    @property
    def high_watermark(self) -> int:
        return self._quorum.high_watermark

    @property
    def voters(self) -> VoterSet:
        """The latest set in the log, committed or not."""
        return self._quorum.voters

    @property
    def is_voter(self) -> bool:
        return self._quorum.is_voter

    def voters_at(self, end_offset: int) -> VoterSet | None:
        """Return the voter set for a snapshot of everything below `end_offset`; None in a static quorum."""
        return self._quorum.history.at(end_offset)

    @property
    def kraft_version(self) -> int:
        """1 if the voter set is in the log and can change."""
        return KRAFT_VERSION if self._quorum.history.is_dynamic else 0

    def describe(self, now_ms: float) -> QuorumDescription:
        quorum, role = self._quorum, self._quorum.role
        if isinstance(role, Leader):
            voters = role.describe_voters(quorum.voters, quorum.log.end_offset, now_ms)
            observers = role.describe_observers(quorum.voters, now_ms)
        else:
            voters = tuple(ReplicaDescription(voter.key, NO_OFFSET, NEVER_MS, NEVER_MS) for voter in quorum.voters)
            observers = ()
        return QuorumDescription(quorum.leadership, quorum.high_watermark, voters, observers)

    # Dispatch

    def _dispatch(self, event: Event, now_ms: float) -> None:
        match event:
            case events.Started():
                self._start(event, now_ms)
            case events.TimedOut():
                pass  # every step polls the time
            case events.ResignRequested():
                self._quorum.resign(now_ms)
            case events.PeerStopped():
                self._elections.handle_peer_stopped(event.node_id, now_ms)
            case events.RequestFailed():
                self._dispatch_failure(event.request, now_ms)
            case (
                events.LogAppended()
                | events.LogSynced()
                | events.LogTruncated()
                | events.SnapshotLoaded()
                | events.VotersChanged()
            ):
                self._dispatch_log(event, now_ms)
            case (
                events.VoteResponseReceived()
                | events.QuorumEpochResponseReceived()
                | events.FetchResponseReceived()
                | events.FetchSnapshotResponseReceived()
                | events.UpdateVoterResponseReceived()
            ):
                self._dispatch_response(event, now_ms)
            case (
                events.AddVoterRequested()
                | events.RemoveVoterRequested()
                | events.UpdateVoterRequested()
                | events.KRaftUpgradeRequested()
            ):
                self._dispatch_voter_change(event, now_ms)
            case _:
                self._dispatch_request(event, now_ms)

    def _dispatch_request(
        self,
        event: events.VoteRequested
        | events.BeginQuorumRequested
        | events.EndQuorumRequested
        | events.FetchRequested
        | events.FetchSnapshotRequested,
        now_ms: float,
    ) -> None:
        match event:
            case events.VoteRequested():
                self._elections.handle_vote(event, now_ms)
            case events.BeginQuorumRequested():
                self._elections.handle_begin_quorum(event, now_ms)
            case events.EndQuorumRequested():
                self._elections.handle_end_quorum(event, now_ms)
            case events.FetchRequested():
                self._leader_role.handle_fetch(event, now_ms)
            case events.FetchSnapshotRequested():
                self._leader_role.handle_fetch_snapshot(event, now_ms)
            case _:
                assert_never(event)

    def _dispatch_voter_change(
        self,
        event: events.AddVoterRequested
        | events.RemoveVoterRequested
        | events.UpdateVoterRequested
        | events.KRaftUpgradeRequested,
        now_ms: float,
    ) -> None:
        # A leader without a majority resigns first: it could not append the change afterwards.
        self._leader_role.poll(now_ms)
        match event:
            case events.AddVoterRequested():
                self._changes.add(event, now_ms)
            case events.RemoveVoterRequested():
                self._changes.remove(event, now_ms)
            case events.UpdateVoterRequested():
                self._changes.update(event)
            case events.KRaftUpgradeRequested():
                self._changes.upgrade_kraft_version(event, now_ms)
            case _:
                assert_never(event)

    def _dispatch_response(
        self,
        event: events.VoteResponseReceived
        | events.QuorumEpochResponseReceived
        | events.FetchResponseReceived
        | events.FetchSnapshotResponseReceived
        | events.UpdateVoterResponseReceived,
        now_ms: float,
    ) -> None:
        match event:
            case events.VoteResponseReceived():
                self._elections.handle_vote_response(event, now_ms)
            case events.FetchResponseReceived():
                self._follower_role.handle_fetch_response(event, now_ms)
            case events.FetchSnapshotResponseReceived():
                self._follower_role.handle_snapshot_response(event, now_ms)
            case events.QuorumEpochResponseReceived() | events.UpdateVoterResponseReceived():
                self._quorum.observe_leader(event.leadership, now_ms, is_from_leader=False)
            case _:
                assert_never(event)

    def _dispatch_failure(self, request: Send, now_ms: float) -> None:
        match request:
            case SendVote():
                self._elections.handle_vote_failure(request, now_ms)
            case SendBeginQuorum():
                self._leader_role.handle_begin_quorum_failure(request, now_ms)
            case SendFetch() | SendFetchSnapshot():
                self._follower_role.handle_fetch_failure(request, now_ms)
            case _:
                pass  # unreachable voters detect the resignation by timeout; endpoints are sent again later

    def _dispatch_log(
        self,
        event: events.LogAppended
        | events.LogSynced
        | events.LogTruncated
        | events.SnapshotLoaded
        | events.VotersChanged,
        now_ms: float,
    ) -> None:
        quorum = self._quorum
        match event:
            case events.LogAppended():
                self._follower_role.handle_appended(now_ms)
            case events.LogSynced():
                quorum.synced_offset = max(quorum.synced_offset, min(event.end_offset, quorum.log.end_offset))
                self._leader_role.advance(now_ms)
            case events.LogTruncated():
                self._follower_role.handle_truncated(event.end_offset, now_ms)
            case events.SnapshotLoaded():
                self._follower_role.handle_snapshot_loaded(event, now_ms)
            case events.VotersChanged():
                quorum.history.add(event.offset, event.voters)
                self._leader_role.handle_voters_changed(event.offset, now_ms)
            case _:
                assert_never(event)

    def _start(self, event: events.Started, now_ms: float) -> None:
        quorum = self._quorum
        for entry in event.voter_sets:
            quorum.history.add(entry.offset, entry.voters)
        quorum.start(event.state, self._initial_high_watermark())
        if quorum.leader_id == quorum.me.node_id:
            quorum.role = Resigned(now_ms + quorum.short_election_timeout_ms())
        elif quorum.leader_id != NO_NODE:
            quorum.become_follower(Leadership(quorum.leader_id, quorum.epoch), now_ms)
        else:
            quorum.become_unattached(quorum.epoch, now_ms, quorum.short_election_timeout_ms())
        if quorum.is_voter and not quorum.other_voters:
            self._elections.start_election(now_ms)

    def _initial_high_watermark(self) -> int:
        """A snapshot contains committed records only."""
        log = self._quorum.log
        return max(log.start_offset, log.latest_snapshot.offset if log.latest_snapshot is not None else 0)
