"""A timer that is cheap to move: it fires once, at the last deadline, and not after a stop."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from moldau.broker.runtime.lazy_timer import LazyTimer
from moldau_dev.simulation.simulation import Simulation


def on_virtual_time(script: Callable[[Simulation], Coroutine[Any, Any, None]]) -> None:
    Simulation(seed=1).run(script)


class TimerLog:
    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._began_s = simulation.now_s
        self.fired_ms: list[float] = []

    def record(self) -> None:
        self.fired_ms.append(round((self._simulation.now_s - self._began_s) * 1000, 3))


@pytest.mark.proves("H1", part="the high watermark")
def test_timer_fires_once_at_the_last_deadline() -> None:
    async def script(simulation: Simulation) -> None:
        log = TimerLog(simulation)
        timer = LazyTimer(log.record)
        timer.set(100)
        await asyncio.sleep(0.05)
        timer.set(100)
        assert timer.is_set
        await asyncio.sleep(1)
        assert log.fired_ms == [150]
        assert not timer.is_set

    on_virtual_time(script)


@pytest.mark.proves("H1", part="the high watermark")
def test_timer_can_be_set_to_an_earlier_deadline() -> None:
    async def script(simulation: Simulation) -> None:
        log = TimerLog(simulation)
        timer = LazyTimer(log.record)
        timer.set(500)
        timer.set(20)
        await asyncio.sleep(1)
        assert log.fired_ms == [20]

    on_virtual_time(script)


def test_stopped_timer_fires_only_when_set_again() -> None:
    async def script(simulation: Simulation) -> None:
        log = TimerLog(simulation)
        timer = LazyTimer(log.record)
        timer.set(10)
        timer.stop()
        assert not timer.is_set
        await asyncio.sleep(0.1)
        timer.set(10)
        timer.stop()
        timer.set(30)
        await asyncio.sleep(0.1)
        assert log.fired_ms == [130]
        timer.set(10)
        timer.close()
        await asyncio.sleep(1)
        assert log.fired_ms == [130]

    on_virtual_time(script)


def test_timer_can_be_set_again_from_its_callback() -> None:
    async def script(simulation: Simulation) -> None:
        log = TimerLog(simulation)
        timer: LazyTimer

        def record() -> None:
            log.record()
            if len(log.fired_ms) < 3:
                timer.set(10)

        timer = LazyTimer(record)
        timer.set(10)
        await asyncio.sleep(1)
        assert log.fired_ms == [10, 20, 30]

    on_virtual_time(script)
