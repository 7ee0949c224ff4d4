"""A node: assembles a broker, a controller, or both from settings and ports, and runs them."""

import logging
from collections.abc import Callable, Iterator

from moldau.broker.access import Authorizer
from moldau.broker.authentication.mechanisms import Credentials, ListenerMechanisms
from moldau.broker.authorizer import StandardAuthorizer
from moldau.broker.broker import Broker
from moldau.broker.cluster.peers import Peers
from moldau.broker.configs.access_settings import parse_super_users
from moldau.broker.configs.tls_settings import METRICS_LISTENER, ListenerTls
from moldau.broker.configs.validation import ConfigValidator
from moldau.broker.controllers.lifecycle import BrokerLifecycle
from moldau.broker.controllers.registration import ControllerRegistration
from moldau.broker.controllers.token_expiry import TokenExpiry
from moldau.broker.drivers.membership import Membership, fixed_voters
from moldau.broker.drivers.metadata import MetadataDriver
from moldau.broker.handlers.table import served_apis
from moldau.broker.metrics.endpoint import MetricsEndpoint
from moldau.broker.network.authentication import GateHost
from moldau.broker.network.listeners import Listeners
from moldau.broker.partitions.log_store import LogStore
from moldau.broker.partitions.log_stores import LogStores
from moldau.broker.requests.router import LocalHandler, Routers
from moldau.broker.runtime.log_dir_monitor import LogDirMonitor
from moldau.broker.runtime.log_dirs import LogDirs
from moldau.machines.metadata.settings import MetadataSettings
from moldau.machines.raft import Endpoints, Voter
from moldau.model.ids import NO_EPOCH, Address
from moldau.model.listeners import SecurityProtocol, parse_address
from moldau.model.ports import Listener, Ports
from moldau.model.tls import TlsSettings
from moldau.model.units import SECOND_MS
from moldau.node.configuration import Configuration
from moldau.node.identity import random_id
from moldau.node.log_dirs import NodeLogDirs
from moldau.node.peer_security import peer_securities
from moldau.node.ports.urls import fetch_document
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
        """`on_failure` is called after a failure that the node must not survive; it should end the process.

        `process_lines` yields the process metrics of the metrics page.
        """
        self._configuration = configuration
        self._ports = ports
        self._on_failure = on_failure
        self._authorizer = authorizer
        self._process_lines = process_lines
        self._metrics: Listener | None = None
        self._token_expiry: TokenExpiry | None = None  # if the node is a controller
        self._lifecycle: BrokerLifecycle | None = None  # if the node is a broker
        self._registration_loop: ControllerRegistration | None = None  # if the node is a controller with a listener

    async def start(self) -> None:
        """Lock the data directory, recover metadata and logs, register, serve."""
        settings = self._configuration.settings
        self._log_dirs = NodeLogDirs.open(self._ports.disk, settings.folders, settings.metadata_folder)
        try:
            self._identity = self._log_dirs.identify(
                settings.node_id, self._ports.random, may_format=self._configuration.quorum.is_standalone
            )
            self._log_dirs.take_shutdown_state()
            self._previous_epoch = self._log_dirs.epoch_before
            self._assemble()
            await self._bring_up()
        except BaseException as error:
            self._note_failed_sync(error)
            await self._release()
            raise

    def _failed(self, what: str, error: BaseException) -> None:
        self._note_failed_sync(error)
        self._on_failure(what, error)

    def _note_failed_sync(self, error: BaseException) -> None:
        """Record a failed sync first of all: the process may end at any moment."""
        if isinstance(error, SyncFailed):
            self._log_dirs.record_sync_failure()

    def _assemble(self) -> None:
        """Create the parts of the node without starting them."""
        settings, ports = self._configuration.settings, self._ports
        log_dirs = self._monitor_log_dirs()
        self._metadata_dir_monitor = log_dirs.metadata
        stores = LogStores.of(
            map(self._make_store, self._log_dirs.by_path.values()),
            log_dirs,
            lambda: self.broker.settings.cordoned_log_dirs,
        )
        self._peers, self._controllers = self._make_peers()
        self._metadata = self._make_metadata()
        self.broker = Broker(
            ports,
            settings,
            self._configuration.texts,
            self._log_dirs.metadata.path,
            self._identity.cluster_id,
            stores,
            self._metadata,
            self._peers,
            self._controllers,
            self._failed,
            self._incarnation_id(),
            log_dirs,
            self._log_dirs.record_sync_failure_in,
            self._configuration.listeners.inter_broker,
            self._authorizer or self._make_authorizer(),
        )
        self.routers = Routers(served_apis(), self.broker.controller_listeners)
        self.broker.local = LocalHandler(self.broker, self.routers)
        apis = (*self.routers.broker.apis.values(), *self.routers.controller.apis.values())
        self.broker.audit_log.api_names.update((api.key, api.name) for api in apis)
        self._listeners = Listeners(self.broker, self.routers, ports.network, self._gates(), self._listener_tls())

    def _monitor_log_dirs(self) -> LogDirs:
        monitors = {each.path: self._make_monitor(each) for each in self._log_dirs.all}
        return LogDirs(
            [monitors[path] for path in self._log_dirs.by_path],
            self._log_dirs.ids,
            monitors[self._log_dirs.metadata.path],
            self._log_dirs.unopened,
        )

    def _make_monitor(self, log_dir: LogDir) -> LogDirMonitor:
        ports, settings = self._ports, self._configuration.settings
        return LogDirMonitor(log_dir.path, ports.disk, ports.executor, ports.clock, lambda: settings)

    def _make_store(self, log_dir: LogDir) -> LogStore:
        ports, path = self._ports, log_dir.path
        return LogStore(
            log_dir,
            ports.disk,
            ports.executor,
            ports.random,
            ports.clock,
            is_clean=self._log_dirs.clean_epochs[path] is not None,
            has_lost_power=self._log_dirs.power_losses[path],
            has_sync_failure=self._log_dirs.failed_syncs[path],
            producer_expiration_ms=lambda: self.broker.settings.producer_id_expiration_ms,
        )

    def _make_peers(self) -> tuple[Peers, Peers]:
        """The connections to other brokers, and those to controllers: they may be secured in different ways."""
        configuration, ports = self._configuration, self._ports
        client_id = f"node-{configuration.settings.node_id}"
        made = [
            Peers(ports.network, ports.clock, client_id, security=security)
            for security in peer_securities(configuration, ports.random.randbytes, ports.executor)
        ]
        return made[0], made[1]

    def _gates(self) -> dict[str, GateHost]:
        """Return the authentication of each SASL listener."""
        settings, ports = self._configuration.settings, self._ports
        credentials = Credentials(
            lambda: self._metadata.image,
            ports.clock,
            ports.random,
            settings.delegation_token_secret_key,
            fetch_document,
            lambda: self._metadata.local_credentials,
            self._identity.cluster_id,
        )
        meter = self.broker.authentication_meter
        gates = {}
        for each in self._configuration.listeners.bound:
            if each.protocol.needs_sasl:
                mechanisms = ListenerMechanisms(each.name, lambda: self.broker.texts, credentials)
                gates[each.name] = GateHost(mechanisms, ports.clock, ports.executor, meter)
        return gates

    def _make_authorizer(self) -> Authorizer | None:
        settings = self._configuration.settings
        if not settings.authorizer_class_name:
            return None
        super_users = parse_super_users(settings.super_users)
        return StandardAuthorizer(super_users, allows_without_acl=settings.allow_everyone_if_no_acl_found)

    def _listener_tls(self) -> dict[str, ListenerTls]:
        """TLS of each listener that uses it."""
        return {
            each.name: ListenerTls(
                each.name,
                lambda: self.broker.effective_texts,
                identifies_clients=each.protocol is SecurityProtocol.SSL,
            )
            for each in self._configuration.listeners.bound
            if each.protocol.needs_tls
        }

    def _incarnation_id(self) -> bytes:
        """Return a new id, unless the last run ended before its registration was confirmed."""
        unfinished = None if self._log_dirs.has_lost_power else self._log_dirs.metadata.pending_incarnation()
        return unfinished or random_id(self._ports.random)

    def _make_metadata(self) -> MetadataDriver:
        settings, quorum, ports = self._configuration.settings, self._configuration.quorum, self._ports
        membership = Membership(
            Voter(self._identity.node_id, self._identity.directory_id),
            self._identity.cluster_id,
            static_voters=fixed_voters(quorum.voters),
            bootstrap_servers=quorum.addresses,
            is_standalone=quorum.is_standalone,
            settings=settings,
            member=settings,
        )
        return MetadataDriver(
            self._log_dirs.metadata.path,
            membership,
            disk=ports.disk,
            executor=ports.executor,
            clock=ports.clock,
            random=ports.random,
            peers=self._controllers,
            rules=ConfigValidator(self._configuration.texts),
            log_settings=settings,
            machine_settings=self._machine_settings,
            has_lost_power=self._log_dirs.power_losses[self._log_dirs.metadata.path],
            has_sync_failure=self._log_dirs.failed_syncs[self._log_dirs.metadata.path],
            failed=lambda error: self._failed("the metadata log failed", error),
            observer=self._metadata_dir_monitor,
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
        """Bind the listeners first, because the registration contains their ports; early connections wait."""
        try:
            self._bound = await self._listeners.bind(self._configuration.listeners.bound)
            self._metadata.subscribe(self.broker.metadata_publisher.committed)
            needs_credentials = any(each.protocol.needs_sasl for each in self._configuration.listeners.for_controllers)
            await self._metadata.start(self._controller_endpoints(), needs_local_credentials=needs_credentials)
            self._listeners.open_for_controllers()
            if self._configuration.is_controller:
                self._control()
            if self._configuration.is_broker:
                await self._join()
            self.broker.partitions.when_opened(self._log_dirs.record_boot)
        except BaseException:
            await self._listeners.close()
            await self._peers.close()
            await self._controllers.close()
            raise
        self._metrics = await self._serve_metrics()
        self._listeners.open()

    def _control(self) -> None:
        """Start failure detection, which runs while this controller is active, and register the controller."""
        self.broker.failure_detector.start()
        self._token_expiry = TokenExpiry(self.broker)
        self._token_expiry.start()
        if self._configuration.listeners.for_controllers:
            self._registration_loop = ControllerRegistration(self.broker.controller, self._controller_registration())
            self._registration_loop.start()

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
                for name, levels in self.broker.supported_features.items()
            ],
        )

    async def _join(self) -> None:
        """Register the broker, catch up with the metadata, recover its logs, then unfence."""
        self._lifecycle = BrokerLifecycle(
            self.broker, self._registration(), self._log_dirs.metadata.record_broker_epoch, self._failed
        )
        self._log_dirs.metadata.record_incarnation(self.broker.incarnation_id)
        await self._lifecycle.register()
        await self._lifecycle.catch_up()
        await self.broker.start()
        await self._lifecycle.unfence()

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
                for name, levels in self.broker.supported_features.items()
            ],
            rack=self._configuration.settings.broker_rack,
            log_dirs=list(self._log_dirs.ids.values()),
            previous_broker_epoch=self._previous_epoch,
        )

    def _controller_endpoints(self) -> Endpoints:
        """The advertised endpoints of this controller."""
        return tuple((each.name, self.advertised(each.name)) for each in self._configuration.listeners.for_controllers)

    def advertised(self, listener: str) -> Address:
        """Return the address advertised to clients of this listener."""
        address = self._configuration.listeners.advertised_on(listener, self._bound)
        assert address is not None
        return address

    @property
    def bootstrap_servers(self) -> str:
        """The advertised client addresses; those for controllers if the node is only a controller."""
        listeners = self._configuration.listeners
        return ",".join(str(self.advertised(each.name)) for each in listeners.for_clients or listeners.for_controllers)

    @property
    def cluster_id(self) -> str:
        return self._identity.cluster_id

    @property
    def metrics_address(self) -> str | None:
        """The URL of the metrics page, if it is served."""
        scheme = "https" if self._configuration.settings.serves_metrics_by_tls else "http"
        return f"{scheme}://{self._metrics.address}/metrics" if self._metrics else None

    async def stop(self) -> None:
        """Shut down cleanly: move leadership, close connections, flush everything, mark the shutdown as clean."""
        try:
            await self._stop()
        except SyncFailed as error:
            self._note_failed_sync(error)
            raise

    async def _stop(self) -> None:
        if self._lifecycle is not None:
            await self._lifecycle.shut_down()
        if self._token_expiry is not None:
            await self._token_expiry.close()
        if self._registration_loop is not None:
            await self._registration_loop.close()
        await self._listeners.close_for_clients()
        await self.broker.close()
        await self._metadata.close()
        await self._listeners.close()
        await self._peers.close()
        await self._controllers.close()
        epoch = NO_EPOCH if self._lifecycle is None else self._lifecycle.epoch
        if not self._log_dirs.mark_clean_shutdown(epoch, self.broker.partitions.is_closed_cleanly):
            logger.warning(
                "Shutdown is not marked as clean: some logs are offline. All logs are recovered at the next start."
            )
        await self._release()

    async def _release(self) -> None:
        """Release the metrics port, threads and the data directory."""
        if self._metrics is not None:
            await self._metrics.close()
        await self._ports.executor.close()
        self._log_dirs.close()

    def _metrics_pages(self) -> MetricsEndpoint:
        apis = list(self.routers.broker.apis.values())
        return MetricsEndpoint(self.broker, apis, self._listeners.limits, self._process_lines)

    def _metrics_tls(self) -> Callable[[], TlsSettings] | None:
        if not self._configuration.settings.serves_metrics_by_tls:
            return None
        return ListenerTls(METRICS_LISTENER, lambda: self.broker.effective_texts, identifies_clients=False).settings

    async def _serve_metrics(self) -> Listener | None:
        """Serve the metrics page; a port that is in use must not keep the node from serving clients."""
        address = self._configuration.settings.metrics_listener
        if not address:
            return None
        try:
            return await self._ports.network.serve_pages(
                parse_address(address), self._metrics_pages().serve, self._metrics_tls()
            )
        except OSError as error:
            logger.warning("Metrics page disabled: cannot listen on moldau.metrics.listener=%s: %s", address, error)
            return None
