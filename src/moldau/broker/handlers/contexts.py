"""The parts of the broker that each family of handlers uses.

`Broker` has all of them. A handler names the context of its family, so that its signature states what it may touch.
"""

from collections.abc import Iterator, Mapping
from typing import Protocol

from moldau.broker.cluster.lost_brokers import LostBrokers
from moldau.broker.configs.broker_settings import BrokerSettings
from moldau.broker.configs.resolution import BrokerTexts, DescribedSetting
from moldau.broker.controllers.failure_detector import FailureDetector
from moldau.broker.controllers.producer_ids import ProducerIds
from moldau.broker.controllers.topic_creation import TopicHost
from moldau.broker.coordinators.host import PeerHost
from moldau.broker.groups.group_coordinator import Groups
from moldau.broker.partitions.log_maintenance import LogMaintenance
from moldau.broker.partitions.record_validation import RecordValidator
from moldau.broker.partitions.table import Partitions
from moldau.broker.quotas.client_quotas import ClientQuotas
from moldau.broker.replicas.log_moves import LogMoves
from moldau.broker.requests.context import ContextHost, RequestContext
from moldau.broker.requests.quorum_requests import ClusterMember
from moldau.broker.runtime.log_dirs import LogDirs
from moldau.broker.runtime.meters import TrafficMeter
from moldau.broker.runtime.record_sampler import RecordSamplers
from moldau.broker.shares.network_persister import NetworkPersister
from moldau.broker.shares.share_coordinator import ShareCoordinator
from moldau.broker.telemetry.client_telemetry import ClientTelemetry
from moldau.broker.transactions.verification import TransactionHost
from moldau.machines.metadata.image import BrokerImage, MetadataImage, PartitionImage, VersionRange
from moldau.model.ids import Address
from moldau.model.ports import Random


class MetadataHost(ContextHost, Protocol):
    """For handlers that need the metadata of the cluster, and no more."""

    @property
    def image(self) -> MetadataImage: ...


class QuorumHost(MetadataHost, ClusterMember, TopicHost, Protocol):
    """For requests between members of the quorum, and those that the active controller decides."""

    @property
    def client_quotas(self) -> ClientQuotas: ...

    @property
    def failure_detector(self) -> FailureDetector: ...

    @property
    def supported_features(self) -> Mapping[str, VersionRange]: ...

    def describe_topic(self, overrides: Mapping[str, str]) -> list[DescribedSetting]: ...


class ClusterHost(MetadataHost, ClusterMember, TopicHost, Protocol):
    """For handlers that describe the cluster to a client, and may create topics on request."""

    @property
    def settings(self) -> BrokerSettings: ...

    @property
    def texts(self) -> BrokerTexts: ...

    @property
    def controller_id(self) -> int: ...

    @property
    def lost_brokers(self) -> LostBrokers: ...

    @property
    def supported_features(self) -> Mapping[str, VersionRange]: ...

    @property
    def node_id(self) -> int: ...

    def gives_up(self, partition: PartitionImage) -> bool: ...

    def reachable_brokers(
        self, listener: str, *, fenced_too: bool = False
    ) -> Iterator[tuple[BrokerImage, Address]]: ...


class LogHost(MetadataHost, Protocol):
    """For handlers that read or change logs of this broker."""

    @property
    def node_id(self) -> int: ...

    @property
    def data_folder(self) -> str: ...

    @property
    def partitions(self) -> Partitions: ...

    @property
    def log_dirs(self) -> LogDirs: ...

    @property
    def log_maintenance(self) -> LogMaintenance: ...

    @property
    def log_moves(self) -> LogMoves: ...

    def request_log_dir(self, topic: str, index: int, path: str) -> bool: ...

    def disk_space(self, path: str) -> tuple[int, int]: ...


class ProduceHost(MetadataHost, TransactionHost, Protocol):
    """For Produce."""

    @property
    def partitions(self) -> Partitions: ...

    @property
    def record_validator(self) -> RecordValidator: ...

    @property
    def record_samplers(self) -> RecordSamplers: ...

    @property
    def traffic(self) -> TrafficMeter: ...


class GroupHost(MetadataHost, Protocol):
    """For requests to group coordinators."""

    @property
    def groups(self) -> Groups: ...

    @property
    def random(self) -> Random: ...


class ShareHost(GroupHost, PeerHost, Protocol):
    """For requests to share coordinators, and about the states of share groups."""

    @property
    def partitions(self) -> Partitions: ...

    @property
    def share_coordinator(self) -> ShareCoordinator: ...

    @property
    def share_persister(self) -> NetworkPersister: ...


class TxnHost(ShareHost, TransactionHost, Protocol):
    """For requests to transaction coordinators, and to the group coordinators that take part in a transaction."""

    @property
    def producer_ids(self) -> ProducerIds: ...


class TelemetryHost(ContextHost, Protocol):
    """For metrics that clients push."""

    @property
    def client_telemetry(self) -> ClientTelemetry: ...


MetadataContext = RequestContext[MetadataHost]
QuorumContext = RequestContext[QuorumHost]
ClusterContext = RequestContext[ClusterHost]
LogContext = RequestContext[LogHost]
ProduceContext = RequestContext[ProduceHost]
GroupContext = RequestContext[GroupHost]
ShareContext = RequestContext[ShareHost]
TxnContext = RequestContext[TxnHost]
TelemetryContext = RequestContext[TelemetryHost]
