"""The shards of one internal topic on this node: one per partition that it leads."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

from moldau.broker.coordinators.host import ClusterView, CoordinatorHost
from moldau.broker.coordinators.shard import CoordinatorShard
from moldau.broker.coordinators.shard_loader import ShardLoader
from moldau.broker.internal_topics import partition_for
from moldau.broker.partitions.partition import Partition
from moldau.machines.decision import Now, ReplicatedMachine
from moldau.machines.metadata.delta import MetadataDelta
from moldau.machines.metadata.image import MetadataImage, TopicImage
from moldau.machines.metadata.topics import NewTopic
from moldau.model.errors import CoordinatorNotAvailable, ErrorCode, KafkaError, NotCoordinator
from moldau.model.ids import NO_NODE

logger = logging.getLogger(__name__)


S = TypeVar("S", bound=CoordinatorShard[Any, Any])
Machine = TypeVar("Machine", bound=ReplicatedMachine[Any])
Listed = TypeVar("Listed")


async def read_all(
    shards: Iterable[CoordinatorShard[Machine, Any]], query: Callable[[Machine, Now], Sequence[Listed]]
) -> tuple[list[Listed], ErrorCode]:
    """Query all shards, one per turn of the event loop. With an error, the results of some shards are missing.

    A shard that was resigned meanwhile is omitted: clients query its new coordinator as well.
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
    shard: CoordinatorShard[Machine, Any], query: Callable[[Machine, Now], Sequence[Listed]]
) -> tuple[Sequence[Listed], ErrorCode]:
    try:
        return await shard.read(lambda machine: query(machine, shard.now)), ErrorCode.NONE
    except NotCoordinator:
        return (), ErrorCode.NONE
    except KafkaError as error:
        return (), error.code


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
        self._offline: set[int] = set()  # led by this broker, but not open
        self._partitions = 0  # of the topic
        self._creation: asyncio.Task[str | None] | None = None
        self._loader = ShardLoader(topic, on_failure)

    # Lookup

    def shard_of(self, key: str) -> S:
        """Return the shard that coordinates a key; raises NotCoordinator if another broker does."""
        if not self._partitions:
            raise NotCoordinator(f"Topic {self._topic} does not exist yet.")
        return self.shard_at(partition_for(key, self._partitions))

    def shard_at(self, index: int) -> S:
        """Return the shard of a partition; raises NotCoordinator if another broker leads it."""
        return self._shards.get(index) or self._create_late(index)

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
        error = await asyncio.shield(self._creation)
        if error is not None:
            raise CoordinatorNotAvailable(error)

    async def _create_topic(self) -> str | None:
        """Return why it could not be created, or None."""
        try:
            created = await self._broker.create_topic(self._new_topic(self._broker))
            if created.error in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                return None
            message = f"{self._topic} could not be created: {created.message}"
            logger.error(message)
        except KafkaError as error:  # no controller responds: the client retries
            message = f"{self._topic} could not be created: {error.message}"
            logger.warning(message)
        finally:
            self._creation = None
        return message

    # Metadata changes

    async def follow(self, image: MetadataImage, delta: MetadataDelta) -> None:
        """Follow an image. Called when it is in effect in the partitions, before handlers see it."""
        if any(topic.name == self._topic for topic in delta.removed.values()):
            self._resign_all()
        topic = image.topics.get(self._topic)
        if topic is not None and topic.topic_id in delta.changed:
            self._partitions = len(topic.partitions)
            for index in sorted(delta.changed[topic.topic_id]):
                await self._place(topic, index)

    async def _place(self, topic: TopicImage, index: int) -> None:
        shard, state = self._shards.get(index), topic.partitions[index]
        is_led = state.leader == self._broker.node_id
        if not is_led:
            self._offline.discard(index)
        # In a skipped epoch another broker may have led: its records are not in this machine.
        if shard is not None and (not is_led or state.leader_epoch > shard.leader_epoch + 1):
            self._resign(index)
            shard = None
        if shard is not None:
            shard.leader_epoch = state.leader_epoch
        elif is_led:
            await self._create(index)

    async def _create(self, index: int) -> None:
        partition = self._led(index)
        if partition is None:  # a disk error or corruption: the other shards are served
            self._offline.add(index)
            return
        shard = self._shards[index] = self._new_shard(partition)
        if shard.is_empty:
            await shard.load()
        else:
            self._loader.add(shard)

    def _led(self, index: int) -> Partition | None:
        partition = self._broker.partitions.find(self._topic, index)
        return partition if partition is not None and partition.role.is_leader else None

    def _create_late(self, index: int) -> S:
        """Create the shard of a partition that could not be opened at first, if it is open now."""
        partition = self._led(index) if index in self._offline else None
        if partition is None:
            raise NotCoordinator(f"This broker does not lead {self._topic}-{index}.")
        self._offline.discard(index)
        shard = self._shards[index] = self._new_shard(partition)
        self._loader.add(shard)
        return shard

    def _resign(self, index: int) -> None:
        shard = self._shards.pop(index)
        self._loader.remove(shard)
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
        await self._loader.close()
        for shard in self.all():
            await shard.close()
