"""The shards of one internal topic on this node: one per partition that it leads."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

from moldau.broker.coordinators.host import ClusterView, CoordinatorHost
from moldau.broker.coordinators.shard import CoordinatingShard
from moldau.broker.coordinators.shard_loader import ShardLoading
from moldau.broker.internal_topics import partition_for
from moldau.broker.partitions.partition import Partition
from moldau.machines.decision import Now, ReplicatedMachine
from moldau.machines.metadata.delta import MetadataDelta
from moldau.machines.metadata.image import MetadataImage, TopicImage
from moldau.machines.metadata.topics import NewTopic
from moldau.model.errors import CoordinatorNotAvailable, ErrorCode, KafkaError, NotCoordinator
from moldau.model.ids import NO_NODE

logger = logging.getLogger(__name__)


S = TypeVar("S", bound=CoordinatingShard[Any, Any])
Machine = TypeVar("Machine", bound=ReplicatedMachine[Any])
Listed = TypeVar("Listed")


async def read_all(
    shards: Iterable[CoordinatingShard[Machine, Any]], query: Callable[[Machine, Now], Sequence[Listed]]
) -> tuple[list[Listed], ErrorCode]:
    """What all shards have to say, each in a turn of its own; the error, if any, says that some could not.

    One that was given up meanwhile is passed over: whoever has it now is asked, too.
    """
    loop, reads = asyncio.get_running_loop(), []
    for shard in shards:
        reads.append(loop.create_task(_read(shard, query)))
        await asyncio.sleep(0)
    listed: list[Listed] = []
    error = ErrorCode.NONE
    for found, code in await asyncio.gather(*reads):
        listed += found
        error = code or error
    return listed, error


async def _read(
    shard: CoordinatingShard[Machine, Any], query: Callable[[Machine, Now], Sequence[Listed]]
) -> tuple[Sequence[Listed], ErrorCode]:
    try:
        return await shard.read(lambda machine: query(machine, shard.now)), ErrorCode.NONE
    except NotCoordinator:
        return (), ErrorCode.NONE
    except KafkaError as refusal:
        return (), refusal.code


class Shards(Generic[S]):
    """Finds the shard of a key; loads and resigns shards as the metadata changes."""

    def __init__(
        self,
        broker: CoordinatorHost,
        topic: str,
        new_topic: Callable[[ClusterView], NewTopic],
        new_shard: Callable[[Partition], S],
        on_failure: Callable[[str, BaseException], None],
    ) -> None:
        self._broker = broker
        self._topic = topic
        self._new_topic = new_topic
        self._new_shard = new_shard
        self._shards: dict[int, S] = {}
        self._offline: set[int] = set()  # led here, but not open
        self._partitions = 0  # of the topic
        self._creation: asyncio.Task[str | None] | None = None
        self._loading = ShardLoading(topic, on_failure)

    # Lookup

    def shard_of(self, key: str) -> S:
        """The shard that coordinates a key; raises if it is not here."""
        if not self._partitions:
            raise NotCoordinator(f"Topic {self._topic} does not exist yet.")
        return self.shard_at(partition_for(key, self._partitions))

    def shard_at(self, index: int) -> S:
        """The shard of a partition; raises if it is not here."""
        return self._shards.get(index) or self._begin_late(index)

    def all(self) -> list[S]:
        """All shards of this node, in partition order."""
        return [self._shards[index] for index in sorted(self._shards)]

    async def coordinator_of(self, key: str) -> int:
        """The broker that coordinates a key. Creates the topic if necessary."""
        if self._topic not in self._broker.image.topics:
            await self._ensure_topic()
        topic = self._broker.image.topics.get(self._topic)
        leader = NO_NODE if topic is None else topic.partitions[partition_for(key, len(topic.partitions))].leader
        if leader == NO_NODE:
            raise CoordinatorNotAvailable(f"The coordinator's partition of {self._topic} has no leader.")
        return leader

    async def _ensure_topic(self) -> None:
        """Create the topic once for all concurrent requests, even if their clients disconnect."""
        if self._creation is None:
            self._creation = asyncio.get_running_loop().create_task(self._create_topic())
        refusal = await asyncio.shield(self._creation)
        if refusal is not None:
            raise CoordinatorNotAvailable(refusal)

    async def _create_topic(self) -> str | None:
        """Return why it could not be created, or None."""
        try:
            created = await self._broker.create_topic(self._new_topic(self._broker))
            if created.error in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                return None
            words = f"{self._topic} could not be created: {created.message}"
            logger.error(words)
        except KafkaError as error:  # no controller responds: the client retries
            words = f"{self._topic} could not be created: {error.message}"
            logger.warning(words)
        finally:
            self._creation = None
        return words

    # Metadata changes

    async def follow(self, image: MetadataImage, delta: MetadataDelta) -> None:
        """Called when the partitions are in step with the image, before handlers see it."""
        if any(topic.name == self._topic for topic in delta.removed.values()):
            self._resign_all()
        topic = image.topics.get(self._topic)
        if topic is not None and topic.topic_id in delta.changed:
            self._partitions = len(topic.partitions)
            for index in sorted(delta.changed[topic.topic_id]):
                await self._place(topic, index)

    async def _place(self, topic: TopicImage, index: int) -> None:
        shard, where = self._shards.get(index), topic.partitions[index]
        is_led = where.leader == self._broker.node_id
        if not is_led:
            self._offline.discard(index)
        # In a skipped epoch another broker may have led: its records are not in this machine.
        if shard is not None and (not is_led or where.leader_epoch > shard.leader_epoch + 1):
            self._resign(index)
            shard = None
        if shard is not None:
            shard.leader_epoch = where.leader_epoch
        elif is_led:
            await self._begin(index)

    async def _begin(self, index: int) -> None:
        partition = self._led(index)
        if partition is None:  # a disk error or corruption: the other shards are served
            self._offline.add(index)
            return
        shard = self._shards[index] = self._new_shard(partition)
        if shard.is_empty:
            await shard.load()
        else:
            self._loading.add(shard)

    def _led(self, index: int) -> Partition | None:
        partition = self._broker.partitions.find(self._topic, index)
        return partition if partition is not None and partition.is_leader else None

    def _begin_late(self, index: int) -> S:
        """A partition that could not be opened may be open by now."""
        partition = self._led(index) if index in self._offline else None
        if partition is None:
            raise NotCoordinator(f"This broker does not lead {self._topic}-{index}.")
        self._offline.discard(index)
        shard = self._shards[index] = self._new_shard(partition)
        self._loading.add(shard)
        return shard

    def _resign(self, index: int) -> None:
        shard = self._shards.pop(index)
        self._loading.remove(shard)
        shard.resign()

    def _resign_all(self) -> None:
        self._partitions = 0
        self._offline.clear()
        for index in list(self._shards):
            self._resign(index)

    async def close(self) -> None:
        """Stop loading and write pending decisions."""
        if self._creation is not None:
            await asyncio.wait([self._creation])
        await self._loading.close()
        for shard in self.all():
            await shard.close()
