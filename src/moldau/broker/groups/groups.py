"""Who looks after which group here: a shard for each partition of the offsets topic that this node leads."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from moldau.broker.groups.lag import LagWatch
from moldau.broker.groups.loading import Loading
from moldau.broker.groups.offsets_topic import OFFSETS_TOPIC, new_offsets_topic, partition_for
from moldau.broker.groups.shard import Shard
from moldau.broker.partitions.partition import Partition
from moldau.broker.topics import request_topics
from moldau.machines.metadata.delta import MetadataDelta
from moldau.machines.metadata.image import MetadataImage, TopicImage
from moldau.model.errors import CoordinatorNotAvailable, ErrorCode, KafkaError, NotCoordinator
from moldau.model.ids import NO_NODE

if TYPE_CHECKING:
    from moldau.broker.broker import Broker

logger = logging.getLogger(__name__)


class Groups:
    """Finds the shard of a group; makes shards load, lead and end as the metadata says."""

    def __init__(self, broker: "Broker", on_failure: Callable[[str, BaseException], None]) -> None:
        self._broker = broker
        self._on_failure = on_failure
        self._shards: dict[int, Shard] = {}
        self._offline: set[int] = set()  # led here, but not open
        self._partitions = 0  # of the offsets topic, in the whole cluster
        self._creation: asyncio.Task[str | None] | None = None
        self._loading = Loading(on_failure)
        self._notices: set[asyncio.Task[None]] = set()
        self._lag_watch = LagWatch(broker)

    # Whose group it is

    def shard_of(self, group_id: str) -> Shard:
        """The shard that looks after a group; raises if it is not here."""
        if not self._partitions:
            raise NotCoordinator("No broker coordinates groups yet.")
        index = partition_for(group_id, self._partitions)
        shard = self._shards.get(index)
        if shard is None:
            shard = self._begin_late(index)
        return shard

    def shards(self) -> list[Shard]:
        """All that are here, in the order of their partitions."""
        return [self._shards[index] for index in sorted(self._shards)]

    async def coordinator_of(self, group_id: str) -> int:
        """The broker that looks after a group. The first who asks has the offsets topic created."""
        if OFFSETS_TOPIC not in self._broker.image.topics:
            await self._ensure_topic()
        topic = self._broker.image.topics.get(OFFSETS_TOPIC)
        leader = NO_NODE if topic is None else topic.partitions[partition_for(group_id, len(topic.partitions))].leader
        if leader == NO_NODE:
            raise CoordinatorNotAvailable("The group's partition of the offsets topic has no leader.")
        return leader

    async def _ensure_topic(self) -> None:
        """Created once, however many ask at the same time, and though those who asked may be gone by then."""
        if self._creation is None:
            self._creation = asyncio.get_running_loop().create_task(self._create_topic())
        refusal = await asyncio.shield(self._creation)
        if refusal is not None:
            raise CoordinatorNotAvailable(refusal)

    async def _create_topic(self) -> str | None:
        """Why it could not be created, or None."""
        try:
            (created,) = await request_topics(self._broker, [new_offsets_topic(self._broker)])
            if created.error in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                return None
            words = f"The offsets topic cannot be created: {created.message}"
        except KafkaError as error:
            words = f"The offsets topic cannot be created: {error.message}"
        finally:
            self._creation = None
        logger.error(words)
        return words

    # What the metadata says

    async def follow(self, image: MetadataImage, delta: MetadataDelta) -> None:
        """Called when the partitions are in step with the image, before handlers see it."""
        removed = [topic.name for topic in delta.removed.values()]
        if OFFSETS_TOPIC in removed:
            self._resign_all()
        offsets = image.topics.get(OFFSETS_TOPIC)
        if offsets is not None and offsets.topic_id in delta.changed:
            self._partitions = len(offsets.partitions)
            for index in sorted(delta.changed[offsets.topic_id]):
                await self._place(offsets, index)
        if removed:
            for shard in self.shards():
                self._notify(shard.topics_deleted(removed))

    async def _place(self, topic: TopicImage, index: int) -> None:
        shard, where = self._shards.get(index), topic.partitions[index]
        is_led = where.leader == self._broker.node_id
        if not is_led:
            self._offline.discard(index)
        # An epoch between that we have not heard of was somebody else's: what it wrote is not in this machine.
        if shard is not None and (not is_led or where.leader_epoch > shard.leader_epoch + 1):
            self._resign(index)
            shard = None
        if shard is not None:
            shard.leader_epoch = where.leader_epoch
        elif is_led:
            await self._begin(index)

    async def _begin(self, index: int) -> None:
        partition = self._led(index)
        if partition is None:  # the disk refused, or the log is damaged: the rest is served
            self._offline.add(index)
            return
        shard = self._shards[index] = Shard(partition, self._broker, self._on_failure)
        if shard.is_empty:
            await shard.load()
        else:
            self._loading.add(shard)

    def _led(self, index: int) -> Partition | None:
        partition = self._broker.partitions.find(OFFSETS_TOPIC, index)
        return partition if partition is not None and partition.is_leader else None

    def _begin_late(self, index: int) -> Shard:
        """A partition that could not be opened may be open by now."""
        partition = self._led(index) if index in self._offline else None
        if partition is None:
            raise NotCoordinator("This broker does not coordinate the group.")
        self._offline.discard(index)
        shard = self._shards[index] = Shard(partition, self._broker, self._on_failure)
        self._loading.add(shard)
        return shard

    def _notify(self, notice: Coroutine[Any, Any, None]) -> None:
        """Decided in the order of notices, and not waited for: the metadata must go on."""
        task = asyncio.get_running_loop().create_task(notice)
        self._notices.add(task)
        task.add_done_callback(self._notices.discard)

    def _resign(self, index: int) -> None:
        shard = self._shards.pop(index)
        self._loading.remove(shard)
        shard.resign()

    def _resign_all(self) -> None:
        self._partitions = 0
        self._offline.clear()
        for index in list(self._shards):
            self._resign(index)

    def start(self) -> None:
        """The node serves: begin to look after lags."""
        self._lag_watch.start()

    async def close(self) -> None:
        """Stop loading, write what was decided."""
        await self._lag_watch.stop()
        if self._creation is not None:
            await asyncio.wait([self._creation])
        await self._loading.close()
        for shard in self.shards():
            await shard.close()
        await asyncio.gather(*self._notices, return_exceptions=True)
