"""Handlers that wait without a task: they go on, end, fail and are cancelled as one in a task would."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from moldau.broker.network.unfinished import Unfinished


class Handler:
    """One that was started, and what was heard of its end."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self.ends: list[tuple[Any, Exception | None]] = []
        waits_for = coroutine.send(None)
        self.unfinished = Unfinished(coroutine, waits_for, lambda *end: self.ends.append(end))


async def turns(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_it_goes_on_with_what_it_waited_for() -> None:
    first, second = (asyncio.get_running_loop().create_future() for _ in range(2))

    async def handle() -> int:
        total = await first
        await asyncio.sleep(0)
        return int(total + await second)

    handler = Handler(handle())
    first.set_result(1)
    await turns()
    assert not handler.ends
    second.set_result(2)
    await turns()
    assert handler.ends == [(3, None)]


async def test_what_it_waits_for_may_fail() -> None:
    caught, uncaught = (asyncio.get_running_loop().create_future() for _ in range(2))

    async def handle() -> None:
        with pytest.raises(OSError, match="full"):
            await caught
        await uncaught

    handler = Handler(handle())
    caught.set_exception(OSError("full"))
    await turns()
    error = ValueError("broken")
    uncaught.set_exception(error)
    await turns()
    assert handler.ends == [(None, error)]


async def test_a_cancelled_one_tidies_up_at_once_and_its_end_is_not_heard() -> None:
    waits_for = asyncio.get_running_loop().create_future()
    tidied: list[str] = []

    async def handle() -> str:
        try:
            await waits_for
        finally:
            tidied.append("first")
            await asyncio.sleep(0)
            tidied.append("last")
        return "done"

    handler = Handler(handle())
    handler.unfinished.cancel()
    assert tidied == ["first"]
    waits_for.set_result(None)  # nobody waits for it any more
    await turns()
    assert tidied == ["first", "last"]
    assert not handler.ends


@pytest.mark.proves("H1", part="the in-sync set")
async def test_a_place_that_was_given_to_a_cancelled_one_goes_to_the_next() -> None:
    places = asyncio.Semaphore(1)
    await places.acquire()

    async def handle() -> None:
        async with places:
            pass

    handler = Handler(handle())
    places.release()  # it is told in the next turn
    handler.unfinished.cancel()
    async with asyncio.timeout(1), places:
        assert not handler.ends


async def test_one_that_brings_about_its_own_end_hears_of_it_where_it_waits_next() -> None:
    first, second = (asyncio.get_running_loop().create_future() for _ in range(2))
    steps: list[str] = []

    async def handle() -> None:
        await first
        handler.unfinished.cancel()
        steps.append("goes on")
        try:
            await second
        except asyncio.CancelledError:
            steps.append("cancelled")
            raise

    handler = Handler(handle())
    first.set_result(None)
    await turns()
    assert steps == ["goes on", "cancelled"]
    assert not handler.ends
    handler.unfinished.cancel()  # it has ended
