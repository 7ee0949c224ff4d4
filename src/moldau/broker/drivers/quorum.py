"""Runs this node's raft machine: hands it events one at a time, and carries out what it wants in its order.

What touches the disk is done before the next event is looked at; while it waits for the disk, events queue up.
Requests to other nodes are tasks of their own, whose answers come back as events.
"""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Final, Protocol

from moldau.broker.drivers.delayed_fetches import Served, WaitingFetches
from moldau.broker.drivers.metadata_log import MetadataLog
from moldau.broker.drivers.metadata_snapshots import CorruptSnapshot, SnapshotId
from moldau.broker.drivers.quorum_peers import QuorumPeers
from moldau.broker.drivers.quorum_records import kraft_version, leader_change, voter_set
from moldau.broker.drivers.quorum_state import QuorumState, write_quorum_state
from moldau.machines.raft import (
    AdvanceHighWatermark,
    AppendFetched,
    AppendLeaderChange,
    AppendVoters,
    BecomeFollower,
    BecomeLeader,
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

RETRY_S: Final = 0.1  # the disk is full; there may be room later
QUEUED_MAX: Final = 10_000  # requests beyond it are refused while the disk is slow


@dataclass(slots=True)
class _Asked:
    """A request of another node that waits for its answer."""

    answer: "asyncio.Future[Any]"
    max_bytes: int = 0
    is_patient: bool = True


class Owner(Protocol):
    """Whoever stands on the log that the quorum keeps."""

    def lead(self, epoch: int) -> None:
        """This node leads from here on."""
        ...

    def flush(self) -> None:
        """Write what was decided: somebody else is about to write."""
        ...

    def lose(self) -> None:
        """This node leads no more."""
        ...

    def follow(self, leadership: Leadership) -> None:
        """Somebody else leads, or nobody that is known."""
        ...

    def take_snapshot_over(self) -> None:
        """The log begins anew behind a snapshot that came from the leader."""
        ...


class Quorum:
    """One member of the quorum, voter or observer. `start`, ask it, `resign`, `close`."""

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
    ) -> None:
        self.machine = machine
        self._log = metadata_log
        self._owner = owner
        self._disk = disk
        self._executor = executor
        self._clock = clock
        self._static_voters = static_voters
        self._failed = failed
        self._peers = peers(self.post)
        self.fetches = WaitingFetches(metadata_log, lambda: (machine.high_watermark, machine.leadership), self._give_up)
        self._events: deque[tuple[Event, Any]] = deque()
        self._is_stepping = False
        self._waiting_for_disk: asyncio.Task[None] | None = None
        self._is_stopped = False
        self._records: Any = None  # that came with the event of this step
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_ms = inf
        self._troubles: Counter[str] = Counter()
        self._last_ticket = 0
        self._asked: dict[Ticket, _Asked] = {}

    # Life

    def start(self, state: ElectionState, voter_sets: Sequence[VotersAt]) -> None:
        """The log is open and synced."""
        self._log.tell(appended=self._appended, synced=lambda end_offset: self.post(LogSynced(end_offset)))
        self.post(Started(state, tuple(voter_sets)))

    async def resign(self) -> None:
        """Hand over, if this node leads; returns when the others know, or do not answer in time."""
        self.post(ResignRequested())
        while self._waiting_for_disk is not None:
            await asyncio.wait([self._waiting_for_disk])
        await self._peers.said_farewell()

    async def close(self) -> None:
        self.stop()
        if self._waiting_for_disk is not None:
            await asyncio.wait([self._waiting_for_disk])
        await self._peers.close()

    def stop(self) -> None:
        """Take no more steps, and tell whoever waits for an answer."""
        self._is_stopped = True
        self._events.clear()
        if self._timer is not None:
            self._timer.cancel()
        asked, self._asked = self._asked, {}
        for each in asked.values():
            if not each.answer.done():
                each.answer.set_exception(NotController("This node leaves the quorum."))
                each.answer.exception()  # whoever asked may have gone in this very turn

    # Requests of other nodes

    async def ask(self, event: Callable[[Ticket], Event]) -> Any:
        """The machine's answer to a request that another node made."""
        ticket, asked = self._begin_request(0)
        try:
            self.post(event(ticket))
            return await asked.answer
        finally:
            self._asked.pop(ticket, None)

    async def fetch(
        self, event: Callable[[Ticket], FetchRequested], max_bytes: int, wait_ms: float
    ) -> RespondToFetch | Served:
        """The answer to a fetch; it waits a while for something new."""
        ticket, asked = self._begin_request(max_bytes)
        try:
            self.post(event(ticket))
            await asyncio.wait([asked.answer], timeout=wait_ms / 1000)
            asked.is_patient = False
            self.fetches.serve(ticket)
            answer: RespondToFetch | Served = await asked.answer
            return answer
        finally:
            self._asked.pop(ticket, None)
            self.fetches.forget(ticket)

    def _begin_request(self, max_bytes: int) -> tuple[Ticket, _Asked]:
        if self._is_stopped or len(self._events) >= QUEUED_MAX:
            raise NotController("This node cannot speak for the quorum now.")
        self._last_ticket += 1
        asked = self._asked[self._last_ticket] = _Asked(asyncio.get_running_loop().create_future(), max_bytes)
        return self._last_ticket, asked

    def _answer(self, ticket: Ticket, answer: Any) -> None:
        asked = self._asked.get(ticket)
        if asked is not None and not asked.answer.done():
            asked.answer.set_result(answer)

    # Steps

    def post(self, event: Event, records: Any = None) -> None:
        """Give the machine an event: now, or when what is under way is done."""
        if not self._is_stopped:
            self._events.append((event, records))
            self._step_on()

    def _step_on(self) -> None:
        if self._is_stepping or self._waiting_for_disk is not None:
            return
        self._is_stepping = True
        try:
            while self._events and self._waiting_for_disk is None:
                event, self._records = self._events.popleft()
                self._carry_out(deque(self.machine.step(event, self._clock.monotonic_ms())))
        except Exception as error:
            self._give_up(error)
        finally:
            self._is_stepping = False
        self._set_timer()

    def _carry_out(self, effects: deque[Effect]) -> None:
        while effects:
            work = self._do(effects.popleft())
            if work is not None:
                self._waiting_for_disk = asyncio.get_running_loop().create_task(self._go_on_after(work, effects))
                return

    async def _go_on_after(self, work: Coroutine[Any, Any, None], effects: deque[Effect]) -> None:
        try:
            await work
            while effects and not self._is_stopped:
                if (more := self._do(effects.popleft())) is not None:
                    await more
        except Exception as error:
            self._give_up(error)
        finally:
            self._waiting_for_disk = None
        self._step_on()

    def _give_up(self, error: BaseException) -> None:
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
        self.fetches.look()

    def _complain(self, what: str, error: BaseException) -> None:
        """Each kind of trouble is said once, twice, four times …: what is tried again and again fails as often."""
        self._troubles[what] += 1
        count = self._troubles[what]
        if count.bit_count() == 1:
            log.error("%s (%d times by now): %s", what, count, error)

    # Effects

    def _do(self, effect: Effect) -> Coroutine[Any, Any, None] | None:
        """Carry out one effect. What has to wait for the disk is returned to be waited for."""
        match effect:
            case PersistQuorumState(state):
                return self._persist(state)
            case AppendLeaderChange():
                return self._written(lambda: self._append_leader_change(effect))
            case AppendVoters():
                return self._written(lambda: self._append_voters(effect))
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
                self.fetches.look()
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
                self._answer(effect.ticket, effect)
            case RespondToVoterChange():
                self._answer(effect.ticket, effect)
            case _:
                self._peers.send(effect)
        return None

    async def _persist(self, state: ElectionState) -> None:
        """Until there is room for it this node has no voice: what is not written down was never said."""
        voted = state.voted
        kept = QuorumState(state.epoch, state.leader_id)
        if voted is not None:
            kept = QuorumState(state.epoch, state.leader_id, voted.node_id, voted.directory_id)
        # The file of a fixed quorum has no place for a directory id, and needs none.
        fixed = None
        if self._static_voters is not None and self.machine.voters_at(self._log.end_offset) is None:
            fixed = self._static_voters.ids
        await self._has_done(
            lambda: self._executor.run(write_quorum_state, self._disk, self._log.folder, kept, fixed),
            "the state of the quorum cannot be written",
        )

    async def _has_done(self, work: Callable[[], Awaitable[None]], complaint: str) -> bool:
        """Do it; on a full disk, again and again. False if this node stops before there is room."""
        while not self._is_stopped:
            try:
                await work()
                return True
            except OSError as error:
                self._complain(complaint, error)
                await asyncio.sleep(RETRY_S)
        return False

    def _written(self, write: Callable[[], None]) -> Coroutine[Any, Any, None] | None:
        """Write to the log; on a full disk, again and again."""
        try:
            write()
        except OSError as error:
            self._complain("the metadata log cannot be written", error)
            return self._write_later(write)
        return None

    async def _write_later(self, write: Callable[[], None]) -> None:
        while not self._is_stopped:
            await asyncio.sleep(RETRY_S)
            try:
                write()
                return
            except OSError as error:
                self._complain("the metadata log cannot be written", error)

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
        self._owner.flush()  # at each attempt: more may have been decided since the last one
        controls = [*([kraft_version()] if effect.are_first else ()), voter_set(effect.voters)]
        base_offset = self._log.append_controls(controls)
        self.post(VotersChanged(base_offset + len(controls) - 1, effect.voters))
        self._appended(self._log.end_offset)

    def _append_fetched(self, effect: AppendFetched) -> None:
        try:
            voter_sets = self._log.append_as_follower(self._records, effect.request.epoch)
        except (CorruptMessage, OSError) as error:
            self._complain("what the leader of the metadata sent cannot be kept", error)
            self.post(RequestFailed(effect.request))
            return
        for each in voter_sets:
            self.post(VotersChanged(each.offset, each.voters))
        self.post(LogAppended(self._log.end_offset))

    async def _load_snapshot(self, effect: LoadSnapshot) -> None:
        snapshot = SnapshotId(*effect.request.snapshot)
        try:
            loaded = await self._peers.take_incoming(snapshot).keep()
        except (CorruptSnapshot, OSError) as error:
            self._complain("the snapshot that the leader of the metadata sent cannot be kept", error)
            self.post(RequestFailed(effect.request))
            return
        complaint = "the metadata log cannot begin anew behind a snapshot"
        if await self._has_done(lambda: self._log.begin_at(snapshot), complaint):
            self._owner.take_snapshot_over()
            self.post(SnapshotLoaded(effect.request.snapshot, loaded.voters()))

    def _serve_fetch(self, effect: ServeFetch) -> None:
        asked = self._asked.get(effect.ticket)
        if asked is not None:
            self.fetches.add(effect, asked.max_bytes, asked.answer)
            if not asked.is_patient:
                self.fetches.serve(effect.ticket)
