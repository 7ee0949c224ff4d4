"""The brokers of a cluster from outside: what each holds and leads, and forgetting one that is gone for good."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from moldau.client import requests
from moldau.client.async_client import AsyncClient
from moldau.client.errors import NOBODY_CONTROLS, ConnectionLost, NoAnswer, Unreachable, check
from moldau.client.metadata import TopicView
from moldau.client.reassignment_plans import Assignment
from moldau.client.types import Resource, ResourceKind
from moldau.machines.metadata.image import CORDONED
from moldau.model.errors import KafkaError
from moldau.model.ids import Address, TopicPartition
from moldau.wire import messages

EVERY_FOLDER: Final = "*"
SILENT: Final = (KafkaError, ConnectionLost, NoAnswer, Unreachable)


@dataclass(frozen=True, slots=True)
class BrokerState:
    """A broker, and its part of the work. The address is None, and sizes too, for one that nobody reaches."""

    node_id: int
    address: Address | None
    rack: str | None
    is_fenced: bool
    replicas: int
    out_of_sync: int
    leaders: int
    preferred: int  # partitions that it would lead if all were well
    size_bytes: int | None = None
    free_bytes: int | None = None
    is_drained: bool | None = None  # gets no new partitions; None where it does not tell


class Brokers:
    """What a client may ask about brokers."""

    def __init__(self, client: AsyncClient) -> None:
        self.client = client

    async def all(self, *, with_sizes: bool = True) -> list[BrokerState]:
        """Every broker that is registered or holds something, by id."""
        view = await self.client.describe_cluster(with_fenced=True)
        known = {int(each.node_id): each for each in view.brokers}
        work = _Work(await self.client.describe_topics())
        states = []
        for node_id in sorted({*known, *work.replicas}):
            broker = known.get(node_id)
            is_fenced = broker is None or broker.is_fenced
            told = (None, None, None) if is_fenced or not with_sizes else await self._folders(node_id)
            states.append(
                BrokerState(
                    node_id,
                    Address(broker.host, broker.port) if broker and broker.host else None,
                    broker.rack if broker else None,
                    is_fenced,
                    work.replicas[node_id],
                    work.out_of_sync[node_id],
                    work.leaders[node_id],
                    work.preferred[node_id],
                    *told,
                )
            )
        return states

    async def unregister(self, node_id: int) -> None:
        """Forget a broker; one that still runs comes back by itself."""

        async def ask() -> None:
            answer = await self.client.send_to_controller(messages.UnregisterBrokerRequest(broker_id=node_id))
            check(answer.error_code, answer.error_message)

        await self.client.persist(ask, final=NOBODY_CONTROLS)

    async def let_out(self, node_id: int) -> None:
        """Give it no new partitions from now on, whether it runs or not."""
        await self._set_cordon(node_id, requests.SET, EVERY_FOLDER)

    async def let_in(self, node_id: int) -> None:
        """Give it new partitions again."""
        await self._set_cordon(node_id, requests.DELETE, None)

    async def _set_cordon(self, node_id: int, operation: int, text: str | None) -> None:
        resource = Resource(ResourceKind.BROKER, str(node_id))
        request = requests.alter_configs(resource, [(CORDONED, operation, text)], validate_only=False)
        answer = await self.client.persist(lambda: self.client.send(request))  # anybody: it may be down
        check(answer.responses[0].error_code, answer.responses[0].error_message)

    async def _folders(self, node_id: int) -> tuple[int | None, int | None, bool | None]:
        """Bytes that its logs have and that its disk has left, and whether it is drained; None where it is silent."""
        try:
            answer = await self.client.send(messages.DescribeLogDirsRequest(topics=None), node=node_id)
            check(answer.error_code)
        except SILENT:
            return None, None, None
        size = sum(
            each.partition_size for folder in answer.results for topic in folder.topics for each in topic.partitions
        )
        free = sum(folder.usable_bytes for folder in answer.results if folder.usable_bytes >= 0)
        is_cordoned = any(folder.is_cordoned for folder in answer.results)
        return size, free if any(folder.usable_bytes >= 0 for folder in answer.results) else None, is_cordoned


class _Work:
    """Who holds and leads how much."""

    def __init__(self, topics: Iterable[TopicView]) -> None:
        self.replicas: Counter[int] = Counter()
        self.out_of_sync: Counter[int] = Counter()
        self.leaders: Counter[int] = Counter()
        self.preferred: Counter[int] = Counter()
        for partition in (each for topic in topics for each in topic.partitions):
            self.replicas.update(partition.replicas)
            self.out_of_sync.update(each for each in partition.replicas if each not in partition.isr)
            self.leaders.update([partition.leader] if partition.leader >= 0 else [])
            self.preferred.update(partition.replicas[:1])


def assignment_of(topics: Iterable[TopicView]) -> Assignment:
    """Who holds what, in order of preference."""
    return {
        TopicPartition(topic.name, each.index): each.replicas
        for topic in topics
        for each in topic.partitions
        if each.replicas
    }
