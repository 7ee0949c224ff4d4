"""Faults aimed at a cluster, tried on a server that does nothing but take its time to stop."""

import asyncio
import random
from typing import Final

from moldau.model.ports import Ports
from moldau_dev.simulation.cluster.strikes import Aim, ClusterChaos, Mix, Strike
from moldau_dev.simulation.simulation import Simulation

STOP_S: Final = 2.0
CHAOS_S: Final = 60.0


class Blind:
    """Nobody is anything in particular."""

    def find(self, aim: Aim, chance: random.Random) -> str | None:  # noqa: ARG002
        return None


class Slow:
    """Counts how often it is asked to stop."""

    def __init__(self, lives: list["Slow"]) -> None:
        self.asked = 0
        lives.append(self)

    async def stop(self) -> None:
        self.asked += 1
        await asyncio.sleep(STOP_S)


def test_two_strikers_that_want_the_same_node_to_stop_ask_it_once_in_a_life() -> None:
    lives: list[Slow] = []

    async def program(ports: Ports) -> Slow:  # noqa: ARG001
        return Slow(lives)

    async def script(simulation: Simulation) -> None:
        node = simulation.host("node-1")
        await node.start(program)
        chaos = ClusterChaos(simulation, [node], Blind(), tuple(Strike), ())
        chaos.mix = Mix((Strike.CLEAN_RESTART,), pause_s_mean=0.5, outage_s_max=0.3, strikers=2)
        await chaos.run(CHAOS_S, lambda: True, CHAOS_S)
        assert node.is_up
        assert not node.is_stopping

    outcome = Simulation(0).run(script)
    *ended, last = [life.asked for life in lives]
    assert len(ended) > CHAOS_S / STOP_S / 3
    assert ended == [1] * len(ended)
    assert last == 0
    assert outcome.faults == {"clean restart": len(ended)}  # what came too late struck nobody
