"""A node: settings and ports go in, a running broker and controller come out."""

import logging
from collections.abc import Callable, Iterator

from moldau.broker.access import Authorizer
from moldau.broker.broker import Broker
from moldau.broker.cluster.peers import Peers
from moldau.broker.configs.validation import ConfigValidator
from moldau.broker.controllers.lifecycle import BrokerLifecycle
from moldau.broker.controllers.registration import ControllerRegistration
from moldau.broker.drivers.membership import Membership, fixed_voters
from moldau.broker.drivers.metadata import MetadataDriver
from moldau.broker.handlers.table import served_apis
from moldau.broker.metrics.endpoint import MetricsEndpoint
from moldau.broker.network.listeners import Listeners
from moldau.broker.partitions.log_store import LogStore
from moldau.broker.requests.router import LocalHandler, Routers
from moldau.machines.metadata.features import SUPPORTED_FEATURES
from moldau.machines.metadata.settings import MetadataSettings
from moldau.machines.raft import Endpoints, Voter
from moldau.model.ids import NO_EPOCH, Address
from moldau.model.listeners import parse_address
from moldau.model.ports import Listener, Ports
from moldau.model.units import SECOND_MS
from moldau.node.configuration import Configuration
from moldau.node.identity import identify, random_id
from moldau.storage.files import SyncFailed
from moldau.storage.log_dir import LogDir
from moldau.wire.messages import BrokerRegistrationRequest, ControllerRegistrationRequest

logger = logging.getLogger(__name__)


class Node:
    """A broker, a controller, or both. `start` returns when it serves, `stop` when everything is on disk."""

    def __init__(
        self,
        configuration: Configuration,
        ports: Ports,
        *,
        on_failure: Callable[[str, BaseException], None],
        authorizer: Authorizer | None = None,
        process_lines: Callable[[], Iterator[str]] = lambda: iter(()),
    ) -> None:
        """`on_failure` is told of anything after which the node must not go on; it is to end the process.

        `process_lines` are what the metrics page says of the process.
        """
        self._configuration = configuration
        self._ports = ports
        self._on_failure = on_failure
        self._authorizer = authorizer
        self._process_lines = process_lines
        self._metrics: Listener | None = None
        self._lifecycle: BrokerLifecycle | None = None  # of the broker in it, if there is one
        self._registering: ControllerRegistration | None = None  # of the controller in it, if others can reach it

    async def start(self) -> None:
        """Take the folder, bring back metadata and logs, register, serve."""
        self._folder = LogDir.open(self._ports.disk, self._configuration.settings.folders[0])
        try:
            self._identity = identify(
                self._folder,
                self._configuration.settings.node_id,
                self._ports.random,
                may_format=self._configuration.quorum.is_lone,
            )
            self._has_lost_power = self._folder.has_lost_power()
            self._has_failed_sync = self._folder.has_failed_sync()
            self._assemble()
            await self._bring_up()
        except BaseException as error:
            self._note_failed_sync(error)
            await self._give_back()
            raise

    def _failed(self, what: str, error: BaseException) -> None:
        self._note_failed_sync(error)
        self._on_failure(what, error)

    def _note_failed_sync(self, error: BaseException) -> None:
        """Before anything else is done: the process may be ended at any moment now."""
        if isinstance(error, SyncFailed):
            self._folder.record_failed_sync()

    def _assemble(self) -> None:
        """The parts of the node; nothing of it runs yet."""
        settings, ports = self._configuration.settings, self._ports
        clean_epoch = self._folder.take_clean_shutdown()
        self._previous_epoch = self._epoch_before(clean_epoch)
        store = LogStore(
            self._folder,
            ports.disk,
            ports.executor,
            ports.random,
            ports.clock,
            is_clean=clean_epoch is not None,
            has_lost_power=self._has_lost_power,
            has_failed_sync=self._has_failed_sync,
            producer_expiration_ms=lambda: self.broker.settings.producer_id_expiration_ms,
        )
        self._peers = Peers(ports.network, ports.clock, f"node-{settings.node_id}")
        self._metadata = self._make_metadata()
        self.broker = Broker(
            ports,
            settings,
            self._configuration.texts,
            self._folder.path,
            self._identity.cluster_id,
            store,
            self._metadata,
            self._peers,
            self._failed,
            self._incarnation_id(),
            self._configuration.listeners.inter_broker,
            self._authorizer,
        )
        self.routers = Routers(served_apis(), self.broker.controller_listeners)
        self.broker.local = LocalHandler(self.broker, self.routers)
        self._listeners = Listeners(self.broker, self.routers, ports.network)

    def _incarnation_id(self) -> bytes:
        """A new one, unless the last life ended before it knew whether it was registered."""
        unfinished = None if self._has_lost_power else self._folder.pending_incarnation()
        return unfinished or random_id(self._ports.random)

    def _epoch_before(self, clean_epoch: int | None) -> int:
        """Under which epoch this broker ran last, if nothing that it had acknowledged can have been lost since."""
        if clean_epoch is not None:
            return clean_epoch
        return NO_EPOCH if self._has_lost_power else self._folder.last_broker_epoch()

    def _make_metadata(self) -> MetadataDriver:
        settings, quorum, ports = self._configuration.settings, self._configuration.quorum, self._ports
        membership = Membership(
            Voter(self._identity.node_id, self._identity.directory_id),
            self._identity.cluster_id,
            static_voters=fixed_voters(quorum.voters),
            bootstrap_servers=quorum.addresses,
            is_lone=quorum.is_lone,
            settings=settings,
            member=settings,
        )
        return MetadataDriver(
            self._folder.path,
            membership,
            disk=ports.disk,
            executor=ports.executor,
            clock=ports.clock,
            random=ports.random,
            peers=self._peers,
            rules=ConfigValidator(self._configuration.texts),
            log_settings=settings,
            machine_settings=self._machine_settings,
            has_lost_power=self._has_lost_power,
            has_failed_sync=self._has_failed_sync,
            failed=lambda error: self._failed("the metadata log failed", error),
        )

    def _machine_settings(self) -> MetadataSettings:
        settings = self._configuration.settings
        return MetadataSettings(
            num_partitions=settings.num_partitions,
            default_replication_factor=settings.default_replication_factor,
            delete_topic_enable=settings.delete_topic_enable,
            broker_session_timeout_ms=settings.broker_session_timeout_ms,
            min_insync_replicas=settings.log_defaults.min_insync_replicas,
            unclean_leader_election_enable=settings.log_defaults.unclean_leader_election_enable,
            auto_leader_rebalance_enable=settings.auto_leader_rebalance_enable,
            leader_imbalance_check_interval_ms=settings.leader_imbalance_check_interval_seconds * SECOND_MS,
        )

    async def _bring_up(self) -> None:
        """The ports are taken first, because the registration names them; whoever connects now waits a moment."""
        try:
            self._bound = await self._listeners.bind(self._configuration.listeners.bound)
            self._metadata.subscribe(self.broker.publishing.committed)
            await self._metadata.start(self._controller_endpoints())
            self._listeners.open_for_controllers()
            if self._configuration.is_controller:
                self._control()
            if self._configuration.is_broker:
                await self._join()
            self.broker.partitions.when_opened(self._folder.record_boot)
        except BaseException:
            await self._listeners.close()
            await self._peers.close()
            raise
        self._metrics = await self._serve_metrics()
        self._listeners.open()

    def _control(self) -> None:
        """Look after brokers whenever this controller is the active one, and tell others where it is."""
        self.broker.failure_detector.start()
        if self._configuration.listeners.for_controllers:
            self._registering = ControllerRegistration(self.broker, self._controller_registration())
            self._registering.start()

    def _controller_registration(self) -> ControllerRegistrationRequest:
        request = ControllerRegistrationRequest
        return request(
            controller_id=self.broker.node_id,
            incarnation_id=self.broker.incarnation_id,
            listeners=[
                request.Listener(
                    name=each.name, host=where.host, port=where.port, security_protocol=each.protocol.value
                )
                for each in self._configuration.listeners.for_controllers
                if (where := self.advertised(each.name))
            ],
            features=[
                request.Feature(name=name, min_supported_version=levels.lowest, max_supported_version=levels.highest)
                for name, levels in SUPPORTED_FEATURES.items()
            ],
        )

    async def _join(self) -> None:
        """Tell the cluster where this broker is, bring every log up to date, then take up work."""
        self._lifecycle = BrokerLifecycle(
            self.broker, self._registration(), self._folder.record_broker_epoch, self._failed
        )
        self._folder.record_incarnation(self.broker.incarnation_id)
        await self._lifecycle.register()
        await self._lifecycle.caught_up()
        await self.broker.start()
        await self._lifecycle.take_up_work()

    def _registration(self) -> BrokerRegistrationRequest:
        request = BrokerRegistrationRequest
        return request(
            broker_id=self.broker.node_id,
            cluster_id=self._identity.cluster_id,
            incarnation_id=self.broker.incarnation_id,
            listeners=[
                request.Listener(
                    name=each.name, host=where.host, port=where.port, security_protocol=each.protocol.value
                )
                for each in self._configuration.listeners.for_clients
                if (where := self.advertised(each.name))
            ],
            features=[
                request.Feature(name=name, min_supported_version=levels.lowest, max_supported_version=levels.highest)
                for name, levels in SUPPORTED_FEATURES.items()
            ],
            rack=self._configuration.settings.broker_rack,
            log_dirs=[self._identity.directory_id],
            previous_broker_epoch=self._previous_epoch,
        )

    def _controller_endpoints(self) -> Endpoints:
        """Where other nodes reach the controller that this one is."""
        return tuple((each.name, self.advertised(each.name)) for each in self._configuration.listeners.for_controllers)

    def advertised(self, listener: str) -> Address:
        """Where clients of this listener are told to connect."""
        address = self._configuration.listeners.advertised_on(listener, self._bound)
        assert address is not None
        return address

    @property
    def bootstrap_servers(self) -> str:
        """Where clients connect; a node that is a controller alone has only its peers to be connected to."""
        listeners = self._configuration.listeners
        return ",".join(str(self.advertised(each.name)) for each in listeners.for_clients or listeners.for_controllers)

    @property
    def cluster_id(self) -> str:
        return self._identity.cluster_id

    @property
    def metrics_address(self) -> str | None:
        """Where the metrics are, if they are anywhere."""
        return f"http://{self._metrics.address}/metrics" if self._metrics else None

    async def stop(self) -> None:
        """Cleanly: others take over, connections end, everything is flushed, and the folder says so."""
        try:
            await self._stop()
        except SyncFailed as error:
            self._note_failed_sync(error)
            raise

    async def _stop(self) -> None:
        if self._lifecycle is not None:
            await self._lifecycle.shut_down()
        if self._registering is not None:
            await self._registering.close()
        await self._listeners.close_for_clients()
        await self.broker.close()
        await self._metadata.close()
        await self._listeners.close()
        await self._peers.close()
        if self.broker.partitions.are_all_open:
            self._folder.mark_clean_shutdown(NO_EPOCH if self._lifecycle is None else self._lifecycle.epoch)
        else:
            logger.warning("Some logs were offline, so all are looked through at the next start, as after a crash.")
        await self._give_back()

    async def _give_back(self) -> None:
        """Ports, threads and the folder; a folder that is not marked as clean will be checked at the next start."""
        if self._metrics is not None:
            await self._metrics.close()
        await self._ports.executor.close()
        self._folder.close()

    def _metrics_pages(self) -> MetricsEndpoint:
        apis = list(self.routers.broker.apis.values())
        return MetricsEndpoint(self.broker, apis, self._listeners.limits, self._process_lines)

    async def _serve_metrics(self) -> Listener | None:
        """A metrics port that is taken is no reason not to serve clients."""
        where = self._configuration.settings.metrics_listener
        if not where:
            return None
        try:
            return await self._ports.network.serve_pages(parse_address(where), self._metrics_pages().page)
        except OSError as error:
            logger.warning("No metrics: %s cannot be listened on (moldau.metrics.listener): %s", where, error)
            return None
