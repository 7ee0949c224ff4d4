"""The schedule coordinator: one shard for each partition of `__schedule_state` that this node leads.

Schedules are configs of groups, in the metadata (decision 34). The leader of the partition to which a schedule's name
hashes publishes its ticks. The topic is created when the first schedule is defined.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

from moldau.broker.coordinators.host import ClusterView, CoordinatorHost
from moldau.broker.coordinators.shards import Shards
from moldau.broker.internal_topics import SCHEDULE_STATE_TOPIC
from moldau.broker.schedules.schedule_shard import ScheduleShard, shard_index
from moldau.machines.metadata.delta import MetadataDelta
from moldau.machines.metadata.image import MetadataImage, Resource, ResourceType
from moldau.machines.metadata.topics import NewTopic
from moldau.machines.schedules import Schedule, schedule_of
from moldau.model.errors import KafkaError

logger = logging.getLogger(__name__)

PARTITIONS: Final = 8
REPLICAS_MAX: Final = 3
RETRY_S: Final = 1.0


def new_schedule_state_topic(view: ClusterView) -> NewTopic:
    """Three replicas, or as many as there are active brokers."""
    replicas = max(1, min(REPLICAS_MAX, sum(each.is_active for each in view.image.brokers.values())))
    configs = [
        ("cleanup.policy", "compact"),
        ("compression.type", "producer"),
        ("min.insync.replicas", str(min(2, replicas))),
    ]
    return NewTopic(SCHEDULE_STATE_TOPIC, PARTITIONS, replicas, configs=configs)


class ScheduleCoordinator:
    """Follows the metadata: which schedules there are, and which of them this broker coordinates."""

    def __init__(self, broker: CoordinatorHost, on_failure: Callable[[str, BaseException], None]) -> None:
        self._shards: Shards[ScheduleShard] = Shards(
            broker,
            SCHEDULE_STATE_TOPIC,
            new_schedule_state_topic,
            lambda partition: ScheduleShard(partition, broker, self._of_shard, self._is_complete, on_failure),
            on_failure,
        )
        self._schedules: dict[int, dict[str, Schedule]] = {}  # by shard
        self._is_metadata_complete = False
        self._creation: asyncio.Task[None] | None = None

    def _of_shard(self, index: int) -> Mapping[str, Schedule]:
        return self._schedules.get(index, {})

    def _is_complete(self) -> bool:
        return self._is_metadata_complete

    async def follow(self, image: MetadataImage, delta: MetadataDelta) -> None:
        """Called when the partitions are in step with the image, before handlers see it."""
        groups = [resource for resource in delta.configs if resource.type == ResourceType.GROUP]
        for resource in groups:
            self._define(resource, image)
        await self._shards.follow(image, delta)
        if groups or delta.created:  # a schedule may wait for its topic
            for shard in self._shards.all():
                shard.wake()
        self._ensure_topic(image)

    def _define(self, resource: Resource, image: MetadataImage) -> None:
        of_shard = self._schedules.setdefault(shard_index(resource.name, PARTITIONS), {})
        schedule = schedule_of(resource.name, image.configs.get(resource, {}))
        if schedule is None:
            of_shard.pop(resource.name, None)
        else:
            of_shard[resource.name] = schedule

    def _ensure_topic(self, image: MetadataImage) -> None:
        if SCHEDULE_STATE_TOPIC not in image.topics and self._creation is None and any(self._schedules.values()):
            self._creation = asyncio.get_running_loop().create_task(self._create_topic())

    async def _create_topic(self) -> None:
        """Retry until it exists: several brokers try at the same time, and one succeeds."""
        try:
            while True:
                try:
                    await self._shards.coordinator_of("")
                    return
                except KafkaError as error:
                    logger.debug("%s: %s", SCHEDULE_STATE_TOPIC, error.message)
                await asyncio.sleep(RETRY_S)
        finally:
            self._creation = None

    def start(self) -> None:
        """The metadata of this run is complete: a missing definition is a deleted one."""
        self._is_metadata_complete = True

    async def close(self) -> None:
        """Write pending decisions."""
        if self._creation is not None:
            self._creation.cancel()
            await asyncio.gather(self._creation, return_exceptions=True)
        await self._shards.close()
