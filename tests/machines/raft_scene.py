"""One raft machine on a memory disk: a test feeds it events and asserts on its effects."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from raft_disk import Entry, MemoryDisk
from raft_node import Node, Response, endpoints_of

from moldau.machines.raft import effects as do
from moldau.machines.raft import events as on
from moldau.machines.raft.effects import Effect, ElectionState, Leadership, Send
from moldau.machines.raft.events import Event
from moldau.machines.raft.settings import QuorumSettings
from moldau.machines.raft.voters import ReplicaKey, Voter, VoterSet
from moldau.model.errors import ErrorCode
from moldau.model.ids import NO_NODE, NodeId

Some = TypeVar("Some")


def voter(node_id: int, disk: int = 0, port: int = 9093) -> Voter:
    """`disk` 0 is the first disk of the node."""
    return Voter(NodeId(node_id), bytes([disk + 1]) * 16, endpoints_of(node_id, port))


def voter_set(*node_ids: int) -> VoterSet:
    return VoterSet.of(voter(node_id) for node_id in node_ids)


def static_set(*node_ids: int) -> VoterSet:
    return VoterSet.of(Voter(NodeId(node_id), endpoints=endpoints_of(node_id)) for node_id in node_ids)


def key(node_id: int, disk: int = 0) -> ReplicaKey:
    return voter(node_id, disk).key


def leads(node_id: int, epoch: int) -> Leadership:
    return Leadership(NodeId(node_id), epoch, endpoints_of(node_id))


def no_leader(epoch: int) -> Leadership:
    return Leadership(NO_NODE, epoch)


@dataclass
class Scene:
    """Node 1 of a quorum. `receive` feeds it events; `chance` is its random number."""

    voters: VoterSet = field(default_factory=lambda: voter_set(1, 2, 3))
    static_voters: VoterSet | None = None
    state: ElectionState = field(default_factory=ElectionState)
    entries: Iterable[Entry] = ()
    disk: MemoryDisk = field(default_factory=lambda: MemoryDisk(key(1).directory_id))
    settings: QuorumSettings = field(default_factory=QuorumSettings)
    port: int = 9093
    now_ms: float = 1000.0
    drawn: float = 0.5
    effects: list[Effect] = field(default_factory=list)
    ticket: int = 0

    def __post_init__(self) -> None:
        if self.static_voters is None:
            self.disk.log.bootstrap = self.voters
        self.disk.log.append(*self.entries)
        self.disk.log.synced_offset = self.disk.log.end_offset
        self.disk.state = self.state
        self.node = Node(NodeId(1), self.disk, self.settings, self, self.static_voters, self.port)
        self.machine = self.node.machine
        self.log = self.disk.log

    # Input

    def start(self) -> list[Effect]:
        return self._gather(self.node.start)

    def receive(self, *events: Event) -> list[Effect]:
        return self._gather(lambda: self.node.step(*events))

    def wait(self, wait_ms: float) -> list[Effect]:
        self.now_ms += wait_ms
        return self.receive(on.TimedOut())

    def wait_for_deadline(self) -> list[Effect]:
        return self.wait(self.machine.deadline_ms - self.now_ms)

    def sync(self) -> list[Effect]:
        return self._gather(lambda: self.node.finish_sync(self.log.end_offset))

    def write(self, *values: str) -> list[Effect]:
        before = len(self.effects)
        for value in values:
            self.node.write(value)
        return self.effects[before:]

    def fetched(self, request: Send, *entries: Entry, **fields: Any) -> list[Effect]:
        """Respond to a fetch as the leader."""
        assert isinstance(request, do.SendFetch)
        given: dict[str, Any] = {
            "leadership": leads(request.to, request.epoch),
            "error": ErrorCode.NONE,
            "high_watermark": 0,
        } | fields
        response = do.RespondToFetch(ticket=0, **given)
        return self._gather(lambda: self.node.take_response(request, Response(response, entries)))

    def next_ticket(self) -> int:
        self.ticket += 1
        return self.ticket

    def request_vote(
        self, node_id: int, epoch: int, *, last: tuple[int, int] = (0, 0), **fields: Any
    ) -> do.RespondToVote:
        """`last` is the (epoch, offset) at which the candidate's log ends."""
        given: dict[str, Any] = {"candidate": key(node_id), "voter": key(1), "is_pre_vote": False} | fields
        event = on.VoteRequested(
            ticket=self.next_ticket(), epoch=epoch, last_epoch=last[0], last_offset=last[1], **given
        )
        return only(self.receive(event), do.RespondToVote)

    def fetch(self, node_id: int, offset: int, last_epoch: int, **fields: Any) -> list[Effect]:
        """Fetch from this node as a replica."""
        given: dict[str, Any] = {"replica": key(node_id), "epoch": self.machine.epoch} | fields
        return self.receive(on.FetchRequested(ticket=self.next_ticket(), offset=offset, last_epoch=last_epoch, **given))

    # Set-up

    def elect(self) -> list[Effect]:
        """Start, win an election, and sync everything."""
        self.start()
        if not self.machine.is_leader:
            self.wait_for_deadline()
        return [*self.win(), *self.sync()]

    def win(self) -> list[Effect]:
        """Grant every open vote request."""
        found: list[Effect] = []
        for _ in range(2):
            requested = [each for each in self.effects if isinstance(each, do.SendVote)]
            self.effects.clear()
            for request in requested:
                found += self.receive(on.VoteResponseReceived(request, ErrorCode.NONE, no_leader(request.epoch), True))
            self.effects = list(found)
        return found

    def follow(self, node_id: int = 2, epoch: int = 1) -> do.SendFetch:
        """Start and follow a leader; return the first fetch."""
        self.start()
        event = on.BeginQuorumRequested(
            ticket=self.next_ticket(),
            epoch=epoch,
            leader_id=NodeId(node_id),
            voter=key(1),
            endpoints=endpoints_of(node_id),
        )
        return only(self.receive(event), do.SendFetch)

    def _gather(self, what: Callable[[], object]) -> list[Effect]:
        before, self.effects = self.effects, []
        what()
        gathered = self.effects
        self.effects = before + gathered
        return gathered

    # Callbacks of the node

    def saw(self, _node: Node, effect: Effect) -> None:
        self.effects.append(effect)

    def chance(self) -> float:
        return self.drawn

    def call(self, node: Node, wait_ms: float, what: Callable[[], None]) -> None:
        """Time passes only in `wait`."""

    def send(self, sender: Node, request: Send) -> None:
        """It is among the effects."""

    def response(self, sender: Node, ticket: int, response: Response) -> None:
        """It is among the effects."""

    def may_crash(self, _effect: Effect) -> bool:
        return False

    def appended(self, node: Node) -> None:
        """It is in the log."""

    def acknowledged(self, offset: int, value: str) -> None:
        """It is in the high watermark."""

    def voter_change_done(self, effect: do.RespondToVoterChange) -> None:
        """It is among the effects."""


def every(effects: Iterable[Effect], kind: type[Some]) -> list[Some]:
    return [effect for effect in effects if isinstance(effect, kind)]


def only(effects: Iterable[Effect], kind: type[Some]) -> Some:
    found = every(effects, kind)
    assert len(found) == 1, found
    return found[0]
