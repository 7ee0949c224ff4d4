"""Administration of brokers: their replicas and leaders, cordoning, unregistration."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from moldau.client import requests
from moldau.client.async_client import AsyncClient
from moldau.client.errors import NO_ACTIVE_CONTROLLER, ConnectionLost, ResponseTimeout, Unreachable, check
from moldau.client.metadata import TopicView
from moldau.client.reassignment_plans import Assignment
from moldau.client.types import Resource, ResourceKind
from moldau.machines.metadata.image import CORDONED
from moldau.model.errors import KafkaError
from moldau.model.ids import Address, TopicPartition
from moldau.wire import messages

EVERY_LOG_DIR: Final = "*"
REQUEST_FAILURES: Final = (KafkaError, ConnectionLost, ResponseTimeout, Unreachable)


@dataclass(frozen=True, slots=True)
class BrokerState:
    """A broker and its workload. The address is None for an unknown broker, sizes for an unreachable one."""

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
    is_drained: bool | None = None  # gets no new partitions; None if unknown


class Brokers:
    """Administers brokers."""

    def __init__(self, client: AsyncClient) -> None:
        self.client = client

    async def all(self, *, with_sizes: bool = True) -> list[BrokerState]:
        """Return every broker that is registered or has replicas, by id."""
        view = await self.client.describe_cluster(with_fenced=True)
        known = {int(each.node_id): each for each in view.brokers}
        work = _Workload(await self.client.describe_topics())
        states = []
        for node_id in sorted({*known, *work.replicas}):
            broker = known.get(node_id)
            is_fenced = broker is None or broker.is_fenced
            log_dirs = (None, None, None) if is_fenced or not with_sizes else await self._describe_log_dirs(node_id)
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
                    *log_dirs,
                )
            )
        return states

    async def unregister(self, node_id: int) -> None:
        """Unregister a broker; a running one registers again."""

        async def attempt() -> None:
            response = await self.client.send_to_controller(messages.UnregisterBrokerRequest(broker_id=node_id))
            check(response.error_code, response.error_message)

        await self.client.retry(attempt, final=NO_ACTIVE_CONTROLLER)

    async def cordon(self, node_id: int) -> None:
        """Assign no new partitions to a broker, whether it runs or not."""
        await self._set_cordon(node_id, requests.SET, EVERY_LOG_DIR)

    async def uncordon(self, node_id: int) -> None:
        """Assign new partitions to a broker again."""
        await self._set_cordon(node_id, requests.DELETE, None)

    async def _set_cordon(self, node_id: int, operation: int, text: str | None) -> None:
        resource = Resource(ResourceKind.BROKER, str(node_id))
        request = requests.alter_configs(resource, [(CORDONED, operation, text)], validate_only=False)
        response = await self.client.retry(lambda: self.client.send(request))  # any broker: this one may be down
        check(response.responses[0].error_code, response.responses[0].error_message)

    async def _describe_log_dirs(self, node_id: int) -> tuple[int | None, int | None, bool | None]:
        """Return log bytes, free bytes, and whether the broker is cordoned; None if it does not respond."""
        try:
            response = await self.client.send(messages.DescribeLogDirsRequest(topics=None), node=node_id)
            check(response.error_code)
        except REQUEST_FAILURES:
            return None, None, None
        size = sum(
            each.partition_size for log_dir in response.results for topic in log_dir.topics for each in topic.partitions
        )
        free = sum(log_dir.usable_bytes for log_dir in response.results if log_dir.usable_bytes >= 0)
        is_cordoned = any(log_dir.is_cordoned for log_dir in response.results)
        return size, free if any(log_dir.usable_bytes >= 0 for log_dir in response.results) else None, is_cordoned


class _Workload:
    """Counts replicas and leaders by broker."""

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
    """Return the replicas of every partition, in order of preference."""
    return {
        TopicPartition(topic.name, each.index): each.replicas
        for topic in topics
        for each in topic.partitions
        if each.replicas
    }
