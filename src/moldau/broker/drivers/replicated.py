"""The driver of every replicated machine: decide, apply, append, and respond once committed.

A decision is applied as soon as it is made, so the next one sees it; but nothing becomes visible before it is
committed. Every response, read, error and effect is held until the high watermark covers all records that were applied
when it was decided. Decisions of one turn of the event loop go to the log in one append. When leadership is lost the
machine is discarded and waiters fail; there is no rollback. If commits stall, held responses time out
(`CommitTimeout`), but the decisions stand.
"""

import asyncio
import logging
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar

from moldau.broker.drivers.commit_waiters import CommitTimeout, CommitWaiters, HeldResponses
from moldau.broker.drivers.machine_log import MachineLog
from moldau.broker.drivers.time_slices import Slices
from moldau.broker.runtime.rate_limited_logger import RateLimitedLogger
from moldau.machines.decision import (
    REQUESTER,
    CancelTimer,
    Decision,
    ReplicatedMachine,
    SetTimer,
    Ticket,
    respond,
)
from moldau.model.errors import (
    CoordinatorLoadInProgress,
    FencedLeaderEpoch,
    KafkaError,
    NotController,
    NotCoordinator,
    NotLeaderOrFollower,
    RequestTimedOut,
    StorageFailed,
    UnknownServerFailure,
)
from moldau.model.ports import Clock

log = logging.getLogger(__name__)

Machine = TypeVar("Machine", bound=ReplicatedMachine[Any])
AnyMachine = TypeVar("AnyMachine", contravariant=True)
Record = TypeVar("Record")
Response = TypeVar("Response")

SLICE_RECORDS: Final = 1024
SLICE_LOOK: Final = 4  # records between two checks of the clock
PENDING_MAX: Final = 100_000
TIMER_RETRY_S: Final = 1.0  # until a timer that fired while commits were stalled is tried again
LEADERSHIP_LOST: Final = (NotLeaderOrFollower, FencedLeaderEpoch, NotController, NotCoordinator)


def _unwritten(error: KafkaError | OSError) -> KafkaError:
    if isinstance(error, KafkaError):
        return type(error)(*error.args)
    return StorageFailed(f"The change could not be written: {error.strerror}")


@dataclass(frozen=True, slots=True)
class UnavailableErrors:
    """Errors for requests while the machine is not available. All of them are retriable."""

    lost: Callable[[], KafkaError] = NotCoordinator
    loading: Callable[[], KafkaError] = CoordinatorLoadInProgress
    busy: Callable[[], KafkaError] = CoordinatorLoadInProgress
    late: Callable[[], KafkaError] = RequestTimedOut
    unwritten: Callable[[KafkaError | OSError], KafkaError] = _unwritten


class Observer(Protocol[AnyMachine]):
    """Observes a machine's state: what is applied, and later what is committed."""

    def applied(self, machine: AnyMachine, end_offset: int) -> None:
        """The machine holds every record below `end_offset`; it must not be published yet."""
        ...

    def committed(self, end_offset: int) -> None:
        """The state up to here may be published."""
        ...

    def discarded(self) -> None:
        """The machine was discarded with its uncommitted state."""
        ...


def _changes_nothing(decision: Decision[Any, Any]) -> bool:
    """Whether the decision is nothing but a response to its request."""
    responses = decision.responses
    return (
        REQUESTER in responses and len(responses) == 1 and not (decision.records or decision.timers or decision.effects)
    )


def _perform_nothing(effect: object) -> None:
    raise AssertionError(f"no handler for effect {effect}")


def _fail_loudly(error: BaseException) -> None:
    raise error


class ReplicatedDriver(Generic[Machine, Record]):
    """Runs one machine on one log, on one event loop."""

    def __init__(
        self,
        machine_log: MachineLog[Record],
        new_machine: Callable[[], Machine],
        clock: Clock,
        *,
        errors: UnavailableErrors | None = None,
        perform: Callable[[object], None] = _perform_nothing,
        failed: Callable[[BaseException], None] = _fail_loudly,
        observer: Observer[Machine] | None = None,
        pending_max: int = PENDING_MAX,
        on_write_failed: Callable[[], None] = lambda: None,
        commit_timeout: CommitTimeout | None = None,
    ) -> None:
        """`perform` carries out effects and must not raise; `failed` is called on a bug after which the node must stop;
        `on_write_failed` is called when a decision cannot be written. Without `commit_timeout` responses do not time
        out.
        """
        self._log = machine_log
        self._new_machine = new_machine
        self._clock = clock
        self._limited_logger = RateLimitedLogger(clock, log)
        self._errors = errors or UnavailableErrors()
        self._perform = perform
        self._failed = failed
        self._observer = observer
        self._pending_max = pending_max
        self._on_write_failed = on_write_failed
        self._commit_timeout = commit_timeout
        self._machine: Machine | None = None
        self._is_loading = False
        self._term = 0  # counts elections and losses, to detect work of an earlier leadership
        self._held = CommitWaiters(commit_timeout, self._errors.late)
        self._waiting: dict[Ticket, asyncio.Future[Any]] = {}
        self._timers: dict[Hashable, asyncio.TimerHandle] = {}
        self._unwritten: list[Sequence[Record]] = []
        self._unwritten_count = 0
        self._base_offset = 0  # offset of the first unwritten record
        self._last_ticket = REQUESTER
        self._reload: asyncio.Task[None] | None = None
        machine_log.watch(self._committed)

    # Leadership

    @property
    def is_leading(self) -> bool:
        """Whether requests can be decided now."""
        return self._machine is not None

    async def lead(self) -> None:
        """This node leads the log: replay it in slices that do not stall the event loop, then accept requests."""
        self._discard(self._errors.lost)
        self._is_loading = True
        term = self._term
        try:
            machine = self._new_machine()
            if await self._replay(machine, term):
                self._take_over(machine)
        except BaseException:
            if term == self._term:
                self._discard(self._errors.lost)
            raise

    def _take_over(self, machine: Machine) -> None:
        self._is_loading = False
        self._machine = machine
        self._observe_applied()
        self._accept(machine.decide_elected(self._clock.monotonic_ms()), None)

    def resign(self) -> None:
        """This node no longer leads the log: fail all waiters and discard the machine."""
        self._discard(self._errors.lost)

    async def close(self) -> None:
        """Write pending decisions and stop; uncommitted responses fail."""
        if self._machine is not None:
            self.flush()
        self.resign()
        if self._reload is not None:
            await asyncio.gather(self._reload, return_exceptions=True)

    # Requests

    async def write(
        self,
        decide: Callable[[Machine], Decision[Record, Response]],
        ticket: Ticket | None = None,
        *,
        is_written_at_once: bool = False,
    ) -> Response:
        """Decide, and return the response once the decision is committed. `decide` runs synchronously.

        A request that another one will complete (a join that waits for the other members) has its own `ticket`, from
        `new_ticket`, under which the machine remembers it. `is_written_at_once` is for decisions that depend on
        something that may be gone when this turn of the loop ends.
        """
        machine = self._leading_machine()
        try:
            decision = decide(machine)
        except KafkaError as error:  # depends on applied records like any response, so it is held too
            decision = Decision(responses={REQUESTER: error})
        if self._can_respond_now(decision):
            response = decision.responses[REQUESTER]
            if isinstance(response, KafkaError):
                raise response
            return response
        waiter: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        key = REQUESTER if ticket is None or REQUESTER in decision.responses else ticket
        if ticket is None and REQUESTER not in decision.responses:
            raise AssertionError("a request without a ticket has no response")
        if key is not REQUESTER:
            self._waiting[key] = waiter
        try:
            self._accept(decision, waiter)
            if is_written_at_once:
                self.flush()
            if not decision.records and key is REQUESTER and self._is_commit_stalled() and not waiter.done():
                raise self._errors.late()
            return await waiter
        finally:
            self._waiting.pop(key, None)
            # The client may have gone, before or in the very turn of the response: mark the exception as retrieved.
            if not waiter.cancel() and not waiter.cancelled():
                waiter.exception()

    def decide_now(
        self, decide: Callable[[Machine], Decision[Record, Response] | None]
    ) -> Decision[Record, Response] | None:
        """A decision that changes nothing, is no error and can be returned at once. None for any other, which `write`
        has to decide again.
        """
        machine = self._machine
        if machine is None or self._is_behind():
            return None
        decision = decide(machine)
        if decision is not None and decision.timers:  # soft state has changed: the next decision need not set them
            for change in decision.timers:
                self._set_timer(change)
        if decision is None or not _changes_nothing(decision) or isinstance(decision.responses[REQUESTER], KafkaError):
            return None
        return decision

    def submit(self, decide: Callable[[Machine], Decision[Record, Any]]) -> None:
        """Decide as `write` does, without waiting for the response. Raises if the machine is not available."""
        self._accept(decide(self._leading_machine()), None)

    def _can_respond_now(self, decision: Decision[Record, Any]) -> bool:
        """Most requests change nothing (reads, errors, heartbeats), and mostly everything before them is committed."""
        return _changes_nothing(decision) and not self._is_behind()

    def _is_behind(self) -> bool:
        """Whether an earlier decision is not committed yet."""
        return bool(self._held or self._unwritten) or self._log.end_offset > self._log.high_watermark

    def _is_commit_stalled(self) -> bool:
        """Whether uncommitted decisions cannot be committed at present."""
        return self._commit_timeout is not None and not self._commit_timeout.can_commit()

    async def read(self, query: Callable[[Machine], Response]) -> Response:
        """Run `query`, and return its result once everything it could see is committed."""
        return await self.write(lambda machine: respond(query(machine)))

    def new_ticket(self) -> Ticket:
        """An id for a request that may have to wait for another one."""
        self._last_ticket = Ticket(self._last_ticket + 1)
        return self._last_ticket

    @property
    def next_offset(self) -> int:
        """The offset of the next decision's first record."""
        return self._log.end_offset + self._unwritten_count

    def _leading_machine(self) -> Machine:
        if self._machine is None:
            raise self._errors.loading() if self._is_loading else self._errors.lost()
        if len(self._held) + len(self._waiting) >= self._pending_max:
            raise self._errors.busy()
        return self._machine

    # Decisions

    def _accept(self, decision: Decision[Record, Any], requester: asyncio.Future[Any] | None) -> None:
        """Apply, queue for the log, set timers, and hold the rest until it is committed."""
        if decision.records:
            self._apply(decision.records)
        for change in decision.timers:
            self._set_timer(change)
        responses = [
            (waiter, response)
            for ticket, response in decision.responses.items()
            if (waiter := requester if ticket == REQUESTER else self._waiting.pop(ticket, None)) is not None
        ]
        self._release_or_hold(responses, decision.effects)

    def _apply(self, records: Sequence[Record]) -> None:
        machine = self._machine
        assert machine is not None
        offset = self.next_offset
        try:
            for position, record in enumerate(records, offset):
                machine.apply(record, position)
        except Exception as bug:  # half a decision is applied: the machine is unusable
            self._fail(bug)
            raise
        if not self._unwritten:
            self._base_offset = offset
            asyncio.get_running_loop().call_soon(self._flush_turn, self._term)
        self._unwritten.append(records)
        self._unwritten_count += len(records)
        self._observe_applied()

    def _release_or_hold(self, responses: HeldResponses, effects: Sequence[object]) -> None:
        if responses or effects:
            offset = self.next_offset
            if offset <= self._log.high_watermark and not self._held:
                self._release(responses, effects)
            else:
                self._held.add(offset, responses, effects)

    def _release(self, responses: HeldResponses, effects: Sequence[object]) -> None:
        for waiter, response in responses:
            if waiter.done():  # the client has gone
                continue
            if isinstance(response, KafkaError):
                waiter.set_exception(response)
            else:
                waiter.set_result(response)
        for effect in effects:
            self._perform(effect)

    def _committed(self, high_watermark: int) -> None:
        """The high watermark of the log has advanced."""
        if self._machine is None:
            return
        if self._observer is not None:
            self._observer.committed(high_watermark)
        while self._held and self._held[0].offset <= high_watermark:
            held = self._held.popleft()
            self._release(held.responses, held.effects)

    def _observe_applied(self) -> None:
        if self._observer is not None and self._machine is not None:
            self._observer.applied(self._machine, self.next_offset)
            self._observer.committed(self._log.high_watermark)

    # The log

    def _flush_turn(self, term: int) -> None:
        if term == self._term:
            self.flush()

    def flush(self) -> None:
        """Write the decisions of this turn of the loop. Any other writer to the log calls this first."""
        if not self._unwritten:
            return
        decisions, self._unwritten, self._unwritten_count = self._unwritten, [], 0
        if self._log.end_offset != self._base_offset:
            self._fail(AssertionError(f"the log grew to {self._log.end_offset} without its driver"))
            return
        try:
            self._log.append(decisions)
        except LEADERSHIP_LOST as error:
            log.info("No longer leader of a coordinator log: %s", error)
            self.resign()
        except (KafkaError, OSError) as error:
            self._limited_logger.write("write", f"Cannot write a coordinator log: {error}", logging.ERROR)
            self._restart(error)
            if isinstance(error, OSError | StorageFailed):
                self._on_write_failed()
        except Exception as bug:  # a record that cannot be encoded: its request fails
            log.error("Internal error: a decision cannot be encoded. Please report this bug", exc_info=bug)
            self._restart(UnknownServerFailure("Internal error; see the broker's log."))

    def _restart(self, error: KafkaError | OSError) -> None:
        """The machine has applied more than is in the log: rebuild it from the log. Other waiters get a retriable
        error."""
        self._discard(lambda: self._errors.unwritten(error), self._errors.lost)
        self._is_loading = True
        self._reload = asyncio.get_running_loop().create_task(self._reload_machine(self._term))

    async def _reload_machine(self, term: int) -> None:
        if term != self._term:  # leadership was lost before this started
            return
        try:
            await self.lead()
        except Exception as error:
            self._fail(error)

    async def _replay(self, machine: Machine, term: int) -> bool:
        """Apply the whole log; False if the leadership changed meanwhile."""
        chunks = self._log.replay()
        try:
            async for chunk in chunks:
                if not await self._replay_chunk(machine, chunk, term):
                    break
        except GeneratorExit:  # the event loop is shutting down: nothing can be awaited
            raise
        except BaseException:
            await chunks.aclose()
            raise
        await chunks.aclose()
        return term == self._term

    async def _replay_chunk(self, machine: Machine, chunk: Iterable[tuple[int, Record]], term: int) -> bool:
        slices = Slices(self._clock)
        await slices.yield_to_requests()  # reading the chunk took time, too
        for count, (offset, record) in enumerate(chunk, 1):
            machine.apply(record, offset)
            if count % SLICE_LOOK == 0 and (count % SLICE_RECORDS == 0 or slices.is_over()):
                await slices.yield_to_requests()
                if term != self._term:
                    return False
        await slices.yield_to_requests()  # before the work that follows the replay
        return term == self._term

    # Timers

    def _set_timer(self, change: SetTimer | CancelTimer) -> None:
        handle = self._timers.pop(change.event, None)
        if handle is not None:
            handle.cancel()
        if isinstance(change, SetTimer):
            delay = max(change.delay_ms, 0.0) / 1000
            loop = asyncio.get_running_loop()
            self._timers[change.event] = loop.call_later(delay, self._timed_out, change.event)

    def _timed_out(self, event: Hashable) -> None:
        if self._is_commit_stalled():  # the result could not be committed, and would block everything behind it
            self._timers[event] = asyncio.get_running_loop().call_later(TIMER_RETRY_S, self._timed_out, event)
            return
        del self._timers[event]
        assert self._machine is not None  # discarding a machine cancels its timers
        try:
            self._accept(self._machine.decide_timed_out(event, self._clock.monotonic_ms()), None)
        except Exception as bug:
            self._fail(bug)

    # Discarding the machine

    def _discard(self, reason: Callable[[], KafkaError], others: Callable[[], KafkaError] | None = None) -> None:
        """Discard the machine with everything uncommitted, and fail all waiters.

        `others` is the error for waiters that the reason does not concern: their decisions are in the log, or another
        node will respond to their retry.
        """
        self._term += 1
        had_machine, self._machine, self._is_loading = self._machine is not None, None, False
        self._unwritten, self._unwritten_count = [], 0
        for handle in self._timers.values():
            handle.cancel()
        self._timers.clear()
        waiting, self._waiting = self._waiting, {}
        others, end_offset = others or reason, self._log.end_offset
        failed = [(waiter, others) for waiter in waiting.values()]
        for held in self._held.take_all():
            failed += [(waiter, others if held.offset <= end_offset else reason) for waiter, _ in held.responses]
        for waiter, error in failed:
            if not waiter.done():
                waiter.set_exception(error())
        if had_machine and self._observer is not None:
            self._observer.discarded()

    def _fail(self, error: BaseException) -> None:
        """A bug, or an unreadable log: the node must stop."""
        self._discard(self._errors.lost)
        self._failed(error)
