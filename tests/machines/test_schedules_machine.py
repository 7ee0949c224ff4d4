"""The schedule coordinator's machine: arming, due ticks, and what a new coordinator finds."""

from typing import Any

import pytest

from moldau.client.cron import check_cron, last_tick, next_tick
from moldau.machines.decision import REQUESTER, Decision, Now
from moldau.machines.schedules import Arming, CatchUp, Publication, Record, Schedule, SchedulesMachine
from moldau.model.errors import InvalidConfig

pytestmark = pytest.mark.proves("C9")

MINUTE = 60_000


class EveryMinute:
    """Ticks at whole minutes."""

    def next(self, cron: str, timezone: str, after_ms: int) -> int | None:  # noqa: ARG002
        return (after_ms // MINUTE + 1) * MINUTE

    def last(self, cron: str, timezone: str, until_ms: int) -> int | None:  # noqa: ARG002
        return until_ms // MINUTE * MINUTE


class Scene:
    """A machine, and the log of its records."""

    def __init__(self, *schedules: Schedule) -> None:
        self.schedules = {each.name: each for each in schedules}
        self.log: list[Record] = []
        self.machine = SchedulesMachine(EveryMinute(), lambda: self.schedules)

    def decide(self, decision: Decision[Record, Any]) -> object:
        for record in decision.records:
            self.machine.apply(record, len(self.log))
            self.log.append(record)
        return decision.responses.get(REQUESTER)

    def arm(self, wall_ms: int) -> None:
        armings = {each.name: Arming(7, 0) for each in self.machine.unarmed()}
        self.decide(self.machine.decide_armed(armings, Now(0, wall_ms)))

    def due(self, wall_ms: int) -> list[Publication]:
        found = self.decide(self.machine.decide_due(Now(0, wall_ms)))
        assert isinstance(found, list)
        return found

    def fail_over(self) -> None:
        self.machine = SchedulesMachine(EveryMinute(), lambda: self.schedules)
        for offset, record in enumerate(self.log):
            self.machine.apply(record, offset)


def every(catch_up: CatchUp = CatchUp.ONCE, **fields: object) -> Schedule:
    return Schedule("s", "* * * * *", "t", catch_up=catch_up, **fields)  # type: ignore[arg-type]


def test_tick_is_due_once_and_only_after_the_one_before_is_published() -> None:
    scene = Scene(every())
    scene.arm(0)
    assert scene.due(MINUTE - 1) == []
    (first,) = scene.due(MINUTE)
    assert (first.tick_ms, first.sequence, first.producer_id) == (MINUTE, 0, 7)
    assert scene.due(2 * MINUTE) == []
    scene.decide(scene.machine.decide_published(first))
    (second,) = scene.due(2 * MINUTE)
    assert (second.tick_ms, second.sequence) == (2 * MINUTE, 1)


def test_new_coordinator_publishes_the_intended_tick_under_its_identity() -> None:
    scene = Scene(every())
    scene.arm(0)
    (intended,) = scene.due(MINUTE)
    scene.fail_over()
    assert scene.machine.unpublished() == [intended]
    assert scene.due(5 * MINUTE) == []
    scene.decide(scene.machine.decide_published(intended))
    scene.fail_over()
    assert scene.machine.unpublished() == []


@pytest.mark.parametrize(("catch_up", "ticks"), [(CatchUp.ONCE, [5]), (CatchUp.ALL, [1, 2, 3, 4, 5])])
def test_missed_ticks_are_caught_up(catch_up: CatchUp, ticks: list[int]) -> None:
    scene = Scene(every(catch_up))
    scene.arm(0)
    found = []
    while due := scene.due(5 * MINUTE + 1):
        found.append(due[0].tick_ms // MINUTE)
        scene.decide(scene.machine.decide_published(due[0]))
    assert found == ticks


def test_changed_timing_counts_from_the_change() -> None:
    scene = Scene(every(CatchUp.ALL))
    scene.arm(0)
    scene.schedules = {"s": every(CatchUp.ALL, is_paused=True)}
    scene.arm(MINUTE)
    assert scene.due(9 * MINUTE) == []
    scene.schedules = {"s": every(CatchUp.ALL)}
    scene.arm(9 * MINUTE)
    assert [each.tick_ms for each in scene.due(10 * MINUTE)] == [10 * MINUTE]


def test_start_of_the_definition_bridges_a_late_arming() -> None:
    scene = Scene(every(start_ms=MINUTE - 1))
    scene.arm(MINUTE + 500)
    assert [each.tick_ms for each in scene.due(MINUTE + 500)] == [MINUTE]


def test_topic_of_an_intended_tick_is_kept_when_the_definition_changes() -> None:
    scene = Scene(every())
    scene.arm(0)
    scene.due(MINUTE)
    scene.schedules = {"s": every()._replace(topic="other")}
    scene.fail_over()
    (left,) = scene.machine.unpublished()
    assert left.topic == "t"
    scene.arm(MINUTE)  # not before the tick is published
    assert scene.machine.states["s"].topic == "t"


def test_deleted_schedule_is_forgotten() -> None:
    scene = Scene(every())
    scene.arm(0)
    scene.schedules = {}
    scene.decide(scene.machine.decide_removed())
    assert scene.machine.states == {}
    assert scene.log[-1] == ("s", None)


def test_lost_identity_is_renewed_from_sequence_zero() -> None:
    scene = Scene(every())
    scene.arm(0)
    (first,) = scene.due(MINUTE)
    renewed = scene.decide(scene.machine.decide_renewed(first, 8))
    assert isinstance(renewed, Publication)
    assert (renewed.producer_id, renewed.sequence, renewed.tick_ms) == (8, 0, MINUTE)
    assert scene.machine.unpublished() == [renewed]


def test_clock_changes_neither_double_nor_skip_a_daily_tick() -> None:
    prague = "Europe/Prague"
    march = 1_774_659_600_000  # 2026-03-28 01:00 UTC; clocks skip 02:00 to 03:00 on the 29th
    skipped = next_tick("30 2 * * *", prague, march + 86_400_000 - 3 * 3_600_000)
    assert skipped == 1_774_746_000_000  # 01:00 UTC, right after the change
    october = 1_792_886_400_000  # 2026-10-25 00:00 UTC; 02:00 to 03:00 occurs twice
    first = next_tick("30 2 * * *", prague, october)
    assert first == october + 30 * MINUTE
    assert next_tick("30 2 * * *", prague, first) == first + 25 * 3_600_000
    assert [
        (next_tick("*/30 * * * *", prague, october + number * 30 * MINUTE) or 0) - october for number in range(4)
    ] == [(number + 1) * 30 * MINUTE for number in range(4)]


def test_last_tick_is_at_or_before_the_time() -> None:
    assert last_tick("* * * * *", "UTC", 5 * MINUTE) == 5 * MINUTE
    assert last_tick("* * * * *", "UTC", 5 * MINUTE - 1) == 4 * MINUTE
    assert next_tick("* * * * *", "UTC", 5 * MINUTE) == 6 * MINUTE
    assert next_tick("* * * * *", "UTC", 5 * MINUTE - 1) == 5 * MINUTE


@pytest.mark.parametrize(("cron", "timezone"), [("* * * *", "UTC"), ("0 0 30 2 *", "UTC"), ("* * * * *", "../etc")])
def test_invalid_times_are_rejected(cron: str, timezone: str) -> None:
    with pytest.raises(InvalidConfig):
        check_cron(cron, timezone)
