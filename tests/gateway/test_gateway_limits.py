"""The bounds of the gateway: admission and the window of idempotency keys."""

import asyncio

import pytest

from moldau.console.errors import ConsoleError, error_response
from moldau.gateway.admission import Admission
from moldau.gateway.idempotency import IdempotencyWindow, Outcome

STORED = Outcome(200, b"x" * 10, is_stored=True)


@pytest.mark.proves("A3", part="back-pressure")
def test_requests_beyond_the_bounds_get_a_time_to_wait() -> None:
    admission = Admission(requests_max=2, bytes_max=100)
    with admission.produce(60):
        with pytest.raises(ConsoleError) as rejected, admission.produce(50):
            pass
        with (
            admission.produce(40),
            pytest.raises(ConsoleError),
            admission.produce(0),
        ):
            pass
    response = error_response(rejected.value)
    assert (response.status_code, response.headers["retry-after"]) == (429, "1")
    with admission.produce(1_000):  # a single request always fits
        assert admission.requests == 1
    assert (admission.requests, admission.bytes) == (0, 0)


@pytest.mark.proves("A3", part="back-pressure")
def test_number_of_live_tails_is_bounded() -> None:
    admission = Admission(tails_max=1)
    admission.begin_tail()
    with pytest.raises(ConsoleError, match="live tails"):
        admission.begin_tail()
    admission.end_tail()
    admission.begin_tail()


async def add(window: IdempotencyWindow, key: str, now_ms: float, outcome: Outcome = STORED) -> None:
    assert await window.repeated((key,), b"", now_ms) is None
    window.begin((key,), b"", now_ms)
    window.end((key,), outcome, now_ms)


@pytest.mark.proves("A3", part="idempotency keys")
def test_idempotency_window_is_bounded_by_time_number_and_bytes() -> None:
    async def run() -> None:
        window = IdempotencyWindow(window_ms=100, entries_max=3, bytes_max=35)
        for number in range(5):
            await add(window, f"{number}", number)
        assert len(window) == 3
        assert await window.repeated(("4",), b"", 103) == STORED
        assert await window.repeated(("4",), b"", 104) is None
        await add(window, "large", 50, Outcome(200, b"x" * 20, is_stored=True))
        assert await window.repeated(("4",), b"", 50) == STORED
        assert await window.repeated(("3",), b"", 50) is None
        await add(window, "later", 1_000)
        assert len(window) == 1

    asyncio.run(run())


@pytest.mark.proves("A3", part="idempotency keys")
def test_repetition_is_rejected_when_the_outcome_is_unknown() -> None:
    async def run() -> None:
        window = IdempotencyWindow()
        await add(window, "failed", 0, Outcome(403, b"", is_stored=False))
        assert await window.repeated(("failed",), b"", 0) is None
        await add(window, "unknown", 0, Outcome(503, b"", is_stored=False, is_unknown=True))
        with pytest.raises(ConsoleError) as rejected:
            await window.repeated(("unknown",), b"", 0)
        assert (rejected.value.status, rejected.value.code) == (409, "outcome_unknown")

    asyncio.run(run())


def test_waiting_repetition_fails_when_the_first_request_is_abandoned() -> None:
    async def run() -> None:
        window = IdempotencyWindow()
        window.begin(("k",), b"", 0)
        waiting = asyncio.create_task(window.repeated(("k",), b"", 0))
        await asyncio.sleep(0)
        window.abandon(("k",))
        with pytest.raises(ConsoleError, match="retry"):
            await waiting
        assert len(window) == 0

    asyncio.run(run())
