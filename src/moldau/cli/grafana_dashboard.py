"""A Grafana dashboard for a cluster, on the metrics of the catalogue.

It has variables for the data source, the job, the instances and the topics, so that one dashboard serves all clusters.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from moldau.broker.metrics import catalogue
from moldau.broker.metrics.catalogue import Metric

SCHEMA_VERSION: Final = 39  # of dashboards of Grafana 11; later versions migrate it
COLUMNS: Final = 24  # of Grafana's grid
STAT_SIZE: Final = (4, 4)
GRAPH_SIZE: Final = (12, 8)
DATA_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
UID: Final = "moldau-cluster"


@dataclass(frozen=True, slots=True)
class Panel:
    """A graph, or a single value if `is_stat`; each query is an expression with its legend."""

    title: str
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"
    is_stat: bool = False
    is_alarming: bool = False  # red above zero

    @property
    def size(self) -> tuple[int, int]:
        return STAT_SIZE if self.is_stat else GRAPH_SIZE


@dataclass(frozen=True, slots=True)
class Row:
    title: str
    panels: tuple[Panel, ...]


def _of(metric: Metric | str, *matchers: str, suffix: str = "") -> str:
    name = metric if isinstance(metric, str) else metric.name
    chosen = ('job=~"$job"', 'instance=~"$instance"', *matchers)
    return f"{name}{suffix}{{{','.join(chosen)}}}"


def _rate(metric: Metric | str, *matchers: str, suffix: str = "") -> str:
    return f"rate({_of(metric, *matchers, suffix=suffix)}[$__rate_interval])"


def _stat(title: str, expression: str, unit: str = "short", *, is_alarming: bool = False) -> Panel:
    return Panel(title, ((expression, ""),), unit, is_stat=True, is_alarming=is_alarming)


def _per_instance(title: str, expression: str, unit: str = "short") -> Panel:
    return Panel(title, ((f"sum by (instance) ({expression})", "{{instance}}"),), unit)


def _per_topic(title: str, metric: Metric, unit: str) -> Panel:
    return Panel(title, ((f"sum by (topic) ({_rate(metric, TOPICS)})", "{{topic}}"),), unit)


TOPICS: Final = 'topic=~"$topic",topic!=""'  # samples without a topic are totals
TOTAL: Final = 'topic=""'


def rows() -> tuple[Row, ...]:
    """Return the rows of the dashboard, from the state of the cluster down to the process."""
    return (_cluster(), _throughput(), _requests(), _replication(), _groups(), _storage(), _process())


def _cluster() -> Row:
    return Row(
        "Cluster",
        (
            _stat("Brokers", f"max({_of(catalogue.ACTIVE_BROKERS)})"),
            _stat("Fenced brokers", f"max({_of(catalogue.FENCED_BROKERS)})", is_alarming=True),
            _stat("Offline partitions", f"max({_of(catalogue.OFFLINE)})", is_alarming=True),
            _stat("Below min.insync.replicas", f"sum({_of(catalogue.UNDER_MIN_ISR)})", is_alarming=True),
            _stat("Under-replicated", f"sum({_of(catalogue.UNDER_REPLICATED)})", is_alarming=True),
            _stat("Active controllers", f"sum({_of(catalogue.ACTIVE_CONTROLLERS)})"),
            _stat("Topics", f"max({_of(catalogue.TOPICS)})"),
            _stat("Partitions", f"max({_of(catalogue.ALL_PARTITIONS)})"),
            _stat("Records in", f"sum({_rate(catalogue.MESSAGES_IN, TOTAL)})", "cps"),
            _stat("Bytes in", f"sum({_rate(catalogue.BYTES_IN, TOTAL)})", "Bps"),
            _stat("Bytes out", f"sum({_rate(catalogue.BYTES_OUT, TOTAL)})", "Bps"),
            _stat("Least free disk", f"min({_of(catalogue.DISK_FREE)} / {_of(catalogue.DISK_TOTAL)})", "percentunit"),
        ),
    )


def _throughput() -> Row:
    return Row(
        "Throughput",
        (
            _per_topic("Records in by topic", catalogue.MESSAGES_IN, "cps"),
            _per_topic("Bytes in by topic", catalogue.BYTES_IN, "Bps"),
            _per_topic("Bytes out by topic", catalogue.BYTES_OUT, "Bps"),
            _per_instance("Bytes in by broker", _rate(catalogue.BYTES_IN, TOTAL), "Bps"),
        ),
    )


def _requests() -> Row:
    by_request = "sum by (request)"
    count, total = (_rate(catalogue.REQUEST_TIME, suffix=each) for each in ("_count", "_sum"))
    p99 = _of(catalogue.REQUEST_TIME, 'quantile="0.99"')
    return Row(
        "Requests",
        (
            Panel("Requests", ((f"{by_request} ({_rate(catalogue.REQUESTS)})", "{{request}}"),), "reqps"),
            Panel("Mean time", ((f"{by_request} ({total}) / {by_request} ({count})", "{{request}}"),), "ms"),
            Panel("99th percentile, slowest broker", ((f"max by (request) ({p99})", "{{request}}"),), "ms"),
            Panel(
                "Failed requests",
                (
                    (f"sum({_rate(catalogue.FAILED_PRODUCES)})", "rejected batches"),
                    (f"sum({_rate(catalogue.FAILED_FETCHES)})", "failed partition reads"),
                    (f"sum({_rate(catalogue.REQUEST_ERRORS)})", "unexpected errors"),
                ),
            ),
            _per_instance("Connections", _of(catalogue.CONNECTIONS)),
            _per_instance("Rejected connections", _rate(catalogue.REJECTED_CONNECTIONS)),
        ),
    )


def _replication() -> Row:
    return Row(
        "Replication",
        (
            _per_instance("Replication in", _rate(catalogue.REPLICATION_IN, TOTAL), "Bps"),
            Panel("Largest lag of a follower", ((_of(catalogue.FOLLOWER_LAG), "{{instance}}"),)),
            Panel(
                "ISR changes",
                (
                    (f"sum({_rate(catalogue.ISR_SHRINKS)})", "left"),
                    (f"sum({_rate(catalogue.ISR_EXPANDS)})", "joined"),
                ),
            ),
            _per_instance("Partitions led", _of(catalogue.LEADERS)),
        ),
    )


def _groups() -> Row:
    lag = f"sum by (consumergroup, topic) ({_of(catalogue.GROUP_LAG, TOPICS)})"
    consumed = f"sum by (consumergroup, topic) ({_rate(catalogue.GROUP_OFFSET, TOPICS)})"
    return Row(
        "Consumer groups and transactions",
        (
            Panel("Lag", ((lag, "{{consumergroup}} {{topic}}"),)),
            Panel("Committed records", ((consumed, "{{consumergroup}} {{topic}}"),), "cps"),
            _per_instance("Open transactions", _of(catalogue.OPEN_TRANSACTIONS)),
            Panel("Oldest transaction", ((f"max({_of(catalogue.OLDEST_TRANSACTION)})", "age"),), "ms"),
        ),
    )


def _storage() -> Row:
    count, total = (_rate(catalogue.FLUSH_TIME, suffix=each) for each in ("_count", "_sum"))
    return Row(
        "Storage",
        (
            Panel("Size by topic", ((f"sum by (topic) ({_of(catalogue.LOG_SIZE, TOPICS)})", "{{topic}}"),), "bytes"),
            _per_instance("Free disk", _of(catalogue.DISK_FREE), "bytes"),
            Panel("Mean time of a flush", ((f"{total} / {count}", "{{instance}}"),), "ms"),
            Panel(
                "Disk errors and corruption",
                (
                    (f"sum({_rate(catalogue.DISK_ERRORS)})", "failed reads and writes"),
                    (f"sum({_rate(catalogue.CORRUPT_RANGES)})", "corrupt ranges"),
                ),
            ),
        ),
    )


def _process() -> Row:
    stalls = f"sum by (instance, le) ({_rate(catalogue.LOOP_STALL, suffix='_bucket')})"
    return Row(
        "Process",
        (
            _per_instance("CPU", _rate("process_cpu_seconds_total"), "percentunit"),
            _per_instance("Memory", _of("process_resident_memory_bytes"), "bytes"),
            _per_instance("Open files", _of("process_open_fds")),
            Panel("Event loop lag, p99", ((f"histogram_quantile(0.99, {stalls})", "{{instance}}"),), "s"),
        ),
    )


def dashboard(job: str) -> dict[str, Any]:
    """Return the dashboard as Grafana imports it; `job` is chosen at first."""
    return {
        "uid": UID,
        "title": "Moldau",
        "tags": ["moldau", "kafka"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": _variables(job)},
        "panels": _placed(rows()),
    }


def _variables(job: str) -> list[dict[str, Any]]:
    marker = catalogue.PARTITIONS.name  # on every broker
    topics = f'{catalogue.LOG_END.name}{{job=~"$job"}}'
    return [
        {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
        _variable("job", f'label_values({marker}{{job!=""}}, job)', {"text": job, "value": job}),
        _variable("instance", f'label_values({marker}{{job=~"$job"}}, instance)', None),
        _variable("topic", f"label_values({topics}, topic)", None),
    ]


def _variable(name: str, query: str, chosen: dict[str, str] | None) -> dict[str, Any]:
    """Return a variable with the values of a label; without a choice it starts with all of them."""
    everything = {"text": "All", "value": "$__all"}
    return {
        "name": name,
        "label": name.capitalize(),
        "type": "query",
        "datasource": DATA_SOURCE,
        "query": query,
        "refresh": 2,  # when the time range changes
        "includeAll": chosen is None,
        "allValue": ".*" if chosen is None else None,
        "multi": chosen is None,
        "current": chosen or everything,
        "sort": 1,
    }


def _placed(shown: Iterable[Row]) -> list[dict[str, Any]]:
    """Lay the panels out from left to right, each row below the one before it."""
    placed: list[dict[str, Any]] = []
    top = 0
    for row in shown:
        placed.append(
            {
                "id": len(placed) + 1,
                "type": "row",
                "title": row.title,
                "collapsed": False,
                "panels": [],
                "gridPos": {"x": 0, "y": top, "w": COLUMNS, "h": 1},
            }
        )
        top, left, height = top + 1, 0, 0
        for panel in row.panels:
            width, height = panel.size
            if left + width > COLUMNS:
                top, left = top + height, 0
            position = {"x": left, "y": top, "w": width, "h": height}
            placed.append({"id": len(placed) + 1, "gridPos": position, **_as_json(panel)})
            left += width
        top += height
    return placed


def _as_json(panel: Panel) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0}
    if panel.is_alarming:
        steps = [{"color": "green", "value": None}, {"color": "red", "value": 1}]
        defaults |= {"thresholds": {"mode": "absolute", "steps": steps}, "color": {"mode": "thresholds"}}
    return {
        "type": "stat" if panel.is_stat else "timeseries",
        "title": panel.title,
        "datasource": DATA_SOURCE,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + number), "datasource": DATA_SOURCE, "expr": expression, "legendFormat": legend}
            for number, (expression, legend) in enumerate(panel.queries)
        ],
    }
