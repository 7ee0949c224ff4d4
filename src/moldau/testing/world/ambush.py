"""Coordinators that die at the worst moments of a transaction: decided and not durable, durable and not told."""

import asyncio
import random
from collections.abc import Callable, Mapping
from contextvars import Context
from enum import Enum
from typing import Final

from moldau.node.node import Node
from moldau.testing.simulation import Host, Simulation
from moldau.testing.world.insight import has_ends_in_doubt, has_markers_to_send

PAUSE_S_MEAN: Final = 6.0
DEATH_S_MAX: Final = 0.5


class Moment(Enum):
    """When a coordinator is struck."""

    IN_DOUBT = "coordinator dies before its decision is durable"
    UNTOLD = "coordinator dies before all partitions know"


class Ambush:
    """Waits for such a moment again and again, and strikes whichever node has it first."""

    def __init__(self, simulation: Simulation, hosts: Mapping[str, Host], chance: random.Random) -> None:
        self._simulation, self._hosts, self._chance = simulation, hosts, chance
        self._awaited: Moment | None = None
        self._to_die = 0
        self._are_dead = asyncio.Event()  # all who were to die
        self._are_dead.set()

    async def lie_in_wait(self, goes_on: Callable[[], bool]) -> None:
        while goes_on():
            await asyncio.sleep(self._chance.expovariate(1.0) * PAUSE_S_MEAN)
            self._awaited = self._chance.choice(tuple(Moment))
        self._awaited = None
        await self._are_dead.wait()

    def look(self, host: str, node: Node) -> None:
        if self._awaited is Moment.IN_DOUBT and has_ends_in_doubt(node):
            self._spring(host, self._cut_off)
        elif self._awaited is Moment.UNTOLD and has_markers_to_send(node):
            self._spring(host, self._kill)

    def _spring(self, host: str, strike: Callable[[str], None]) -> None:
        assert self._awaited is not None
        self._simulation.count(self._awaited.value, host)
        self._awaited = None
        self._to_die += 1
        self._are_dead.clear()
        self._simulation.loop.call_soon(strike, host, context=Context())

    def _cut_off(self, host: str) -> None:
        """From all nodes but one: what it sends gets to some of those that should have it. Then it dies."""
        others = [name for name in self._hosts if name != host]
        for other in self._chance.sample(others, len(others) - 1):
            self._simulation.network.cut_both(host, other)
        delay_s = self._chance.uniform(0.0, DEATH_S_MAX)
        self._simulation.loop.call_later(delay_s, self._kill, host, context=Context())

    def _kill(self, host: str) -> None:
        """At once, or when some partitions know: the network and the others' disks take their time."""
        self._hosts[host].crash()
        self._to_die -= 1
        if not self._to_die:
            self._are_dead.set()
