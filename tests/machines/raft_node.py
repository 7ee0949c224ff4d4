"""A driver for a raft machine in tests: carries out its effects on a memory disk and a simulated network."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from raft_disk import Entry, MemoryDisk, Snapshot

from moldau.machines.raft import effects as do
from moldau.machines.raft import events as on
from moldau.machines.raft.effects import Effect, Send
from moldau.machines.raft.events import Event
from moldau.machines.raft.machine import RaftMachine
from moldau.machines.raft.settings import QuorumSettings
from moldau.machines.raft.voters import Voter, VoterSet
from moldau.model.errors import ErrorCode
from moldau.model.ids import Address, NodeId

FETCH_WAIT_MS = 500.0
FETCH_ENTRIES = 3
SNAPSHOT_CHUNKS = 3


class Crashed(Exception):
    """The node crashes here, between two effects."""

    def __init__(self, node: "Node") -> None:
        super().__init__(node.node_id)
        self.node = node


@dataclass(frozen=True)
class Response:
    """A response to another node: the effect, and what the driver adds to it."""

    effect: Effect
    entries: tuple[Entry, ...] = ()
    snapshot: Snapshot | None = None


class World(Protocol):
    """The parts of a cluster that a node needs."""

    now_ms: float

    def call(self, node: "Node", wait_ms: float, what: Callable[[], None]) -> None: ...
    def send(self, sender: "Node", request: Send) -> None: ...
    def response(self, sender: "Node", ticket: int, response: Response) -> None: ...
    def chance(self) -> float: ...
    def may_crash(self, effect: Effect) -> bool: ...
    def saw(self, node: "Node", effect: Effect) -> None: ...
    def appended(self, node: "Node") -> None: ...
    def acknowledged(self, offset: int, value: str) -> None: ...
    def voter_change_done(self, effect: do.RespondToVoterChange) -> None: ...


@dataclass
class WaitingFetch:
    ticket: int
    offset: int
    high_watermark: int


def endpoints_of(node_id: int, port: int = 9093) -> tuple[tuple[str, Address], ...]:
    return (("CONTROLLER", Address(f"host{node_id}", port)),)


@dataclass
class Node:
    """One run of a node: from a start to its crash."""

    node_id: NodeId
    disk: MemoryDisk
    settings: QuorumSettings
    world: World
    static_voters: VoterSet | None = None
    port: int = 9093
    is_alive: bool = True
    machine: RaftMachine = field(init=False)
    waiting: list[WaitingFetch] = field(default_factory=list)
    appends: dict[int, str] = field(default_factory=dict)  # of this leadership, by offset
    fetched: tuple[Entry, ...] = ()
    snapshot: Snapshot | None = None
    is_syncing: bool = False
    high_watermark: int = -1  # the last reported one
    timer: int = 0
    todo: deque[Event] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.machine = RaftMachine(
            self.me, self.disk.log, self.settings, self.world.chance, static_voters=self.static_voters
        )

    @property
    def me(self) -> Voter:
        return Voter(self.node_id, self.disk.directory_id, endpoints_of(self.node_id, self.port))

    def start(self) -> None:
        self.step(on.Started(self.disk.state, self.disk.log.voter_sets()))

    # Steps

    def step(self, *events: Event) -> None:
        """Handle all events and execute the effects."""
        self.todo.extend(events)
        while self.todo and self.is_alive:
            for effect in self.machine.step(self.todo.popleft(), self.world.now_ms):
                self.world.saw(self, effect)
                self.execute(effect)
                if self.world.may_crash(effect):
                    raise Crashed(self)
        self.serve_waiting()
        self.watch_time()

    def watch_time(self) -> None:
        self.timer += 1
        timer, deadline_ms = self.timer, self.machine.deadline_ms
        assert deadline_ms > self.world.now_ms, "it wants to be called again and again"
        if deadline_ms != float("inf"):
            wait_ms = max(deadline_ms - self.world.now_ms, 0)
            self.world.call(self, wait_ms, lambda: self.time_out(timer))

    def time_out(self, timer: int) -> None:
        if timer == self.timer:
            self.step(on.TimedOut())

    # Effects of the machine

    def execute(self, effect: Effect) -> None:
        match effect:
            case do.PersistQuorumState():
                self.disk.state = effect.state
            case do.AppendLeaderChange():
                self.append_controls(effect)
            case do.AppendVoters():
                self.append([Entry(effect.epoch, "voters", effect.voters)])
            case do.AppendFetched():
                self.append(self.fetched)
            case do.TruncateLog():
                assert not self.is_syncing  # or the end of that sync would be reported for other records
                self.disk.log.truncate(effect.end_offset)
                self.todo.append(on.LogTruncated(effect.end_offset))
                self.begin_sync()
            case do.LoadSnapshot():
                self.load()
            case do.FailPendingAppends():
                self.appends.clear()
            case do.FailWaitingFetches():
                self.fail_waiting(effect)
            case do.AdvanceHighWatermark():
                self.acknowledge(effect.offset)
            case do.BecomeLeader() | do.BecomeFollower():
                pass
            case do.RespondToVoterChange():
                self.world.voter_change_done(effect)
            case do.ServeFetch():
                self.wait(effect)
            case do.ServeSnapshot():
                self.serve_snapshot(effect)
            case do.RespondToVote() | do.RespondToQuorumEpoch() | do.RespondToFetch() | do.RespondToFetchSnapshot():
                self.world.response(self, effect.ticket, Response(effect))
            case _:
                self.world.send(self, effect)

    # The log

    def append_controls(self, effect: do.AppendLeaderChange) -> None:
        entries = [Entry(effect.epoch, f"leader {effect.leader_id}")]
        if effect.voter_set is not None:
            entries += [Entry(effect.epoch, "version"), Entry(effect.epoch, "voters", effect.voter_set)]
        self.append(entries)

    def append(self, entries: Sequence[Entry]) -> None:
        log = self.disk.log
        for entry in entries:
            if entry.voters is not None:
                self.todo.append(on.VotersChanged(log.end_offset, entry.voters))
            log.append(entry)
        self.world.appended(self)
        self.todo.append(on.LogAppended(log.end_offset))
        self.begin_sync()

    def write(self, value: str) -> None:
        """Append a client's value on a leader."""
        self.appends[self.disk.log.end_offset] = value
        self.append([Entry(self.machine.epoch, value)])
        self.step()

    def begin_sync(self) -> None:
        if not self.is_syncing and self.disk.log.synced_offset < self.disk.log.end_offset:
            self.is_syncing = True
            end_offset = self.disk.log.end_offset
            self.world.call(self, 10 * self.world.chance(), lambda: self.finish_sync(end_offset))

    def finish_sync(self, end_offset: int) -> None:
        log = self.disk.log
        self.is_syncing = False
        log.synced_offset = min(max(log.synced_offset, end_offset), log.end_offset)
        self.begin_sync()
        self.step(on.LogSynced(end_offset))

    def load(self) -> None:
        assert self.snapshot is not None
        assert not self.is_syncing
        self.disk.log.load(self.snapshot)
        self.todo.append(on.SnapshotLoaded(self.snapshot.end, self.snapshot.voters))

    def acknowledge(self, high_watermark: int) -> None:
        for offset in sorted(self.appends):
            if offset < high_watermark:
                self.world.acknowledged(offset, self.appends.pop(offset))

    # Fetches of other nodes

    def wait(self, effect: do.ServeFetch) -> None:
        waiting = WaitingFetch(effect.ticket, effect.offset, effect.high_watermark)
        self.waiting.append(waiting)
        self.world.call(self, FETCH_WAIT_MS, lambda: self.serve(waiting) if waiting in self.waiting else None)

    def serve_waiting(self) -> None:
        for waiting in list(self.waiting):
            log = self.disk.log
            if log.end_offset > waiting.offset or self.machine.high_watermark > waiting.high_watermark:
                self.serve(waiting)

    def serve(self, waiting: WaitingFetch) -> None:
        self.waiting.remove(waiting)
        entries = tuple(self.disk.log.read(waiting.offset, FETCH_ENTRIES))
        assert waiting.offset >= self.disk.log.start_offset or not entries
        response = do.RespondToFetch(
            ticket=waiting.ticket,
            error=ErrorCode.NONE,
            leadership=self.machine.leadership,
            high_watermark=self.machine.high_watermark,
        )
        if waiting.offset < self.disk.log.start_offset:  # a snapshot was taken since: let it retry
            entries = ()
        self.world.response(self, waiting.ticket, Response(response, entries))

    def fail_waiting(self, effect: do.FailWaitingFetches) -> None:
        for waiting in self.waiting:
            response = do.RespondToFetch(
                ticket=waiting.ticket, error=effect.error, leadership=effect.leadership, high_watermark=-1
            )
            self.world.response(self, waiting.ticket, Response(response))
        self.waiting.clear()

    def serve_snapshot(self, effect: do.ServeSnapshot) -> None:
        found = next((each for each in self.disk.log.snapshots if each.end == effect.snapshot), None)
        error = ErrorCode.NONE if found is not None else ErrorCode.SNAPSHOT_NOT_FOUND
        response = do.RespondToFetchSnapshot(ticket=effect.ticket, error=error, leadership=self.machine.leadership)
        self.world.response(self, effect.ticket, Response(response, snapshot=found))

    # Responses to this node

    def take_response(self, request: Send, response: Response) -> None:
        match request, response.effect:
            case do.SendVote(), do.RespondToVote() as effect:
                self.step(on.VoteResponseReceived(request, effect.error, effect.leadership, effect.is_granted))
            case ((do.SendBeginQuorum() | do.SendEndQuorum()), do.RespondToQuorumEpoch() as effect):
                self.step(on.QuorumEpochResponseReceived(request, effect.error, effect.leadership))
            case do.SendFetch(), do.RespondToFetch() as effect:
                self.take_fetched(request, effect, response.entries)
            case do.SendFetchSnapshot(), do.RespondToFetchSnapshot() as effect:
                self.take_chunk(request, effect, response.snapshot)
            case do.SendUpdateVoter(), do.RespondToVoterChange() as effect:
                self.step(on.UpdateVoterResponseReceived(request, effect.error, effect.leadership))
            case _:
                raise AssertionError((request, response))

    def take_fetched(self, request: do.SendFetch, effect: do.RespondToFetch, entries: tuple[Entry, ...]) -> None:
        self.fetched = entries
        self.step(
            on.FetchResponseReceived(
                request=request,
                error=effect.error,
                leadership=effect.leadership,
                high_watermark=effect.high_watermark,
                diverging=effect.diverging,
                snapshot=effect.snapshot,
                has_records=bool(entries),
            )
        )

    def take_chunk(
        self, request: do.SendFetchSnapshot, effect: do.RespondToFetchSnapshot, snapshot: Snapshot | None
    ) -> None:
        self.snapshot = snapshot
        self.step(
            on.FetchSnapshotResponseReceived(
                request=request,
                error=effect.error,
                leadership=effect.leadership,
                next_position=request.position + 1,
                size_bytes=SNAPSHOT_CHUNKS,
            )
        )


def as_event(request: Send, ticket: int, sender: Node) -> Event:
    """Return the event for the receiver of a request."""
    match request:
        case do.SendVote():
            return on.VoteRequested(
                ticket=ticket,
                epoch=request.epoch,
                candidate=request.candidate,
                voter=request.to.key,
                last_offset=request.last_offset,
                last_epoch=request.last_epoch,
                is_pre_vote=request.is_pre_vote,
            )
        case do.SendBeginQuorum():
            return on.BeginQuorumRequested(
                ticket=ticket,
                epoch=request.epoch,
                leader_id=request.leader_id,
                voter=request.to.key,
                endpoints=request.endpoints,
            )
        case do.SendEndQuorum():
            return on.EndQuorumRequested(
                ticket=ticket,
                epoch=request.epoch,
                leader_id=request.leader_id,
                successors=request.successors,
                endpoints=request.endpoints,
            )
        case do.SendFetch():
            return on.FetchRequested(
                ticket=ticket,
                replica=sender.me.key,
                epoch=request.epoch,
                offset=request.offset,
                last_epoch=request.last_epoch,
                high_watermark=request.high_watermark,
            )
        case do.SendFetchSnapshot():
            return on.FetchSnapshotRequested(
                ticket=ticket, replica=sender.me.key, epoch=request.epoch, snapshot=request.snapshot
            )
        case do.SendUpdateVoter():
            return on.UpdateVoterRequested(ticket=ticket, epoch=request.epoch, voter=request.voter)
