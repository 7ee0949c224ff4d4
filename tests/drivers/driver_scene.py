"""A driver of the tally on an in-memory log, in virtual time, and the requests of tests."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from tally import MemoryLog, Tally

from moldau.broker.drivers.replicated import ReplicatedDriver
from moldau.testing.clock import SimulatedClock
from moldau_dev.simulation.loop import SimulatedLoop

Driver = ReplicatedDriver[Tally, int]


class Scene:
    """A driver on an in-memory log, in virtual time."""

    def __init__(self, *numbers: int, **options: Any) -> None:
        self.log = MemoryLog(*numbers)
        self.effects: list[object] = []
        self.failures: list[BaseException] = []
        self.machines: list[Tally] = []
        self.options = options

    def new_machine(self) -> Tally:
        self.machines.append(Tally())
        return self.machines[-1]

    def run(self, act: Callable[[Driver], Coroutine[Any, Any, None]], *, leads: bool = True) -> None:
        loop = SimulatedLoop()

        async def main() -> None:
            driver = Driver(
                self.log,
                self.new_machine,
                SimulatedClock(loop.now_ms),
                perform=self.effects.append,
                failed=self.failures.append,
                **self.options,
            )
            if leads:
                await driver.lead()
            await act(driver)
            await driver.close()

        loop.run(main())


async def turn() -> None:
    """Let everything run that is ready."""
    for _ in range(5):
        await asyncio.sleep(0)


def add(driver: Driver, *numbers: int) -> asyncio.Task[int]:
    return asyncio.ensure_future(driver.write(lambda machine: machine.decide_add(*numbers)))


def wait(driver: Driver, mark: int) -> asyncio.Task[int]:
    ticket = driver.new_ticket()
    return asyncio.ensure_future(driver.write(lambda machine: machine.decide_wait(mark, ticket), ticket))
