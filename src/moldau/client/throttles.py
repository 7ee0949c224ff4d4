"""Replication throttles of a reassignment: settings of its topics and brokers, applied and removed."""

import contextlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from moldau.client.async_client import AsyncClient
from moldau.client.brokers import REQUEST_FAILURES
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
    """Sets the throttles that keep a reassignment from saturating the network."""

    def __init__(self, client: AsyncClient) -> None:
        self.client = client

    async def apply(
        self,
        current: Mapping[TopicPartition, Sequence[int]],
        target: Mapping[TopicPartition, Sequence[int]],
        rate_bytes: int,
        *,
        serving: Collection[int],
        keeps_others: bool = False,
    ) -> None:
        """Limit the rate of leaders that send and followers that fetch moved partitions.

        Brokers that are not serving are skipped: they neither send records nor report their settings. After a failure,
        previous values are restored. Rates are set first, so that an invalid one is rejected before any other change.
        """
        before: dict[Resource, dict[str, str]] = {}
        try:
            for broker in takers_and_senders(current, target):
                if broker not in serving:
                    continue
                resource = _broker(broker)
                before[resource] = await self._own(resource, RATES)
                await self.client.alter_configs(resource, dict.fromkeys(RATES, str(rate_bytes)))
            for topic, topic_partitions in by_topic(target):
                resource, listed = _topic(topic), _listed(topic_partitions, current, target)
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
        """Restore previous values as far as possible, the failed resource last: an unreachable broker delays it."""
        for resource, values in before.items():
            names = RATES if resource.kind is ResourceKind.BROKER else REPLICAS
            with contextlib.suppress(*REQUEST_FAILURES):
                await self.client.alter_configs(
                    resource, values, removed=[name for name in names if name not in values]
                )

    async def remove(self, topics: Iterable[str], brokers: Iterable[int]) -> list[str]:
        """Remove the throttles; return the names of resources that had any."""
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
            return []  # deleted meanwhile, or a broker that is down: only the broker itself can describe its settings
        return [f"{resource.kind.name.lower()} {resource.name}"]

    async def _own(self, resource: Resource, names: Sequence[str]) -> dict[str, str]:
        """Return the values set on this resource itself: a cluster-wide default does not belong to the reassignment."""
        own = (ConfigSource.TOPIC, ConfigSource.DYNAMIC_BROKER)
        entries = await self.client.describe_configs(resource, names)
        return {each.name: each.value or "" for each in entries if each.source in own}


def _topic(name: str) -> Resource:
    return Resource(ResourceKind.TOPIC, name)


def _broker(node_id: int) -> Resource:
    return Resource(ResourceKind.BROKER, str(node_id))


def _listed(
    topic_partitions: Iterable[TopicPartition],
    current: Mapping[TopicPartition, Sequence[int]],
    target: Mapping[TopicPartition, Sequence[int]],
) -> dict[str, str]:
    """Return the throttled replicas of a topic, in Kafka's format."""
    senders, takers = [], []
    for each in topic_partitions:
        senders += [f"{each.partition}:{broker}" for broker in current[each]]
        takers += [f"{each.partition}:{broker}" for broker in target[each] if broker not in current[each]]
    texts = {LEADER_REPLICAS: ",".join(senders), FOLLOWER_REPLICAS: ",".join(takers)}
    return {name: text for name, text in texts.items() if text}


def takers_and_senders(
    current: Mapping[TopicPartition, Sequence[int]], target: Mapping[TopicPartition, Sequence[int]]
) -> list[int]:
    return sorted(
        {broker for topic_partition in target for broker in (*current[topic_partition], *target[topic_partition])}
    )
