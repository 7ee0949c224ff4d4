"""Prometheus alerting rules for a cluster, on the metrics of the catalogue.

Every expression is built from the catalogue's constants, so that a rule cannot name a metric that no broker exports.
All selectors name the job: other exporters use Kafka's metric names too.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

from moldau.broker.metrics import catalogue
from moldau.broker.metrics.catalogue import Metric

Severity = Literal["critical", "warning", "info"]
RULE_GROUP: Final = "moldau"
STUCK_TRANSACTION_MS: Final = 1_200_000  # above the default of transaction.max.timeout.ms, when coordinators abort
STALL_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class AlertRule:
    """One rule: it fires once the expression has held for the duration."""

    name: str
    expression: str
    duration: str
    severity: Severity
    summary: str
    description: str

    def as_json(self) -> dict[str, Any]:
        """Return the rule in the form of a rule file of Prometheus."""
        return {
            "alert": self.name,
            "expr": self.expression,
            "for": self.duration,
            "labels": {"severity": self.severity},
            "annotations": {"summary": self.summary, "description": self.description},
        }


def selector(metric: Metric | str, job: str, suffix: str = "") -> str:
    """Select the samples of one job; the name is quoted as PromQL does."""
    name = metric if isinstance(metric, str) else metric.name
    return f"{name}{suffix}{{job={json.dumps(job, ensure_ascii=False)}}}"


def alert_rules(job: str, lag: int) -> list[AlertRule]:
    """Return the rules for the brokers scraped as this job. A group with fewer records of lag does not alert."""
    return [*_availability(job), *_replication(job), *_storage(job), *_requests(job), *_consumption(job, lag)]


def _availability(job: str) -> Iterator[AlertRule]:
    yield AlertRule(
        "MoldauTargetDown",
        f"{selector('up', job)} == 0",
        "2m",
        "critical",
        "{{ $labels.instance }} cannot be scraped",
        "The process is down or its metrics port is unreachable. Check the service and its log.",
    )
    yield AlertRule(
        "MoldauActiveControllers",
        f"sum({selector(catalogue.ACTIVE_CONTROLLERS, job)}) != 1",
        "2m",
        "critical",
        "{{ $value }} active controllers",
        "Without exactly one active controller, leaders cannot be elected and topics cannot change. "
        "See: moldau quorum describe",
    )
    yield AlertRule(
        "MoldauOfflinePartitions",
        f"max({selector(catalogue.OFFLINE, job)}) > 0",
        "1m",
        "critical",
        "{{ $value }} partitions have no leader",
        "They can be neither read nor written. See: moldau cluster health",
    )
    yield AlertRule(
        "MoldauFencedBrokers",
        f"max({selector(catalogue.FENCED_BROKERS, job)}) > 0",
        "5m",
        "warning",
        "{{ $value }} registered brokers are fenced",
        "They do not send heartbeats, and lead nothing. See: moldau broker list",
    )


def _replication(job: str) -> Iterator[AlertRule]:
    yield AlertRule(
        "MoldauPartitionsBelowMinIsr",
        f"{selector(catalogue.UNDER_MIN_ISR, job)} > 0",
        "1m",
        "critical",
        "{{ $value }} partitions led by {{ $labels.instance }} are below min.insync.replicas",
        "Producers with acks=all are rejected. Bring the missing replicas back. See: moldau cluster health",
    )
    yield AlertRule(
        "MoldauUnderReplicatedPartitions",
        f"{selector(catalogue.UNDER_REPLICATED, job)} > 0",
        "10m",
        "warning",
        "{{ $value }} partitions led by {{ $labels.instance }} have out-of-sync replicas",
        "A broker is down, slow or short of disk. See: moldau cluster health",
    )
    yield AlertRule(
        "MoldauOfflineReplicas",
        f"{selector(catalogue.OFFLINE_REPLICAS, job)} > 0",
        "5m",
        "warning",
        "{{ $value }} replicas of {{ $labels.instance }} are offline",
        "Their logs cannot be used. The page /health/ready of the broker names causes and remedies.",
    )
    yield AlertRule(
        "MoldauLeaderImbalance",
        f"max({selector(catalogue.IMBALANCE, job)}) > 0",
        "1h",
        "info",
        "{{ $value }} partitions are not led by their preferred replica",
        "The load of the brokers may be uneven. See: moldau partition elect-leaders --help",
    )


def _storage(job: str) -> Iterator[AlertRule]:
    free, total = selector(catalogue.DISK_FREE, job), selector(catalogue.DISK_TOTAL, job)
    yield AlertRule(
        "MoldauLogDirOffline",
        f"{selector(catalogue.OFFLINE_LOG_DIRS, job)} > 0",
        "1m",
        "critical",
        "The log dir of {{ $labels.instance }} cannot be written",
        "The disk is full, read-only or failing. The log of the broker names the error.",
    )
    yield AlertRule(
        "MoldauDiskAlmostFull",
        f"{free} / {total} < 0.1",
        "10m",
        "warning",
        "{{ $value | humanizePercentage }} of the disk of {{ $labels.instance }} is free",
        "Reduce retention, add space or move partitions: a full disk rejects all writes.",
    )
    yield AlertRule(
        "MoldauDiskFullWithinADay",
        f"predict_linear({free}[6h], 86400) < 0 and {free} / {total} < 0.5",
        "1h",
        "warning",
        "The disk of {{ $labels.instance }} will be full within a day",
        "The trend of the last six hours leads to no free space. Reduce retention, add space or move partitions.",
    )
    yield AlertRule(
        "MoldauDiskErrors",
        f"increase({selector(catalogue.DISK_ERRORS, job)}[10m]) > 0",
        "0m",
        "warning",
        "Reads or writes of logs fail on {{ $labels.instance }}",
        "The log of the broker names file and error. Check the disk.",
    )
    yield AlertRule(
        "MoldauCorruptRecords",
        f"increase({selector(catalogue.CORRUPT_RANGES, job)}[1h]) > 0",
        "0m",
        "critical",
        "{{ $labels.instance }} found corrupt records on its disk",
        "With other replicas they are fetched again. See: moldau log verify, and check the disk.",
    )


def _requests(job: str) -> Iterator[AlertRule]:
    buckets = f"rate({selector(catalogue.LOOP_STALL, job, '_bucket')}[5m])"
    yield AlertRule(
        "MoldauBugs",
        f"increase({selector(catalogue.BUGS, job)}[15m]) > 0",
        "0m",
        "warning",
        "Requests failed on {{ $labels.instance }} because of a bug",
        "The log of the broker has the traceback. Please report it.",
    )
    yield AlertRule(
        "MoldauEventLoopStalls",
        f"histogram_quantile(0.99, sum by (job, instance, le) ({buckets})) > {STALL_S}",
        "10m",
        "warning",
        "The event loop of {{ $labels.instance }} stalls for {{ $value | humanizeDuration }}",
        "The machine is overloaded or its disk is slow, so that all requests of this broker wait.",
    )
    yield AlertRule(
        "MoldauConnectionsRejected",
        f"increase({selector(catalogue.REJECTED_CONNECTIONS, job)}[5m]) > 0",
        "10m",
        "warning",
        "{{ $labels.instance }} rejects connections",
        "A limit of connections is reached (max.connections, max.connections.per.ip). Look for clients that leak them.",
    )
    yield AlertRule(
        "MoldauStuckTransaction",
        f"{selector(catalogue.OLDEST_TRANSACTION, job)} > {STUCK_TRANSACTION_MS}",
        "5m",
        "warning",
        "A transaction has been incomplete for {{ $value }} ms",
        "Consumers with read_committed do not pass it. See: moldau txn list",
    )


def _consumption(job: str, lag: int) -> Iterator[AlertRule]:
    each = "sum by (job, consumergroup, topic)"
    lags = selector(catalogue.GROUP_LAG, job)
    yield AlertRule(
        "MoldauConsumerLagGrowing",
        f"{each} ({lags}) > {lag} and {each} (delta({lags}[30m])) > 0",
        "15m",
        "warning",
        "Group {{ $labels.consumergroup }} is {{ $value }} records behind in topic {{ $labels.topic }}",
        "Its lag has grown over the last 30 minutes. See: moldau group describe {{ $labels.consumergroup }}",
    )


def rule_file(rules: list[AlertRule]) -> dict[str, Any]:
    """Return the content of a rule file."""
    return {"groups": [{"name": RULE_GROUP, "rules": [each.as_json() for each in rules]}]}


def as_yaml(rules: list[AlertRule]) -> str:
    """Format a rule file. Strings are quoted as in JSON, of which YAML is a superset."""
    lines = ["groups:", f"  - name: {RULE_GROUP}", "    rules:"]
    for rule in rules:
        lines += ["", f"      - alert: {rule.name}"]
        lines += [
            f"        {key}: {_quoted(value)}" for key, value in (("expr", rule.expression), ("for", rule.duration))
        ]
        lines += ["        labels:", f"          severity: {_quoted(rule.severity)}", "        annotations:"]
        lines += [f"          summary: {_quoted(rule.summary)}", f"          description: {_quoted(rule.description)}"]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return json.dumps(text)
