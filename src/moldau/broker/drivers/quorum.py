"""Runs this node's raft machine: feeds it one event at a time and carries out its effects in order.

Effects on disk complete before the next event is processed; meanwhile events queue up. Requests to other nodes are
tasks of their own, and their responses come back as events.

    event -> machine.step() -> effects: write / flush -> send, respond
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Final, Protocol

from moldau.broker.drivers.delayed_fetches import DelayedFetches, FetchResult
from moldau.broker.drivers.metadata_log import MetadataLog
from moldau.broker.drivers.metadata_snapshots import CorruptSnapshot, SnapshotId
from moldau.broker.drivers.quorum_peers import QuorumPeers
from moldau.broker.drivers.quorum_records import kraft_version, leader_change, voter_set
from moldau.broker.drivers.quorum_state import QuorumState, write_quorum_state
from moldau.broker.runtime.log_dir_monitor import NoObserver, WriteObserver
from moldau.broker.runtime.rate_limited_logger import RateLimitedLogger
from moldau.machines.raft import (
    AdvanceHighWatermark,
    AppendFetched,
    AppendLeaderChange,
    AppendVoters,
    BecomeFollower,
    BecomeLeader,
    BeginQuorumRequested,
    Effect,
    ElectionState,
    Event,
    FailPendingAppends,
    FailWaitingFetches,
    FetchRequested,
    Leadership,
    LoadSnapshot,
    LogAppended,
    LogSynced,
    LogTruncated,
    PersistQuorumState,
    RaftMachine,
    RequestFailed,
    ResignRequested,
    RespondToFetch,
    RespondToFetchSnapshot,
    RespondToQuorumEpoch,
    RespondToVote,
    RespondToVoterChange,
    SendFetch,
    SendFetchSnapshot,
    ServeFetch,
    ServeSnapshot,
    SnapshotLoaded,
    Started,
    Ticket,
    TimedOut,
    TruncateLog,
    VotersAt,
    VotersChanged,
    VoterSet,
)
from moldau.model.errors import CorruptMessage, NotController
from moldau.model.ids import NO_EPOCH
from moldau.model.ports import Clock, Disk, Executor

log = logging.getLogger(__name__)

RETRY_S: Final = 0.1  # after a failed write, until the next attempt; doubled for each further failure
RETRY_S_MAX: Final = 1.0
WRITE_FAILED: Final = "Cannot write the metadata log"
QUEUED_MAX: Final = 10_000  # requests beyond it are rejected while the disk is slow


@dataclass(slots=True)
class _PendingRequest:
    """A request of another node that waits for its response."""

    response: "asyncio.Future[Any]"
    max_bytes: int = 0
    may_wait: bool = True


class Owner(Protocol):
    """The user of the log that the quorum replicates."""

    def lead(self, epoch: int) -> None:
        """This node is the leader from now on."""
        ...

    def flush(self) -> None:
        """Write pending decisions: the quorum is about to append a record."""
        ...

    def lose(self) -> None:
        """This node is no longer the leader."""
        ...

    def follow(self, leadership: Leadership) -> None:
        """Another node is the leader, or none is known."""
        ...

    def on_snapshot_loaded(self) -> None:
        """The log was restarted at a snapshot from the leader."""
        ...


class Quorum:
    """One member of the quorum, voter or observer. `start`, `ask`, `resign`, `close`."""

    def __init__(
        self,
        machine: RaftMachine,
        metadata_log: MetadataLog,
        peers: Callable[[Callable[..., None]], QuorumPeers],
        owner: Owner,
        *,
        disk: Disk,
        executor: Executor,
        clock: Clock,
        static_voters: VoterSet | None,
        failed: Callable[[BaseException], None],
        observer: WriteObserver | None = None,
    ) -> None:
        self.machine = machine
        self._log = metadata_log
        self._owner = owner
        self._disk = disk
        self._executor = executor
        self._clock = clock
        self._static_voters = static_voters
        self._failed = failed
        self._observer = NoObserver() if observer is None else observer
        self._peers = peers(self.post)
        self.fetches = DelayedFetches(metadata_log, lambda: (machine.high_watermark, machine.leadership), self._fail)
        self._events: deque[tuple[Event, Any]] = deque()
        self._is_stepping = False
        self._waiting_for_disk: asyncio.Task[None] | None = None
        self._failures = 0  # of the metadata log or the election state, since the last successful write
        self._failing: set[str] = set()  # what failed since then
        self._retries: set[asyncio.TimerHandle] = set()
        self._limited_logger = RateLimitedLogger(clock, log)
        self._is_stopped = False
        self._records: Any = None  # records that came with the current event
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_ms = inf
        self._last_ticket = 0
        self._requests: dict[Ticket, _PendingRequest] = {}

    # Lifecycle

    def start(self, state: ElectionState, voter_sets: Sequence[VotersAt]) -> None:
        """Start the machine; the log is open and flushed."""
        self._log.set_listeners(appended=self._appended, synced=lambda end_offset: self.post(LogSynced(end_offset)))
        self.post(Started(state, tuple(voter_sets)))

    async def resign(self) -> None:
        """Resign if this node leads; return when the other nodes have responded, or at the timeout."""
        self.post(ResignRequested())
        while self._waiting_for_disk is not None:
            await asyncio.wait([self._waiting_for_disk])
        await self._peers.wait_for_resignation()

    async def close(self) -> None:
        self.stop()
        if self._waiting_for_disk is not None:
            await asyncio.wait([self._waiting_for_disk])
        await self._peers.close()

    def stop(self) -> None:
        """Process no more events, and fail the waiting requests."""
        self._is_stopped = True
        self._events.clear()
        for timer in [*self._retries, *filter(None, [self._timer])]:
            timer.cancel()
        self._retries.clear()
        request, self._requests = self._requests, {}
        for each in request.values():
            if not each.response.done():
                each.response.set_exception(NotController("This node is shutting down."))
                each.response.exception()  # mark it as retrieved: the client may have gone in this very turn

    @property
    def is_stalled(self) -> bool:
        """Whether another node leads, but its records, or its election, cannot be written here.

        While the election state cannot be written, the message of the new leader waits with all other events.
        """
        if not self._failures:
            return False
        return self.machine.leadership.is_known or any(
            isinstance(each, BeginQuorumRequested) for each, _ in self._events
        )

    # Requests of other nodes

    async def ask(self, event: Callable[[Ticket], Event]) -> Any:
        """Return the machine's response to a request of another node."""
        ticket, request = self._begin_request(0)
        try:
            self.post(event(ticket))
            return await request.response
        finally:
            self._requests.pop(ticket, None)

    async def fetch(
        self, event: Callable[[Ticket], FetchRequested], max_bytes: int, wait_ms: float
    ) -> RespondToFetch | FetchResult:
        """Return the response to a fetch; wait a while if there is nothing new."""
        ticket, request = self._begin_request(max_bytes)
        try:
            self.post(event(ticket))
            await asyncio.wait([request.response], timeout=wait_ms / 1000)
            request.may_wait = False
            self.fetches.serve(ticket)
            response: RespondToFetch | FetchResult = await request.response
            return response
        finally:
            self._requests.pop(ticket, None)
            self.fetches.forget(ticket)

    def _begin_request(self, max_bytes: int) -> tuple[Ticket, _PendingRequest]:
        if self._is_stopped or len(self._events) >= QUEUED_MAX:
            raise NotController("This node cannot handle quorum requests at present.")
        self._last_ticket += 1
        request = self._requests[self._last_ticket] = _PendingRequest(
            asyncio.get_running_loop().create_future(), max_bytes
        )
        return self._last_ticket, request

    def _respond(self, ticket: Ticket, response: Any) -> None:
        request = self._requests.get(ticket)
        if request is not None and not request.response.done():
            request.response.set_result(response)

    # Steps

    def post(self, event: Event, records: Any = None) -> None:
        """Feed the machine an event: now, or when the current work on disk is done."""
        if not self._is_stopped:
            self._events.append((event, records))
            self._process_events()

    def _process_events(self) -> None:
        if self._is_stepping or self._waiting_for_disk is not None:
            return
        self._is_stepping = True
        try:
            while self._events and self._waiting_for_disk is None:
                event, self._records = self._events.popleft()
                self._carry_out(deque(self.machine.step(event, self._clock.monotonic_ms())))
        except Exception as error:
            self._fail(error)
        finally:
            self._is_stepping = False
        self._set_timer()

    def _carry_out(self, effects: deque[Effect]) -> None:
        while effects:
            work = self._do(effects.popleft())
            if work is not None:
                self._waiting_for_disk = asyncio.get_running_loop().create_task(self._finish_effects(work, effects))
                return

    async def _finish_effects(self, work: Coroutine[Any, Any, None], effects: deque[Effect]) -> None:
        try:
            await work
            while effects and not self._is_stopped:
                if (more := self._do(effects.popleft())) is not None:
                    await more
        except Exception as error:
            self._fail(error)
        finally:
            self._waiting_for_disk = None
        self._process_events()

    def _fail(self, error: BaseException) -> None:
        self.stop()
        self._failed(error)

    def _set_timer(self) -> None:
        if self._is_stopped or self._waiting_for_disk is not None:
            return
        deadline_ms = self.machine.deadline_ms
        if deadline_ms == self._timer_at_ms and self._timer is not None:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_at_ms = deadline_ms
        if deadline_ms != inf:
            delay_s = max(0.0, deadline_ms - self._clock.monotonic_ms()) / 1000
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._time_out)

    def _time_out(self) -> None:
        self._timer = None
        self.post(TimedOut())

    def _appended(self, end_offset: int) -> None:
        self.post(LogAppended(end_offset))
        self.fetches.complete_ready()

    def _write_failed(self, what: str, error: BaseException) -> float:
        """Log the first failure of a kind; return the seconds until the next attempt."""
        if isinstance(error, OSError):
            self._observer.failed(error)
        self._failures += 1
        if what not in self._failing:
            self._failing.add(what)
            self._limited_logger.write("failed", f"{what}, will retry: {error}", logging.ERROR)
        return float(min(RETRY_S * 2 ** min(self._failures - 1, 10), RETRY_S_MAX))

    def _write_succeeded(self) -> None:
        if self._failures:
            self._limited_logger.write(
                "succeeded", f"The metadata log is written again, after {self._failures} failures", logging.INFO
            )
            self._failures = 0
            self._failing.clear()

    def _fail_request_later(self, request: SendFetch | SendFetchSnapshot, delay_s: float) -> None:
        """Let the machine repeat the request, whose records could not be written, after the backoff."""

        def fail() -> None:
            self._retries.discard(timer)
            self.post(RequestFailed(request))

        timer = asyncio.get_running_loop().call_later(delay_s, fail)
        self._retries.add(timer)

    # Effects

    def _do(self, effect: Effect) -> Coroutine[Any, Any, None] | None:
        """Carry out one effect. Return the coroutine to await if it needs the disk."""
        match effect:
            case PersistQuorumState(state):
                return self._persist(state)
            case AppendLeaderChange():
                return self._write_or_retry(lambda: self._append_leader_change(effect))
            case AppendVoters():
                return self._write_or_retry(lambda: self._append_voters(effect))
            case AppendFetched():
                self._append_fetched(effect)
            case TruncateLog(end_offset):
                self._log.truncate_to(end_offset)
                self.post(LogTruncated(self._log.end_offset))
            case LoadSnapshot():
                return self._load_snapshot(effect)
            case BecomeLeader(epoch):
                self._owner.lead(epoch)
            case BecomeFollower(leadership):
                self._owner.follow(leadership)
            case AdvanceHighWatermark(offset):
                self._log.commit(offset)
                self.fetches.complete_ready()
            case FailPendingAppends():
                self._log.leading_epoch = NO_EPOCH
                self._owner.lose()
            case FailWaitingFetches():
                self.fetches.fail(effect)
            case ServeFetch():
                self._serve_fetch(effect)
            case (
                RespondToVote() | RespondToQuorumEpoch() | RespondToFetch() | RespondToFetchSnapshot() | ServeSnapshot()
            ):
                self._respond(effect.ticket, effect)
            case RespondToVoterChange():
                self._respond(effect.ticket, effect)
            case _:
                self._peers.send(effect)
        return None

    async def _persist(self, state: ElectionState) -> None:
        """Persist the election state. Until that succeeds this node sends nothing: it must not forget what it has
        sent."""
        voted = state.voted
        kept = QuorumState(state.epoch, state.leader_id)
        if voted is not None:
            kept = QuorumState(state.epoch, state.leader_id, voted.node_id, voted.directory_id)
        # The file of a static quorum has no field for a directory id.
        fixed = None
        if self._static_voters is not None and self.machine.voters_at(self._log.end_offset) is None:
            fixed = self._static_voters.ids
        await self._retry_until_done(
            lambda: self._executor.run(write_quorum_state, self._disk, self._log.folder, kept, fixed),
            "Cannot write quorum-state",
        )

    async def _retry_until_done(self, work: Callable[[], Awaitable[None]], message: str) -> bool:
        """Run `work` until it succeeds, retrying while the disk fails. False if this node stops first."""
        while not self._is_stopped:
            try:
                await work()
                self._write_succeeded()
                return True
            except OSError as error:
                await asyncio.sleep(self._write_failed(message, error))
        return False

    def _write_or_retry(self, write: Callable[[], None]) -> Coroutine[Any, Any, None] | None:
        """Write to the log; if the disk fails, retry later."""
        try:
            write()
        except OSError as error:
            return self._write_later(write, self._write_failed(WRITE_FAILED, error))
        return None

    async def _write_later(self, write: Callable[[], None], delay_s: float) -> None:
        while not self._is_stopped:
            await asyncio.sleep(delay_s)
            try:
                write()
                self._write_succeeded()
                return
            except OSError as error:
                delay_s = self._write_failed(WRITE_FAILED, error)

    def _append_leader_change(self, effect: AppendLeaderChange) -> None:
        self._log.leading_epoch = effect.epoch
        controls = [leader_change(effect.leader_id, effect.voters, effect.granting_voters)]
        if effect.voter_set is not None:
            controls += [kraft_version(), voter_set(effect.voter_set)]
        base_offset = self._log.append_controls(controls)
        if effect.voter_set is not None:
            self.post(VotersChanged(base_offset + len(controls) - 1, effect.voter_set))
        self._appended(self._log.end_offset)

    def _append_voters(self, effect: AppendVoters) -> None:
        self._owner.flush()  # at each attempt: there may be new decisions since the last one
        controls = [*([kraft_version()] if effect.are_first else ()), voter_set(effect.voters)]
        base_offset = self._log.append_controls(controls)
        self.post(VotersChanged(base_offset + len(controls) - 1, effect.voters))
        self._appended(self._log.end_offset)

    def _append_fetched(self, effect: AppendFetched) -> None:
        try:
            voter_sets = self._log.append_as_follower(self._records, effect.request.epoch)
        except (CorruptMessage, OSError) as error:
            delay_s = self._write_failed("Cannot append records from the metadata leader", error)
            self._fail_request_later(effect.request, delay_s)
            return
        self._write_succeeded()
        for each in voter_sets:
            self.post(VotersChanged(each.offset, each.voters))
        self.post(LogAppended(self._log.end_offset))

    async def _load_snapshot(self, effect: LoadSnapshot) -> None:
        snapshot = SnapshotId(*effect.request.snapshot)
        try:
            loaded = await self._peers.take_incoming(snapshot).keep()
        except (CorruptSnapshot, OSError) as error:
            delay_s = self._write_failed("Cannot store the snapshot from the metadata leader", error)
            self._fail_request_later(effect.request, delay_s)
            return
        message = "Cannot restart the metadata log at a snapshot"
        if await self._retry_until_done(lambda: self._log.restart_at(snapshot), message):
            self._owner.on_snapshot_loaded()
            self.post(SnapshotLoaded(effect.request.snapshot, loaded.voters()))

    def _serve_fetch(self, effect: ServeFetch) -> None:
        request = self._requests.get(effect.ticket)
        if request is not None:
            self.fetches.add(effect, request.max_bytes, request.response)
            if not request.may_wait:
                self.fetches.serve(effect.ticket)
