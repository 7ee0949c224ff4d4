"""All partitions of this node: their logs are opened, closed and configured as the metadata image changes."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol

from moldau.broker.partitions.log_flusher import LogFlusher
from moldau.broker.partitions.log_stores import LogStores, ReplicaPlace
from moldau.broker.partitions.partition import Partition
from moldau.broker.partitions.write_coalescer import WriteCoalescer
from moldau.broker.runtime.meters import TrafficMeter
from moldau.machines.metadata.delta import MetadataDelta
from moldau.machines.metadata.image import MetadataImage, PartitionImage, ResourceType, TopicImage
from moldau.model.errors import (
    KafkaError,
    NotLeaderOrFollower,
    StorageFailed,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from moldau.model.ids import NO_NODE, NO_TOPIC_ID, TopicId, TopicPartition
from moldau.model.ports import Clock
from moldau.storage.checkpoints import HIGH_WATERMARKS, LOG_STARTS, RECOVERY_POINTS
from moldau.storage.corrupt_range import CorruptRange
from moldau.storage.settings import LogSettings

logger = logging.getLogger(__name__)

REPAIR: Final = (
    "To drop the records after the corruption, set unclean.leader.election.enable=true on the topic "
    "and restart the broker."
)
SLICE_MS: Final = 1.0  # opening logs yields to other work after this time


class TopicSettingsResolver(Protocol):
    """Resolves the log settings of a topic."""

    def __call__(self, image: MetadataImage, topic: str) -> LogSettings: ...


class Roles(Protocol):
    """Assigns leader and follower roles to partitions."""

    def update_image(self, image: MetadataImage) -> None:
        """Set the image for the following calls."""
        ...

    def assign_role(self, partition: Partition, state: PartitionImage) -> None: ...

    def remove(self, partition: Partition) -> None: ...

    def brokers_changed(self) -> None: ...

    @property
    def has_own_registration(self) -> bool:
        """Whether the image contains this run's registration, and thus the current state of its replicas."""
        ...

    def replica_lost(self, topic_id: TopicId, index: int) -> None:
        """Report the replica as lost, so that the controller does not count on it."""
        ...

    def replica_abandoned(self, topic_id: TopicId, index: int) -> None:
        """The replica is no longer counted on, or no longer wanted."""
        ...

    def replica_truncated(self, partition: Partition) -> None:
        """The replica was corrupt and has been truncated."""
        ...

    def settings_changed(self, partition: Partition) -> None: ...


class Partitions:
    """The partitions with a log on this node. Only `follow` adds and removes them."""

    def __init__(
        self,
        node_id: int,
        store: LogStores,
        clock: Clock,
        flusher: LogFlusher,
        settings_of: TopicSettingsResolver,
        on_disk_error: Callable[[Partition, OSError], None],
        coalescer: WriteCoalescer,
        roles: Roles,
    ) -> None:
        self._roles = roles
        self.node_id = node_id
        self._store = store
        self._clock = clock
        self._flusher = flusher
        self._settings_of = settings_of
        self._on_disk_error = on_disk_error
        self._coalescer = coalescer
        self._partitions: dict[tuple[str, int], Partition] = {}
        self._traffic: dict[str, TrafficMeter] = {}
        self.traffic_of_removed = TrafficMeter()  # so that totals never decrease
        self._image = MetadataImage()
        self._corrupt: dict[tuple[str, int], str] = {}  # offline because of corruption, with its description
        self._missing: dict[tuple[str, int], str] = {}  # in a log dir that was not available at the start
        self._has_followed = False
        self._unopened: dict[tuple[str, int], str] = {}  # offline until the disk allows opening them, with the error
        self._unsynced: dict[Partition, None] = {}  # without a role until everything found in them is flushed
        self._when_opened: Callable[[], None] | None = None

    def __len__(self) -> int:
        return len(self._partitions)

    @property
    def image(self) -> MetadataImage:
        """The newest metadata image; it may not be in effect everywhere on this node yet."""
        return self._image

    def get(self, topic: str, index: int, topic_id: bytes = NO_TOPIC_ID) -> Partition:
        """The partition, if this broker leads it; with a topic id, only of that very topic."""
        partition = self._partitions.get((topic, index))
        if partition is None or not partition.role.is_leader:
            raise self._lookup_error(topic, index)
        return _check_topic_id(partition, topic_id)

    def get_replica(self, topic: str, index: int, topic_id: bytes = NO_TOPIC_ID) -> Partition:
        """The partition, if this broker has a replica and there is a leader."""
        partition = self._partitions.get((topic, index))
        if partition is None or not (partition.role.is_leader or partition.role.is_followed):
            raise self._lookup_error(topic, index)
        return _check_topic_id(partition, topic_id)

    def _lookup_error(self, topic: str, index: int) -> KafkaError:
        if (topic, index) in self._corrupt:
            return StorageFailed(f"{topic}-{index} is offline: {self._corrupt[topic, index]}.")
        if (topic, index) in self._missing:
            return StorageFailed(f"{topic}-{index} is offline: {self._missing[topic, index]}.")
        if (topic, index) in self._unopened:
            return StorageFailed(f"{topic}-{index} cannot be opened yet: {self._unopened[topic, index]}.")
        if self._image.partition(topic, index) is not None:
            return NotLeaderOrFollower(f"This broker does not lead {topic}-{index}.")
        return UnknownTopicOrPartition(f"Partition {index} of topic {topic} does not exist.")

    def find(self, topic: str, index: int) -> Partition | None:
        """The partition; None if it is not here for any reason."""
        return self._partitions.get((topic, index))

    def all(self) -> list[Partition]:
        return list(self._partitions.values())

    @property
    def traffic(self) -> Mapping[str, TrafficMeter]:
        """The traffic of each topic."""
        return self._traffic

    async def follow(self, image: MetadataImage, delta: MetadataDelta) -> None:
        """Open, close and adjust partitions according to the delta; yields to other work between logs."""
        self._image = image
        for topic in delta.removed.values():
            await self._remove_topic(topic)
        # in the same turn as the roles: no partition may follow by an older image in a newer epoch
        self._roles.update_image(image)
        # Open partitions first: waiters on a deposed leader should fail at once.
        self._change_roles(image, delta)
        if delta.brokers:
            self._roles.brokers_changed()
        pause = _Pause(self._clock)
        for topic_id, indexes in delta.changed.items():
            topic = image.topics_by_id[topic_id]
            settings = self._settings_of(image, topic.name)
            await self._make_way(topic, indexes)
            for index in sorted(indexes):
                await self._apply_assignment(topic, index, topic.partitions[index], settings)
                await pause.if_due()
        await self._retry_corrupt(image)
        if delta.configs:
            self._adjust(image, delta)
        await self._bring_to_disk()
        await self._store.sync()
        self._has_followed = True

    async def _bring_to_disk(self) -> None:
        """Flush what an earlier run left unflushed, before it becomes visible, if the topic requires flushed
        records."""
        waiting = list(self._unsynced)
        await asyncio.gather(*map(self._flusher.sync_now, waiting))
        for partition in waiting:
            self._unsynced.pop(partition, None)
            state = self._image.partition(*partition.name)
            if partition.role.is_open and state is not None and self._partitions.get(partition.name) is partition:
                self._roles.assign_role(partition, state)

    def _change_roles(self, image: MetadataImage, delta: MetadataDelta) -> None:
        for topic_id, indexes in delta.changed.items():
            topic = image.topics_by_id[topic_id]
            for index in sorted(indexes):
                known = self._partitions.get((topic.name, index))
                state = topic.partitions[index]
                if known is not None and known not in self._unsynced and self.node_id in state.replicas:
                    self._roles.assign_role(known, state)

    def reassign_roles(self) -> None:
        """The log dir went offline or online: give up leaderships, or take them again."""
        for partition in self.all():
            state = self._image.partition(*partition.name)
            if state is not None and len(state.replicas) > 1 and partition not in self._unsynced:
                self._roles.assign_role(partition, state)

    async def _apply_assignment(
        self, topic: TopicImage, index: int, state: PartitionImage, settings: LogSettings
    ) -> None:
        known = self._partitions.get((topic.name, index))
        if self.node_id not in state.replicas:
            self._forget_offline(topic, index)
            if known is not None:
                logger.info("%s: replica removed from this broker", known.name)
                await self._remove(known)
        elif known is None and self._may_open(TopicPartition(topic.name, index), state, settings):
            self._open(topic, index, state, settings)
        elif known is not None and known.corruption.is_abandoned and known.corruption.first is not None:
            await self._close_damaged(known, known.corruption.first)
            self._open(topic, index, state, settings)

    async def _make_way(self, topic: TopicImage, indexes: Iterable[int]) -> None:
        """Remove leftovers of an earlier topic of this name first; if the disk fails, the logs are opened later."""
        names = [TopicPartition(topic.name, index) for index in indexes]
        absent = [each for each in names if each not in self._partitions]
        try:
            await self._store.remove_leftovers(absent, topic.topic_id)
        except OSError as error:
            logger.warning("Leftovers of an earlier topic %s cannot be removed yet: %s", topic.name, error)

    async def _close_damaged(self, partition: Partition, damage: CorruptRange) -> None:
        del self._partitions[partition.name]
        self._roles.remove(partition)
        self._corrupt[partition.name] = str(damage)
        partition.close()
        await self._flusher.finish(partition)
        self._store.close_damaged(partition, damage.offset)

    async def _close_for_reopening(self, partition: Partition) -> None:
        """The files of the log are not as it knows them: open it again, as after a crash."""
        logger.error("%s is offline: its files could not be replaced, it is opened again", partition.name)
        del self._partitions[partition.name]
        self._roles.remove(partition)
        partition.close()
        await self._flusher.finish(partition)
        self._store.close_damaged(partition, partition.log.end_offset)
        self._unopened[partition.name] = "its files could not be replaced"

    async def _retry_corrupt(self, image: MetadataImage) -> None:
        """Corrupt replicas may be replaceable by now: fetch them again."""
        for name, index in list(self._corrupt):
            topic = image.topics[name]
            await self._apply_assignment(topic, index, topic.partitions[index], self._settings_of(image, name))

    def _forget_offline(self, topic: TopicImage, index: int) -> None:
        self._unopened.pop((topic.name, index), None)
        self._missing.pop((topic.name, index), None)
        if self._corrupt.pop((topic.name, index), None) is not None:
            self._roles.replica_abandoned(topic.topic_id, index)

    def _may_open(self, name: TopicPartition, state: PartitionImage, settings: LogSettings) -> bool:
        """Whether a corrupt log may be opened truncated: when other replicas have everything and do not count on this
        one, or when no other replica has everything and the topic allows data loss.
        """
        if name not in self._corrupt:
            return True
        if not self._roles.has_own_registration:
            return False
        if self.node_id not in state.trusted:
            return state.leader not in (NO_NODE, self.node_id)
        is_alone = all(each == self.node_id for each in state.trusted)
        return is_alone and settings.unclean_leader_election_enable

    def _open(self, topic: TopicImage, index: int, state: PartitionImage, settings: LogSettings) -> None:
        name = TopicPartition(topic.name, index)
        is_truncated = name in self._corrupt
        place = self._place_of(state)
        missing = self._store.offline_cause(name, place)
        if missing is not None:
            self._mark_missing(name, missing)
            return
        try:
            log, high_watermark = self._store.open(name, topic.topic_id, settings, place, allows_data_loss=is_truncated)
        except StorageFailed as error:
            self._mark_corrupt(topic, index, state, settings, error)
            return
        except OSError as error:  # a full disk, or no file descriptor left
            if self._unopened.pop(name, None) is None:
                logger.error("%s is offline: cannot open its log, will retry: %s", name, error)
            self._unopened[name] = str(error.strerror)
            return
        self._forget_offline(topic, index)
        traffic = self._traffic.setdefault(topic.name, TrafficMeter())
        partition = self._partitions[name] = Partition(
            name,
            topic.topic_id,
            log,
            state.leader_epoch,
            traffic,
            self._flusher.request,
            self._on_disk_error,
            self._coalescer,
            high_watermark if len(state.replicas) > 1 else None,
        )
        if is_truncated:
            logger.warning("%s was corrupt and continues at offset %d; leader: %d", name, log.end_offset, state.leader)
            self._roles.replica_truncated(partition)
        if len(state.replicas) == 1 and partition.durable_offset < log.end_offset:
            partition.role.is_leader = False
            self._unsynced[partition] = None
        else:
            self._roles.assign_role(partition, state)

    def _place_of(self, state: PartitionImage) -> ReplicaPlace:
        is_trusted = self.node_id in state.trusted
        return ReplicaPlace(state.directory_of(self.node_id), is_trusted and not self._has_followed)

    def _mark_missing(self, name: TopicPartition, cause: str) -> None:
        if name not in self._missing:
            logger.error("%s is offline until the next start: %s", name, cause)
        self._missing[name] = cause

    def _mark_corrupt(
        self, topic: TopicImage, index: int, state: PartitionImage, settings: LogSettings, error: StorageFailed
    ) -> None:
        name = TopicPartition(topic.name, index)
        if name in self._corrupt and self.node_id not in state.trusted:
            self._store.mark_stray(name)  # nothing before the corruption can be kept either
            self._forget_offline(topic, index)
            self._open(topic, index, state, settings)
            return
        self._unopened.pop(name, None)
        self._corrupt[name] = str(error)
        if len(state.replicas) > 1:
            logger.error("%s is offline until another replica has all its records: %s", name, error)
            self._roles.replica_lost(topic.topic_id, index)
        else:
            logger.error("%s is offline: %s. %s", name, error, REPAIR)

    @property
    def offline(self) -> Mapping[tuple[str, int], str]:
        """The partitions whose log is corrupt or cannot be opened, with the cause."""
        return {**self._corrupt, **self._unopened, **self._missing}

    def is_closed_cleanly(self, path: str) -> bool:
        """Whether no log of this directory is offline. A log that stayed offline was not recovered since the last run,
        so this run must not leave a clean-shutdown marker there."""
        offline = (TopicPartition(*each) for each in (*self._unopened, *self._corrupt))
        return not any(self._store.may_be_in(each, path) for each in offline) and self._store.is_written(path)

    def when_opened(self, call: Callable[[], None]) -> None:
        """Call back as soon as no log is waiting for the disk."""
        self._when_opened = call
        self._notify_if_opened()

    def _notify_if_opened(self) -> None:
        if self._when_opened is not None and not self._unopened:
            self._when_opened()
            self._when_opened = None

    async def open_rest(self) -> None:
        """Retry the logs that the disk did not allow to open, and what was not synced."""
        for partition in [each for each in self._partitions.values() if each.log.must_be_reopened]:
            await self._close_for_reopening(partition)
        await self._store.sync()
        await self._open_rest()
        self._notify_if_opened()

    async def _open_rest(self) -> None:
        """Stop at the first failure; that log is tried last the next time."""
        for topic_name, index in list(self._unopened):
            topic = self._image.topics.get(topic_name)
            if topic is not None:
                await self._make_way(topic, [index])
            if topic is None or self._image.topics.get(topic_name) is not topic or self._is_settled(topic, index):
                continue
            await self._apply_assignment(
                topic, index, topic.partitions[index], self._settings_of(self._image, topic_name)
            )
            if (topic_name, index) in self._unopened:
                break
            if (topic_name, index) in self._partitions:
                logger.info("%s-%d is online again", topic_name, index)
            await self._bring_to_disk()
            await self._store.sync()

    def _is_settled(self, topic: TopicImage, index: int) -> bool:
        """Whether it was deleted, moved, opened or found corrupt since the failed attempt."""
        return (topic.name, index) not in self._unopened or index >= len(topic.partitions)

    async def _remove_topic(self, topic: TopicImage) -> None:
        for index in range(len(topic.partitions)):
            partition = self._partitions.get((topic.name, index))
            self._forget_offline(topic, index)
            await self._store.discard(TopicPartition(topic.name, index), topic.topic_id)
            if partition is not None and partition.topic_id == topic.topic_id:
                await self._remove(partition)
        removed = self._traffic.pop(topic.name, None)
        if removed is not None:
            self.traffic_of_removed.add(removed)

    async def _remove(self, partition: Partition) -> None:
        del self._partitions[partition.name]
        self._roles.remove(partition)
        partition.close()
        await self._flusher.finish(partition)
        await self._store.delete(partition)

    def _adjust(self, image: MetadataImage, delta: MetadataDelta) -> None:
        """Apply new settings to logs. A change of broker defaults affects every topic."""
        if any(resource.type == ResourceType.BROKER for resource in delta.configs):
            names = sorted({topic for topic, _ in self._partitions})
        else:
            names = sorted(resource.name for resource in delta.configs if resource.type == ResourceType.TOPIC)
        for name in names:
            topic = image.topics.get(name)
            if topic is None:
                continue
            settings = self._settings_of(image, name)
            for index in range(len(topic.partitions)):
                partition = self._partitions.get((name, index))
                if partition is not None:
                    partition.log.adopt(settings)
                    self._roles.settings_changed(partition)

    async def checkpoint(self) -> None:
        """Write all checkpoints."""
        await self.checkpoint_starts()
        await self.checkpoint_recovery_points()
        await self.checkpoint_high_watermarks()

    async def checkpoint_starts(self) -> None:
        """Checkpoint the log start offsets."""
        await self._write(LOG_STARTS, lambda each: each.log.start_offset)

    async def checkpoint_recovery_points(self) -> None:
        """Checkpoint the recovery points: offsets that are flushed for certain."""
        await self._write(RECOVERY_POINTS, lambda each: each.log.recovery_point)

    async def checkpoint_high_watermarks(self) -> None:
        """Checkpoint the high watermarks."""
        await self._write(HIGH_WATERMARKS, lambda each: each.high_watermark)

    async def _write(self, name: str, offset_of: Callable[[Partition], int]) -> None:
        def collect() -> dict[TopicPartition, int]:
            return {each.name: offset_of(each) for each in self._partitions.values()}

        await self._store.write_checkpoint(name, collect)

    async def _close(self, partition: Partition) -> None:
        await self._flusher.finish(partition)
        try:
            await self._flusher.sync_last(partition)
        except (OSError, StorageFailed) as error:
            if not self._store.is_dispensable(partition):
                raise
            logger.debug("%s is closed without a flush: %s", partition.name, error)
        finally:
            partition.log.abandon()

    async def close(self) -> None:
        """Flush and close every log; then the directory may be marked as cleanly shut down."""
        for partition in self._partitions.values():
            partition.close()
        # Concurrently, because the disk serves many flushes in one go.
        closed = await asyncio.gather(*map(self._close, self._partitions.values()), return_exceptions=True)
        for failure in closed:
            if failure is not None:
                raise failure
        await self.checkpoint()


def _check_topic_id(partition: Partition, topic_id: bytes) -> Partition:
    """The partition's topic may be newer than the handlers' image while a newer image takes effect: compare ids."""
    if topic_id not in (NO_TOPIC_ID, partition.topic_id):
        raise UnknownTopicId(f"Topic {partition.name.topic} has another id on this broker.")
    return partition


class _Pause:
    """Yields to other work after enough time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since_ms = clock.monotonic_ms()

    async def if_due(self) -> None:
        if self._clock.monotonic_ms() - self._since_ms >= SLICE_MS:
            await asyncio.sleep(0)
            self._since_ms = self._clock.monotonic_ms()
