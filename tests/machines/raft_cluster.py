"""A whole quorum on virtual time: nodes, a network with loss, delay and duplicates, and a ledger of rules."""

import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from random import Random

from raft_disk import MemoryDisk
from raft_ledger import Ledger
from raft_node import Crashed, Node, Response, as_event, endpoints_of

from moldau.machines.raft import effects as do
from moldau.machines.raft import events as on
from moldau.machines.raft.effects import Effect, Send
from moldau.machines.raft.settings import QuorumSettings
from moldau.machines.raft.voters import ReplicaKey, Voter, VoterSet
from moldau.model.errors import ErrorCode
from moldau.model.ids import NO_NODE, NodeId

REQUEST_TIMEOUT_MS = 2000.0
LATE_MS_MAX = 6000.0
CALL_MS_MAX = 20_000.0
DELICATE = (
    do.PersistQuorumState,
    do.RespondToVote,
    do.SendVote,
    do.AppendLeaderChange,
    do.AppendVoters,
    do.BecomeLeader,
)
DELICATE_FACTOR = 30


@dataclass
class FaultRates:
    """How often the network and the nodes fail."""

    latency_ms: float = 5.0
    lost: float = 0.0
    doubled: float = 0.0
    late: float = 0.0  # by up to seconds: long after the request timed out
    crash: float = 0.0  # at each effect
    power: float = 0.5  # the share of crashes that lose unsynced data
    reboot: float = 0.0  # the share of crashes after which the node restarts at once


@dataclass
class Call:
    """A request in flight."""

    sender: Node
    request: Send
    receiver: int
    is_done: bool = False


@dataclass
class Cluster:
    """Runs for a time, checks the rules after every event, and counts events."""

    seed: int
    settings: QuorumSettings = field(default_factory=QuorumSettings)
    faults: FaultRates = field(default_factory=FaultRates)
    is_static: bool = False
    now_ms: float = 0.0
    nodes: dict[int, Node] = field(default_factory=dict)
    ledger: Ledger = field(default_factory=Ledger)
    seen: Counter[str] = field(default_factory=Counter)
    changes: dict[int, ErrorCode] = field(default_factory=dict)  # responses to voter changes, by ticket

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._counted = 0
        self._calls: dict[int, Call] = {}
        self._cut: set[tuple[int, int]] = set()  # only looked up, never iterated
        self._paused_until: dict[int, float] = {}
        self._rejected: Counter[int] = Counter()
        self._static: VoterSet | None = None
        self._trace = hashlib.sha256()

    # Nodes

    def found(self, voters: int, observers: int = 0) -> None:
        """Form a new cluster: its first ids are the voters."""
        ids = range(1, voters + observers + 1)
        disks = {node_id: self._new_disk(node_id) for node_id in ids}
        born = [
            Voter(NodeId(node_id), bytes(16) if self.is_static else disks[node_id].directory_id, endpoints_of(node_id))
            for node_id in list(ids)[:voters]
        ]
        if self.is_static:
            self._static = VoterSet.of(born)
        for node_id, disk in disks.items():
            disk.log.bootstrap = VoterSet.of(born) if not self.is_static and node_id <= voters else None
            self.boot(node_id, disk)

    def _new_disk(self, node_id: int) -> MemoryDisk:
        disk = MemoryDisk(self.random.randbytes(16))
        self.ledger.disks[ReplicaKey(NodeId(node_id), disk.directory_id)] = disk
        return disk

    def boot(self, node_id: int, disk: MemoryDisk, port: int = 9093) -> None:
        node = Node(NodeId(node_id), disk, self.settings, self, self._static, port)
        self.nodes[node_id] = node
        self._rejected.clear()
        self.guard(node.start)

    def restart(self, node_id: int) -> None:
        node = self.nodes[node_id]
        if not node.is_alive:
            self.seen["restart"] += 1
            self.boot(node_id, node.disk, node.port)

    def crash(self, node: Node) -> None:
        if not node.is_alive:
            return
        node.is_alive = False
        if self.random.random() < self.faults.power:
            self.seen["power loss"] += 1
            node.disk.lose_power(self.random)
        else:
            self.seen["crash"] += 1
            node.disk.crash()
            self._hang_up(node)
        if self.random.random() < self.faults.reboot:
            self.later(self.random.uniform(0, 300), partial(self.restart, node.node_id))

    def _hang_up(self, node: Node) -> None:
        """Close the connections of a dead process; a host without power sends nothing."""
        for call in [call for call in self._calls.values() if call.receiver == node.node_id and not call.is_done]:
            self.later(self.random.uniform(0, self.faults.latency_ms), partial(self._fail, call))

    def wipe(self, node: Node) -> None:
        """Replace the disk of a node: it is no voter any more."""
        self.crash(node)
        self.seen["wipe"] += 1
        self.ledger.disks[node.me.key] = node.disk.copied()
        self.boot(node.node_id, self._new_disk(node.node_id), node.port)

    @property
    def alive(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.is_alive]

    @property
    def leader(self) -> Node | None:
        """Return the leader of the latest epoch."""
        leading = [node for node in self.alive if node.machine.is_leader]
        return max(leading, key=lambda node: node.machine.epoch, default=None)

    # Time

    def later(self, wait_ms: float, what: Callable[[], None]) -> None:
        self._counted += 1
        heappush(self._queue, (self.now_ms + wait_ms, self._counted, what))

    def run(self, wait_ms: float, until: Callable[[], bool] = lambda: False) -> bool:
        """Let time pass, at most until a condition holds; return whether it holds."""
        end_ms = self.now_ms + wait_ms
        while self._queue and self._queue[0][0] <= end_ms:
            self.now_ms, _, what = heappop(self._queue)
            self.guard(what)
            self.ledger.check(self.nodes.values())
            if until():
                return True
        self.now_ms = end_ms
        return until()

    def guard(self, what: Callable[[], None]) -> None:
        try:
            what()
        except Crashed as crashed:
            self.seen["crash between effects"] += 1
            self.crash(crashed.node)

    def call(self, node: Node, wait_ms: float, what: Callable[[], None]) -> None:
        """Run an event of a live node. A paused process runs it when it resumes."""
        self.later(wait_ms, lambda: self._when_awake(node, what))

    def _when_awake(self, node: Node, what: Callable[[], None]) -> None:
        wait_ms = self._paused_until.get(node.node_id, 0.0) - self.now_ms
        if wait_ms > 0:
            self.later(wait_ms, lambda: self._when_awake(node, what))
        elif node.is_alive:
            what()

    def pause(self, node_id: int, wait_ms: float) -> None:
        self.seen["pause"] += 1
        self._paused_until[node_id] = self.now_ms + wait_ms

    def is_awake(self, node: Node) -> bool:
        return self._paused_until.get(node.node_id, 0.0) <= self.now_ms

    def chance(self) -> float:
        return self.random.random()

    # The network

    def cut(self, sender: int, receiver: int) -> None:
        self.seen["cut"] += 1
        self._cut.add((sender, receiver))

    def mend(self) -> None:
        """Reconnect everything."""
        self._cut.clear()

    def heal(self) -> None:
        """Repair everything for good."""
        self._cut.clear()
        self._paused_until.clear()
        self.faults = FaultRates()
        for node_id in list(self.nodes):
            self.restart(node_id)

    def send(self, sender: Node, request: Send) -> None:
        self._counted += 1
        ticket = self._counted
        call = self._calls[ticket] = Call(sender, request, self._receiver(sender, request))
        self.later(REQUEST_TIMEOUT_MS, lambda: self._fail(call))
        self.later(CALL_MS_MAX, lambda: self._forget(ticket))
        for _ in range(1 + (self.random.random() < self.faults.doubled)):
            if self._arrives(sender.node_id, call.receiver):
                self.later(self._delay_ms(), lambda: self._deliver(call, ticket))

    def _receiver(self, sender: Node, request: Send) -> int:
        to = request.to.node_id if isinstance(request.to, Voter) else request.to
        if to != NO_NODE:
            return int(to)
        return self.random.choice([node_id for node_id in self.nodes if node_id != sender.node_id] or [0])

    def _arrives(self, sender: int, receiver: int) -> bool:
        return (sender, receiver) not in self._cut and self.random.random() >= self.faults.lost

    def _delay_ms(self) -> float:
        slow = self.random.random() < self.faults.late
        return self.random.uniform(0, LATE_MS_MAX if slow else self.faults.latency_ms)

    def _deliver(self, call: Call, ticket: int) -> None:
        node = self.nodes.get(call.receiver)
        if node is None or not node.is_alive:
            self._reject(call)
        else:
            event = as_event(call.request, ticket, call.sender)
            self._when_awake(node, lambda: node.step(event))

    def _reject(self, call: Call) -> None:
        """Refuse a connection. The second time the peer counts as dead."""
        self._rejected[call.receiver] += 1
        self._fail(call)
        if isinstance(call.request, do.SendFetch) and self._rejected[call.receiver] >= 2:
            self.report_vanished(call.sender, call.receiver)

    def report_vanished(self, node: Node, vanished: int) -> None:
        self.seen["vanished"] += 1
        self._when_awake(node, lambda: node.step(on.PeerStopped(NodeId(vanished))))

    def _fail(self, call: Call) -> None:
        if not call.is_done:
            call.is_done = True
            self._when_awake(call.sender, lambda: call.sender.step(on.RequestFailed(call.request)))

    def _forget(self, ticket: int) -> None:
        self._calls.pop(ticket, None)

    def response(self, sender: Node, ticket: int, response: Response) -> None:
        call = self._calls.get(ticket)
        if call is None:
            return
        request = call.request
        if isinstance(response.effect, do.RespondToVote) and response.effect.is_granted:
            assert isinstance(request, do.SendVote)
            if not request.is_pre_vote:
                self.ledger.granted(sender, request.epoch, request.candidate)
        for _ in range(1 + (self.random.random() < self.faults.doubled)):
            if self._arrives(sender.node_id, call.sender.node_id):
                self.later(self._delay_ms(), lambda: self._bring_back(call, response))

    def _bring_back(self, call: Call, response: Response) -> None:
        """Deliver a response, perhaps twice, perhaps after the request timed out."""
        call.is_done = True
        node = call.sender
        self._when_awake(node, lambda: node.take_response(call.request, response))

    # Reports of nodes

    def may_crash(self, effect: Effect) -> bool:
        """Crash more often where something could be lost."""
        is_delicate = isinstance(effect, DELICATE)
        return self.random.random() < self.faults.crash * (DELICATE_FACTOR if is_delicate else 1)

    def saw(self, node: Node, effect: Effect) -> None:
        self.seen[type(effect).__name__] += 1
        self._trace.update(f"{self.now_ms:.3f} {node.node_id} {effect}\n".encode())
        self.ledger.saw(node, effect)

    def appended(self, node: Node) -> None:
        self.ledger.compare_logs(node.disk, [each.disk for each in self.nodes.values() if each is not node])

    @property
    def trace(self) -> str:
        return self._trace.hexdigest()

    def acknowledged(self, offset: int, value: str) -> None:
        self.seen["acknowledged"] += 1
        self.ledger.acknowledge(offset, value)

    def voter_change_done(self, effect: do.RespondToVoterChange) -> None:
        if effect.ticket in self._calls:
            self.response(self.nodes[self._calls[effect.ticket].receiver], effect.ticket, Response(effect))
        else:
            self.changes[effect.ticket] = effect.error

    # Clients and administrators

    def write(self, value: str) -> bool:
        node = self.leader
        if node is None or not self.is_awake(node):
            return False
        self.guard(lambda: node.write(value))
        return True

    def add_voter(self, node: Node, timeout_ms: int = 3000) -> int | None:
        return self._ask(lambda ticket: on.AddVoterRequested(ticket=ticket, voter=node.me, timeout_ms=timeout_ms))

    def remove_voter(self, key: ReplicaKey, timeout_ms: int = 3000) -> int | None:
        return self._ask(lambda ticket: on.RemoveVoterRequested(ticket=ticket, voter=key, timeout_ms=timeout_ms))

    def _ask(self, request: Callable[[int], on.AddVoterRequested | on.RemoveVoterRequested]) -> int | None:
        leader = self.leader
        if leader is None or not self.is_awake(leader):
            return None
        self._counted += 1
        ticket = -self._counted
        self.guard(lambda: leader.step(request(ticket)))
        return ticket

    def take_snapshot(self, node: Node, kept: int) -> None:
        log = node.disk.log
        end_offset = self.random.randint(0, node.machine.high_watermark)
        latest = log.latest_snapshot
        if end_offset > max(log.start_offset, latest.offset if latest is not None else 0):
            self.seen["snapshot"] += 1
            log.take_snapshot(end_offset, node.machine.voters_at(end_offset), kept)
