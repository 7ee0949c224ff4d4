"""The share coordinator: one shard for each partition of `__share_group_state` that this node leads."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from moldau.broker.coordinators.host import CoordinatorHost
from moldau.broker.coordinators.shards import Shards
from moldau.broker.internal_topics import SHARE_STATE_TOPIC
from moldau.broker.shares.persister import SharePartitionKey
from moldau.broker.shares.state_shard import ShareStateShard
from moldau.broker.shares.state_topic import coordinator_key, new_share_state_topic
from moldau.machines.metadata.delta import MetadataDelta
from moldau.machines.metadata.image import MetadataImage
from moldau.machines.share_state.machine import Summary
from moldau.machines.shares.state import ShareState, StateWrite


class ShareCoordinator:
    """The share-state APIs for the share partitions that are coordinated here; raises NotCoordinator for others."""

    def __init__(self, broker: CoordinatorHost, on_failure: Callable[[str, BaseException], None]) -> None:
        self._shards: Shards[ShareStateShard] = Shards(
            broker,
            SHARE_STATE_TOPIC,
            new_share_state_topic,
            lambda partition: ShareStateShard(partition, broker, self._newest_image, on_failure),
            on_failure,
        )
        self._image = MetadataImage()
        self._is_metadata_complete = False
        self._notifications: set[asyncio.Task[None]] = set()

    async def coordinator_of(self, key: SharePartitionKey) -> int:
        """The broker that coordinates a share partition. Creates the topic if necessary."""
        return await self._shards.coordinator_of(coordinator_key(key))

    def _shard(self, key: SharePartitionKey) -> ShareStateShard:
        return self._shards.shard_of(coordinator_key(key))

    # Share-state APIs

    async def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int) -> None:
        shard = self._shard(key)
        await shard.commit(lambda machine: machine.decide_initialize(key, state_epoch, start_offset, now=shard.now))

    async def read(self, key: SharePartitionKey, leader_epoch: int) -> ShareState:
        shard = self._shard(key)
        state: ShareState = await shard.commit(lambda machine: machine.decide_read(key, leader_epoch, now=shard.now))
        return state

    async def write(self, key: SharePartitionKey, state_epoch: int, leader_epoch: int, state: StateWrite) -> None:
        shard = self._shard(key)
        await shard.commit(lambda machine: machine.decide_write(key, state_epoch, leader_epoch, state, now=shard.now))

    async def delete(self, key: SharePartitionKey) -> None:
        await self._shard(key).commit(lambda machine: machine.decide_delete(key))

    async def summary(self, key: SharePartitionKey) -> Summary:
        summary: Summary = await self._shard(key).read(lambda machine: machine.summary(key))
        return summary

    # Lifecycle

    async def follow(self, image: MetadataImage, delta: MetadataDelta) -> None:
        """Called when the partitions are in step with the image, before handlers see it."""
        self._image = image
        before = self._shards.all()
        await self._shards.follow(image, delta)
        if delta.removed:
            removed = frozenset(topic.topic_id for topic in delta.removed.values())
            for shard in self._shards.all():  # a new shard compares the loaded states with the image
                if shard in before:
                    self._notify(shard.topics_deleted(removed))

    def _newest_image(self) -> MetadataImage | None:
        return self._image if self._is_metadata_complete else None

    def _notify(self, notification: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(notification)
        self._notifications.add(task)
        task.add_done_callback(self._notifications.discard)

    def start(self) -> None:
        """The metadata of this run is complete: a missing topic is a deleted one."""
        self._is_metadata_complete = True

    async def close(self) -> None:
        """Write pending decisions."""
        await self._shards.close()
        for notification in self._notifications:  # the next coordinator finds deleted topics when it loads the shard
            notification.cancel()
        await asyncio.gather(*self._notifications, return_exceptions=True)
