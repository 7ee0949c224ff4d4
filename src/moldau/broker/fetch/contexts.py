"""The parts of the broker that each kind of fetch uses."""

from typing import Protocol

from moldau.broker.configs.broker_settings import BrokerSettings
from moldau.broker.controllers.controller_channel import ControllerChannel
from moldau.broker.drivers.metadata import MetadataDriver
from moldau.broker.fetch.replica_sessions import ReplicaFetchSessions
from moldau.broker.fetch.sessions import FetchSessions
from moldau.broker.partitions.log_scrubber import LogScrubber
from moldau.broker.partitions.table import Partitions
from moldau.broker.replicas.replicas import Replicas
from moldau.broker.requests.context import ContextHost, RequestContext
from moldau.broker.requests.quorum_requests import ClusterMember
from moldau.broker.runtime.meters import TrafficMeter
from moldau.machines.metadata.image import MetadataImage
from moldau.model.ports import Executor


class LogFetchHost(ContextHost, Protocol):
    """For fetches of partitions' logs."""

    @property
    def node_id(self) -> int: ...

    @property
    def executor(self) -> Executor: ...

    @property
    def partitions(self) -> Partitions: ...

    @property
    def traffic(self) -> TrafficMeter: ...


class ConsumerFetchHost(LogFetchHost, Protocol):
    """For consumers."""

    @property
    def image(self) -> MetadataImage: ...

    @property
    def settings(self) -> BrokerSettings: ...

    @property
    def controller(self) -> ControllerChannel: ...

    @property
    def fetch_sessions(self) -> FetchSessions: ...

    @property
    def log_scrubber(self) -> LogScrubber: ...


class FollowerFetchHost(LogFetchHost, Protocol):
    """For followers."""

    @property
    def replica_sessions(self) -> ReplicaFetchSessions: ...

    @property
    def replicas(self) -> Replicas: ...


class MetadataFetchHost(ClusterMember, Protocol):
    """For fetches of the metadata log."""

    @property
    def metadata(self) -> MetadataDriver: ...


class FetchHost(ConsumerFetchHost, FollowerFetchHost, MetadataFetchHost, Protocol):
    """For the API, which all of them share."""


ConsumerFetchContext = RequestContext[ConsumerFetchHost]
FollowerFetchContext = RequestContext[FollowerFetchHost]
MetadataFetchContext = RequestContext[MetadataFetchHost]
FetchContext = RequestContext[FetchHost]
