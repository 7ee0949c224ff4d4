"""Controllers under random faults: crashes, power losses, network partitions and full disks."""

import asyncio
import errno
import os
import random
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest
from quorum_scene import Quorum, is_written, play_on_quorum, voter

from moldau.broker.drivers.metadata import MetadataDriver
from moldau.machines.raft import AddVoterRequested, Event, RemoveVoterRequested
from moldau.testing.disk_faults import Crashed, When
from moldau_dev.simulation.simulation import Simulation, replay

pytestmark = pytest.mark.proves("H6")

SEEDS = int(os.environ.get("STORM_SEEDS", "2"))
FIRST = int(os.environ.get("STORM_FIRST", "0"))
STRIKES = 25
SETTINGS = [
    "metadata.log.max.record.bytes.between.snapshots=1500",
    "controller.quorum.fetch.timeout.ms=600",
    "controller.quorum.election.timeout.ms=300",
    "controller.quorum.election.backoff.max.ms=300",
    "controller.quorum.request.timeout.ms=600",
]


class Storm:
    """One writer, many faults."""

    def __init__(self, quorum: Quorum, chance: random.Random, members: Sequence[int]) -> None:
        self.quorum = quorum
        self.chance = chance
        self.members = members
        self.last_acknowledged = 0
        self.requested = 0
        self.strikes = 0
        self.values: dict[int, str | None] = {}  # by the offset of the image

    async def write_on(self) -> None:
        """Write one value after the other: acknowledged values must never be missing."""
        while self.strikes < STRIKES or self.last_acknowledged < self.requested:
            self.requested += 1
            for node_id in self.chance.sample(sorted(self.quorum.nodes), len(self.quorum.nodes)):
                if await self._acknowledges(node_id, self.requested):
                    self.last_acknowledged = self.requested
                    break
            await asyncio.sleep(self.chance.uniform(0.0, 0.05))

    async def _acknowledges(self, node_id: int, value: int) -> bool:
        host = self.quorum.host(node_id)
        if not host.is_up or node_id not in self.quorum.nodes:
            return False
        try:
            return await host.run(is_written(self.quorum.metadata(node_id), value, 1.0))
        except Crashed:
            return False

    def look(self) -> None:
        """Nodes at the same offset have seen the same, and no node goes back."""
        for seen in self.quorum.images.values():
            offsets = [image.offset for image in seen]
            assert offsets == sorted(offsets)
            for image in seen:
                value = next(iter(image.configs.values()), {}).get("log.cleaner.threads")
                assert self.values.setdefault(image.offset, value) == value

    async def strike(self) -> None:
        node_id = self.chance.choice(self.members)
        host, network = self.quorum.host(node_id), self.quorum.simulation.network
        kinds = ["crash", "power", "io", "cut", "one way", "reset", "full", "stop", "all"]
        kind = self.chance.choice(kinds + ["voters"] * 3 if len(self.members) > 3 else kinds)
        if kind == "crash":
            host.crash()
        elif kind == "power":
            host.power_loss()
        elif kind == "io":
            point = host.disk.points + self.chance.randint(1, 12)
            host.disk.crash_at(point, self.chance.choice(list(When)), loses_power=self.chance.random() < 0.5)
        elif kind == "cut":
            network.partition((f"n{node_id}",), tuple(f"n{each}" for each in self.members if each != node_id))
        elif kind == "one way":
            network.cut(f"n{node_id}", f"n{node_id % len(self.members) + 1}")
        elif kind == "reset":
            network.reset(f"n{node_id}", f"n{node_id % len(self.members) + 1}")
        elif kind == "full":
            path = self.chance.choice([".log", "quorum-state", ".checkpoint"])
            host.disk.fail("pwrite", errno.ENOSPC, path=path, times=self.chance.randint(1, 5))
        elif kind == "stop" and host.is_up and node_id in self.quorum.nodes:
            try:
                await self.quorum.stop(node_id)
            except Crashed:
                self.quorum.nodes.pop(node_id, None)
        elif kind == "all":
            for each in self.members:
                self.quorum.host(each).power_loss() if self.chance.random() < 0.5 else self.quorum.host(each).crash()
        elif kind == "voters":
            await self.change_voters(node_id)
        await asyncio.sleep(self.chance.choice([0.01, 0.1, 1.0, 3.0]))
        await self.mend()
        self.strikes += 1
        self.look()

    async def change_voters(self, node_id: int) -> None:
        """Ask the leader to add this member or to remove it, without waiting for the result."""
        leaders = [each for each in self.quorum.nodes if self.quorum.host(each).is_up and self.leads(each)]
        if leaders:
            machine = self.quorum.metadata(leaders[0]).quorum.machine
            is_voter = machine.voters.includes(voter(node_id).key)
            if is_voter and len(machine.voters) > 2:
                event: Any = RemoveVoterRequested(ticket=0, voter=voter(node_id).key, timeout_ms=2_000)
            else:
                event = AddVoterRequested(ticket=0, voter=voter(node_id), timeout_ms=2_000)
            with suppress(Crashed):
                await self.quorum.host(leaders[0]).run(ask(self.quorum.metadata(leaders[0]), event))

    def leads(self, node_id: int) -> bool:
        return self.quorum.metadata(node_id).is_active

    async def mend(self) -> None:
        if self.chance.random() < 0.7:
            self.quorum.simulation.network.heal()
        if self.chance.random() < 0.8:
            await self.revive()

    async def revive(self) -> None:
        for each in self.members:
            while not self.quorum.host(each).is_up:
                self.quorum.nodes.pop(each, None)
                try:
                    await self.quorum.start(each)
                except Crashed:
                    self.quorum.host(each).disk.forget_plans()

    async def live(self) -> None:
        writing = asyncio.create_task(self.write_on())
        for _ in range(STRIKES):
            await self.strike()
        self.quorum.simulation.network.heal()
        for each in self.members:
            self.quorum.host(each).disk.forget_plans()
        await self.revive()
        async with asyncio.timeout(30):
            await writing
        await self.quorum.seen_by_all(self.last_acknowledged)
        self.look()
        assert self.last_acknowledged > 20
        self.quorum.simulation.acknowledged = self.last_acknowledged


async def ask(metadata: MetadataDriver, event: Event) -> None:
    metadata.quorum.post(event)


@pytest.mark.parametrize("seed", range(FIRST, FIRST + SEEDS))
def test_controllers_lose_nothing_acknowledged_and_agree_in_a_storm(seed: int) -> None:
    async def script(simulation: Simulation) -> None:
        simulation.disks_fail = True
        chance = simulation.rng("storm")
        is_static = chance.random() < 0.3

        async def live(quorum: Quorum) -> None:
            members = [1, 2, 3]
            if not is_static and chance.random() < 0.6:
                quorum.format(4)
                await quorum.start(4)
                members.append(4)
            await Storm(quorum, chance, members).live()

        await play_on_quorum(simulation, live, settings=SETTINGS, is_static=is_static)

    Simulation(seed).run(script) if SEEDS > 10 else replay(script, seed)
