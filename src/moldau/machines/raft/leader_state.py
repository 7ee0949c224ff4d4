"""What a leader knows: how far the replicas are, hence what is committed, and whether a majority still follows."""

from dataclasses import dataclass, field
from math import inf

from moldau.machines.raft.effects import Ticket
from moldau.machines.raft.quorum_description import NEVER_MS, ReplicaDescription
from moldau.machines.raft.settings import OBSERVER_SESSION_MS, OBSERVERS_MAX
from moldau.machines.raft.voters import NO_DIRECTORY, ReplicaKey, Voter, VoterSet
from moldau.model.ids import NO_OFFSET, NodeId


@dataclass(slots=True)
class Progress:
    """How far one replica has come in this epoch."""

    end_offset: int = NO_OFFSET
    last_fetch_ms: float = NEVER_MS
    last_caught_up_ms: float = NEVER_MS
    leader_end_offset: int = 0  # at its last fetch
    directory_id: bytes = NO_DIRECTORY  # as it says; a fixed voter is known without
    last_heard_ms: float = NEVER_MS  # it follows, though it may have other records, or wait for a snapshot

    def fetched(self, offset: int, leader_end_offset: int, now_ms: float) -> None:
        """It has everything below `offset`. Caught up is who has what was there when it fetched the time before."""
        if offset >= leader_end_offset:
            self.last_caught_up_ms = now_ms
        elif self.last_fetch_ms != NEVER_MS and offset >= self.leader_end_offset:
            self.last_caught_up_ms = max(self.last_caught_up_ms, self.last_fetch_ms)
        self.end_offset = offset
        self.last_fetch_ms = now_ms
        self.leader_end_offset = leader_end_offset

    def describe(self, key: ReplicaKey) -> ReplicaDescription:
        return ReplicaDescription(key, self.end_offset, self.last_fetch_ms, self.last_caught_up_ms)


@dataclass(slots=True)
class PendingChange:
    """A change of voters that somebody waits for: until the newcomer has caught up, then until it is committed."""

    ticket: Ticket
    since_ms: float
    deadline_ms: float
    is_answered_when_committed: bool
    newcomer: Voter | None = None  # still to be appended
    offset: int | None = None  # of its voters record
    is_writing_down: bool = False  # of voters that were fixed


@dataclass(slots=True)
class Leader:
    """Leads since `start_offset`, where its leader change stands."""

    me: ReplicaKey
    start_offset: int
    since_ms: float
    progress: dict[ReplicaKey, Progress] = field(default_factory=dict)
    asked_ms: dict[NodeId, float] = field(default_factory=dict)  # when a voter is next told who leads
    pending: PendingChange | None = None
    is_append_due: bool = False  # of voters that the log does not show yet

    def progress_of(self, key: ReplicaKey, voters: VoterSet) -> Progress:
        """That of a voter is kept under the voter's own key: a static one does not say which disk it has."""
        voter = voters.get(key.node_id)
        known = voter.key if voter is not None and voter.is_replica(key) else key
        progress = self.progress.setdefault(known, Progress())
        progress.directory_id = key.directory_id
        return progress

    def directory_of(self, voter: Voter) -> bytes:
        """The disk of a voter that has been heard of in this epoch."""
        return self.progress[voter.key].directory_id if voter.key in self.progress else NO_DIRECTORY

    def rename(self, voters: VoterSet) -> None:
        """Voters that were known without their disks are known with them from here on."""
        for voter in voters:
            progress = self.progress.pop(ReplicaKey(voter.node_id), None)
            if progress is not None:
                self.progress.setdefault(voter.key, progress)

    def committed_end(self, voters: VoterSet, synced_offset: int) -> int:
        """The highest offset below which a majority of the voters has everything on disk."""
        ends = [synced_offset if voter.is_replica(self.me) else self._end_of(voter) for voter in voters]
        ends.sort(reverse=True)
        return ends[voters.majority - 1] if ends else NO_OFFSET

    def quorum_lost_ms(self, voters: VoterSet, patience_ms: float) -> float:
        """When the majority that last fetched will have been silent for too long."""
        needed = voters.majority - voters.includes(self.me)
        if needed <= 0:
            return inf
        times = [self._last_heard_ms(voter) for voter in self.others(voters)]
        times.sort(reverse=True)
        return times[needed - 1] + patience_ms

    def others(self, voters: VoterSet) -> list[Voter]:
        return [voter for voter in voters if not voter.is_replica(self.me)]

    def successors(self, voters: VoterSet) -> tuple[ReplicaKey, ...]:
        """The other voters, the one with the longest log first."""
        ranked = sorted(self.others(voters), key=lambda voter: (-self._end_of(voter), voter.node_id))
        return tuple(voter.key for voter in ranked)

    def forget_observers(self, voters: VoterSet, now_ms: float) -> None:
        """Those that were silent for long, and the most silent if there are too many."""
        observers = [key for key in self.progress if not voters.includes(key)]
        observers.sort(key=lambda key: -self.progress[key].last_heard_ms)
        for rank, key in enumerate(observers):
            if rank >= OBSERVERS_MAX or not self._is_present(key, now_ms):
                del self.progress[key]

    def describe_voters(self, voters: VoterSet, end_offset: int, now_ms: float) -> tuple[ReplicaDescription, ...]:
        return tuple(self._describe(voter, end_offset, now_ms) for voter in voters)

    def describe_observers(self, voters: VoterSet, now_ms: float) -> tuple[ReplicaDescription, ...]:
        present = [key for key in sorted(self.progress) if self._is_present(key, now_ms) and not voters.includes(key)]
        return tuple(self.progress[key].describe(key) for key in present)

    def _is_present(self, key: ReplicaKey, now_ms: float) -> bool:
        return self.progress[key].last_heard_ms >= now_ms - OBSERVER_SESSION_MS

    def _describe(self, voter: Voter, end_offset: int, now_ms: float) -> ReplicaDescription:
        if voter.is_replica(self.me):
            return ReplicaDescription(voter.key, end_offset, now_ms, now_ms)
        return self.progress.get(voter.key, Progress()).describe(voter.key)

    def _end_of(self, voter: Voter) -> int:
        progress = self.progress.get(voter.key)
        return progress.end_offset if progress is not None else NO_OFFSET

    def _last_heard_ms(self, voter: Voter) -> float:
        """A voter that has not fetched yet is given time since the election."""
        progress = self.progress.get(voter.key)
        return max(self.since_ms, progress.last_heard_ms if progress is not None else NEVER_MS)
