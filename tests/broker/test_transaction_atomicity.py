"""Atomicity of transactions on three brokers, two of which are killed repeatedly."""

import asyncio
import random
from typing import Any

import pytest
from broker_scene import Talker, batch, produce_request
from cluster_scene import Cluster, on_cluster
from replica_scene import RETRIED, create, leader_of
from test_replica_transactions import NONE, SETTINGS, coordinator
from transaction_scene import PASSING, Producer
from writer_scene import NOW_MS, values

from moldau.broker.internal_topics import STATE_TOPIC
from moldau.model.errors import ErrorCode

PARTITIONS = 3
TRANSACTIONS = 12
ROUNDS = 4

pytestmark = pytest.mark.proves("P3")


class TransactionalWorkload(Producer):
    """A writer that retries through any broker failure, and knows what it committed."""

    def __init__(self, cluster: Cluster, name: str, version: int, seed: int) -> None:
        self.cluster = cluster
        super().__init__(self._reach, name, version)
        self.sequences: dict[int, int] = {}
        self.random = random.Random(f"{name} {seed}")
        self.committed: list[bytes] = []
        self.aborted: list[bytes] = []

    async def _reach(self, transactional_id: str) -> Talker:
        return await self.cluster.connect(await coordinator(self.cluster, transactional_id))

    async def ask(self, version: int, request: Any, passing: Any = PASSING) -> Any:
        while True:
            try:
                return await super().ask(version, request, passing)
            except OSError:  # the coordinator died: retry on the next
                await asyncio.sleep(0.05)

    async def run(self) -> None:
        assert await self.init() is NONE
        for number in range(TRANSACTIONS):
            name = f"{self.transactional_id}-{number}".encode()
            for partition in range(PARTITIONS):
                await self.deliver(name, partition)
            is_commit = self.random.random() < 0.7
            assert await self.end(is_commit=is_commit) is NONE
            (self.committed if is_commit else self.aborted).append(name)
            if self.version == 2:
                self.sequences.clear()

    async def deliver(self, value: bytes, partition: int) -> None:
        if self.version == 1:
            assert await self.add(("t", partition)) is NONE
        records = batch(
            value,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=self.sequences.get(partition, 0),
            is_transactional=True,
            timestamp=NOW_MS,
        )
        request = produce_request("t", records, partition=partition, timeout_ms=2000)
        request.transactional_id = self.transactional_id
        while (code := await self._try(request, partition)) is not NONE:
            assert code in (*RETRIED, *PASSING), code
            await asyncio.sleep(0.02)
        self.sequences[partition] = self.sequences.get(partition, 0) + 1

    async def _try(self, request: Any, partition: int) -> ErrorCode:
        leader = leader_of(self.cluster, index=partition)
        if leader not in self.cluster.nodes:
            return ErrorCode.LEADER_NOT_AVAILABLE
        try:
            talker = await self.cluster.connect(leader)
            response = await talker.ask(12 if self.version == 2 else 9, request)
            talker.connection.close()
        except OSError:
            return ErrorCode.LEADER_NOT_AVAILABLE
        return ErrorCode(response.responses[0].partition_responses[0].error_code)


async def strike(cluster: Cluster, workloads: list["asyncio.Task[None]"], chance: random.Random) -> None:
    """Kill one of the two brokers that are not the controller, and restart it once it is fenced."""
    for _ in range(ROUNDS):
        await asyncio.sleep(chance.uniform(0.05, 0.5))
        victim = chance.choice((2, 3))
        cluster.kill(victim)
        await asyncio.sleep(chance.uniform(0.1, 1.0))
        await cluster.start(victim)
        await cluster.until(lambda: _all_in_sync(cluster), 20.0)
        if all(each.done() for each in workloads):
            return


def _all_in_sync(cluster: Cluster) -> bool:
    topics = cluster.nodes[1].broker.image.topics
    return all(len(each.isr) == 3 for name in ("t", STATE_TOPIC) for each in topics[name].partitions)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("version", [1, 2], ids=["v1", "v2"])
def test_transactions_are_atomic_though_brokers_die(version: int, seed: int) -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster, partitions=[[1, 2, 3], [2, 3, 1], [3, 1, 2]])
        await coordinator(cluster, "a")
        writers = [TransactionalWorkload(cluster, name, version, seed) for name in ("a", "b", "c")]
        running = [asyncio.create_task(writer.run()) for writer in writers]
        await strike(cluster, running, random.Random(seed))
        await asyncio.gather(*running)
        for writer in writers:
            while not (await writer.described()).transaction_state.startswith("Complete"):
                await asyncio.sleep(0.05)
        expected = sorted(each for writer in writers for each in writer.committed)
        for partition in range(PARTITIONS):
            talker = await cluster.connect(leader_of(cluster, index=partition))
            assert sorted(await values(talker, partition=partition)) == expected

    on_cluster(script, settings=SETTINGS, seed=seed + 1)
