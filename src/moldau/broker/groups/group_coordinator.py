"""The group coordinator: one shard for each partition of `__consumer_offsets` that this node leads."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from moldau.broker.coordinators.host import CoordinatorHost
from moldau.broker.coordinators.shards import Shards
from moldau.broker.groups.lag import LagWatch, Position, positions
from moldau.broker.groups.offsets_topic import new_offsets_topic
from moldau.broker.groups.shard import Shard, ShareStates
from moldau.broker.internal_topics import OFFSETS_TOPIC
from moldau.machines.metadata.delta import MetadataDelta
from moldau.machines.metadata.image import MetadataImage


class Groups:
    """Finds the shard of a group; notifies all shards of deleted topics."""

    def __init__(
        self, broker: CoordinatorHost, share_states: ShareStates, on_failure: Callable[[str, BaseException], None]
    ) -> None:
        self._shards: Shards[Shard] = Shards(
            broker,
            OFFSETS_TOPIC,
            new_offsets_topic,
            lambda partition: Shard(partition, broker, self.newest_image, share_states, on_failure),
            on_failure,
        )
        self.shard_of = self._shards.shard_of
        self.shard_at = self._shards.shard_at
        self.shards = self._shards.all
        self.coordinator_of = self._shards.coordinator_of
        self._broker = broker
        self._notifications: set[asyncio.Task[None]] = set()
        self._image = MetadataImage()
        self._is_metadata_complete = False
        self._lag_watch = LagWatch(broker, self.positions)

    async def follow(self, image: MetadataImage, delta: MetadataDelta) -> None:
        """Follow an image. Called when it is in effect in the partitions, before handlers see it."""
        self._image = image
        before = self.shards()
        await self._shards.follow(image, delta)
        if delta.removed:
            # A shard created by this image is not notified: its log may have offsets of a new topic of the same name,
            # acknowledged by a coordinator that saw the image earlier. It compares the loaded offsets with the image.
            for shard in self.shards():
                if shard in before:
                    self._notify(shard.topics_deleted(delta.removed.values()))

    def newest_image(self) -> MetadataImage | None:
        """Return the newest image, at least as new as the one that made this broker the coordinator. None until the
        metadata of this run is complete: topics of the previous run may still be missing.
        """
        return self._image if self._is_metadata_complete else None

    def _notify(self, notification: Coroutine[Any, Any, None]) -> None:
        """Start the notification without waiting, so that the metadata is not delayed; shards keep their order."""
        task = asyncio.get_running_loop().create_task(notification)
        self._notifications.add(task)
        task.add_done_callback(self._notifications.discard)

    async def positions(self) -> list[Position]:
        """Return the committed offsets and lags of all groups that are coordinated here."""
        return await positions(self._broker, self.shards())

    def start(self) -> None:
        """The metadata of this run is complete: check for deleted topics, and start to watch lags."""
        self._is_metadata_complete = True
        for shard in self.shards():
            self._notify(shard.metadata_known())
        self._lag_watch.start()

    async def close(self) -> None:
        """Stop loading, and write pending decisions."""
        await self._lag_watch.stop()
        await self._shards.close()
        for notification in self._notifications:  # the next coordinator finds deleted topics when it loads the shard
            notification.cancel()
        await asyncio.gather(*self._notifications, return_exceptions=True)
