"""The settings of one broker, grouped by subject. `BrokerSettings.parse` builds them from texts by name.

Kafka's settings that have no effect here are declared in `moldau.model.kafka_settings`. When a feature gives one of
them an effect, its row moves here, or beside the new code.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from moldau.broker.configs.access_settings import AccessSettings
from moldau.broker.configs.controller_settings import LeadershipSettings, LifecycleSettings, QuorumSettings
from moldau.broker.configs.group_settings import LagSettings, OffsetsTopicSettings
from moldau.broker.configs.log_dir_settings import LogDirSettings
from moldau.broker.configs.quorum_settings import MemberSettings
from moldau.broker.configs.quota_settings import QuotaSettings
from moldau.broker.configs.replica_settings import ReplicaSettings
from moldau.broker.configs.sasl_settings import OAuthSettings, SaslSettings, TokenSettings
from moldau.broker.configs.share_settings import ShareStateTopicSettings
from moldau.broker.configs.socket_settings import SocketSettings
from moldau.broker.configs.telemetry_settings import TelemetrySettings
from moldau.broker.configs.tls_settings import TlsListenerSettings
from moldau.broker.configs.topic_defaults import log_defaults
from moldau.broker.configs.transaction_settings import PartitionVerificationSettings, StateTopicSettings
from moldau.machines.groups.settings import GroupSettings
from moldau.machines.raft.settings import QuorumSettings as QuorumTimes
from moldau.machines.share_state.settings import ShareStateSettings
from moldau.machines.transactions.settings import TransactionSettings
from moldau.model.errors import InvalidConfig
from moldau.model.listeners import parse_address
from moldau.model.quorum import ROLES
from moldau.model.settings import INT_MAX, SHORT_MAX, Kind, Scope, parse_fields, setting
from moldau.model.units import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS, GiB, KiB, MiB
from moldau.storage.settings import LogSettings

TOKEN_CHARACTERS_MIN: Final = 16


def _non_empty(parts: tuple[str, ...]) -> str | None:
    return None if parts else "it must not be empty"


def _address(text: str) -> str | None:
    try:
        if text:
            parse_address(text)
    except InvalidConfig as error:
        return str(error)
    return None


def _long_token(text: str) -> str | None:
    if len(text) < TOKEN_CHARACTERS_MIN or not text.isascii() or not text.isprintable():
        return f"it must have at least {TOKEN_CHARACTERS_MIN} printable ASCII characters"
    return None


def _limits_by_host(text: str) -> str | None:
    try:
        connections_by_host(text)
    except ValueError:
        return "it must be a list of address:limit pairs such as 10.0.0.1:50,::1:200 (names are not looked up)"
    return None


def connections_by_host(text: str) -> dict[str, int]:
    """The limits in `host:limit,host:limit`. The host may be an IPv6 address: the limit follows the last colon."""
    pairs = (part.strip().rpartition(":") for part in text.split(",") if part.strip())
    limits = {host: int(limit) for host, _, limit in pairs}
    if "" in limits or any(limit < 0 for limit in limits.values()):
        raise ValueError(text)
    return limits


@dataclass(frozen=True, kw_only=True)
class NodeSettings:
    """The node's identity, roles and data directory."""

    node_id: int = setting(
        "node.id",
        1,
        kind=Kind.INT,
        at_least=0,
        doc="The id of this node in its cluster; broker.id is the old name.",
    )
    broker_id: int = setting(
        "broker.id",
        -1,
        kind=Kind.INT,
        at_least=-1,
        doc="The old name of node.id; if both are set they must be equal. -1: use node.id.",
    )
    process_roles: tuple[str, ...] = setting(
        "process.roles",
        ROLES,
        one_of=ROLES,
        check=_non_empty,
        doc="The roles of this process: broker (serves clients), controller (manages the metadata), or both.",
    )
    broker_rack: str | None = setting(
        "broker.rack",
        None,
        doc="The rack of this node; replicas are spread over racks, and consumers may fetch from their own.",
    )


@dataclass(frozen=True, kw_only=True)
class ListenerSettings:
    """The listeners. `moldau.model.listeners.resolve_listeners` combines these settings."""

    listeners: tuple[str, ...] = setting(
        "listeners",
        ("PLAINTEXT://localhost:9092",),
        check=_non_empty,
        doc="The listeners as NAME://host:port, separated by commas; an empty host or 0.0.0.0 binds all interfaces.",
    )
    advertised_listeners: tuple[str, ...] = setting(
        "advertised.listeners",
        (),
        doc="The addresses that clients get, by listener name; by default those of listeners.",
    )
    protocol_map: str = setting(
        "listener.security.protocol.map",
        "",
        doc="The security protocol of each listener name, as NAME:PROTOCOL pairs; by default the name is the protocol.",
    )
    inter_broker_listener: str = setting(
        "inter.broker.listener.name",
        "",
        doc="The listener between brokers; by default the one for security.inter.broker.protocol.",
    )
    inter_broker_protocol: str = setting(
        "security.inter.broker.protocol",
        "PLAINTEXT",
        one_of=("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
        doc="The security protocol between brokers if inter.broker.listener.name is not set.",
    )
    controller_listeners: tuple[str, ...] = setting(
        "controller.listener.names",
        (),
        doc="The listeners for controllers; they do not serve clients.",
    )


@dataclass(frozen=True, kw_only=True)
class NetworkSettings:
    """Limits of connections and requests."""

    socket_request_max_bytes: int = setting(
        "socket.request.max.bytes",
        100 * MiB,
        kind=Kind.INT,
        at_least=1,
        doc="A request larger than this closes its connection.",
    )
    queued_max_request_bytes: int = setting(
        "queued.max.request.bytes",
        256 * MiB,
        at_least=-1,
        doc="Reading from clients pauses while the requests of all connections hold more than this; -1 sets no limit.",
    )
    max_connections: int = setting(
        "max.connections",
        10_000,
        kind=Kind.INT,
        at_least=0,
        scope=Scope.CLUSTER,
        doc="Connections beyond this number are closed when they are accepted.",
    )
    max_connections_per_ip: int = setting(
        "max.connections.per.ip",
        INT_MAX,
        kind=Kind.INT,
        at_least=0,
        scope=Scope.CLUSTER,
        doc="Connections from one address beyond this number are closed when they are accepted.",
    )
    max_connections_per_ip_overrides: str = setting(
        "max.connections.per.ip.overrides",
        "",
        check=_limits_by_host,
        scope=Scope.CLUSTER,
        doc="Other limits for single addresses, as address:limit pairs; names are not looked up.",
    )
    connections_max_idle_ms: int = setting(
        "connections.max.idle.ms",
        10 * MINUTE_MS,
        at_least=-1,
        doc="A connection that is idle for this long is closed; -1: never.",
    )

    unauthenticated_connections_max: int = setting(
        "moldau.max.unauthenticated.connections",
        1000,
        kind=Kind.INT,
        at_least=1,
        doc="Beyond this many connections that have not authenticated, the oldest of them is closed.",
    )

    def connections_max_of(self, host: str) -> int:
        """Return the limit of connections of one address."""
        return connections_by_host(self.max_connections_per_ip_overrides).get(host, self.max_connections_per_ip)


@dataclass(frozen=True, kw_only=True)
class TopicSettings:
    """Defaults for new topics, and which requests may create and delete topics."""

    num_partitions: int = setting(
        "num.partitions",
        1,
        kind=Kind.INT,
        at_least=1,
        doc="The default number of partitions of new topics.",
    )
    default_replication_factor: int = setting(
        "default.replication.factor",
        1,
        kind=Kind.INT,
        at_least=1,
        at_most=SHORT_MAX,
        doc="The default replication factor of new topics.",
    )
    delete_topic_enable: bool = setting(
        "delete.topic.enable",
        True,
        doc="Allow the deletion of topics.",
    )
    auto_create_topics_enable: bool = setting(
        "auto.create.topics.enable",
        True,
        doc="Create missing topics on Metadata requests that allow it.",
    )


@dataclass(frozen=True, kw_only=True)
class FetchSettings:
    """Limits of responses and of fetch sessions."""

    fetch_max_bytes: int = setting(
        "fetch.max.bytes",
        55 * MiB,
        kind=Kind.INT,
        at_least=KiB,
        doc="The maximum size of a Fetch response, whatever the client requests; one whole batch is always returned.",
    )
    max_incremental_fetch_session_cache_slots: int = setting(
        "max.incremental.fetch.session.cache.slots",
        1000,
        kind=Kind.INT,
        at_least=0,
        doc="The maximum number of incremental fetch sessions.",
    )
    max_request_partition_size_limit: int = setting(
        "max.request.partition.size.limit",
        2000,
        kind=Kind.INT,
        at_least=1,
        doc="The maximum number of partitions in a DescribeTopicPartitions response.",
    )


@dataclass(frozen=True, kw_only=True)
class MaintenanceSettings:
    """How often logs are checked, checkpointed, and compacted."""

    log_retention_check_interval_ms: int = setting(
        "log.retention.check.interval.ms",
        5 * MINUTE_MS,
        at_least=1,
        doc="How often logs are checked for segments that retention deletes.",
    )
    recovery_point_checkpoint_interval_ms: int = setting(
        "log.flush.offset.checkpoint.interval.ms",
        MINUTE_MS,
        kind=Kind.INT,
        at_least=0,
        doc="How often the recovery point of each log is checkpointed.",
    )
    start_offset_checkpoint_interval_ms: int = setting(
        "log.flush.start.offset.checkpoint.interval.ms",
        MINUTE_MS,
        kind=Kind.INT,
        at_least=0,
        doc="How often the start offset of each log is checkpointed.",
    )
    high_watermark_checkpoint_interval_ms: int = setting(
        "replica.high.watermark.checkpoint.interval.ms",
        5 * SECOND_MS,
        at_least=1,
        doc="How often the high watermark of each partition is checkpointed.",
    )
    log_cleaner_enable: bool = setting(
        "log.cleaner.enable",
        True,
        doc="Compact the logs of topics whose cleanup.policy includes compact.",
    )
    log_cleaner_backoff_ms: int = setting(
        "log.cleaner.backoff.ms",
        15 * SECOND_MS,
        at_least=0,
        scope=Scope.CLUSTER,
        doc="The pause before the next check if no log needed compaction.",
    )
    log_cleaner_dedupe_buffer_bytes: int = setting(
        "log.cleaner.dedupe.buffer.size",
        128 * MiB,
        at_least=MiB,
        scope=Scope.CLUSTER,
        doc="The memory of one compaction for its map of keys.",
    )


@dataclass(frozen=True, kw_only=True)
class ProducerSettings:
    """The state kept per producer."""

    producer_id_expiration_ms: int = setting(
        "producer.id.expiration.ms",
        DAY_MS,
        kind=Kind.INT,
        at_least=1,
        scope=Scope.CLUSTER,
        doc="The state of a producer expires after this time without a write.",
    )
    producer_id_expiration_check_interval_ms: int = setting(
        "producer.id.expiration.check.interval.ms",
        10 * MINUTE_MS,
        kind=Kind.INT,
        at_least=1,
        is_internal=True,
        doc="How often partitions check for expired producers.",
    )


@dataclass(frozen=True, kw_only=True)
class MetadataLogSettings:
    """Segments and snapshots of the metadata log."""

    metadata_log_segment_bytes: int = setting(
        "metadata.log.segment.bytes",
        GiB,
        kind=Kind.INT,
        at_least=8 * MiB,
        doc="The metadata log rolls a new segment before the active one exceeds this size.",
    )
    metadata_log_segment_ms: int = setting(
        "metadata.log.segment.ms",
        7 * DAY_MS,
        at_least=1,
        doc="The metadata log rolls a new segment when the active one is this old.",
    )
    metadata_log_max_record_bytes_between_snapshots: int = setting(
        "metadata.log.max.record.bytes.between.snapshots",
        20 * MiB,
        at_least=1,
        doc="A snapshot of the metadata is written after this many bytes of new records.",
    )
    metadata_log_max_snapshot_interval_ms: int = setting(
        "metadata.log.max.snapshot.interval.ms",
        HOUR_MS,
        at_least=0,
        doc="A snapshot of the metadata is written when its oldest new record is this old; 0: by size only.",
    )


@dataclass(frozen=True, kw_only=True)
class ObservabilitySettings:
    """Metrics and logs."""

    metrics_listener: str = setting(
        "moldau.metrics.listener",
        "localhost:9404",
        check=_address,
        doc="The host:port of the metrics page (/metrics) for Prometheus; empty: none.",
    )
    metrics_security_protocol: str = setting(
        "moldau.metrics.security.protocol",
        "PLAINTEXT",
        one_of=("PLAINTEXT", "SSL"),
        doc="SSL serves the metrics page by HTTPS, with the ssl settings of the listener named metrics.",
    )
    metrics_token: str | None = setting(
        "moldau.metrics.token",
        None,
        kind=Kind.PASSWORD,
        check=_long_token,
        scope=Scope.CLUSTER,
        doc="Requests for /metrics and /health/ready need it, as bearer token or as password of basic authentication.",
    )
    is_portable: bool = setting(
        "moldau.portable.io",
        False,
        doc="Use only POSIX features: no sendfile, no MSG_MORE, no fallocate. Slower; for tests.",
    )
    log_format: str = setting(
        "moldau.log.format",
        "text",
        one_of=("text", "json"),
        doc="The format of log lines: text, or one JSON object each.",
    )
    log_level: str = setting(
        "moldau.log.level",
        "info",
        one_of=("debug", "info", "warning", "error"),
        doc="The lowest level of log lines that are written.",
    )

    @property
    def serves_metrics_by_tls(self) -> bool:
        return bool(self.metrics_listener) and self.metrics_security_protocol == "SSL"


@dataclass(frozen=True, kw_only=True)
class BrokerSettings(
    NodeSettings,
    ListenerSettings,
    TlsListenerSettings,
    NetworkSettings,
    TopicSettings,
    FetchSettings,
    MaintenanceSettings,
    LogDirSettings,
    SocketSettings,
    ProducerSettings,
    QuotaSettings,
    GroupSettings,
    OffsetsTopicSettings,
    LagSettings,
    TransactionSettings,
    StateTopicSettings,
    ShareStateSettings,
    ShareStateTopicSettings,
    PartitionVerificationSettings,
    ReplicaSettings,
    QuorumSettings,
    LifecycleSettings,
    LeadershipSettings,
    QuorumTimes,
    MemberSettings,
    MetadataLogSettings,
    ObservabilitySettings,
    TelemetrySettings,
    SaslSettings,
    OAuthSettings,
    TokenSettings,
    AccessSettings,
):
    """All settings of one broker; `log_defaults` are the defaults of topic settings.

    The constructor trusts its caller; text from outside goes through `BrokerSettings.parse`.
    """

    log_defaults: LogSettings = field(default_factory=LogSettings)

    @classmethod
    def parse(cls, texts: Mapping[str, str]) -> "BrokerSettings":
        """Parse settings from texts by name; validates each one and their combination."""
        if "node.id" not in texts and texts.get("broker.id", "-1").strip() != "-1":
            texts = {**texts, "node.id": texts["broker.id"]}
        settings = cls(**parse_fields(cls, texts), log_defaults=log_defaults(texts))
        settings.check()
        return settings

    def check(self) -> None:
        """Reject contradictory combinations."""
        if self.broker_id not in (-1, self.node_id):
            raise InvalidConfig(f"node.id is {self.node_id} but broker.id is {self.broker_id}: give one, or the same.")
        if self.broker_heartbeat_interval_ms >= self.broker_session_timeout_ms:
            raise InvalidConfig(
                f"broker.heartbeat.interval.ms ({self.broker_heartbeat_interval_ms}) must be less than "
                f"broker.session.timeout.ms ({self.broker_session_timeout_ms}), best half of it or less."
            )
        if -1 < self.queued_max_request_bytes < self.socket_request_max_bytes:
            raise InvalidConfig(
                f"queued.max.request.bytes ({self.queued_max_request_bytes}) must be -1 or at least "
                f"socket.request.max.bytes ({self.socket_request_max_bytes})."
            )
