"""Argument and result types of client calls."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from moldau.model.errors import KafkaError
from moldau.model.ids import NO_EPOCH, NO_NODE, NO_OFFSET, NO_TIMESTAMP, NO_TOPIC_ID, NodeId, TopicId
from moldau.model.protocol import EARLIEST as EARLIEST
from moldau.model.protocol import LATEST as LATEST
from moldau.model.protocol import MAX_TIMESTAMP as MAX_TIMESTAMP


class Isolation(IntEnum):
    """The isolation level of a consumer."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


class ResourceKind(IntEnum):
    """The type of a config resource, with DescribeConfigs' numbers."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class Resource(NamedTuple):
    """A config resource: a topic, or a broker (named by its id; empty for all brokers)."""

    kind: ResourceKind
    name: str


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create. -1 selects the broker's default; `assignments` are replicas by partition."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] = field(default_factory=dict)
    assignments: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class TopicOutcome:
    """The result of one topic in a request about several."""

    name: str
    error: KafkaError | None = None
    topic_id: TopicId = NO_TOPIC_ID
    partitions: int = -1
    replication_factor: int = -1


class ConfigSource(IntEnum):
    """The source of a setting's value, with DescribeConfigs' numbers."""

    UNKNOWN = 0
    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    DYNAMIC_BROKER_LOGGER = 6
    CLIENT_METRICS = 7
    GROUP = 8


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One setting of a resource."""

    name: str
    value: str | None
    source: int
    is_sensitive: bool = False
    is_read_only: bool = False
    documentation: str | None = None

    @property
    def is_default(self) -> bool:
        return self.source == ConfigSource.DEFAULT

    @property
    def source_name(self) -> str:
        return ConfigSource(self.source).name.lower() if self.source in list(ConfigSource) else str(self.source)


@dataclass(frozen=True, slots=True)
class ProduceResult:
    """The position of an acknowledged batch. The offset is unknown with acks=0."""

    base_offset: int = NO_OFFSET
    log_append_time_ms: int = NO_TIMESTAMP
    log_start_offset: int = NO_OFFSET


class AbortedTransaction(NamedTuple):
    """A read_committed consumer skips this producer's records from this offset to its abort marker."""

    producer_id: int
    first_offset: int


@dataclass(frozen=True, slots=True)
class FetchResult:
    """The result of one partition: raw batches, which may begin before the requested offset."""

    records: memoryview = field(default_factory=lambda: memoryview(b""))
    high_watermark: int = NO_OFFSET
    last_stable_offset: int = NO_OFFSET
    log_start_offset: int = NO_OFFSET
    aborted: tuple[AbortedTransaction, ...] = ()
    preferred_read_replica: NodeId = NO_NODE
    error: KafkaError | None = None


@dataclass(frozen=True, slots=True)
class OffsetResult:
    """A result of ListOffsets; `offset` is -1 if there is no matching record."""

    offset: int
    timestamp_ms: int = NO_TIMESTAMP
    leader_epoch: int = NO_EPOCH
    error: KafkaError | None = None


class ProducerIdentity(NamedTuple):
    """The producer id and epoch of an idempotent producer."""

    producer_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class ClusterView:
    """A description of the cluster."""

    cluster_id: str | None
    controller: NodeId
    brokers: tuple["ClusterBroker", ...]


@dataclass(frozen=True, slots=True)
class ClusterBroker:
    """A broker in a description of the cluster."""

    node_id: NodeId
    host: str
    port: int
    rack: str | None = None
    is_fenced: bool = False
