"""Moves leaderships away and back while all nodes are up, before every follower has the new metadata.

Random faults rarely cause this: a node that loses its leadership is usually down or cut off, and so are its sessions.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from moldau.client.reassignments import Election, Reassignments
from moldau.model.errors import KafkaError
from moldau.model.ids import TopicPartition
from moldau.model.ports import Ports
from moldau_dev.simulation.cluster.observer import Observer
from moldau_dev.simulation.simulation import Simulation
from moldau_dev.simulation.workload import Ledger, client

PAUSE_S_MEAN: Final = 1.0
CUT_S: Final = (0.1, 1.5)
MOVED: Final = "leadership moved away and back"


class LeadershipMover:
    """A fault injector with a client on its own host."""

    def __init__(self, simulation: Simulation, observer: Observer, ledger: Ledger) -> None:
        self._simulation, self._observer, self._ledger = simulation, observer, ledger
        self._rng = simulation.rng("mover")

    async def run(self, is_active: Callable[[], bool]) -> None:
        async def program(ports: Ports) -> None:
            async with client(ports, self._observer.topology.bootstrap, "mover") as admin:
                while is_active():
                    await asyncio.sleep(self._rng.expovariate(1.0) * PAUSE_S_MEAN)
                    await self._move(Reassignments(admin))

        await self._simulation.host("mover").start(program)

    async def _move(self, reassignments: Reassignments) -> None:
        """Move a leadership to another replica and back while the third gets no metadata from the controller."""
        chosen = self._choose()
        if chosen is None:
            return
        place, leader, other, third = chosen
        host_of, network = self._observer.topology.host_of, self._simulation.network
        controller = self._observer.quorum.leader
        if controller is not None and controller not in (host_of(leader), host_of(third)):
            network.cut(controller, host_of(third))
        try:
            await _make_leader(reassignments, place, (other, leader, third))
            await _make_leader(reassignments, place, (leader, other, third))
            self._simulation.count(MOVED, f"{place} {leader} {other}")
        except (OSError, KafkaError) as error:
            await self._ledger.back_off(error)
        await asyncio.sleep(self._rng.uniform(*CUT_S))
        network.heal()

    def _choose(self) -> tuple[TopicPartition, int, int, int] | None:
        """Return a partition with all replicas in sync, its leader and its followers in random order."""
        topic = self._rng.choice(list(self._observer.images.newest.topics.values()))
        index = self._rng.randrange(len(topic.partitions))
        partition = topic.partitions[index]
        others = [each for each in partition.isr if each != partition.leader]
        if not partition.has_leader or len(others) != 2:
            return None
        one, another = self._rng.sample(others, 2)
        return TopicPartition(topic.name, index), partition.leader, one, another


async def _make_leader(reassignments: Reassignments, place: TopicPartition, replicas: tuple[int, ...]) -> None:
    """Make the first replica the preferred one and elect it, if that is possible and needed."""
    await reassignments.alter({place: replicas})
    await reassignments.elect(Election.PREFERRED, [place])
