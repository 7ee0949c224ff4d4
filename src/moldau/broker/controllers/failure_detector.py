"""The active controller detects a crashed broker process at once, long before its session times out.

The connections of a dying process end at that moment. So when a connection with heartbeats ends, the controller probes
the broker's address: if it is refused twice, the process is gone and the broker is fenced. A slow broker, or one that
lost only its connection, does not refuse connections; an unreachable host is left to its session timeout. A new
active controller has no such connections yet, so it probes all brokers until their heartbeats arrive.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from moldau.machines.metadata.image import BrokerImage
from moldau.model.errors import KafkaError

if TYPE_CHECKING:
    from moldau.broker.cluster.peers import Peers
    from moldau.broker.drivers.metadata import MetadataDriver

logger = logging.getLogger(__name__)

REFUSED_PROBES: Final = 2  # in a row: a single one may come from a process that is just starting again
PROBES_MAX: Final = 50  # a dying process closes its ports one by one, so the first probe may be too early
PROBE_INTERVAL_MS: Final = 10.0  # clients request the new leader about 100 ms after the loss of the old one
HEARTBEAT_WAIT_MS: Final = 500.0  # after which a new controller probes again the brokers without a heartbeat


class WatchedConnection(Protocol):
    """The connection over which a broker sends its heartbeats."""

    when_lost: Callable[[], None] | None


class WatchHost(Protocol):
    """The parts of the node that the detector uses."""

    @property
    def node_id(self) -> int: ...

    @property
    def inter_broker_listener(self) -> str: ...

    @property
    def metadata(self) -> "MetadataDriver": ...

    @property
    def peers(self) -> "Peers": ...


class FailureDetector:
    """Probes brokers while this node is the active controller."""

    def __init__(self, broker: WatchHost) -> None:
        self._broker = broker
        self._was_active = False
        self._epochs_seen: dict[
            int, int
        ] = {}  # the last epoch of each broker with a heartbeat since this node became active
        self._probes: dict[tuple[int, int], asyncio.Task[None]] = {}  # by broker and epoch
        self._wait_task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._broker.metadata.on_leader_changed.append(self._leader_changed)
        self._leader_changed()

    def heartbeat_received(self, broker_id: int, epoch: int, connection: WatchedConnection | None) -> None:
        """Note a heartbeat; when its connection ends, the broker is probed. Local heartbeats have no connection."""
        self._epochs_seen[broker_id] = epoch
        if connection is not None:
            connection.when_lost = lambda: self._start_probe(broker_id, epoch)

    def _leader_changed(self) -> None:
        is_active = self._broker.metadata.is_active
        if is_active and not self._was_active:
            self._epochs_seen.clear()
            self._cancel_wait()
            self._wait_task = asyncio.get_running_loop().create_task(self._probe_until_heartbeats())
        self._was_active = is_active

    async def _probe_until_heartbeats(self) -> None:
        """Probe every broker without a heartbeat; one may crash before it finds its new controller."""
        while missing := self._without_heartbeat():
            for broker_id, epoch in missing:
                self._start_probe(broker_id, epoch)
            await asyncio.sleep(HEARTBEAT_WAIT_MS / 1000)

    def _without_heartbeat(self) -> list[tuple[int, int]]:
        keys = [(each.broker_id, each.epoch) for each in self._broker.metadata.image.brokers.values()]
        return [
            (broker_id, epoch)
            for broker_id, epoch in keys
            if self._epochs_seen.get(broker_id) != epoch and self._unfenced(broker_id, epoch) is not None
        ]

    def _start_probe(self, broker_id: int, epoch: int) -> None:
        key = (broker_id, epoch)
        if key not in self._probes and self._unfenced(broker_id, epoch) is not None:
            task = self._probes[key] = asyncio.get_running_loop().create_task(self._probe(broker_id, epoch))
            task.add_done_callback(lambda _: self._probes.pop(key, None))

    def _unfenced(self, broker_id: int, epoch: int) -> BrokerImage | None:
        """The broker, while this node is responsible for it."""
        broker = self._broker.metadata.image.brokers.get(broker_id)
        is_ours = self._broker.metadata.is_active and broker_id != self._broker.node_id
        return broker if is_ours and broker is not None and broker.epoch == epoch and not broker.is_fenced else None

    async def _probe(self, broker_id: int, epoch: int) -> None:
        """Fence the broker if consecutive probes are refused; any other result counts as alive."""
        refused = 0
        for number in range(PROBES_MAX):
            if number:
                await asyncio.sleep(PROBE_INTERVAL_MS / 1000)
            broker = self._unfenced(broker_id, epoch)
            if broker is None:
                return
            refused = refused + 1 if await self._is_refused(broker) else 0
            if refused == REFUSED_PROBES:
                await self._fence(broker_id, epoch)
                return

    async def _is_refused(self, broker: BrokerImage) -> bool:
        address = broker.address(self._broker.inter_broker_listener)
        if address is None:
            return bool(broker.listeners) and await self._broker.peers.is_refused(broker.listeners[0].address)
        return await self._broker.peers.is_refused(address)

    async def _fence(self, broker_id: int, epoch: int) -> None:
        logger.info("Broker %d has stopped: connections to its address are refused. Fencing it.", broker_id)
        try:
            await self._broker.metadata.write(lambda machine: machine.decide_fence_broker(broker_id, epoch))
        except KafkaError as error:
            logger.info("Broker %d was not fenced: %s", broker_id, error.message)

    def _cancel_wait(self) -> None:
        if self._wait_task is not None:
            self._wait_task.cancel()

    async def close(self) -> None:
        self._cancel_wait()
        tasks = list(self._probes.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
