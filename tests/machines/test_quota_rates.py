"""Windowed rates and token buckets: properties over any sequence of events."""

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.machines.quotas.rates import TokenBucket, WindowedRate

WINDOWS, WINDOW_MS = 11, 1000.0
LIMIT = 1000.0  # per second

amounts = st.floats(1, 20_000)
gaps_ms = st.floats(0, 30_000)


def rate() -> WindowedRate:
    return WindowedRate(WINDOWS, WINDOW_MS)


def test_rate_is_the_sum_over_the_elapsed_time() -> None:
    windowed = rate()
    for second in range(6):
        windowed.record(2000, second * 1000.0)
    assert windowed.per_second(5000.0) == pytest.approx(2000)  # and one window before the first event
    assert windowed.per_second(9000.0) == pytest.approx(1200)


def test_samples_expire_after_all_windows() -> None:
    windowed = rate()
    windowed.record(5000, 0.0)
    windowed.record(100, 900.0)
    windowed.record(1, 2000.0)
    assert windowed.per_second(11_899.0) > 390
    assert windowed.per_second(11_900.0) == pytest.approx(1 / 9.9)  # the first sample's last event is 11 s old
    assert windowed.per_second(13_000.0) == 0


def test_sample_that_becomes_the_oldest_spans_one_window_at_least() -> None:
    windowed = rate()
    windowed.record(1, 0.0)
    windowed.record(500, 10_950.0)
    assert windowed.per_second(11_000.0) == pytest.approx(500)


@given(st.lists(st.tuples(gaps_ms, amounts), min_size=1, max_size=60))
def test_pause_brings_the_rate_back_to_the_limit(events: list[tuple[float, float]]) -> None:
    windowed, now_ms = rate(), 0.0
    for gap_ms, amount in events:
        now_ms += gap_ms
        windowed.record(amount, now_ms)
        pause_ms = windowed.pause_ms(LIMIT, now_ms)
        if pause_ms:
            assert windowed.per_second(now_ms) > LIMIT
            total, later = windowed.total, copy.deepcopy(windowed)
            rate_then = later.per_second(now_ms + pause_ms)
            assert later.total < total or rate_then <= LIMIT * 1.0001  # samples may expire meanwhile
        else:
            assert windowed.per_second(now_ms) <= LIMIT * 1.0001


@given(st.lists(st.tuples(gaps_ms, amounts), min_size=2, max_size=80), st.integers(0, 79), st.integers(0, 79))
def test_client_that_observes_its_pauses_stays_within_its_limit(
    events: list[tuple[float, float]], first: int, last: int
) -> None:
    """Over any span: the limit, what was unused in the windows before it, and the amount of one event."""
    windowed, now_ms = rate(), 0.0
    sent: list[tuple[float, float]] = []
    for gap_ms, amount in events:
        now_ms += gap_ms + windowed.pause_ms(LIMIT, now_ms)
        windowed.record(amount, now_ms)
        sent.append((now_ms, amount))
    first, last = sorted((min(first, len(sent) - 1), min(last, len(sent) - 1)))
    span_ms = sent[last][0] - sent[first][0]
    total = sum(amount for _, amount in sent[first : last + 1])
    credit_ms = (WINDOWS + 1) * WINDOW_MS  # unused in the windows before
    assert total <= LIMIT * (span_ms + credit_ms) / 1000 + max(amount for _, amount in sent) + 1e-6


@given(st.floats(100, 3000), st.floats(10, 300))
def test_steady_client_far_above_its_limit_gets_its_limit(amount: float, interval_ms: float) -> None:
    """From its first event on, a client that always has more to send gets its limit within 5 % over 30 seconds."""
    windowed, now_ms, total = rate(), 0.0, 0.0
    while True:
        now_ms += interval_ms * min(1.0, amount / (10 * LIMIT) * 1000 / interval_ms)  # ten times its limit
        now_ms += windowed.pause_ms(LIMIT, now_ms)
        if now_ms > 30_000:
            break
        windowed.record(amount, now_ms)
        total += amount
    assert LIMIT * 30 * 0.95 - amount <= total <= LIMIT * 30 * 1.05 + amount


@given(st.lists(st.tuples(gaps_ms, amounts), max_size=40))
def test_total_equals_the_sum_of_recent_events(events: list[tuple[float, float]]) -> None:
    windowed, now_ms, kept = rate(), 0.0, 0.0
    seen: list[tuple[float, float]] = []
    for gap_ms, amount in events:
        now_ms += gap_ms
        windowed.elapsed_ms(now_ms)
        windowed.record(amount, now_ms)
        seen.append((now_ms, amount))
    windowed.elapsed_ms(now_ms)
    recent = sum(amount for at_ms, amount in seen if now_ms - at_ms < WINDOWS * WINDOW_MS)
    all_of_them = sum(
        amount for at_ms, amount in seen if now_ms - at_ms < (WINDOWS + 1) * WINDOW_MS
    )  # a sample is dropped as a whole
    kept = windowed.total
    assert recent - 1e-6 <= kept <= all_of_them + 1e-6


def test_token_bucket_starts_full_and_goes_into_debt() -> None:
    bucket = TokenBucket(WINDOWS, WINDOW_MS)
    assert bucket.refill(5, 0.0) == 55
    bucket.take(60, 5, 0.0)
    assert bucket.tokens == -5
    assert bucket.pause_ms(5, 0.0) == 1000
    assert bucket.pause_ms(5, 600.0) == pytest.approx(400)
    assert bucket.pause_ms(5, 1000.0) == 0
    assert bucket.refill(5, 1e9) == 55


@given(st.lists(st.tuples(st.floats(0, 5000), st.integers(1, 50)), max_size=60))
def test_token_bucket_never_grants_more_than_burst_and_refill(requests: list[tuple[float, int]]) -> None:
    bucket, now_ms, granted, largest = TokenBucket(WINDOWS, WINDOW_MS), 0.0, 0, 0
    bucket.refill(5, 0.0)
    for gap_ms, amount in requests:
        now_ms += gap_ms
        if bucket.refill(5, now_ms) >= 0:
            bucket.take(amount, 5, now_ms)
            granted += amount
            largest = max(largest, amount)
    assert granted <= 55 + 5 * now_ms / 1000 + largest + 1e-6
