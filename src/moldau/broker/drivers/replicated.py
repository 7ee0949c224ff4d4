"""The one driver of every replicated machine: decide, append, apply, and answer once committed.

A decision is applied as soon as it is made, so the next one sees it; but nothing leaves before it is committed. Every
answer, read, refusal and effect is held until the high watermark covers all records that were applied when it was
decided. Decisions of one turn of the event loop go to the log in one append. When leadership is lost the machine is
thrown away, and whoever waits is told; there is no rollback. Where nothing is committed for long, those who are held
are told so (`Patience`); what was decided stands.
"""

import asyncio
import logging
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar

from moldau.broker.drivers.commit_waiters import Answers, HeldBack, Patience
from moldau.broker.drivers.machine_log import MachineLog
from moldau.broker.drivers.time_slices import Slices
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
SLICE_LOOK: Final = 4  # records between two looks at the clock
PENDING_MAX: Final = 100_000
PUT_OFF_S: Final = 1.0  # until a timer is looked at again that could decide nothing
NO_LONGER_LEADING: Final = (NotLeaderOrFollower, FencedLeaderEpoch, NotController, NotCoordinator)


def _unwritten(error: KafkaError | OSError) -> KafkaError:
    if isinstance(error, KafkaError):
        return type(error)(*error.args)
    return StorageFailed(f"The change could not be written: {error.strerror}")


@dataclass(frozen=True, slots=True)
class Refusals:
    """What is raised to those who come when the machine does not speak for its log. All of them invite to try again."""

    lost: Callable[[], KafkaError] = NotCoordinator
    loading: Callable[[], KafkaError] = CoordinatorLoadInProgress
    busy: Callable[[], KafkaError] = CoordinatorLoadInProgress
    late: Callable[[], KafkaError] = RequestTimedOut
    unwritten: Callable[[KafkaError | OSError], KafkaError] = _unwritten


class Observer(Protocol[AnyMachine]):
    """Somebody who follows a machine's state: told of what is applied, and later that it is committed."""

    def applied(self, machine: AnyMachine, end_offset: int) -> None:
        """The machine holds every record below `end_offset`; it may not be shown to others yet."""
        ...

    def committed(self, end_offset: int) -> None:
        """What was applied up to here may be shown."""
        ...

    def discarded(self) -> None:
        """The machine was thrown away with what was not committed."""
        ...


def _changes_nothing(decision: Decision[Any, Any]) -> bool:
    """Whether all there is to it is an answer to whoever asked."""
    answers = decision.responses
    return REQUESTER in answers and len(answers) == 1 and not (decision.records or decision.timers or decision.effects)


def _perform_nothing(effect: object) -> None:
    raise AssertionError(f"nobody performs {effect}")


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
        refusals: Refusals | None = None,
        perform: Callable[[object], None] = _perform_nothing,
        failed: Callable[[BaseException], None] = _fail_loudly,
        observer: Observer[Machine] | None = None,
        pending_max: int = PENDING_MAX,
        disk_refused: Callable[[], None] = lambda: None,
        patience: Patience | None = None,
    ) -> None:
        """`perform` carries out effects and must not raise; `failed` hears of a bug after which the node must stop;
        `disk_refused` hears that something was decided and cannot be written. Without `patience` there is no end to it.
        """
        self._log = machine_log
        self._new_machine = new_machine
        self._clock = clock
        self._refusals = refusals or Refusals()
        self._perform = perform
        self._failed = failed
        self._observer = observer
        self._pending_max = pending_max
        self._disk_refused = disk_refused
        self._patience = patience
        self._machine: Machine | None = None
        self._is_loading = False
        self._term = 0  # counts elections and losses, so that what belongs to an earlier one is known
        self._held = HeldBack(patience, self._refusals.late)
        self._waiting: dict[Ticket, asyncio.Future[Any]] = {}
        self._timers: dict[Hashable, asyncio.TimerHandle] = {}
        self._unwritten: list[Sequence[Record]] = []
        self._unwritten_count = 0
        self._base_offset = 0  # where the first unwritten record will stand
        self._last_ticket = REQUESTER
        self._reload: asyncio.Task[None] | None = None
        machine_log.watch(self._committed)

    # Leadership

    @property
    def is_leading(self) -> bool:
        """Whether requests are decided here and now."""
        return self._machine is not None

    async def lead(self) -> None:
        """This node leads the log now: replay it, in slices that do not stall the loop, then speak for it."""
        self._discard(self._refusals.lost)
        self._is_loading = True
        term = self._term
        try:
            machine = self._new_machine()
            if await self._replay(machine, term):
                self._take_over(machine)
        except BaseException:
            if term == self._term:
                self._discard(self._refusals.lost)
            raise

    def _take_over(self, machine: Machine) -> None:
        self._is_loading = False
        self._machine = machine
        self._observe_applied()
        self._accept(machine.decide_elected(self._clock.monotonic_ms()), None)

    def resign(self) -> None:
        """This node no longer leads the log: whoever waits is told so, and the machine is thrown away."""
        self._discard(self._refusals.lost)

    async def close(self) -> None:
        """Write what was decided and stop; answers not committed by now are refused."""
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
        """Decide, and answer once that is committed. `decide` runs at once and to its end.

        A request whose answer another one will give (a join that waits for the rest) brings its own `ticket`, from
        `new_ticket`, under which the machine remembers it. What rests on something that may be gone when this turn of
        the loop ends is written at once.
        """
        machine = self._leading_machine()
        try:
            decision = decide(machine)
        except KafkaError as refusal:  # rests on what was applied, like any answer, so it waits like one
            decision = Decision(responses={REQUESTER: refusal})
        if self._can_be_answered_now(decision):
            answer = decision.responses[REQUESTER]
            if isinstance(answer, KafkaError):
                raise answer
            return answer
        waiter: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        key = REQUESTER if ticket is None or REQUESTER in decision.responses else ticket
        if ticket is None and REQUESTER not in decision.responses:
            raise AssertionError("a request without a ticket was left without an answer")
        if key is not REQUESTER:
            self._waiting[key] = waiter
        try:
            self._accept(decision, waiter)
            if is_written_at_once:
                self.flush()
            if not decision.records and key is REQUESTER and self._is_stuck() and not waiter.done():
                raise self._refusals.late()
            return await waiter
        finally:
            self._waiting.pop(key, None)
            # Whoever asked may have gone: before it was told, or in the very turn in which it was.
            if not waiter.cancel() and not waiter.cancelled():
                waiter.exception()

    def decide_now(
        self, decide: Callable[[Machine], Decision[Record, Response] | None]
    ) -> Decision[Record, Response] | None:
        """A decision that changes nothing, refuses nothing and may be told at once. None if it is another one, which is
        for `write` to decide again.
        """
        machine = self._machine
        if machine is None or self._is_behind():
            return None
        decision = decide(machine)
        if decision is not None and decision.timers:  # what is soft has changed: the next decision need not set them
            for change in decision.timers:
                self._set_timer(change)
        if decision is None or not _changes_nothing(decision) or isinstance(decision.responses[REQUESTER], KafkaError):
            return None
        return decision

    def submit(self, decide: Callable[[Machine], Decision[Record, Any]]) -> None:
        """Decide as `write` does, for somebody who does not wait for the answer. Raises where nothing is decided."""
        self._accept(decide(self._leading_machine()), None)

    def _can_be_answered_now(self, decision: Decision[Record, Any]) -> bool:
        """Most requests change nothing (reads, refusals, heartbeats), and mostly all before them is committed."""
        return _changes_nothing(decision) and not self._is_behind()

    def _is_behind(self) -> bool:
        """Whether something that was decided before is not committed yet."""
        return bool(self._held or self._unwritten) or self._log.end_offset > self._log.high_watermark

    def _is_stuck(self) -> bool:
        """Whether what is not committed by now will not be for the time being."""
        return self._patience is not None and not self._patience.can_commit()

    async def read(self, query: Callable[[Machine], Response]) -> Response:
        """What `query` sees, told once everything it could see is committed."""
        return await self.write(lambda machine: respond(query(machine)))

    def new_ticket(self) -> Ticket:
        """A name for a request that may have to wait for another."""
        self._last_ticket = Ticket(self._last_ticket + 1)
        return self._last_ticket

    @property
    def next_offset(self) -> int:
        """Where the first record of the next decision will stand."""
        return self._log.end_offset + self._unwritten_count

    def _leading_machine(self) -> Machine:
        if self._machine is None:
            raise self._refusals.loading() if self._is_loading else self._refusals.lost()
        if len(self._held) + len(self._waiting) >= self._pending_max:
            raise self._refusals.busy()
        return self._machine

    # Decisions

    def _accept(self, decision: Decision[Record, Any], asker: asyncio.Future[Any] | None) -> None:
        """Apply, queue for the log, set timers, hold the rest until it is committed."""
        if decision.records:
            self._apply(decision.records)
        for change in decision.timers:
            self._set_timer(change)
        answers = [
            (waiter, answer)
            for ticket, answer in decision.responses.items()
            if (waiter := asker if ticket == REQUESTER else self._waiting.pop(ticket, None)) is not None
        ]
        self._let_out(answers, decision.effects)

    def _apply(self, records: Sequence[Record]) -> None:
        machine = self._machine
        assert machine is not None
        offset = self.next_offset
        try:
            for position, record in enumerate(records, offset):
                machine.apply(record, position)
        except Exception as bug:  # half a decision is applied: this machine must not be asked again
            self._fail(bug)
            raise
        if not self._unwritten:
            self._base_offset = offset
            asyncio.get_running_loop().call_soon(self._flush_turn, self._term)
        self._unwritten.append(records)
        self._unwritten_count += len(records)
        self._observe_applied()

    def _let_out(self, answers: Answers, effects: Sequence[object]) -> None:
        if answers or effects:
            offset = self.next_offset
            if offset <= self._log.high_watermark and not self._held:
                self._release(answers, effects)
            else:
                self._held.add(offset, answers, effects)

    def _release(self, answers: Answers, effects: Sequence[object]) -> None:
        for waiter, answer in answers:
            if waiter.done():  # whoever asked has gone
                continue
            if isinstance(answer, KafkaError):
                waiter.set_exception(answer)
            else:
                waiter.set_result(answer)
        for effect in effects:
            self._perform(effect)

    def _committed(self, high_watermark: int) -> None:
        """The log says: everything below is committed."""
        if self._machine is None:
            return
        if self._observer is not None:
            self._observer.committed(high_watermark)
        while self._held and self._held[0].offset <= high_watermark:
            held = self._held.popleft()
            self._release(held.answers, held.effects)

    def _observe_applied(self) -> None:
        if self._observer is not None and self._machine is not None:
            self._observer.applied(self._machine, self.next_offset)
            self._observer.committed(self._log.high_watermark)

    # The log

    def _flush_turn(self, term: int) -> None:
        if term == self._term:
            self.flush()

    def flush(self) -> None:
        """Write what was decided in this turn of the loop. Whoever else writes to the log calls this first."""
        if not self._unwritten:
            return
        decisions, self._unwritten, self._unwritten_count = self._unwritten, [], 0
        if self._log.end_offset != self._base_offset:
            self._fail(AssertionError(f"the log grew to {self._log.end_offset} behind its driver's back"))
            return
        try:
            self._log.append(decisions)
        except NO_LONGER_LEADING as refusal:
            log.info("no longer leading a machine's log: %s", refusal)
            self.resign()
        except (KafkaError, OSError) as error:
            log.error("a machine's log cannot be written: %s", error)
            self._start_again(error)
            if isinstance(error, OSError | StorageFailed):
                self._disk_refused()
        except Exception as bug:  # a record with a value that has no place in it: whoever asked for it is refused
            log.error("A bug, please report it: a decision cannot be written", exc_info=bug)
            self._start_again(UnknownServerFailure("The broker failed on this request; its log says more."))

    def _start_again(self, error: KafkaError | OSError) -> None:
        """What is in the log is not what was applied: begin anew from what is there. Others are to ask again."""
        self._discard(lambda: self._refusals.unwritten(error), self._refusals.lost)
        self._is_loading = True
        self._reload = asyncio.get_running_loop().create_task(self._lead_again(self._term))

    async def _lead_again(self, term: int) -> None:
        if term != self._term:  # leadership was lost before this began
            return
        try:
            await self.lead()
        except Exception as error:
            self._fail(error)

    async def _replay(self, machine: Machine, term: int) -> bool:
        """Apply the whole log; False if leadership changed meanwhile."""
        chunks = self._log.replay()
        try:
            async for chunk in chunks:
                if not await self._replay_chunk(machine, chunk, term):
                    break
        except GeneratorExit:  # this process ends in the middle of it: nothing can be awaited any more
            raise
        except BaseException:
            await chunks.aclose()
            raise
        await chunks.aclose()
        return term == self._term

    async def _replay_chunk(self, machine: Machine, chunk: Iterable[tuple[int, Record]], term: int) -> bool:
        slices = Slices(self._clock)
        await slices.give_way()  # reading the chunk was work, too
        for count, (offset, record) in enumerate(chunk, 1):
            machine.apply(record, offset)
            if count % SLICE_LOOK == 0 and (count % SLICE_RECORDS == 0 or slices.is_over()):
                await slices.give_way()
                if term != self._term:
                    return False
        await slices.give_way()  # before whatever follows on the replay
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
        if self._is_stuck():  # whatever it led to could not be committed, and would hold up everything behind it
            self._timers[event] = asyncio.get_running_loop().call_later(PUT_OFF_S, self._timed_out, event)
            return
        del self._timers[event]
        assert self._machine is not None  # a machine that is thrown away takes its timers along
        try:
            self._accept(self._machine.decide_timed_out(event, self._clock.monotonic_ms()), None)
        except Exception as bug:
            self._fail(bug)

    # The end of a machine

    def _discard(self, reason: Callable[[], KafkaError], others: Callable[[], KafkaError] | None = None) -> None:
        """Throw the machine away with everything that is not committed, and tell whoever waits.

        `others` is for those who have nothing to do with the reason: what they asked for is in the log, or is for
        somebody else to answer.
        """
        self._term += 1
        had_machine, self._machine, self._is_loading = self._machine is not None, None, False
        self._unwritten, self._unwritten_count = [], 0
        for handle in self._timers.values():
            handle.cancel()
        self._timers.clear()
        waiting, self._waiting = self._waiting, {}
        others, end_offset = others or reason, self._log.end_offset
        refused = [(waiter, others) for waiter in waiting.values()]
        for held in self._held.take_all():
            refused += [(waiter, others if held.offset <= end_offset else reason) for waiter, _ in held.answers]
        for waiter, refusal in refused:
            if not waiter.done():
                waiter.set_exception(refusal())
        if had_machine and self._observer is not None:
            self._observer.discarded()

    def _fail(self, error: BaseException) -> None:
        """A bug, or a log that cannot be read: this node must not go on as if nothing had happened."""
        self._discard(self._refusals.lost)
        self._failed(error)
