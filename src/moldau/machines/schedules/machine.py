"""The schedule coordinator's machine: each tick of a schedule becomes one record, also across failovers.

    armed ---tick is due---> intended ---published---> armed for the next tick
               (record)                   (record)

A tick is first recorded as intended, with a producer id and a sequence, then published with them, then recorded as
published. A coordinator that finds an intended tick does not know whether it was published: it publishes it again with
the same identity, and the leader of the partition drops a duplicate. A former coordinator cannot intend another tick,
because its record is not committed.

A schedule is armed when its definition is new or its timing has changed: ticks count from then on, or from the start
that the definition names.
"""

from collections.abc import Callable, Hashable, Mapping
from itertools import islice
from typing import Final, NamedTuple, Protocol

from moldau.machines.decision import Decision, Now, respond
from moldau.machines.schedules.definition import CatchUp, Schedule
from moldau.machines.schedules.records import Record, ScheduleState

STEP_MAX: Final = 500
"""Schedules per decision; the rest follow in later ones."""


class Ticks(Protocol):
    """The times of cron expressions, in ms since the epoch."""

    def next(self, cron: str, timezone: str, after_ms: int) -> int | None: ...

    def last(self, cron: str, timezone: str, until_ms: int) -> int | None: ...


class Arming(NamedTuple):
    """The identity for the records of a schedule."""

    producer_id: int
    partition: int


class Publication(NamedTuple):
    """A record to publish."""

    schedule: Schedule
    topic: str
    tick_ms: int
    producer_id: int
    sequence: int
    partition: int


class SchedulesMachine:
    """Decisions for the schedules of one partition of the state topic. Only records change `states`."""

    def __init__(self, ticks: Ticks, schedules: Callable[[], Mapping[str, Schedule]]) -> None:
        """`schedules` returns the definitions in effect."""
        self.states: dict[str, ScheduleState] = {}
        self._ticks = ticks
        self._schedules = schedules
        self._next: dict[str, tuple[ScheduleState, int | None]] = {}  # soft state: the next tick after a state

    def apply(self, record: Record, offset: int) -> None:  # noqa: ARG002 - the machine's protocol
        name, state = record
        self._next.pop(name, None)
        if state is None:
            self.states.pop(name, None)
        else:
            self.states[name] = state

    def decide_elected(self, now_ms: float) -> Decision[Record, None]:  # noqa: ARG002 - the machine's protocol
        return Decision()

    def decide_timed_out(self, event: Hashable, now_ms: float) -> Decision[Record, None]:  # noqa: ARG002
        raise AssertionError(f"unknown timer {event}")

    # Arming

    def unarmed(self) -> list[Schedule]:
        """Schedules that are new or have another timing, at most STEP_MAX. A tick in flight is completed first."""
        found = (
            schedule
            for name, schedule in self._schedules().items()
            if (state := self.states.get(name)) is None or (state.is_published and state.timing != schedule.timing)
        )
        return list(islice(found, STEP_MAX))

    def decide_armed(self, armings: Mapping[str, Arming], now: Now) -> Decision[Record, None]:
        """Arm the schedules that still need it."""
        records: list[Record] = []
        for schedule in self.unarmed():
            arming = armings.get(schedule.name)
            if arming is not None:
                start_ms = now.wall_ms if schedule.start_ms is None else schedule.start_ms
                records.append((schedule.name, _armed_state(schedule, arming, start_ms)))
        return respond(None, records)

    def decide_removed(self) -> Decision[Record, None]:
        """Forget the schedules whose definitions were deleted. Call it only while the metadata is complete."""
        known = self._schedules()
        gone = (name for name in self.states if name not in known)
        return respond(None, [(name, None) for name in islice(gone, STEP_MAX)])

    # Ticks

    def decide_due(self, now: Now) -> Decision[Record, list[Publication]]:
        """Intend the ticks that are due; the response is to be published, once it is committed."""
        publications: list[Publication] = []
        records: list[Record] = []
        for schedule, state in self._armed():
            next_ms = self._next_tick(schedule, state)
            if next_ms is None or next_ms > now.wall_ms or len(records) == STEP_MAX:
                continue
            intended = state._replace(
                tick_ms=self._chosen_tick(schedule, next_ms, now.wall_ms),
                is_published=False,
                sequence=state.sequence + 1,
            )
            records.append((schedule.name, intended))
            publications.append(_publication(schedule, intended))
        return respond(publications, records)

    def _chosen_tick(self, schedule: Schedule, next_ms: int, now_ms: int) -> int:
        """The next tick, or the last one that was missed."""
        if schedule.catch_up is CatchUp.ALL:
            return next_ms
        return max(next_ms, self._ticks.last(schedule.cron, schedule.timezone, now_ms) or next_ms)

    def _armed(self) -> list[tuple[Schedule, ScheduleState]]:
        return [
            (schedule, state)
            for name, schedule in self._schedules().items()
            if (state := self.states.get(name)) is not None
            and state.is_published
            and state.timing == schedule.timing
            and not schedule.is_paused
        ]

    def _next_tick(self, schedule: Schedule, state: ScheduleState) -> int | None:
        known = self._next.get(schedule.name)
        if known is None or known[0] != state:
            next_ms = self._ticks.next(schedule.cron, schedule.timezone, state.tick_ms)
            known = self._next[schedule.name] = (state, next_ms)
        return known[1]

    def next_due_ms(self) -> int | None:
        """The wall time of the next tick of any schedule."""
        due = [self._next_tick(schedule, state) for schedule, state in self._armed()]
        return min((each for each in due if each is not None), default=None)

    def unpublished(self) -> list[Publication]:
        """The intended ticks, of which a former coordinator may have published some."""
        known = self._schedules()
        return [
            _publication(known[name], state)
            for name, state in self.states.items()
            if not state.is_published and name in known
        ]

    def decide_published(self, publication: Publication) -> Decision[Record, None]:
        """The tick is in its topic, or was given up."""
        state = self.states.get(publication.schedule.name)
        if state is None or state.is_published or state.sequence != publication.sequence:
            return respond(None)
        return respond(None, [(publication.schedule.name, state._replace(is_published=True))])

    def decide_renewed(self, publication: Publication, producer_id: int) -> Decision[Record, Publication]:
        """The partition has lost track of the producer: publish under a new identity."""
        name = publication.schedule.name
        renewed = publication._replace(producer_id=producer_id, sequence=0)
        state = self.states[name]._replace(producer_id=producer_id, sequence=0, is_published=False)
        return respond(renewed, [(name, state)])


def _armed_state(schedule: Schedule, arming: Arming, start_ms: int) -> ScheduleState:
    return ScheduleState(
        timing=schedule.timing,
        topic=schedule.topic,
        tick_ms=start_ms,
        is_published=True,
        producer_id=arming.producer_id,
        sequence=-1,
        partition=arming.partition,
    )


def _publication(schedule: Schedule, state: ScheduleState) -> Publication:
    return Publication(schedule, state.topic, state.tick_ms, state.producer_id, state.sequence, state.partition)
