"""Who looks after which group here: a shard for each partition of the offsets topic that this node leads."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from moldau.broker.coordinators.host import CoordinatorHost
from moldau.broker.coordinators.shards import Shards
from moldau.broker.groups.lag import LagWatch, Position, positions
from moldau.broker.groups.offsets_topic import new_offsets_topic
from moldau.broker.groups.shard import Shard
from moldau.broker.internal_topics import OFFSETS_TOPIC
from moldau.machines.metadata.delta import MetadataDelta
from moldau.machines.metadata.image import MetadataImage


class Groups:
    """Finds the shard of a group; tells all shards of topics that are deleted."""

    def __init__(self, broker: CoordinatorHost, on_failure: Callable[[str, BaseException], None]) -> None:
        self._shards: Shards[Shard] = Shards(
            broker,
            OFFSETS_TOPIC,
            new_offsets_topic,
            lambda partition: Shard(partition, broker, self.newest_image, on_failure),
            on_failure,
        )
        self.shard_of = self._shards.shard_of
        self.shard_at = self._shards.shard_at
        self.shards = self._shards.all
        self.coordinator_of = self._shards.coordinator_of
        self._broker = broker
        self._notices: set[asyncio.Task[None]] = set()
        self._image = MetadataImage()
        self._knows_all = False
        self._lag_watch = LagWatch(broker, self.positions)

    async def follow(self, image: MetadataImage, delta: MetadataDelta) -> None:
        """Called when the partitions are in step with the image, before handlers see it."""
        self._image = image
        before = self.shards()
        await self._shards.follow(image, delta)
        if delta.removed:
            # A shard that begins with this image may hold what another coordinator, which has seen it before us,
            # acknowledged for a new topic of the same name. It compares what it loads with the image.
            for shard in self.shards():
                if shard in before:
                    self._notify(shard.topics_deleted(delta.removed.values()))

    def newest_image(self) -> MetadataImage | None:
        """At least as new as what made this broker coordinate what it does. None while this life of the broker may not
        have heard of topics that an earlier one knew.
        """
        return self._image if self._knows_all else None

    def _notify(self, notice: Coroutine[Any, Any, None]) -> None:
        """Decided in the order of notices, and not waited for: the metadata must go on."""
        task = asyncio.get_running_loop().create_task(notice)
        self._notices.add(task)
        task.add_done_callback(self._notices.discard)

    async def positions(self) -> list[Position]:
        """Return the committed offsets and lags of all groups that are coordinated here."""
        return await positions(self._broker, self.shards())

    def start(self) -> None:
        """The metadata is here as it was when this life of the broker began, and newer: look for topics that are gone,
        and begin to look after lags.
        """
        self._knows_all = True
        for shard in self.shards():
            self._notify(shard.metadata_known())
        self._lag_watch.start()

    async def close(self) -> None:
        """Stop loading, write what was decided."""
        await self._lag_watch.stop()
        await self._shards.close()
        for notice in self._notices:  # what they wait for will not come; whoever loads the shard next finds it again
            notice.cancel()
        await asyncio.gather(*self._notices, return_exceptions=True)
