"""The broker: everything a handler may ask for, in one place. It is put together by `moldau.node`."""

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from moldau.broker.access import AllowAll, Authorizer
from moldau.broker.cluster.local_requests import LocalRequests
from moldau.broker.cluster.lost_brokers import LostBrokers
from moldau.broker.cluster.metadata_publisher import MetadataPublisher
from moldau.broker.cluster.peers import Peers
from moldau.broker.configs.broker_settings import BrokerSettings
from moldau.broker.configs.resolution import (
    BrokerTexts,
    DescribedSetting,
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
from moldau.broker.partitions.log_store import LogStore
from moldau.broker.partitions.partition import Partition
from moldau.broker.partitions.record_validation import RecordValidator
from moldau.broker.partitions.table import Partitions
from moldau.broker.partitions.write_coalescer import WriteCoalescer
from moldau.broker.replicas.replicas import Replicas
from moldau.broker.runtime.loop_stalls import LoopStalls
from moldau.broker.runtime.meters import TrafficMeter
from moldau.broker.runtime.rate_limited_logger import RateLimitedLogger
from moldau.broker.transactions.transaction_coordinator import Transactions
from moldau.client.errors import check
from moldau.machines.metadata.delta import MetadataDelta, delta_between
from moldau.machines.metadata.features import SUPPORTED_FEATURES
from moldau.machines.metadata.image import BrokerImage, MetadataImage, Resource, ResourceType, VersionRange
from moldau.machines.metadata.producer_ids import ProducerIdBlock
from moldau.machines.metadata.topics import NewTopic, TopicCreated
from moldau.model.errors import CoordinatorLoadInProgress, InvalidConfig, KafkaError
from moldau.model.ids import NO_NODE, Address
from moldau.model.ports import Ports
from moldau.model.protocol import METADATA_TOPIC
from moldau.storage.settings import LogSettings
from moldau.wire.messages import AllocateProducerIdsRequest

logger = logging.getLogger(__name__)

DESCRIPTORS_PER_PARTITION: Final = 2  # one is its log's, the other is left to connections and older segments


class Broker:
    """The services behind the handlers."""

    local: LocalRequests  # connected by the composition root, once there are handlers

    def __init__(
        self,
        ports: Ports,
        settings: BrokerSettings,
        static: Mapping[str, str],
        data_folder: str,
        cluster_id: str,
        store: LogStore,
        metadata: MetadataDriver,
        peers: Peers,
        on_failure: Callable[[str, BaseException], None],
        incarnation_id: bytes,
        inter_broker_listener: str = "",
        authorizer: Authorizer | None = None,
    ) -> None:
        self.clock = ports.clock
        self.random = ports.random
        self.executor = ports.executor
        self._disk = ports.disk
        self.settings = settings
        self.texts = BrokerTexts(static=static)
        self.node_id = settings.node_id
        self.cluster_id = cluster_id
        self.data_folder = data_folder
        self._store = store
        self.metadata = metadata
        self.authorizer = authorizer or AllowAll()
        self.allows_all = authorizer is None
        self._on_failure = on_failure
        self.partitions_max = ports.disk.files_max() // DESCRIPTORS_PER_PARTITION
        self.disk_errors = 0
        self.bugs = 0
        self.complaints = RateLimitedLogger(ports.clock, logger)
        self.traffic = TrafficMeter()
        self.controller_listeners = tuple(name.upper() for name in settings.controller_listeners)
        self.incarnation_id = incarnation_id  # of this life of the process
        self.inter_broker_listener = inter_broker_listener
        self.peers = peers
        self.controller = ControllerChannel(self, peers)
        self.failure_detector = FailureDetector(self)
        self.supported_features: Mapping[str, VersionRange] = SUPPORTED_FEATURES
        self._has_joined = False  # and follows the metadata with its partitions
        self._make_services(ports, peers, store, on_failure)

    def _make_services(
        self, ports: Ports, peers: Peers, store: LogStore, on_failure: Callable[[str, BaseException], None]
    ) -> None:
        """What looks after partitions, groups and sessions; each knows those that were made before it."""
        settings = self.settings
        self.fetch_sessions = FetchSessions(ports.random, settings.max_incremental_fetch_session_cache_slots)
        self.inspection = RecordValidator(ports.executor)
        self.syncing = LogFlusher(ports.executor, ports.clock, on_failure)
        self.gathering = WriteCoalescer()
        self.replica_sessions = ReplicaFetchSessions(ports.random)
        self.replicas = Replicas(
            self.node_id,
            self.incarnation_id,
            self.inter_broker_listener,
            peers,
            ports.clock,
            self.syncing,
            lambda: self.settings,
            self.controller.ask,
            lambda: self.partitions.checkpoint_recovery_points(),
            on_failure,
        )
        self.partitions = Partitions(
            self.node_id,
            store,
            ports.clock,
            self.syncing,
            self.log_settings,
            self._disk_failed,
            self.gathering,
            self.replicas,
        )
        self.upkeep = LogMaintenance(
            self.partitions,
            self.syncing,
            ports.clock,
            ports.disk,
            ports.executor,
            lambda: self.settings,
            LogCleaner(self.partitions, store, ports.clock, ports.executor),
        )
        self.groups = Groups(self, on_failure)
        self.transactions = Transactions(self, on_failure)
        self.publishing = MetadataPublisher(
            self._follow, lambda error: on_failure("following the metadata failed", error)
        )
        self.departures = LostBrokers(self.node_id, ports.clock, self.publishing, lambda: self.inter_broker_listener)
        peers.on_lost.append(self.departures.lost)
        self.stalls = LoopStalls(ports.clock)
        self.producer_ids = ProducerIds(self._allocate_producer_ids)

    # -- metadata

    @property
    def image(self) -> MetadataImage:
        """The newest metadata that is in effect here."""
        return self.publishing.image

    @property
    def controller_id(self) -> int:
        """Whom clients should ask to change something: the active controller if it is a broker, else any broker."""
        leader = self.metadata.leader_id
        if self.image.is_active(leader):
            return leader
        alive = [each.broker_id for each in self.image.brokers.values() if each.is_active]
        return alive[self.random.randrange(0, len(alive))] if alive else NO_NODE

    async def caught_up(self) -> None:
        """Until what is committed so far is in effect here."""
        await self.publishing.caught_up()

    async def _follow(self, image: MetadataImage, delta: MetadataDelta) -> None:
        self.departures.followed(self.image, image)
        if any(resource.type == ResourceType.BROKER for resource in delta.configs):
            self._take_settings(image)
        if not self._has_joined:
            own = image.brokers.get(self.node_id)
            if own is None or own.incarnation_id != self.incarnation_id:
                # From before this life, in which folders were made for later ones: for topics that were created again,
                # for copies that went and came back. They are not to be thrown away on the word of an older image.
                return
            self._has_joined, delta = True, delta_between(MetadataImage(), image)
        await self.partitions.follow(image, delta)
        await self.groups.follow(image, delta)
        await self.transactions.follow(image, delta)

    def _take_settings(self, image: MetadataImage) -> None:
        """Settings of brokers were changed while we run."""
        self.texts = self.texts._replace(
            per_broker=image.configs.get(Resource(ResourceType.BROKER, str(self.node_id)), {}),
            cluster=image.configs.get(Resource(ResourceType.BROKER, ""), {}),
        )
        self.settings = effective_broker_settings(self.texts, _passed_over)

    def log_settings(self, image: MetadataImage, topic: str) -> LogSettings:
        return effective_log_settings(image.topic_configs(topic), self.settings.log_defaults, _passed_over)

    def describe_topic(self, overrides: Mapping[str, str]) -> list[DescribedSetting]:
        return describe_topic(overrides, self.texts)

    def reachable_brokers(self, listener: str, *, fenced_too: bool = False) -> Iterator[tuple[BrokerImage, Address]]:
        """The brokers of the cluster, as those who came in through this listener reach them."""
        for broker in self.image.brokers.values():
            address = broker.address(listener)
            if address is not None and (fenced_too or not broker.is_fenced):
                yield broker, address

    async def _allocate_producer_ids(self) -> ProducerIdBlock:
        """Where nobody gives one, clients are told to try again, as Kafka does."""
        request = AllocateProducerIdsRequest(broker_id=self.node_id, broker_epoch=self.replicas.broker_epoch)
        try:
            answer = await self.controller.ask(request)
            check(answer.error_code)
        except KafkaError as error:
            raise CoordinatorLoadInProgress(f"There are no producer ids to be had: {error.message}") from None
        return ProducerIdBlock(answer.producer_id_start, answer.producer_id_len)

    async def create_topic(self, topic: NewTopic) -> TopicCreated:
        """Have the active controller create a topic, and wait until it is known here."""
        (created,) = await request_topics(self, [topic])
        return created

    # -- disk

    def disk_room(self) -> tuple[int, int]:
        """Bytes in all and bytes free where the data is."""
        return self._disk.total_bytes(self.data_folder), self._disk.free_bytes(self.data_folder)

    def _disk_failed(self, partition: Partition, error: OSError) -> None:
        """A write or read failed: the client hears of it, and the log says it, though not for every request."""
        self.disk_errors += 1
        if self.disk_errors.bit_count() == 1:  # the first, second, fourth, eighth …
            logger.error("%s: the disk refuses (%d times by now): %s", partition.name, self.disk_errors, error)

    # -- our own mistakes

    def report_bug(self, where: str, error: BaseException) -> None:
        """A handler failed in a way that it should not have."""
        self.bugs += 1
        kind = f"bug {type(error).__name__} {where.split()[0]}"
        self.complaints.write(kind, f"A bug, please report it: {where}", logging.ERROR, error)

    # -- life

    async def start(self) -> None:
        """Bring every log up to the metadata that is committed, then begin the chores."""
        await self.caught_up()
        self._store.sweep(self.image, self.node_id, (METADATA_TOPIC,))
        self.upkeep.start()
        self.replicas.start()
        self.groups.start()
        self.transactions.start()
        self.stalls.start()

    async def close(self) -> None:
        """Stop the chores, then flush and close every log."""
        self.stalls.stop()
        await self.failure_detector.close()
        await self.upkeep.stop()
        await self.publishing.close()
        await self.transactions.close()
        await self.groups.close()
        await self.replicas.close()
        self.replica_sessions.close()
        await self.partitions.close()
        await self._store.close()


def _passed_over(refusal: InvalidConfig) -> None:
    logger.warning("A stored setting is passed over: %s", refusal)
