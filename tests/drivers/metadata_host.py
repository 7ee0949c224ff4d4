"""A host with a simulated disk on which the metadata driver runs, stops, crashes and restarts."""

import random
from collections.abc import Callable, Coroutine, Mapping, Set
from typing import Any, TypeVar

from moldau.broker.cluster.peers import Peers
from moldau.broker.configs.broker_settings import MetadataLogSettings
from moldau.broker.drivers.membership import Membership
from moldau.broker.drivers.metadata import MetadataDriver
from moldau.machines.metadata import (
    SUPPORTED_FEATURES,
    ListenerImage,
    MetadataSettings,
    NewTopic,
    Registration,
    Resource,
    TopicCreated,
)
from moldau.machines.raft import Voter
from moldau.model.ids import Address, NodeId
from moldau.testing.clock import SimulatedClock
from moldau.testing.disk import SimulatedDisk
from moldau.testing.network import SimulatedNetwork
from moldau_dev.simulation.executor import SimulatedExecutor
from moldau_dev.simulation.loop import SimulatedLoop
from moldau_dev.simulation.process import SimulatedProcess

Result = TypeVar("Result")

DATA = "/data"
FOLDER = f"{DATA}/__cluster_metadata-0"
VOTER = Voter(NodeId(1), b"d" * 16, (("CONTROLLER", Address("localhost", 9093)),))


class AnyConfig:
    """Accepts every config."""

    def check(self, resource: Resource, configs: Mapping[str, str], changed: Set[str]) -> None: ...

    def is_list(self, resource: Resource, name: str) -> bool:  # noqa: ARG002
        return False

    def default(self, resource: Resource, name: str) -> str | None:  # noqa: ARG002
        return None


class MetadataHost:
    """The disk outlives the drivers that `run` starts on it one after the other."""

    def __init__(self, settings: MetadataLogSettings | None = None, seed: int = 0, voter: Voter = VOTER) -> None:
        self.disk = SimulatedDisk(seed)
        self.disk.prepare_folder(DATA)
        self.settings = settings or MetadataLogSettings()
        self.voter = voter
        self.failures: list[BaseException] = []
        self._chance = random.Random(seed)

    def run(self, act: Callable[[MetadataDriver], Coroutine[Any, Any, Result]], *, closes: bool = True) -> Result:
        """Start a driver, act on it, and close it; or leave it as a crash does."""
        loop, process = SimulatedLoop(), SimulatedProcess("node")
        self.disk.on_crash = lambda _: loop.kill(process)

        async def live() -> Result:
            driver = self._driver(loop)
            await driver.start()
            result = await act(driver)
            if closes:
                await driver.close()
            return result

        async def main() -> Result:
            return await loop.run_as(process, live())

        return loop.run(main())

    def _driver(self, loop: SimulatedLoop) -> MetadataDriver:
        disk, clock = self.disk.mount(), SimulatedClock(loop.now_ms)
        return MetadataDriver(
            DATA,
            Membership(self.voter, "cluster"),
            disk=disk,
            executor=SimulatedExecutor(loop, self._chance, disk),
            clock=clock,
            random=self._chance,
            peers=Peers(SimulatedNetwork(loop).host("node"), clock, "node"),
            rules=AnyConfig(),
            log_settings=self.settings,
            machine_settings=MetadataSettings,
            failed=self.failures.append,
        )

    def names(self, suffix: str) -> list[str]:
        return [name for name in self.disk.mount().list(FOLDER) if name.endswith(suffix)]


async def register(driver: MetadataDriver, life: bytes = b"i") -> int:
    """Register and unfence broker 1, with the log dirs that it had."""
    known = driver.image.brokers.get(1)
    registration = Registration(
        1,
        life * 16,
        (ListenerImage("PLAINTEXT", Address("localhost", 9092), 0),),
        SUPPORTED_FEATURES,
        directories=known.directories if known is not None else (VOTER.directory_id,),
    )
    epoch = await driver.write(
        lambda machine: machine.decide_register_broker(registration, next_offset=driver.next_offset)
    )
    await driver.write(lambda machine: machine.decide_unfence_broker(1, epoch))
    return epoch


async def create(driver: MetadataDriver, name: str, partitions: int = 1) -> TopicCreated:
    randomness = name.encode().rjust(16, b"\0")[-16:]
    (outcome,) = await driver.write(
        lambda machine: machine.decide_create_topics(
            [NewTopic(name, partitions, configs=[("retention.ms", "5")])], randomness=[randomness], start=0
        )
    )
    return outcome
