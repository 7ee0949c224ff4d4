"""A timer that is moved for free rings at the time that was set last, once, and not when it was stopped."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from moldau.broker.runtime.lazy_timer import LazyTimer
from moldau_dev.simulation.simulation import Simulation


def on_virtual_time(script: Callable[[Simulation], Coroutine[Any, Any, None]]) -> None:
    Simulation(seed=1).run(script)


class Bell:
    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._began_s = simulation.now_s
        self.rung_ms: list[float] = []

    def ring(self) -> None:
        self.rung_ms.append(round((self._simulation.now_s - self._began_s) * 1000, 3))


@pytest.mark.proves("H1", part="the high watermark")
def test_it_rings_once_when_the_time_that_was_set_last_is_over() -> None:
    async def script(simulation: Simulation) -> None:
        bell = Bell(simulation)
        timer = LazyTimer(bell.ring)
        timer.set(100)
        await asyncio.sleep(0.05)
        timer.set(100)
        assert timer.is_set
        await asyncio.sleep(1)
        assert bell.rung_ms == [150]
        assert not timer.is_set

    on_virtual_time(script)


@pytest.mark.proves("H1", part="the high watermark")
def test_it_can_be_set_to_an_earlier_time() -> None:
    async def script(simulation: Simulation) -> None:
        bell = Bell(simulation)
        timer = LazyTimer(bell.ring)
        timer.set(500)
        timer.set(20)
        await asyncio.sleep(1)
        assert bell.rung_ms == [20]

    on_virtual_time(script)


def test_one_that_was_stopped_does_not_ring_unless_it_is_set_again() -> None:
    async def script(simulation: Simulation) -> None:
        bell = Bell(simulation)
        timer = LazyTimer(bell.ring)
        timer.set(10)
        timer.stop()
        assert not timer.is_set
        await asyncio.sleep(0.1)
        timer.set(10)
        timer.stop()
        timer.set(30)
        await asyncio.sleep(0.1)
        assert bell.rung_ms == [130]
        timer.set(10)
        timer.close()
        await asyncio.sleep(1)
        assert bell.rung_ms == [130]

    on_virtual_time(script)


def test_whoever_hears_it_may_set_it_again() -> None:
    async def script(simulation: Simulation) -> None:
        bell = Bell(simulation)
        timer: LazyTimer

        def ring() -> None:
            bell.ring()
            if len(bell.rung_ms) < 3:
                timer.set(10)

        timer = LazyTimer(ring)
        timer.set(10)
        await asyncio.sleep(1)
        assert bell.rung_ms == [10, 20, 30]

    on_virtual_time(script)
