"""The raft machine of one node: events go in, effects come out (KIP-595, 853, 996)."""

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
from moldau.machines.raft.follower_role import Following
from moldau.machines.raft.leader_role import Leading
from moldau.machines.raft.leader_state import Leader
from moldau.machines.raft.log_view import LogView
from moldau.machines.raft.quorum import Quorum
from moldau.machines.raft.quorum_description import NEVER_MS, QuorumDescription, ReplicaDescription
from moldau.machines.raft.roles import Candidate, Follower, Prospective, Resigned, RoleName, Unattached
from moldau.machines.raft.settings import QuorumSettings
from moldau.machines.raft.voter_changes import KRAFT_VERSION, VoterChanges
from moldau.machines.raft.voters import Voter, VoterSet
from moldau.model.ids import NO_NODE, NO_OFFSET


class RaftMachine:
    """Who leads the metadata quorum, and how far its log is committed. `step` with `Started` first."""

    def __init__(
        self,
        me: Voter,
        log: LogView,
        settings: QuorumSettings,
        randomness: Callable[[], float],
        *,
        static_voters: VoterSet | None = None,
    ) -> None:
        """`me` with the endpoints of this node's controller listener (none for a broker); `randomness` draws from
        [0, 1); `static_voters` are those of `controller.quorum.voters`, used until a voters record is found."""
        self._quorum = Quorum(me, log, settings, randomness, static_voters or VoterSet())
        self._changes = VoterChanges(self._quorum)
        self._leading = Leading(self._quorum, self._changes)
        self._elections = Elections(self._quorum, self._leading)
        self._following = Following(self._quorum)

    def step(self, event: Event, now_ms: float) -> list[Effect]:
        """Take one event at a time of the monotonic clock that never goes back."""
        self._take(event, now_ms)
        self._elections.poll(now_ms)
        self._leading.poll(now_ms)
        is_lost, self._elections.has_lost_round = self._elections.has_lost_round, False
        self._following.poll(now_ms, is_lost=is_lost)
        return self._quorum.take_effects()

    @property
    def deadline_ms(self) -> float:
        """When the machine next wants `TimedOut`; changes with every step. Never: `inf`."""
        return min(self._elections.deadline_ms, self._leading.deadline_ms, self._following.deadline_ms)

    # What is known

    @property
    def epoch(self) -> int:
        return self._quorum.epoch

    @property
    def leadership(self) -> Leadership:
        """Who leads, with the endpoints as far as they are known. A leader that has resigned is not known."""
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
        """The set that a snapshot of everything below `end_offset` holds; None in a static quorum."""
        return self._quorum.history.at(end_offset)

    @property
    def kraft_version(self) -> int:
        """1 where the voters are written down, and may change."""
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

    # Each event to the part that it concerns

    def _take(self, event: Event, now_ms: float) -> None:
        match event:
            case events.Started():
                self._start(event, now_ms)
            case events.TimedOut():
                pass  # every step looks at the time
            case events.ResignRequested():
                self._quorum.resign(now_ms)
            case events.PeerVanished():
                self._elections.vanished(event.node_id, now_ms)
            case events.RequestFailed():
                self._take_failure(event.request, now_ms)
            case (
                events.LogAppended()
                | events.LogSynced()
                | events.LogTruncated()
                | events.SnapshotLoaded()
                | events.VotersChanged()
            ):
                self._take_log(event, now_ms)
            case (
                events.VoteAnswered()
                | events.QuorumAnswered()
                | events.FetchAnswered()
                | events.FetchSnapshotAnswered()
                | events.UpdateVoterAnswered()
            ):
                self._take_answer(event, now_ms)
            case (
                events.AddVoterRequested()
                | events.RemoveVoterRequested()
                | events.UpdateVoterRequested()
                | events.WritingDownRequested()
            ):
                self._take_change(event, now_ms)
            case _:
                self._take_request(event, now_ms)

    def _take_request(
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
                self._elections.requested(event, now_ms)
            case events.BeginQuorumRequested():
                self._elections.begun(event, now_ms)
            case events.EndQuorumRequested():
                self._elections.ended(event, now_ms)
            case events.FetchRequested():
                self._leading.fetch_requested(event, now_ms)
            case events.FetchSnapshotRequested():
                self._leading.snapshot_requested(event, now_ms)
            case _:
                assert_never(event)

    def _take_change(
        self,
        event: events.AddVoterRequested
        | events.RemoveVoterRequested
        | events.UpdateVoterRequested
        | events.WritingDownRequested,
        now_ms: float,
    ) -> None:
        # A leader that nobody follows any more resigns first: what it begins could not be appended after that.
        self._leading.poll(now_ms)
        match event:
            case events.AddVoterRequested():
                self._changes.add(event, now_ms)
            case events.RemoveVoterRequested():
                self._changes.remove(event, now_ms)
            case events.UpdateVoterRequested():
                self._changes.update(event)
            case events.WritingDownRequested():
                self._changes.write_down(event, now_ms)
            case _:
                assert_never(event)

    def _take_answer(
        self,
        event: events.VoteAnswered
        | events.QuorumAnswered
        | events.FetchAnswered
        | events.FetchSnapshotAnswered
        | events.UpdateVoterAnswered,
        now_ms: float,
    ) -> None:
        match event:
            case events.VoteAnswered():
                self._elections.answered(event, now_ms)
            case events.FetchAnswered():
                self._following.answered(event, now_ms)
            case events.FetchSnapshotAnswered():
                self._following.snapshot_answered(event, now_ms)
            case events.QuorumAnswered() | events.UpdateVoterAnswered():
                self._quorum.learn(event.leadership, now_ms, is_own_word=False)
            case _:
                assert_never(event)

    def _take_failure(self, request: Send, now_ms: float) -> None:
        match request:
            case SendVote():
                self._elections.failed(request, now_ms)
            case SendBeginQuorum():
                self._leading.not_told(request, now_ms)
            case SendFetch() | SendFetchSnapshot():
                self._following.failed(request, now_ms)
            case _:
                pass  # whoever did not hear that we resigned finds out; an address is sent again in its time

    def _take_log(
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
                self._following.appended(now_ms)
            case events.LogSynced():
                quorum.synced_offset = max(quorum.synced_offset, min(event.end_offset, quorum.log.end_offset))
                self._leading.advance(now_ms)
            case events.LogTruncated():
                self._following.truncated(event.end_offset, now_ms)
            case events.SnapshotLoaded():
                self._following.loaded(event, now_ms)
            case events.VotersChanged():
                quorum.history.add(event.offset, event.voters)
                self._leading.voters_changed(event.offset, now_ms)
            case _:
                assert_never(event)

    def _start(self, event: events.Started, now_ms: float) -> None:
        quorum = self._quorum
        for entry in event.voter_sets:
            quorum.history.add(entry.offset, entry.voters)
        quorum.start(event.state, self._first_watermark())
        if quorum.leader_id == quorum.me.node_id:
            quorum.role = Resigned(now_ms + quorum.brief_wait_ms())
        elif quorum.leader_id != NO_NODE:
            quorum.become_follower(Leadership(quorum.leader_id, quorum.epoch), now_ms)
        else:
            quorum.become_unattached(quorum.epoch, now_ms, quorum.brief_wait_ms())
        if quorum.is_voter and not quorum.other_voters:
            self._elections.begin_round(now_ms)

    def _first_watermark(self) -> int:
        """A snapshot holds only what was committed."""
        log = self._quorum.log
        return max(log.start_offset, log.latest_snapshot.offset if log.latest_snapshot is not None else 0)
