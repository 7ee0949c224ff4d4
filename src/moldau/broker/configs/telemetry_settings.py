"""Settings of client telemetry: its size, and what clients push without any client-metrics resource."""

from dataclasses import dataclass
from typing import Final

from moldau.broker.configs.client_metrics import INTERVAL_MS_MAX, INTERVAL_MS_MIN
from moldau.model.settings import Kind, Scope, setting
from moldau.model.units import MINUTE_MS, MiB

# Send rate, batch size, latency, failed sends, poll time and rebalances; few enough for a page with many clients.
_PRODUCER: Final = (
    "record.send.",
    "record.error.",
    "record.retry.",
    "record.queue.time.",
    "batch.size.",
    "request.latency.",
    "node.request.latency.",
    "produce.throttle.time.",
    "connection.creation.",
)
_CONSUMER: Final = (
    "poll.idle.ratio.",
    "time.between.poll.",
    "coordinator.rebalance.",
    "coordinator.failed.rebalance.",
    "coordinator.commit.latency.",
    "coordinator.assigned.partitions",
    "fetch.manager.fetch.latency.",
    "fetch.manager.records.consumed.",
    "fetch.manager.records.lag.max",
    "node.request.latency.",
    "connection.creation.",
)
DEFAULT_METRICS: Final = (
    *(f"org.apache.kafka.producer.{each}" for each in _PRODUCER),
    *(f"org.apache.kafka.consumer.{each}" for each in _CONSUMER),
)


@dataclass(frozen=True, kw_only=True)
class TelemetrySettings:
    """Metrics that clients push (KIP-714)."""

    telemetry_max_bytes: int = setting(
        "telemetry.max.bytes",
        MiB,
        kind=Kind.INT,
        at_least=1,
        at_most=16 * MiB,
        doc="The largest metrics that a client may push at once, compressed and decompressed.",
    )
    telemetry_default_metrics: tuple[str, ...] = setting(
        "moldau.telemetry.default.metrics",
        DEFAULT_METRICS,
        scope=Scope.CLUSTER,
        doc="Prefixes of the metrics that every client pushes, besides those of client-metrics resources; empty: none.",
    )
    telemetry_default_interval_ms: int = setting(
        "moldau.telemetry.default.interval.ms",
        MINUTE_MS,
        kind=Kind.INT,
        at_least=INTERVAL_MS_MIN,
        at_most=INTERVAL_MS_MAX,
        scope=Scope.CLUSTER,
        doc="Interval at which every client pushes moldau.telemetry.default.metrics.",
    )
