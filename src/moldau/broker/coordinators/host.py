"""The services of the broker that the coordinators use.

`Broker` has all of them and builds the coordinators; these protocols state which part of it a coordinator may touch, so
that no coordinator imports `Broker`.
"""

from typing import Protocol

from moldau.broker.cluster.local_requests import LocalRequests
from moldau.broker.cluster.peers import Peers
from moldau.broker.configs.broker_settings import BrokerSettings
from moldau.broker.controllers.controller_channel import ControllerChannel
from moldau.broker.controllers.producer_ids import ProducerIds
from moldau.broker.partitions.table import Partitions
from moldau.broker.runtime.rate_limited_logger import RateLimitedLogger
from moldau.machines.metadata.image import MetadataImage
from moldau.machines.metadata.topics import NewTopic, TopicCreated
from moldau.model.ports import Clock, Executor


class ClusterView(Protocol):
    """The metadata that is in effect on this broker, and its settings."""

    @property
    def image(self) -> MetadataImage: ...

    @property
    def settings(self) -> BrokerSettings: ...


class PeerHost(ClusterView, Protocol):
    """How to send a request to a broker by its id: over a connection, or locally to this one."""

    @property
    def node_id(self) -> int: ...

    @property
    def inter_broker_listener(self) -> str: ...

    @property
    def peers(self) -> Peers: ...

    @property
    def local(self) -> LocalRequests: ...


class CoordinatorHost(PeerHost, Protocol):
    """The parts of the broker that a coordinator shard uses beside its own partition."""

    @property
    def clock(self) -> Clock: ...

    @property
    def executor(self) -> Executor: ...

    @property
    def partitions(self) -> Partitions: ...

    @property
    def controller(self) -> ControllerChannel: ...

    @property
    def limited_logger(self) -> RateLimitedLogger: ...

    @property
    def producer_ids(self) -> ProducerIds: ...

    async def create_topic(self, topic: NewTopic) -> TopicCreated:
        """Have the active controller create a topic, and wait until this broker knows it."""
