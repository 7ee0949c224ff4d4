"""Limits on how fast moved partitions are copied: settings of the topics and brokers that take part, put on and off."""

import contextlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from moldau.client.async_client import AsyncClient
from moldau.client.brokers import SILENT
from moldau.client.errors import Unreachable
from moldau.client.reassignments import by_topic
from moldau.client.types import ConfigSource, Resource, ResourceKind
from moldau.model.errors import BrokerNotAvailable, UnknownTopicOrPartition
from moldau.model.ids import TopicPartition

LEADER_REPLICAS: Final = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS: Final = "follower.replication.throttled.replicas"
LEADER_RATE: Final = "leader.replication.throttled.rate"
FOLLOWER_RATE: Final = "follower.replication.throttled.rate"
RATES: Final = (LEADER_RATE, FOLLOWER_RATE)
REPLICAS: Final = (LEADER_REPLICAS, FOLLOWER_REPLICAS)


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
        serving: Collection[int],
        keeps_others: bool = False,
    ) -> None:
        """Whoever holds a partition sends it, and whoever is to hold it takes it, no faster than this per second.

        A broker that does not serve sends nothing, and nobody else tells what is set for it: it is left out. If
        something fails half-way, what was set is taken back. Rates come first: a refused one has changed nothing.
        """
        before: dict[Resource, dict[str, str]] = {}
        try:
            for broker in takers_and_senders(current, target):
                if broker not in serving:
                    continue
                resource = _broker(broker)
                before[resource] = await self._own(resource, RATES)
                await self.client.alter_configs(resource, dict.fromkeys(RATES, str(rate_bytes)))
            for topic, places in by_topic(target):
                resource, listed = _topic(topic), _listed(places, current, target)
                before[resource] = await self._own(resource, REPLICAS)
                await self._list(resource, listed, keeps_others=keeps_others)
        except BaseException:
            await self._restore(before)
            raise

    async def _list(self, resource: Resource, listed: Mapping[str, str], *, keeps_others: bool) -> None:
        if keeps_others:
            await self.client.alter_configs(resource, appended=listed)
        else:
            await self.client.alter_configs(resource, listed)

    async def _restore(self, before: Mapping[Resource, Mapping[str, str]]) -> None:
        """As well as it goes, and the one that failed last: whoever does not answer is waited for."""
        for resource, values in before.items():
            names = RATES if resource.kind is ResourceKind.BROKER else REPLICAS
            with contextlib.suppress(*SILENT):
                await self.client.alter_configs(
                    resource, values, removed=[name for name in names if name not in values]
                )

    async def take_off(self, topics: Iterable[str], brokers: Iterable[int]) -> list[str]:
        """Remove what `put_on` set; the names of those that had any."""
        freed = []
        for topic in topics:
            freed += await self._clear(_topic(topic), REPLICAS)
        for broker in brokers:
            freed += await self._clear(_broker(broker), RATES)
        return freed

    async def _clear(self, resource: Resource, names: Sequence[str]) -> list[str]:
        try:
            found = await self._own(resource, names)
            if not found:
                return []
            await self.client.alter_configs(resource, removed=found)
        except (UnknownTopicOrPartition, BrokerNotAvailable, Unreachable):
            return []  # deleted meanwhile, or a broker that is down, which nobody else may answer for
        return [f"{resource.kind.name.lower()} {resource.name}"]

    async def _own(self, resource: Resource, names: Sequence[str]) -> dict[str, str]:
        """Only what was set for this one: a default for all brokers is somebody's decision, not a move's."""
        own = (ConfigSource.TOPIC, ConfigSource.DYNAMIC_BROKER)
        entries = await self.client.describe_configs(resource, names)
        return {each.name: each.value or "" for each in entries if each.source in own}


def _topic(name: str) -> Resource:
    return Resource(ResourceKind.TOPIC, name)


def _broker(node_id: int) -> Resource:
    return Resource(ResourceKind.BROKER, str(node_id))


def _listed(
    places: Iterable[TopicPartition],
    current: Mapping[TopicPartition, Sequence[int]],
    target: Mapping[TopicPartition, Sequence[int]],
) -> dict[str, str]:
    """The replicas of a topic that send, and those that take, as Kafka writes them."""
    senders, takers = [], []
    for each in places:
        senders += [f"{each.partition}:{broker}" for broker in current[each]]
        takers += [f"{each.partition}:{broker}" for broker in target[each] if broker not in current[each]]
    texts = {LEADER_REPLICAS: ",".join(senders), FOLLOWER_REPLICAS: ",".join(takers)}
    return {name: text for name, text in texts.items() if text}


def takers_and_senders(
    current: Mapping[TopicPartition, Sequence[int]], target: Mapping[TopicPartition, Sequence[int]]
) -> list[int]:
    return sorted({broker for place in target for broker in (*current[place], *target[place])})
