"""Limits on how fast moved partitions are copied: settings of the topics and brokers that take part, put on and off."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from moldau.client.asynchronous import AsyncClient
from moldau.client.errors import Unreachable
from moldau.client.reassignments import by_topic
from moldau.client.words import ConfigSource, Resource, ResourceKind
from moldau.model.errors import BrokerNotAvailable, UnknownTopicOrPartition
from moldau.model.ids import TopicPartition

LEADER_REPLICAS: Final = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS: Final = "follower.replication.throttled.replicas"
LEADER_RATE: Final = "leader.replication.throttled.rate"
FOLLOWER_RATE: Final = "follower.replication.throttled.rate"


class Throttles:
    """What a client sets so that a move does not take all of the network."""

    def __init__(self, client: AsyncClient) -> None:
        self.client = client

    async def put_on(
        self,
        current: Mapping[TopicPartition, Sequence[int]],
        target: Mapping[TopicPartition, Sequence[int]],
        rate_bytes: int,
        *,
        keeps_others: bool = False,
    ) -> None:
        """Whoever holds a partition sends it, and whoever is to hold it takes it, no faster than this per second."""
        for topic, places in by_topic(target):
            senders = [f"{each.partition}:{broker}" for each in places for broker in current[each]]
            takers = [
                f"{each.partition}:{broker}"
                for each in places
                for broker in target[each]
                if broker not in current[each]
            ]
            texts = {LEADER_REPLICAS: ",".join(senders), FOLLOWER_REPLICAS: ",".join(takers)}
            told = {name: text for name, text in texts.items() if text}
            resource = Resource(ResourceKind.TOPIC, topic)
            if keeps_others:
                await self.client.alter_configs(resource, appended=told)
            else:
                await self.client.alter_configs(resource, told)
        await self.set_rate(takers_and_senders(current, target), rate_bytes)

    async def set_rate(self, brokers: Iterable[int], rate_bytes: int) -> None:
        rates = {LEADER_RATE: str(rate_bytes), FOLLOWER_RATE: str(rate_bytes)}
        for broker in brokers:
            await self.client.alter_configs(Resource(ResourceKind.BROKER, str(broker)), rates)

    async def take_off(self, topics: Iterable[str], brokers: Iterable[int]) -> list[str]:
        """Remove what `put_on` set; the names of those that had any."""
        freed = []
        for topic in topics:
            freed += await self._clear(Resource(ResourceKind.TOPIC, topic), (LEADER_REPLICAS, FOLLOWER_REPLICAS))
        for broker in brokers:
            freed += await self._clear(Resource(ResourceKind.BROKER, str(broker)), (LEADER_RATE, FOLLOWER_RATE))
        return freed

    async def _clear(self, resource: Resource, names: Sequence[str]) -> list[str]:
        """Only what was set for this one: a default for all brokers is somebody's decision, not a move's."""
        own = (ConfigSource.TOPIC, ConfigSource.DYNAMIC_BROKER)
        try:
            found = [each.name for each in await self.client.describe_configs(resource, names) if each.source in own]
            if not found:
                return []
            await self.client.alter_configs(resource, removed=found)
        except (UnknownTopicOrPartition, BrokerNotAvailable, Unreachable):
            return []  # deleted meanwhile, or a broker that is down, which nobody else may answer for
        return [f"{resource.kind.name.lower()} {resource.name}"]


def takers_and_senders(
    current: Mapping[TopicPartition, Sequence[int]], target: Mapping[TopicPartition, Sequence[int]]
) -> list[int]:
    return sorted({broker for place in target for broker in (*current[place], *target[place])})
