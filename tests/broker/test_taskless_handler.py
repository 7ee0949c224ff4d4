"""Handlers that wait without a task: they resume, end, fail and are cancelled as in a task."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from moldau.broker.network.taskless_handler import TasklessHandler


class Handler:
    """A started handler and its results."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self.ends: list[tuple[Any, Exception | None]] = []
        awaited = coroutine.send(None)
        self.taskless = TasklessHandler(coroutine, awaited, lambda *end: self.ends.append(end))


async def turns(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_handler_resumes_with_the_awaited_result() -> None:
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


async def test_handler_gets_the_exception_of_the_awaited_future() -> None:
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


async def test_cancelled_handler_cleans_up_and_its_result_is_ignored() -> None:
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
    handler.taskless.cancel()
    assert tidied == ["first"]
    waits_for.set_result(None)  # it has no waiter any more
    await turns()
    assert tidied == ["first", "last"]
    assert not handler.ends


@pytest.mark.proves("H1", part="the ISR")
async def test_semaphore_granted_to_a_cancelled_handler_is_released() -> None:
    places = asyncio.Semaphore(1)
    await places.acquire()

    async def handle() -> None:
        async with places:
            pass

    handler = Handler(handle())
    places.release()  # the handler resumes in the next turn
    handler.taskless.cancel()
    async with asyncio.timeout(1), places:
        assert not handler.ends


async def test_handler_that_cancels_itself_is_cancelled_at_its_next_await() -> None:
    first, second = (asyncio.get_running_loop().create_future() for _ in range(2))
    steps: list[str] = []

    async def handle() -> None:
        await first
        handler.taskless.cancel()
        steps.append("runs")
        try:
            await second
        except asyncio.CancelledError:
            steps.append("cancelled")
            raise

    handler = Handler(handle())
    first.set_result(None)
    await turns()
    assert steps == ["runs", "cancelled"]
    assert not handler.ends
    handler.taskless.cancel()  # it has ended
