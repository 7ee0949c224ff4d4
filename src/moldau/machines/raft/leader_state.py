"""The leader's state: replica progress, the majority's offset, and when the majority is lost."""

from dataclasses import dataclass, field
from math import inf

from moldau.machines.raft.effects import Ticket
from moldau.machines.raft.quorum_description import NEVER_MS, ReplicaDescription
from moldau.machines.raft.settings import OBSERVER_SESSION_MS, OBSERVERS_MAX
from moldau.machines.raft.voters import ReplicaKey, Voter, VoterSet
from moldau.model.ids import NO_DIRECTORY, NO_OFFSET, NodeId


@dataclass(slots=True)
class Progress:
    """Fetch progress of a replica in this epoch."""

    end_offset: int = NO_OFFSET
    last_fetch_ms: float = NEVER_MS
    last_caught_up_ms: float = NEVER_MS
    leader_end_offset: int = 0  # at its last fetch
    directory_id: bytes = NO_DIRECTORY  # as sent with its fetches; static voters are tracked without one
    last_contact_ms: float = NEVER_MS  # any fetch counts, even with diverging records or while a snapshot is needed

    def fetched(self, offset: int, leader_end_offset: int, now_ms: float) -> None:
        """Record that the replica has everything below `offset`. It is caught up as of its previous fetch if it has
        reached the log end of that time."""
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
    """A voter change in progress: first the new voter catches up, then its voters record is committed."""

    ticket: Ticket
    since_ms: float
    deadline_ms: float
    ack_when_committed: bool
    new_voter: Voter | None = None  # not yet appended
    offset: int | None = None  # of the voters record
    is_kraft_upgrade: bool = False  # adds the directory ids of static voters


@dataclass(slots=True)
class Leader:
    """State of the leader role. `start_offset` is the offset of the LeaderChange record."""

    me: ReplicaKey
    start_offset: int
    since_ms: float
    progress: dict[ReplicaKey, Progress] = field(default_factory=dict)
    begin_quorum_due_ms: dict[NodeId, float] = field(default_factory=dict)  # when each voter is due a BeginQuorumEpoch
    pending: PendingChange | None = None
    is_append_due: bool = False  # a voters record is being appended

    def progress_of(self, key: ReplicaKey, voters: VoterSet) -> Progress:
        """Return a replica's progress. A voter's is stored under the key in the voter set, which in a static quorum has
        no directory id."""
        voter = voters.get(key.node_id)
        known = voter.key if voter is not None and voter.is_replica(key) else key
        progress = self.progress.setdefault(known, Progress())
        progress.directory_id = key.directory_id
        return progress

    def directory_of(self, voter: Voter) -> bytes:
        """Return the directory id that a voter sent in this epoch."""
        return self.progress[voter.key].directory_id if voter.key in self.progress else NO_DIRECTORY

    def add_directory_ids(self, voters: VoterSet) -> None:
        """Move the progress of static voters to their keys with directory ids."""
        for voter in voters:
            progress = self.progress.pop(ReplicaKey(voter.node_id), None)
            if progress is not None:
                self.progress.setdefault(voter.key, progress)

    def committed_end(self, voters: VoterSet, synced_offset: int) -> int:
        """Return the highest offset below which a majority of the voters has synced everything."""
        ends = [synced_offset if voter.is_replica(self.me) else self._end_of(voter) for voter in voters]
        ends.sort(reverse=True)
        return ends[voters.majority - 1] if ends else NO_OFFSET

    def quorum_lost_ms(self, voters: VoterSet, timeout_ms: float) -> float:
        """Return when the majority will have been without contact for `timeout_ms`."""
        needed = voters.majority - voters.includes(self.me)
        if needed <= 0:
            return inf
        times = [self._last_contact_ms(voter) for voter in self.others(voters)]
        times.sort(reverse=True)
        return times[needed - 1] + timeout_ms

    def others(self, voters: VoterSet) -> list[Voter]:
        return [voter for voter in voters if not voter.is_replica(self.me)]

    def successors(self, voters: VoterSet) -> tuple[ReplicaKey, ...]:
        """Return the other voters, longest log first."""
        ranked = sorted(self.others(voters), key=lambda voter: (-self._end_of(voter), voter.node_id))
        return tuple(voter.key for voter in ranked)

    def evict_observers(self, voters: VoterSet, now_ms: float) -> None:
        """Drop observers whose session expired, and the least recent if there are too many."""
        observers = [key for key in self.progress if not voters.includes(key)]
        observers.sort(key=lambda key: -self.progress[key].last_contact_ms)
        for rank, key in enumerate(observers):
            if rank >= OBSERVERS_MAX or not self._is_present(key, now_ms):
                del self.progress[key]

    def describe_voters(self, voters: VoterSet, end_offset: int, now_ms: float) -> tuple[ReplicaDescription, ...]:
        return tuple(self._describe(voter, end_offset, now_ms) for voter in voters)

    def describe_observers(self, voters: VoterSet, now_ms: float) -> tuple[ReplicaDescription, ...]:
        present = [key for key in sorted(self.progress) if self._is_present(key, now_ms) and not voters.includes(key)]
        return tuple(self.progress[key].describe(key) for key in present)

    def _is_present(self, key: ReplicaKey, now_ms: float) -> bool:
        return self.progress[key].last_contact_ms > now_ms - OBSERVER_SESSION_MS

    def _describe(self, voter: Voter, end_offset: int, now_ms: float) -> ReplicaDescription:
        if voter.is_replica(self.me):
            return ReplicaDescription(voter.key, end_offset, now_ms, now_ms)
        return self.progress.get(voter.key, Progress()).describe(voter.key)

    def _end_of(self, voter: Voter) -> int:
        progress = self.progress.get(voter.key)
        return progress.end_offset if progress is not None else NO_OFFSET

    def _last_contact_ms(self, voter: Voter) -> float:
        """Return the time of the last fetch; a voter that has not fetched yet counts from the election."""
        progress = self.progress.get(voter.key)
        return max(self.since_ms, progress.last_contact_ms if progress is not None else NEVER_MS)
