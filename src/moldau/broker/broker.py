"""The broker: the services that handlers use, created and connected here. `moldau.node` assembles it."""

import logging
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Final

from moldau.broker.access import AllowAll, Authorizer
from moldau.broker.audit_log import AuditLog, AuditLogSettings
from moldau.broker.cluster.local_requests import LocalRequests
from moldau.broker.cluster.lost_brokers import LostBrokers
from moldau.broker.cluster.metadata_publisher import MetadataPublisher
from moldau.broker.cluster.peers import Peers
from moldau.broker.configs.broker_settings import BrokerSettings
from moldau.broker.configs.resolution import (
    BrokerTexts,
    DescribedSetting,
    acceptable,
    describe_topic,
    effective_broker_settings,
    effective_log_settings,
)
from moldau.broker.controllers.controller_channel import ControllerChannel
from moldau.broker.controllers.failure_detector import FailureDetector
from moldau.broker.controllers.producer_ids import ProducerIds
from moldau.broker.controllers.topic_creation import request_topics
from moldau.broker.drivers.metadata import MetadataDriver
from moldau.broker.fetch.replica_sessions import ReplicaFetchSessions
from moldau.broker.fetch.sessions import FetchSessions
from moldau.broker.groups.group_coordinator import Groups
from moldau.broker.partitions.log_cleaner import LogCleaner
from moldau.broker.partitions.log_flusher import LogFlusher
from moldau.broker.partitions.log_maintenance import LogMaintenance
from moldau.broker.partitions.log_scrubber import LogScrubber
from moldau.broker.partitions.log_stores import LogStores
from moldau.broker.partitions.partition import Partition
from moldau.broker.partitions.record_validation import RecordValidator
from moldau.broker.partitions.table import Partitions
from moldau.broker.partitions.write_coalescer import WriteCoalescer
from moldau.broker.quotas.client_quotas import ClientQuotas
from moldau.broker.replicas.log_moves import LogMoves
from moldau.broker.replicas.replicas import Replicas
from moldau.broker.runtime.log_dir_monitor import LogDirMonitor
from moldau.broker.runtime.log_dirs import LogDirs, path_of
from moldau.broker.runtime.loop_stalls import LoopStalls
from moldau.broker.runtime.meters import AuthenticationMeter, TrafficMeter
from moldau.broker.runtime.rate_limited_logger import RateLimitedLogger
from moldau.broker.runtime.record_sampler import RecordSamplers
from moldau.broker.schedules.schedule_coordinator import ScheduleCoordinator
from moldau.broker.shares.network_persister import NetworkPersister
from moldau.broker.shares.share_coordinator import ShareCoordinator
from moldau.broker.shares.shares import Shares
from moldau.broker.telemetry.client_telemetry import ClientTelemetry
from moldau.broker.transactions.transaction_coordinator import Transactions
from moldau.client.errors import check
from moldau.machines.metadata.delta import MetadataDelta, delta_between
from moldau.machines.metadata.features import SUPPORTED_FEATURES
from moldau.machines.metadata.image import (
    BrokerImage,
    MetadataImage,
    PartitionImage,
    Resource,
    ResourceType,
    VersionRange,
)
from moldau.machines.metadata.producer_ids import ProducerIdBlock
from moldau.machines.metadata.topics import NewTopic, TopicCreated
from moldau.model.errors import CoordinatorLoadInProgress, InvalidConfig, KafkaError
from moldau.model.ids import NO_NODE, Address, TopicPartition
from moldau.model.ports import Ports
from moldau.model.protocol import METADATA_TOPIC
from moldau.storage.files import SyncFailed
from moldau.storage.settings import LogSettings
from moldau.wire.messages import AllocateProducerIdsRequest

logger = logging.getLogger(__name__)

DESCRIPTORS_PER_PARTITION: Final = 2  # one for its log, one left for connections and older segments


class Broker:
    """The services behind the handlers."""

    local: LocalRequests  # set by the composition root once the handlers exist
    log_scrubber: LogScrubber

    def __init__(
        self,
        ports: Ports,
        settings: BrokerSettings,
        static: Mapping[str, str],
        data_folder: str,
        cluster_id: str,
        store: LogStores,
        metadata: MetadataDriver,
        peers: Peers,
        controllers: Peers,
        on_failure: Callable[[str, BaseException], None],
        incarnation_id: bytes,
        log_dirs: LogDirs,
        record_sync_failure: Callable[[str], None],
        inter_broker_listener: str = "",
        authorizer: Authorizer | None = None,
    ) -> None:
        self.clock = ports.clock
        self.random = ports.random
        self.executor = ports.executor
        self._disk = ports.disk
        self.settings = settings
        self.texts = BrokerTexts(static=static)
        self.effective_texts: Mapping[str, str] = static
        self.node_id = settings.node_id
        self.cluster_id = cluster_id
        self.data_folder = data_folder
        self._store = store
        self.metadata = metadata
        self.log_dirs = log_dirs
        log_dirs.when_changed(self._log_dir_changed)
        self._record_sync_failure = record_sync_failure
        self.authorizer = authorizer or AllowAll()
        self.allows_all = authorizer is None
        self.audit_log = AuditLog(ports.disk, ports.clock, _audit_log_settings(settings, data_folder))
        self._on_failure = on_failure
        self.partitions_max = ports.disk.files_max() // DESCRIPTORS_PER_PARTITION
        self.disk_errors = 0
        self.bugs = 0
        self.limited_logger = RateLimitedLogger(ports.clock, logger)
        self.traffic = TrafficMeter()
        self.authentication_meter = AuthenticationMeter()
        self.controller_listeners = tuple(name.upper() for name in settings.controller_listeners)
        self.incarnation_id = incarnation_id  # new for each run of the process
        self.inter_broker_listener = inter_broker_listener
        self.peers = peers
        self.controller = ControllerChannel(self, controllers)
        self.failure_detector = FailureDetector(self)
        self.supported_features: Mapping[str, VersionRange] = SUPPORTED_FEATURES
        self._has_joined = False  # its registration is in the image: partitions follow the metadata
        self._make_services(ports, peers, store, on_failure)

    def _make_services(
        self, ports: Ports, peers: Peers, store: LogStores, on_failure: Callable[[str, BaseException], None]
    ) -> None:
        """Create the services of partitions, groups and sessions in the order of their dependencies."""
        settings = self.settings
        self.fetch_sessions = FetchSessions(ports.random, settings.max_incremental_fetch_session_cache_slots)
        self.record_validator = RecordValidator(ports.executor)
        self.record_samplers = RecordSamplers(ports.random)
        self.log_flusher = LogFlusher(
            ports.executor, ports.clock, self._sync_failed, self._log_dir_of, self.limited_logger
        )
        self.write_coalescer = WriteCoalescer()
        self.replica_sessions = ReplicaFetchSessions(ports.random)
        self.replicas = Replicas(
            self.node_id,
            self.incarnation_id,
            self.inter_broker_listener,
            peers,
            ports.clock,
            self.log_flusher,
            lambda: self.settings,
            self.controller.ask,
            lambda: self.partitions.checkpoint_recovery_points(),
            on_failure,
            self.log_dirs,
            lambda partition, offset: self.log_scrubber.request(partition, offset),
        )
        self.partitions = Partitions(
            self.node_id,
            store,
            ports.clock,
            self.log_flusher,
            self.log_settings,
            self._disk_failed,
            self.write_coalescer,
            self.replicas,
        )
        self._make_maintenance(ports, store)
        self._make_coordinators(on_failure)
        self.metadata_publisher = MetadataPublisher(self._follow, partial(on_failure, "following the metadata failed"))
        self.lost_brokers = LostBrokers(
            self.node_id, ports.clock, self.metadata_publisher, lambda: self.inter_broker_listener
        )
        peers.on_lost.append(self.lost_brokers.lost)
        self.loop_stalls = LoopStalls(ports.clock)
        self.client_quotas = ClientQuotas(ports.clock, lambda: self.settings)
        self.client_telemetry = ClientTelemetry(ports.clock, ports.random, ports.executor, lambda: self.settings)
        self.producer_ids = ProducerIds(self._allocate_producer_ids)

    def _make_maintenance(self, ports: Ports, store: LogStores) -> None:
        self.log_scrubber = LogScrubber(self.partitions, ports, self.data_folder, lambda: self.settings)
        cleaner = LogCleaner(self.partitions, store, ports.clock, ports.executor, self.log_scrubber.verify_transactions)
        self.log_moves = LogMoves(
            store,
            self.replicas,
            self.log_flusher,
            ports.clock,
            ports.executor,
            lambda: self.settings,
            lambda: self.image,
            self.node_id,
            self.partitions.checkpoint,
            cleaner.is_busy_with,
        )
        self.log_maintenance = LogMaintenance(
            self.partitions,
            self.log_flusher,
            ports.clock,
            ports.disk,
            ports.executor,
            lambda: self.settings,
            cleaner,
            lambda: not self.log_dirs.are_all_online,
        )

    def _make_coordinators(self, on_failure: Callable[[str, BaseException], None]) -> None:
        self.share_coordinator = ShareCoordinator(self, on_failure)
        self.share_persister = NetworkPersister(self, self.share_coordinator)
        self.groups = Groups(self, self.share_persister, on_failure)
        self.shares = Shares(self, self.share_persister)
        self.transactions = Transactions(self, on_failure)
        self.schedules = ScheduleCoordinator(self, on_failure)

    # -- metadata

    @property
    def image(self) -> MetadataImage:
        """The newest metadata image that is in effect on this broker."""
        return self.metadata_publisher.image

    @property
    def is_metadata_stalled(self) -> bool:
        """Whether this broker fails to write metadata that the quorum commits on other nodes."""
        return self.metadata.is_stalled

    @property
    def controller_id(self) -> int:
        """The broker to which clients send admin requests: the active controller if it is a broker, else any broker."""
        leader = self.metadata.leader_id
        if self.image.is_active(leader):
            return leader
        alive = [each.broker_id for each in self.image.brokers.values() if each.is_active]
        return alive[self.random.randrange(0, len(alive))] if alive else NO_NODE

    async def catch_up_with_metadata(self) -> None:
        """Wait until all metadata committed so far is in effect on this broker."""
        await self.metadata_publisher.catch_up()

    async def _follow(self, image: MetadataImage, delta: MetadataDelta) -> None:
        newest = self.metadata
        self.authorizer.follow(image, is_caught_up=image is newest.image and newest.is_caught_up)
        self.lost_brokers.followed(self.image, image)
        if any(resource.type == ResourceType.BROKER for resource in delta.configs):
            self._update_settings(image)
        self.client_quotas.follow(image, delta)
        self.client_telemetry.follow(image, delta)
        if not self._has_joined:
            own = image.brokers.get(self.node_id)
            if own is None or own.incarnation_id != self.incarnation_id:
                # An image from before this run's registration. The data directory may already hold logs of newer
                # images (recreated topics, reassigned replicas), which an older image must not delete as strays.
                return
            self._has_joined, delta = True, delta_between(MetadataImage(), image)
        await self.partitions.follow(image, delta)
        if delta.removed or delta.changed:
            self.shares.remove_stale(image)
        await self.share_coordinator.follow(image, delta)
        await self.schedules.follow(image, delta)
        await self.groups.follow(image, delta)
        await self.transactions.follow(image, delta)

    def _update_settings(self, image: MetadataImage) -> None:
        """Apply dynamic broker configs."""
        self.texts = self.texts._replace(
            per_broker=image.configs.get(Resource(ResourceType.BROKER, str(self.node_id)), {}),
            cluster=image.configs.get(Resource(ResourceType.BROKER, ""), {}),
        )
        self.settings = effective_broker_settings(self.texts, _log_invalid_setting)
        self.effective_texts = {**self.texts.static, **acceptable({**self.texts.cluster, **self.texts.per_broker})}

    def log_settings(self, image: MetadataImage, topic: str) -> LogSettings:
        return effective_log_settings(image.topic_configs(topic), self.settings.log_defaults, _log_invalid_setting)

    def describe_topic(self, overrides: Mapping[str, str]) -> list[DescribedSetting]:
        return describe_topic(overrides, self.texts)

    def reachable_brokers(self, listener: str, *, fenced_too: bool = False) -> Iterator[tuple[BrokerImage, Address]]:
        """Yield the brokers with an address on this listener, and that address."""
        for broker in self.image.brokers.values():
            address = broker.address(listener)
            if address is not None and (fenced_too or not broker.is_fenced):
                yield broker, address

    async def _allocate_producer_ids(self) -> ProducerIdBlock:
        """Request a block from the active controller; without one, the error is retriable, as in Kafka."""
        request = AllocateProducerIdsRequest(broker_id=self.node_id, broker_epoch=self.replicas.broker_epoch)
        try:
            response = await self.controller.ask(request)
            check(response.error_code)
        except KafkaError as error:
            raise CoordinatorLoadInProgress(f"No producer ids could be allocated: {error.message}") from None
        return ProducerIdBlock(response.producer_id_start, response.producer_id_len)

    async def create_topic(self, topic: NewTopic) -> TopicCreated:
        """Have the active controller create a topic, and wait until this broker knows it."""
        (created,) = await request_topics(self, [topic])
        return created

    # -- disk

    def disk_space(self, path: str) -> tuple[int, int]:
        """Return the total and the free bytes of a log dir's file system."""
        return self._disk.total_bytes(path), self._disk.free_bytes(path)

    def request_log_dir(self, topic: str, index: int, path: str) -> bool:
        """Move a log to a log dir, or have it created there if it does not exist yet; return whether it exists."""
        partition = self.partitions.find(topic, index)
        if partition is None:
            self._store.prefer(TopicPartition(topic, index), path)
            return False
        self.log_moves.request(partition, path)
        return True

    def _log_dir_of(self, partition: Partition) -> LogDirMonitor:
        return self.log_dirs.of(partition.log.folder)

    def _sync_failed(self, partition: Partition, error: SyncFailed) -> None:
        """It is unknown which records of this disk are lost: go on with other log dirs, or stop."""
        log_dir = self._log_dir_of(partition)
        if log_dir is self.log_dirs.metadata:
            self._on_failure(f"{partition.name}: fsync failed", error)
            return
        self._record_sync_failure(path_of(partition.log.folder))
        log_dir.fail_until_restart(f"{partition.name}: {error}", "replace the disk and restart the broker")

    def _disk_failed(self, partition: Partition, error: OSError) -> None:
        """Count a failed read or write. The client gets an error; the log gets a line at powers of two."""
        self.disk_errors += 1
        self._log_dir_of(partition).failed(error)
        if self.disk_errors.bit_count() == 1:  # the first, second, fourth, eighth …
            logger.error("%s: disk error (number %d of this broker): %s", partition.name, self.disk_errors, error)

    def _log_dir_changed(self) -> None:
        """Other brokers can take over while a log dir is offline."""
        if not self.log_dirs.metadata.is_online:
            self.metadata.give_up()
        self.partitions.reassign_roles()

    def gives_up(self, partition: PartitionImage) -> bool:
        """Whether another broker is to lead this partition, because its log dir is offline."""
        directory = partition.directory_of(self.node_id)
        return not self.log_dirs.is_assignment_online(directory) and self.replicas.has_substitute(partition)

    # -- bugs

    def report_bug(self, where: str, error: BaseException) -> None:
        """Log an exception that no handler should raise."""
        self.bugs += 1
        kind = f"bug {type(error).__name__} {where.split()[0]}"
        self.limited_logger.write(kind, f"A bug, please report it: {where}", logging.ERROR, error)

    # -- lifecycle

    async def start(self) -> None:
        """Open the logs of the committed metadata, delete stray logs, then start the background tasks."""
        await self.catch_up_with_metadata()
        self._store.sweep(self.image, self.node_id, (METADATA_TOPIC,))
        for name, path in self._store.interrupted_moves():
            self.request_log_dir(*name, path)
        self.log_maintenance.start()
        self.log_scrubber.start()
        self.replicas.start()
        self.share_coordinator.start()
        self.schedules.start()
        self.groups.start()
        self.transactions.start()
        self.loop_stalls.start()

    async def close(self) -> None:
        """Stop the background tasks, then flush and close every log."""
        self.loop_stalls.stop()
        await self.log_dirs.close()
        await self.failure_detector.close()
        await self.log_moves.close()
        await self.log_maintenance.stop()
        await self.log_scrubber.stop()
        await self.metadata_publisher.close()
        await self.shares.close()
        await self.schedules.close()
        await self.transactions.close()
        await self.groups.close()
        await self.share_coordinator.close()
        await self.replicas.close()
        self.replica_sessions.close()
        await self.partitions.close()
        await self._store.close()
        self.audit_log.close()


def _audit_log_settings(settings: BrokerSettings, data_folder: str) -> AuditLogSettings:
    path = settings.audit_log_path
    return AuditLogSettings(
        path if not path or path.startswith("/") else f"{data_folder}/{path}",
        settings.audit_log_allowed,
        settings.audit_log_max_bytes,
        settings.audit_log_files,
        settings.audit_log_lines_per_second,
    )


def _log_invalid_setting(error: InvalidConfig) -> None:
    logger.warning("Ignoring invalid stored setting: %s", error)
