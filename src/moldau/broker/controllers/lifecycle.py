"""The broker's lifecycle in the cluster: registration, heartbeats, fencing and controlled shutdown.

    register --> catch up with the metadata --> heartbeats: unfenced --> ... --> controlled shutdown --> stop
                        ^                            |
                        +------ its epoch is stale --+

A node that is the active controller and the only broker sends no heartbeats.
"""

import asyncio
import logging
from collections.abc import Callable
from math import inf
from typing import Final, Protocol

from moldau.broker.cluster.metadata_publisher import MetadataPublisher
from moldau.broker.configs.controller_settings import LifecycleSettings
from moldau.broker.controllers.controller_channel import ControllerChannel
from moldau.broker.drivers.metadata import MetadataDriver
from moldau.broker.runtime.log_dirs import LogDirs
from moldau.client.errors import error_of
from moldau.machines.metadata.image import MetadataImage
from moldau.model.errors import ErrorCode, KafkaError, RequestTimedOut, UnsupportedVersion
from moldau.model.ids import NO_EPOCH
from moldau.model.ports import Clock
from moldau.model.units import SECOND_MS
from moldau.wire.messages import BrokerHeartbeatRequest, BrokerHeartbeatResponse, BrokerRegistrationRequest

logger = logging.getLogger(__name__)

HEARTBEAT: Final = "heartbeat"  # its own connection: nothing may delay a heartbeat
HEARTBEAT_TIMEOUT_MS: Final = 2 * SECOND_MS  # per controller; then the next one is tried
REGISTRATION_MS: Final = 10 * SECOND_MS  # per attempt
ATTEMPT_MS_MIN: Final = SECOND_MS  # too short for another attempt
DUPLICATE_PAUSE_MS: Final = 500.0
FENCED_PAUSE_MS: Final = 50.0  # a broker that waits to be unfenced sends heartbeats often
SHUTDOWN_MS: Final = 30 * SECOND_MS
SHUTDOWN_PAUSE_MS: Final = 20.0
HANDOVER_MS: Final = SECOND_MS

# The id is taken, or this node does not fit the cluster: retrying does not help.
_PERMANENT_ERRORS: Final = frozenset(
    {
        ErrorCode.INCONSISTENT_CLUSTER_ID,
        ErrorCode.UNSUPPORTED_VERSION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_REGISTRATION,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    }
)


class LifecycleHost(Protocol):
    """The parts of the broker that its lifecycle uses."""

    @property
    def clock(self) -> Clock: ...

    @property
    def settings(self) -> LifecycleSettings: ...

    @property
    def node_id(self) -> int: ...

    @property
    def image(self) -> MetadataImage: ...

    @property
    def metadata(self) -> MetadataDriver: ...

    @property
    def controller(self) -> ControllerChannel: ...

    @property
    def metadata_publisher(self) -> MetadataPublisher: ...

    @property
    def log_dirs(self) -> LogDirs: ...


class BrokerLifecycle:
    """One run of a broker. `register`, `unfence`, later `shut_down`."""

    def __init__(
        self,
        broker: LifecycleHost,
        registration: BrokerRegistrationRequest,
        on_registered: Callable[[int], None],
        on_failure: Callable[[str, BaseException], None],
    ) -> None:
        """`on_registered` is called with each epoch; `on_failure` with a fatal error."""
        self._broker = broker
        self._registration = registration
        self._on_registered = on_registered
        self._on_failure = on_failure
        self._heartbeat_task: asyncio.Task[None] | None = None
        self._controller_changed = asyncio.Event()
        self.epoch = NO_EPOCH
        self.is_shutting_down = False

    @property
    def _is_alone(self) -> bool:
        """Whether this node is the active controller and the only broker."""
        broker = self._broker
        return broker.controller.is_here and list(broker.metadata.image.brokers) == [broker.node_id]

    # Registration

    async def register(self) -> None:
        """Register with the active controller, retrying until it accepts.

        At the start this times out, so that a supervisor notices.
        """
        clock, timeout_ms = self._broker.clock, self._broker.settings.initial_registration_timeout_ms
        started_ms = clock.monotonic_ms()
        is_first = self.epoch == NO_EPOCH
        deadline_ms = started_ms + timeout_ms if self.epoch == NO_EPOCH else inf
        while not await self._register_once(started_ms, deadline_ms - clock.monotonic_ms()):
            if deadline_ms - clock.monotonic_ms() < ATTEMPT_MS_MIN:
                raise RequestTimedOut(
                    f"No active controller has registered this broker within {timeout_ms / 1000:g} s "
                    "(initial.broker.registration.timeout.ms). Check that a majority of the controllers is running."
                )
        self._persist_epoch(is_first=is_first)
        if self._is_alone:
            epoch, node_id = self.epoch, self._broker.node_id
            await self._broker.metadata.write(lambda machine: machine.decide_unfence_broker(node_id, epoch))

    def _persist_epoch(self, *, is_first: bool) -> None:
        try:
            self._on_registered(self.epoch)
        # the next run then does not know this epoch, and is treated as possibly lacking records
        except OSError as error:
            if is_first:
                raise
            logger.warning("Cannot persist the broker epoch: %s", error)

    async def _register_once(self, started_ms: float, timeout_ms: float) -> bool:
        try:
            response = await self._broker.controller.ask(
                self._registration, timeout_ms=min(REGISTRATION_MS, timeout_ms), purpose=HEARTBEAT
            )
        except RequestTimedOut as error:
            logger.warning("Broker registration failed, will retry: %s", error.message)
            return False
        if response.error_code == ErrorCode.NONE:
            self.epoch = response.broker_epoch
            return True
        await self._handle_rejection(response.error_code, started_ms)
        return False

    async def _handle_rejection(self, code: int, started_ms: float) -> None:
        """Raise permanent errors, and a duplicate id once the old session has expired; else pause before the retry."""
        elapsed_ms = self._broker.clock.monotonic_ms() - started_ms
        if code == ErrorCode.DUPLICATE_BROKER_REGISTRATION:
            if elapsed_ms > 2 * self._broker.settings.broker_session_timeout_ms:
                mine = self._broker.node_id
                raise error_of(
                    code, f"Another broker with node.id {mine} is running. Give each broker a unique node.id."
                )
        elif code in _PERMANENT_ERRORS:
            raise error_of(code, f"The controller rejected the registration: {error_of(code).message}.")
        await asyncio.sleep(DUPLICATE_PAUSE_MS / 1000)

    async def catch_up(self) -> None:
        """Wait until this broker's own registration is in effect here: everything decided before is then known."""
        await self._broker.metadata_publisher.until(lambda image: image.offset >= self.epoch)

    async def unfence(self) -> None:
        """Start heartbeats; returns when this broker is unfenced and its image shows it."""
        self._heartbeat_task = asyncio.get_running_loop().create_task(self._send_heartbeats())
        self._broker.metadata.on_leader_changed.append(self._controller_changed.set)
        self._broker.log_dirs.when_changed(self._controller_changed.set)
        await self._broker.metadata_publisher.until(self._is_unfenced)

    def _is_unfenced(self, image: MetadataImage) -> bool:
        broker = image.brokers.get(self._broker.node_id)
        return broker is not None and broker.epoch == self.epoch and not broker.is_fenced

    # Heartbeats

    async def _send_heartbeats(self) -> None:
        try:
            while True:
                wait_ms = await self._send_heartbeat()
                await self._wait_for_next(wait_ms)
        except Exception as error:
            self._on_failure("heartbeats to the controller failed", error)

    async def _wait_for_next(self, wait_ms: float) -> None:
        """Wait until the next heartbeat is due, there is a new controller, or the log dir went offline or online."""
        try:
            async with asyncio.timeout(wait_ms / 1000):
                await self._controller_changed.wait()
        except TimeoutError:
            return
        self._controller_changed.clear()

    async def _send_heartbeat(self) -> float:
        """Send a heartbeat if necessary; return the time until the next."""
        interval_ms = self._broker.settings.broker_heartbeat_interval_ms
        if self._is_alone and self._is_unfenced(self._broker.image):
            return interval_ms
        try:
            response = await self._request_heartbeat(wants_shut_down=False)
        except RequestTimedOut as error:
            logger.warning("Heartbeat to controller failed: %s", error.message)
            return 0.0
        except UnsupportedVersion as error:  # another process temporarily has the controller's address
            logger.warning("Heartbeat to controller failed: %s", error.message)
            return interval_ms
        if response.error_code in (ErrorCode.STALE_BROKER_EPOCH, ErrorCode.BROKER_ID_NOT_REGISTERED):
            logger.warning("Broker epoch is stale: registering again.")
            await self.register()
            await self.catch_up()
            return 0.0
        if response.error_code != ErrorCode.NONE:
            logger.warning("Heartbeat rejected: %s", error_of(response.error_code).message)
            return interval_ms
        return FENCED_PAUSE_MS if response.is_fenced else interval_ms

    async def _request_heartbeat(self, *, wants_shut_down: bool) -> BrokerHeartbeatResponse:
        heartbeat = BrokerHeartbeatRequest(
            broker_id=self._broker.node_id,
            broker_epoch=self.epoch,
            current_metadata_offset=self._broker.image.offset,
            want_shut_down=wants_shut_down,
            offline_log_dirs=self._broker.log_dirs.offline_ids,
        )
        response: BrokerHeartbeatResponse = await self._broker.controller.ask(
            heartbeat, timeout_ms=HEARTBEAT_TIMEOUT_MS, purpose=HEARTBEAT
        )
        return response

    # Controlled shutdown

    async def shut_down(self) -> None:
        """Move the leaderships away, if other replicas and a controller are available, within a time limit."""
        await self._stop_heartbeats()
        if self.epoch == NO_EPOCH or self._is_alone or not self._broker.settings.controlled_shutdown_enable:
            return
        self.is_shutting_down = True
        try:
            async with asyncio.timeout(SHUTDOWN_MS / 1000):
                await self._wait_until_released()
            await self._broker.metadata_publisher.until(self._leads_nothing, HANDOVER_MS)
        except (KafkaError, TimeoutError) as error:
            logger.warning("Controlled shutdown failed, leaderships were not moved: %s", error)

    async def _wait_until_released(self) -> None:
        while True:
            response = await self._request_heartbeat(wants_shut_down=True)
            if response.should_shut_down or response.error_code != ErrorCode.NONE:
                return
            await asyncio.sleep(SHUTDOWN_PAUSE_MS / 1000)

    def _leads_nothing(self, image: MetadataImage) -> bool:
        mine = self._broker.node_id
        return not any(each.leader == mine for topic in image.topics.values() for each in topic.partitions)

    async def _stop_heartbeats(self) -> None:
        if self._heartbeat_task is not None:
            self._heartbeat_task.cancel()
            await asyncio.wait([self._heartbeat_task])
            self._heartbeat_task = None
