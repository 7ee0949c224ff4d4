"""Somebody who moves leaderships away and back, while all are alive and before every follower has heard of it.

By chance that hardly ever happens: whoever loses a leadership is dead or silent, and so are its followers' sessions.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from moldau.client.reassignments import Election, Reassignments
from moldau.model.errors import KafkaError
from moldau.model.ids import TopicPartition
from moldau.model.ports import Ports
from moldau_dev.simulation.cluster.watch import Watch
from moldau_dev.simulation.simulation import Simulation
from moldau_dev.simulation.workload import Ledger, client

PAUSE_S_MEAN: Final = 1.0
DEAF_S: Final = (0.1, 1.5)
MOVED: Final = "leadership moved away and back"


class Mover:
    """An accomplice of the chaos, with a client on a host of its own."""

    def __init__(self, simulation: Simulation, watch: Watch, ledger: Ledger) -> None:
        self._simulation, self._watch, self._ledger = simulation, watch, ledger
        self._chance = simulation.chance("mover")

    async def move_on(self, goes_on: Callable[[], bool]) -> None:
        async def program(ports: Ports) -> None:
            async with client(ports, self._watch.roster.bootstrap, "mover") as admin:
                while goes_on():
                    await asyncio.sleep(self._chance.expovariate(1.0) * PAUSE_S_MEAN)
                    await self._move(Reassignments(admin))

        await self._simulation.host("mover").start(program)

    async def _move(self, reassignments: Reassignments) -> None:
        """Where all are in sync: to another, and back, and the third hears of neither from the active controller."""
        chosen = self._choose()
        if chosen is None:
            return
        place, leader, other, third = chosen
        host_of, network = self._watch.roster.host_of, self._simulation.network
        controller = self._watch.quorum.leader
        if controller is not None and controller not in (host_of(leader), host_of(third)):
            network.cut(controller, host_of(third))
        try:
            await _let_lead(reassignments, place, (other, leader, third))
            await _let_lead(reassignments, place, (leader, other, third))
            self._simulation.count(MOVED, f"{place} {leader} {other}")
        except (OSError, KafkaError) as error:
            await self._ledger.bear(error)
        await asyncio.sleep(self._chance.uniform(*DEAF_S))
        network.heal()

    def _choose(self) -> tuple[TopicPartition, int, int, int] | None:
        """A partition, its leader and its followers in any order."""
        topic = self._chance.choice(list(self._watch.images.newest.topics.values()))
        index = self._chance.randrange(len(topic.partitions))
        partition = topic.partitions[index]
        others = [each for each in partition.isr if each != partition.leader]
        if not partition.has_leader or len(others) != 2:
            return None
        one, another = self._chance.sample(others, 2)
        return TopicPartition(topic.name, index), partition.leader, one, another


async def _let_lead(reassignments: Reassignments, place: TopicPartition, replicas: tuple[int, ...]) -> None:
    """The first of them, which is the preferred one from now on; unless it cannot, or does so already."""
    await reassignments.alter({place: replicas})
    await reassignments.elect(Election.PREFERRED, [place])
