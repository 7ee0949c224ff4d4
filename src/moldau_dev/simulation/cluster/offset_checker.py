"""Fetches committed offsets from every broker: each successful response must include all commits so far.

Other clients leave a coordinator that rejects commits, so they rarely read from a deposed one. This client keeps
fetching from all brokers.
"""

import asyncio
import random
from typing import Final

from moldau.client.errors import RETRIABLE
from moldau.client.groups import FETCH_AT_MOST
from moldau.model.errors import ErrorCode, KafkaError
from moldau.model.ports import Ports
from moldau.wire import messages
from moldau_dev.simulation.cluster.topology import Topology
from moldau_dev.simulation.cluster.transformers import GROUP, TransformLedger
from moldau_dev.simulation.workload import Ledger, Violation, client

PAUSE_S_MAX: Final = 2.0


class OffsetChecker:
    """Runs until `should_stop`; `responses` counts the responses with an offset."""

    def __init__(
        self, ports: Ports, topology: Topology, ledger: Ledger, results: TransformLedger, rng: random.Random
    ) -> None:
        self.should_stop = False
        self.responses = 0
        self._topology, self._ledger, self._results, self._rng = topology, ledger, results, rng
        self._client = client(ports, topology.bootstrap, "offset-witness")

    async def run(self) -> None:
        async with self._client, asyncio.TaskGroup() as group:
            for spec in self._topology.specs:
                if spec.is_broker:
                    group.create_task(self._fetch_repeatedly(spec.node_id))

    async def _fetch_repeatedly(self, node_id: int) -> None:
        while not self.should_stop:
            await asyncio.sleep(self._rng.uniform(0.0, PAUSE_S_MAX))
            try:
                await self._fetch(node_id)
            except (OSError, KafkaError) as error:
                await self._ledger.back_off(error)

    async def _fetch(self, node_id: int) -> None:
        source = self._rng.randrange(self._ledger.partitions)
        floor = self._results.committed.get(source, 0)
        whole = messages.OffsetFetchRequest
        topics = [whole.OffsetFetchRequestTopic(name=self._ledger.topic, partition_indexes=[source])]
        if not self._client.metadata.brokers:
            await self._client.refresh([])
        response = await self._client.send(
            whole(group_id=GROUP, topics=topics, require_stable=True), node=node_id, version_at_most=FETCH_AT_MOST
        )
        found = [each for topic in response.topics for each in topic.partitions]  # none if the group has an error
        for code in map(ErrorCode, (response.error_code, *(each.error_code for each in found))):
            if code is not ErrorCode.NONE:
                if code not in RETRIABLE:
                    raise Violation(f"OffsetFetch from broker {node_id} failed: {code.name}")
                return
        self.responses += 1
        self._results.resume(source, max(int(found[0].committed_offset), 0), floor)
