"""Cluster faults, injected into a server that is slow to stop."""

import asyncio
import random
from typing import Final

from moldau.model.ports import Ports
from moldau_dev.simulation.cluster.cluster_faults import ClusterChaos, ClusterFault, FaultMix, Target
from moldau_dev.simulation.simulation import Simulation

STOP_S: Final = 2.0
CHAOS_S: Final = 60.0


class NoFinder:
    """No node has a role."""

    def find(self, target: Target, rng: random.Random) -> str | None:  # noqa: ARG002
        return None


class SlowServer:
    """Counts the calls of `stop`."""

    def __init__(self, servers: list["SlowServer"]) -> None:
        self.stops = 0
        servers.append(self)

    async def stop(self) -> None:
        self.stops += 1
        await asyncio.sleep(STOP_S)


def test_parallel_clean_restarts_stop_a_process_once() -> None:
    servers: list[SlowServer] = []

    async def program(ports: Ports) -> SlowServer:  # noqa: ARG001
        return SlowServer(servers)

    async def script(simulation: Simulation) -> None:
        node = simulation.host("node-1")
        await node.start(program)
        chaos = ClusterChaos(simulation, [node], NoFinder(), tuple(ClusterFault), ())
        chaos.mix = FaultMix((ClusterFault.CLEAN_RESTART,), pause_s_mean=0.5, outage_s_max=0.3, parallelism=2)
        await chaos.run(CHAOS_S, lambda: True, CHAOS_S)
        assert node.is_up
        assert not node.is_stopping

    outcome = Simulation(0).run(script)
    *ended, last = [server.stops for server in servers]
    assert len(ended) > CHAOS_S / STOP_S / 3
    assert ended == [1] * len(ended)
    assert last == 0
    assert outcome.faults == {"clean restart": len(ended)}  # a stop of a stopping process does not count
