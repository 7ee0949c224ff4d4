"""Asks every broker how far the transformers are: whoever tells it at all must know what was committed by then.

Clients leave a coordinator that takes no commits any more, so they hardly ever hear one that was deposed. This one asks
on.
"""

import asyncio
import random
from typing import Final

from moldau.client.errors import PASSING
from moldau.client.groups import FETCH_AT_MOST
from moldau.model.errors import ErrorCode, KafkaError
from moldau.model.ports import Ports
from moldau.wire import messages
from moldau_dev.simulation.cluster.roster import Roster
from moldau_dev.simulation.cluster.transformers import GROUP, TransformLedger
from moldau_dev.simulation.workload import Ledger, Violation, client

PAUSE_S_MAX: Final = 2.0


class OffsetWitness:
    """Runs until it should stop; `answers` counts those that told an offset."""

    def __init__(
        self, ports: Ports, roster: Roster, ledger: Ledger, results: TransformLedger, chance: random.Random
    ) -> None:
        self.should_stop = False
        self.answers = 0
        self._roster, self._ledger, self._results, self._chance = roster, ledger, results, chance
        self._client = client(ports, roster.bootstrap, "offset-witness")

    async def run(self) -> None:
        async with self._client, asyncio.TaskGroup() as group:
            for seat in self._roster.seats:
                if seat.is_broker:
                    group.create_task(self._ask_on(seat.node_id))

    async def _ask_on(self, node_id: int) -> None:
        while not self.should_stop:
            await asyncio.sleep(self._chance.uniform(0.0, PAUSE_S_MAX))
            try:
                await self._ask(node_id)
            except (OSError, KafkaError) as error:
                await self._ledger.bear(error)

    async def _ask(self, node_id: int) -> None:
        source = self._chance.randrange(self._ledger.partitions)
        floor = self._results.committed.get(source, 0)
        whole = messages.OffsetFetchRequest
        topics = [whole.OffsetFetchRequestTopic(name=self._ledger.topic, partition_indexes=[source])]
        if not self._client.metadata.brokers:
            await self._client.refresh([])
        answer = await self._client.send(
            whole(group_id=GROUP, topics=topics, require_stable=True), node=node_id, version_at_most=FETCH_AT_MOST
        )
        told = answer.topics[0].partitions[0]
        for code in map(ErrorCode, (answer.error_code, told.error_code)):
            if code is not ErrorCode.NONE:
                if code not in PASSING:
                    raise Violation(f"Broker {node_id} tells no offset: {code.name}")
                return
        self.answers += 1
        self._results.resume(source, max(int(told.committed_offset), 0), floor)
