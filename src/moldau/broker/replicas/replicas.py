"""The replicas of this node: assigns each partition its role as the metadata changes."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, Protocol

from moldau.broker.cluster.peers import Peers
from moldau.broker.configs.replica_settings import ReplicaSettings
from moldau.broker.partitions.follower_role import FollowerRole
from moldau.broker.partitions.leader_role import LeaderRole
from moldau.broker.partitions.log_flusher import LogFlusher
from moldau.broker.partitions.partition import Partition
from moldau.broker.replicas.fetcher import FetcherDependencies
from moldau.broker.replicas.fetcher_pool import FetcherPool
from moldau.broker.replicas.isr_changes import IsrChanges
from moldau.broker.replicas.lost_replicas import LostReplicas
from moldau.broker.replicas.replica_dirs import ReplicaDirs
from moldau.broker.replicas.throttles import Throttles
from moldau.broker.replicas.truncation_sync import TruncationSync
from moldau.broker.runtime.log_dirs import LogDirs, path_of
from moldau.broker.runtime.rate_limited_logger import RateLimitedLogger
from moldau.machines.metadata.image import BrokerImage, MetadataImage, PartitionImage
from moldau.machines.replication import NOT_ELIGIBLE, FollowerMachine, LeaderMachine
from moldau.model.ids import NO_EPOCH, NO_NODE, Address, DirectoryId, TopicId, TopicPartition
from moldau.model.ports import Clock
from moldau.storage.corrupt_range import CorruptRange
from moldau.wire.messages import Request, Response

logger = logging.getLogger(__name__)

TICKS_PER_LAG: Final = 10  # ISR checks per replica.lag.time.max.ms
TICK_MS_MAX: Final = 2000.0
TICK_MS_MIN: Final = 10.0
SLICE_PARTITIONS: Final = 64


class SendToController(Protocol):
    """Sends a request to the active controller and returns its response."""

    def __call__(self, request: Request[Response], /) -> Awaitable[Response]: ...


class Replicas:
    """Assigns roles to partitions; `Partitions` calls it as it follows the metadata."""

    def __init__(
        self,
        node_id: int,
        incarnation_id: bytes,
        inter_broker_listener: str,
        peers: Peers,
        clock: Clock,
        flusher: LogFlusher,
        settings: Callable[[], ReplicaSettings],
        send_to_controller: SendToController,
        checkpoint: Callable[[], Awaitable[None]],
        failed: Callable[[str, BaseException], None],
        log_dirs: LogDirs,
        verify_segment_of: Callable[[Partition, int], None],
    ) -> None:
        """`checkpoint` writes the recovery points; `verify_segment_of` verifies the segment that has an offset."""
        self._verify_segment_of = verify_segment_of
        self._log_dirs = log_dirs
        self._node_id = node_id
        self._listener = inter_broker_listener
        self._clock = clock
        self._settings = settings
        self._image = MetadataImage()
        self._incarnation_id = incarnation_id
        self.throttles = Throttles(node_id, clock, settings)
        self.isr_changes = IsrChanges(node_id, send_to_controller, lambda: self.broker_epoch, failed)
        self._lost_replicas = LostReplicas(node_id, send_to_controller, lambda: self.broker_epoch, failed)
        self._replica_dirs = ReplicaDirs(node_id, send_to_controller, lambda: self.broker_epoch, failed, log_dirs)
        self._truncation_sync = TruncationSync(flusher, checkpoint, failed)
        self.fetchers = FetcherPool(
            FetcherDependencies(
                node_id=node_id,
                peers=peers,
                clock=clock,
                limited_logger=RateLimitedLogger(clock, logger),
                truncation_sync=self._truncation_sync,
                throttles=self.throttles,
                settings=settings,
                address_of=self._address_of,
                broker_epoch=lambda: self.broker_epoch,
                failed=failed,
            )
        )
        self._led: dict[Partition, None] = {}  # leaders with followers
        self._tick_task: asyncio.Task[None] | None = None

    # Brokers

    @property
    def _self(self) -> BrokerImage | None:
        """This broker in the image, unless that is a registration of an earlier run."""
        own = self._image.brokers.get(self._node_id)
        return own if own is not None and own.incarnation_id == self._incarnation_id else None

    @property
    def broker_epoch(self) -> int:
        """-1 until this run's registration is known here."""
        own = self._self
        return NO_EPOCH if own is None else own.epoch

    def _address_of(self, broker_id: int) -> Address | None:
        broker = self._image.brokers.get(broker_id)
        return None if broker is None else broker.address(self._listener)

    def _eligible_epoch(self, name: TopicPartition, broker_id: int) -> int:
        broker = self._image.brokers.get(broker_id)
        if broker is None or not broker.is_active:
            return NOT_ELIGIBLE
        if broker.offline_directories and not self._is_online(name, broker_id):
            return NOT_ELIGIBLE
        return broker.epoch

    def _is_online(self, name: TopicPartition, broker_id: int) -> bool:
        state = self._image.partition(*name)
        return state is not None and self._image.is_online(broker_id, state)

    # Roles

    def update_image(self, image: MetadataImage) -> None:
        """Set the image for the following role changes."""
        self._image = image

    def assign_role(self, partition: Partition, state: PartitionImage) -> None:
        """Take the leader or follower role according to the image."""
        self._replica_dirs.check(partition, state)
        partition.corruption.on_found = partial(self._corruption_found, partition)
        if partition.corruption.first is not None and len(state.replicas) > 1 and self._node_id in state.trusted:
            self.replica_lost(partition.topic_id, partition.name.partition)
        if state.leader == self._node_id and len(state.replicas) == 1:
            self._stop(partition)
            partition.lead_alone(state.leader_epoch)
        elif (
            state.leader == self._node_id and self._may_lead(partition, state) and not self._gives_up(partition, state)
        ):
            self._lead(partition, state)
        else:
            self._follow(partition, state)

    def assign_dir(self, partition: Partition, directory: DirectoryId | None) -> None:
        """Report to the controller that the log is about to move to this log dir; None: where it is."""
        self._replica_dirs.announce(partition, directory)
        state = self._image.partition(*partition.name)
        if state is not None and partition.role.is_open:
            self._replica_dirs.check(partition, state)

    def log_replaced(self, partition: Partition) -> None:
        """The partition has another log with the same records: a follower continues with it."""
        state = self._image.partition(*partition.name)
        if partition.role.following is not None and state is not None:
            self._stop(partition)
            partition.role.following = None
            self._follow(partition, state)

    def _gives_up(self, partition: Partition, state: PartitionImage) -> bool:
        """Whether another broker is to lead in place of this one, because the log dir of the replica is offline."""
        return not self._log_dirs.is_online(path_of(partition.log.folder)) and self.has_substitute(state)

    def has_substitute(self, state: PartitionImage) -> bool:
        """Whether another broker can lead without losing records."""
        others = (each for each in (*state.isr, *state.eligible_leader_replicas) if each != self._node_id)
        return any(self._image.is_online(each, state) for each in others)

    def _may_lead(self, partition: Partition, state: PartitionImage) -> bool:
        """Not by an image from before this run's registration: the leader of that time may have had more records."""
        return self._self is not None and partition.log.epochs.latest <= state.leader_epoch

    def _lead(self, partition: Partition, state: PartitionImage) -> None:
        leading = partition.role.leading
        if leading is not None and leading.machine.leader_epoch == state.leader_epoch:
            leading.image_changed(state)
            return
        self._stop(partition)
        log = partition.log
        # From now on; otherwise a follower with a longer log could not be detected as diverging.
        log.epochs.assign(state.leader_epoch, log.end_offset)
        machine = LeaderMachine(
            self._node_id,
            leader_epoch=state.leader_epoch,
            partition_epoch=state.partition_epoch,
            replicas=state.replicas,
            isr=state.isr,
            end_offset=log.end_offset,
            high_watermark=partition.high_watermark,
            min_isr=log.settings.min_insync_replicas,
            lag_max_ms=self._settings().replica_lag_time_max_ms,
            broker_epoch_of=partial(self._eligible_epoch, partition.name),
            now_ms=self._clock.monotonic_ms(),
            durable_offset=partition.durable_offset,
        )
        leading = LeaderRole(partition, machine, self._clock, self.isr_changes.propose)
        partition.lead(state.leader_epoch, leading)
        self._led[partition] = None
        leading.begin()
        partition.bring_to_disk()

    def _follow(self, partition: Partition, state: PartitionImage) -> None:
        leader = NO_NODE if state.leader == self._node_id else state.leader
        is_in_sync = self._node_id in state.isr
        following = partition.role.following
        if following is not None and (following.machine.leader, following.machine.leader_epoch) == (
            leader,
            state.leader_epoch,
        ):
            following.is_in_sync = is_in_sync
            return
        self._stop(partition)
        if partition.corruption.first is not None and self._can_spare(state):
            # We have not fetched in this epoch yet: the length of this replica is unknown.
            partition.corruption.is_abandoned = True
            leader = NO_NODE
        log = partition.log
        log.truncate_to(log.end_offset)  # drops an epoch in which we led without records
        machine = FollowerMachine(
            log, leader=leader, leader_epoch=state.leader_epoch, high_watermark=partition.high_watermark
        )
        following = FollowerRole(partition, machine, is_in_sync=is_in_sync)
        partition.follow(state.leader_epoch, following)
        if leader != NO_NODE:
            self.fetchers.add(following)

    def remove(self, partition: Partition) -> None:
        """The replica was removed from this node."""
        self._stop(partition)
        self.replica_abandoned(partition.topic_id, partition.name.partition)

    def _stop(self, partition: Partition) -> None:
        self._led.pop(partition, None)
        if partition.role.following is not None:
            self.fetchers.remove(partition.role.following)

    def brokers_changed(self) -> None:
        """Brokers were registered, removed or changed: followers may join the ISR, or need not be waited for."""
        for partition in list(self._led):
            if partition.role.leading is not None:
                partition.role.leading.ticked()
        self.fetchers.wake()

    @property
    def has_own_registration(self) -> bool:
        return self._self is not None

    def _can_spare(self, state: PartitionImage) -> bool:
        """Whether another replica leads with all records, and this one is not counted on."""
        is_led = state.leader not in (NO_NODE, self._node_id)
        return self.has_own_registration and is_led and self._node_id not in state.trusted

    def _corruption_found(self, partition: Partition, found: CorruptRange) -> None:
        if found is partition.corruption.first:  # the first one of the partition
            logger.error("%s: corrupt range is not served: %s", partition.name, found)
            if not partition.role.leads_alone:
                self.replica_lost(partition.topic_id, partition.name.partition)
        if not found.end_position:  # a reader found it, and does not know where it ends
            self._verify_segment_of(partition, found.offset)

    def replica_truncated(self, partition: Partition) -> None:
        self._truncation_sync.add(partition)

    def replica_lost(self, topic_id: TopicId, index: int) -> None:
        """The replica is corrupt: report it, and fetch it again when it is no longer counted on."""
        self._lost_replicas.add(topic_id, index)

    def replica_abandoned(self, topic_id: TopicId, index: int) -> None:
        """The replica is no longer counted on."""
        self._lost_replicas.remove(topic_id, index)

    def settings_changed(self, partition: Partition) -> None:
        if partition.role.leading is not None:
            partition.role.leading.settings_changed()

    # Lifecycle

    @property
    def led(self) -> list[LeaderRole]:
        """The partitions that this node leads with followers."""
        return [each.role.leading for each in self._led if each.role.leading is not None]

    def start(self) -> None:
        self._tick_task = asyncio.get_running_loop().create_task(self._tick())

    async def _tick(self) -> None:
        while True:
            lag_ms = self._settings().replica_lag_time_max_ms
            await asyncio.sleep(max(min(lag_ms / TICKS_PER_LAG, TICK_MS_MAX), TICK_MS_MIN) / 1000)
            for index, partition in enumerate(list(self._led)):
                if partition.role.leading is not None:
                    partition.role.leading.ticked()
                if index % SLICE_PARTITIONS == SLICE_PARTITIONS - 1:
                    await asyncio.sleep(0)
            self.fetchers.sweep()

    async def close(self) -> None:
        """Stop fetching; partitions keep their roles until they are closed."""
        if self._tick_task is not None:
            self._tick_task.cancel()
            await asyncio.gather(self._tick_task, return_exceptions=True)
        await self.fetchers.close()
        await self._truncation_sync.close()
        await self.isr_changes.close()
        await self._lost_replicas.close()
        await self._replica_dirs.close()
