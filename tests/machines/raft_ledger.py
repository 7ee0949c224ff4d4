"""The safety rules of Raft, checked over all nodes."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from raft_disk import Entry, MemoryDisk, MemoryLog
from raft_node import Node

from moldau.machines.raft import effects as do
from moldau.machines.raft.effects import Effect
from moldau.machines.raft.voters import ReplicaKey, Voter, VoterSet


class Violated(AssertionError):
    """A rule of Raft does not hold."""


def demand(condition: bool, *what: object) -> None:
    if not condition:
        raise Violated(" ".join(map(str, what)))


@dataclass
class Committed:
    """An entry that some node took for committed, and the epoch of the leader that committed it."""

    entry: Entry
    leader_epoch: int


@dataclass
class Ledger:
    """Watches all nodes. `disks` includes wiped ones: they kept their promises until then."""

    disks: dict[ReplicaKey, MemoryDisk] = field(default_factory=dict)
    leaders: dict[int, ReplicaKey] = field(default_factory=dict)
    votes: dict[tuple[ReplicaKey, int], ReplicaKey] = field(default_factory=dict)
    committed: list[Committed] = field(default_factory=list)
    acknowledged: dict[int, str] = field(default_factory=dict)

    # While an effect is executed

    def saw(self, node: Node, effect: Effect) -> None:
        match effect:
            case do.BecomeLeader():
                self._led(node, effect)
            case do.AppendLeaderChange(voter_set=VoterSet()):
                demand(_keys(effect.voter_set) == _keys(node.machine.voters), node.me.key, "leads, and others vote")
            case do.AppendVoters():
                changed = _keys(effect.voters) ^ _keys(node.machine.voters)
                demand(len(changed) <= 1, node.me.key, "changes several voters at once:", changed)
            case do.SendVote(is_pre_vote=False):
                self._voted(node, effect.epoch, effect.candidate)
            case do.AdvanceHighWatermark():
                self._advanced(node, effect.offset)
            case _:
                pass

    def granted(self, node: Node, epoch: int, candidate: ReplicaKey) -> None:
        self._voted(node, epoch, candidate)

    def _voted(self, node: Node, epoch: int, candidate: ReplicaKey) -> None:
        known = self.votes.setdefault((node.me.key, epoch), candidate)
        demand(known == candidate, node.me.key, "voted twice in epoch", epoch, "for", known, "and", candidate)

    def _led(self, node: Node, effect: do.BecomeLeader) -> None:
        known = self.leaders.setdefault(effect.epoch, node.me.key)
        demand(known == node.me.key, "epoch", effect.epoch, "has two leaders:", known, node.me.key)
        older = [each.entry for each in self.committed if each.leader_epoch < effect.epoch]
        mine = node.disk.log.everything_below(node.disk.log.end_offset)
        demand(mine[: len(older)] == older, "the leader of", effect.epoch, "lacks committed entries")

    def _advanced(self, node: Node, high_watermark: int) -> None:
        log = node.disk.log
        demand(high_watermark <= log.end_offset, node.me.key, "commits what it has not got")
        demand(high_watermark > node.high_watermark, node.me.key, "takes its high watermark back")
        node.high_watermark = high_watermark
        entries = log.everything_below(high_watermark)
        for known, entry in zip(self.committed, entries, strict=False):
            demand(known.entry == entry, node.me.key, "has", entry, "where", known.entry, "is committed")
        if high_watermark > len(self.committed):
            demand(self.leaders[node.machine.epoch] == node.me.key, node.me.key, "commits before its leader does")
            self._is_durable(node, entries)
            fresh = entries[len(self.committed) :]
            self.committed += [Committed(entry, node.machine.epoch) for entry in fresh]

    def _is_durable(self, leader: Node, entries: list[Entry]) -> None:
        voters = leader.machine.voters
        having = [voter for voter in voters if self._has(voter, entries)]
        demand(len(having) >= voters.majority, "only", [str(each.key) for each in having], "have", len(entries))

    def _has(self, voter: Voter, entries: list[Entry]) -> bool:
        disks = [disk for key, disk in self.disks.items() if voter.is_replica(key)]
        return any(disk.durable(len(entries)) == entries for disk in disks)

    def acknowledge(self, offset: int, value: str) -> None:
        demand(offset < len(self.committed), "acknowledged before it is committed:", value)
        demand(self.committed[offset].entry.value == value, "another entry is committed where", value, "was written")
        self.acknowledged[offset] = value

    # After every event

    def check(self, nodes: Iterable[Node]) -> None:
        alive = [node for node in nodes if node.is_alive]
        leaders: dict[int, int] = {}
        for node in alive:
            if node.machine.is_leader:
                epoch = node.machine.epoch
                demand(leaders.setdefault(epoch, node.node_id) == node.node_id, "two leaders in epoch", epoch)
            demand(node.machine.high_watermark >= node.high_watermark, node.me.key, "takes its high watermark back")
            demand(node.machine.epoch >= node.disk.log.last_epoch, node.me.key, "has records of a later epoch")
            demand(node.machine.epoch == node.disk.state.epoch, node.me.key, "acts in an epoch that is not on its disk")

    def compare_logs(self, changed: MemoryDisk, others: Iterable[MemoryDisk]) -> None:
        """Check that two logs with the same epoch at one offset have the same entries before it."""
        for other in others:
            ours, theirs = changed.log, other.log
            end = min(ours.end_offset, theirs.end_offset)
            start = max(ours.start_offset, theirs.start_offset)
            shared = next((at for at in range(end, start, -1) if _epoch(ours, at) == _epoch(theirs, at)), start)
            for at in range(start, shared):
                same = ours.entries[at - ours.start_offset] == theirs.entries[at - theirs.start_offset]
                demand(same, "two logs differ at", at, "below a common entry")


def _keys(voters: VoterSet | None) -> frozenset[ReplicaKey]:
    return frozenset(voter.key for voter in voters or ())


def _epoch(log: MemoryLog, end: int) -> int:
    return log.entries[end - 1 - log.start_offset].epoch
