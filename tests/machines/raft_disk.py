"""A disk for a raft machine in tests: its log, snapshots, and what survives a crash or a power loss."""

from dataclasses import dataclass, field, replace
from random import Random

from moldau.machines.raft import ElectionState, OffsetAndEpoch, VotersAt, VoterSet


@dataclass(frozen=True)
class Entry:
    """One record: a value of a client, a voter set, or the start of an epoch."""

    epoch: int
    value: str
    voters: VoterSet | None = None


@dataclass(frozen=True)
class Snapshot:
    """Everything below its offset, with the entries, so that they can be compared."""

    end: OffsetAndEpoch
    entries: tuple[Entry, ...]
    voters: VoterSet | None


@dataclass
class MemoryLog:
    """The log as the machine sees it. `entries` begin at `start_offset`; lower ones are in the snapshots."""

    start_offset: int = 0
    entries: list[Entry] = field(default_factory=list)
    snapshots: list[Snapshot] = field(default_factory=list)
    synced_offset: int = 0
    bootstrap: VoterSet | None = None

    @property
    def end_offset(self) -> int:
        return self.start_offset + len(self.entries)

    @property
    def last_epoch(self) -> int:
        return self.entries[-1].epoch if self.entries else self._first_epoch

    @property
    def latest_snapshot(self) -> OffsetAndEpoch | None:
        return self.snapshots[-1].end if self.snapshots else None

    @property
    def earliest_snapshot(self) -> OffsetAndEpoch | None:
        return self.snapshots[0].end if self.snapshots else None

    def end_of_epoch(self, epoch: int) -> OffsetAndEpoch:
        for at in range(len(self.entries), 0, -1):
            if self.entries[at - 1].epoch <= epoch:
                return OffsetAndEpoch(self.start_offset + at, self.entries[at - 1].epoch)
        return OffsetAndEpoch(self.start_offset, self._first_epoch)

    @property
    def _first_epoch(self) -> int:
        return next((each.end.epoch for each in self.snapshots if each.end.offset == self.start_offset), 0)

    # The driver's part

    def append(self, *entries: Entry) -> None:
        self.entries += entries

    def read(self, offset: int, count: int) -> list[Entry]:
        at = offset - self.start_offset
        return self.entries[at : at + count]

    def truncate(self, end_offset: int) -> None:
        del self.entries[end_offset - self.start_offset :]
        self.synced_offset = min(self.synced_offset, end_offset)

    def everything_below(self, end_offset: int) -> list[Entry]:
        """Return all entries from offset 0 on."""
        older = next((each.entries for each in reversed(self.snapshots) if each.end.offset <= end_offset), ())
        assert len(older) >= self.start_offset
        return [*older, *self.read(len(older), end_offset - len(older))]

    def take_snapshot(self, end_offset: int, voters: VoterSet | None, kept: int) -> None:
        entries = tuple(self.everything_below(end_offset))
        self.snapshots.append(Snapshot(OffsetAndEpoch(end_offset, entries[-1].epoch), entries, voters))
        del self.snapshots[:-kept]
        start_offset = self.snapshots[0].end.offset
        self.synced_offset = max(self.synced_offset, start_offset)
        if start_offset > self.start_offset:
            del self.entries[: start_offset - self.start_offset]
            self.start_offset = start_offset

    def load(self, snapshot: Snapshot) -> None:
        self.start_offset = self.synced_offset = snapshot.end.offset
        self.entries = []
        self.snapshots = [snapshot]

    def voter_sets(self) -> tuple[VotersAt, ...]:
        """Return the voter sets as a driver reads them when it opens the log."""
        found = [VotersAt(-1, self.bootstrap)] if self.bootstrap is not None else []
        if self.snapshots and (voters := self.snapshots[0].voters) is not None:
            found.append(VotersAt(self.snapshots[0].end.offset - 1, voters))
        found += [
            VotersAt(self.start_offset + at, entry.voters)
            for at, entry in enumerate(self.entries)
            if entry.voters is not None
        ]
        return tuple(found)


@dataclass
class MemoryDisk:
    """Everything that survives a restart of a node."""

    directory_id: bytes
    log: MemoryLog = field(default_factory=MemoryLog)
    state: ElectionState = field(default_factory=ElectionState)

    def lose_power(self, random: Random) -> None:
        """Keep only a prefix of the unsynced data."""
        log = self.log
        log.truncate(random.randint(max(log.synced_offset, log.start_offset), log.end_offset))
        log.synced_offset = log.end_offset

    def crash(self) -> None:
        """End the process but not the kernel: written data stays, and the next start syncs it."""
        self.log.synced_offset = self.log.end_offset

    def durable(self, end_offset: int) -> list[Entry] | None:
        """Return everything below an offset if it survives a power loss, else None."""
        if self.log.synced_offset < end_offset:
            return None
        return self.log.everything_below(end_offset)

    def copied(self) -> "MemoryDisk":
        log = replace(self.log, entries=list(self.log.entries), snapshots=list(self.log.snapshots))
        return MemoryDisk(self.directory_id, log, self.state)
