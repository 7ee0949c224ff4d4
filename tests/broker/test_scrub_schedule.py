"""When the scrubber reads what: evenly over the interval, and never most of the time."""

import pytest

from moldau.broker.partitions.scrub_schedule import BUSY_SHARE_MAX, FIRST, ScrubSchedule, SegmentKey
from moldau.model.units import DAY_MS, HOUR_MS, MiB

SIZES = [(SegmentKey("t", 0, number), 10 * MiB) for number in range(10)]


def play(sizes: list[tuple[SegmentKey, int]], busy_ms: float, interval_ms: int) -> tuple[list[float], int]:
    """Run one pass; return the pauses and the time of its end."""
    schedule, now = ScrubSchedule(0), 0.0
    schedule.count(sizes)
    pauses = []
    for key, size in sizes:
        wait = schedule.wait_ms(round(now), interval_ms)
        pauses.append(wait)
        now += max(wait, 0.0) + busy_ms
        schedule.sliced(round(now), size, busy_ms)
        schedule.completed(key)
    schedule.complete()
    return pauses[1:], round(now)


@pytest.mark.proves("S10")
def test_slices_are_spread_evenly_over_the_interval() -> None:
    pauses, end = play(SIZES, busy_ms=20, interval_ms=DAY_MS)
    assert 0.85 * DAY_MS < end < DAY_MS
    assert max(pauses) - min(pauses) < 0.05 * DAY_MS


@pytest.mark.proves("S10")
def test_reading_takes_at_most_its_share_of_the_time() -> None:
    pauses, end = play(SIZES, busy_ms=100, interval_ms=1000)
    assert min(pauses) >= 100 / BUSY_SHARE_MAX - 101
    assert 10 * 100 / end <= BUSY_SHARE_MAX * 1.15


def test_wait_for_other_work_does_not_stop_a_pass_for_long() -> None:
    pauses, _ = play(SIZES, busy_ms=HOUR_MS, interval_ms=HOUR_MS)
    assert max(pauses) < 70_000


def test_next_pass_begins_an_interval_after_the_last() -> None:
    schedule = ScrubSchedule(1000)
    schedule.count([])
    schedule.complete()
    assert schedule.wait_ms(1500, 2000) == 1500
    assert schedule.wait_ms(3000, 2000) == 0
    schedule.restart(3000)
    assert (schedule.cursor, schedule.is_complete, schedule.progress) == (FIRST, False, 0.0)


def test_clock_that_was_set_back_does_not_delay_a_pass() -> None:
    schedule = ScrubSchedule(10 * DAY_MS)
    schedule.complete()
    assert schedule.wait_ms(0, HOUR_MS) <= HOUR_MS


def test_progress_counts_what_lies_behind_the_cursor() -> None:
    schedule = ScrubSchedule(0, SIZES[4][0])
    schedule.count(SIZES)
    assert schedule.progress == 0.5
