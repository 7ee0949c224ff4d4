"""The metrics page. It is built in slices, so that thousands of partitions do not stall the event loop.

Each family of metrics yields its lines. A family that first has to look at every partition yields empty lines while it
does, so that the slice can end there too.
"""

import hmac
from base64 import b64decode
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Final, Protocol

from moldau.broker.configs.broker_settings import BrokerSettings
from moldau.broker.drivers.time_slices import Slices
from moldau.broker.fetch.sessions import FetchSessions
from moldau.broker.groups.group_coordinator import Groups
from moldau.broker.groups.lag import Position
from moldau.broker.internal_topics import is_internal
from moldau.broker.metrics import catalogue
from moldau.broker.metrics.catalogue import Metric
from moldau.broker.metrics.cluster_metrics import ClusterMetricsHost, cluster_lines
from moldau.broker.metrics.prometheus_text import CONTENT_TYPE, Sample, histogram, plain, summary
from moldau.broker.metrics.quota_metrics import quota_lines
from moldau.broker.metrics.share_metrics import share_lines
from moldau.broker.metrics.telemetry_metrics import telemetry_lines
from moldau.broker.network.connection_limits import ConnectionLimits
from moldau.broker.partitions.log_flusher import LogFlusher
from moldau.broker.partitions.log_scrubber import LogScrubber
from moldau.broker.partitions.partition import Partition
from moldau.broker.quotas.client_quotas import ClientQuotas
from moldau.broker.requests.router import Api
from moldau.broker.runtime.log_dirs import LogDirs
from moldau.broker.runtime.loop_stalls import LoopStalls
from moldau.broker.runtime.meters import TrafficMeter
from moldau.broker.runtime.rate_limited_logger import RateLimitedLogger
from moldau.broker.shares.shares import Shares
from moldau.broker.telemetry.client_telemetry import ClientTelemetry
from moldau.broker.transactions.transaction_coordinator import Transactions
from moldau.broker.transactions.transaction_metrics import Open, open_transactions, stable_lags
from moldau.model.ports import Clock, Page, PageRequest

LINES_PER_CHECK: Final = 32  # between two looks at the clock
SLICE_MS: Final = 0.5  # a page is long: with shorter slices the turns between them would cost more than the page
_PLAIN_TEXT: Final = "text/plain; charset=utf-8"

_BY_TOPIC: Final[tuple[tuple[Metric, str], ...]] = (
    (catalogue.MESSAGES_IN, "messages_in"),
    (catalogue.BYTES_IN, "bytes_in"),
    (catalogue.BYTES_OUT, "bytes_out"),
    (catalogue.REPLICATION_IN, "replication_bytes_in"),
    (catalogue.REPLICATION_OUT, "replication_bytes_out"),
    (catalogue.PRODUCES, "produces"),
    (catalogue.FETCHES, "fetches"),
)
_IN_ALL: Final[tuple[tuple[Metric, str], ...]] = (
    (catalogue.BYTES_REJECTED, "bytes_rejected"),
    (catalogue.FAILED_PRODUCES, "failed_produces"),
    (catalogue.FAILED_FETCHES, "failed_fetches"),
)


class MetricsHost(ClusterMetricsHost, Protocol):
    """The parts of the broker that metrics are read from."""

    @property
    def settings(self) -> BrokerSettings: ...

    @property
    def clock(self) -> Clock: ...

    @property
    def limited_logger(self) -> RateLimitedLogger: ...

    @property
    def bugs(self) -> int: ...

    @property
    def disk_errors(self) -> int: ...

    def disk_space(self, path: str) -> tuple[int, int]: ...

    @property
    def log_scrubber(self) -> LogScrubber: ...

    @property
    def log_dirs(self) -> LogDirs: ...

    @property
    def fetch_sessions(self) -> FetchSessions: ...

    @property
    def groups(self) -> Groups: ...

    @property
    def transactions(self) -> Transactions: ...

    @property
    def shares(self) -> Shares: ...

    @property
    def loop_stalls(self) -> LoopStalls: ...

    @property
    def log_flusher(self) -> LogFlusher: ...

    @property
    def traffic(self) -> TrafficMeter: ...

    @property
    def client_quotas(self) -> ClientQuotas: ...

    @property
    def client_telemetry(self) -> ClientTelemetry: ...


class MetricsEndpoint:
    """Serves `/metrics`; `/health` while the process lives; `/health/ready` fails while it cannot serve all it has."""

    def __init__(
        self,
        broker: MetricsHost,
        apis: Sequence[Api],
        limits: ConnectionLimits,
        more: Callable[[], Iterator[str]] = lambda: iter(()),
    ) -> None:
        """`more` yields lines with process metrics."""
        self._broker = broker
        self._apis = apis
        self._limits = limits
        self._more = more

    async def serve(self, request: PageRequest) -> Page:
        """The page, if the request has the token that is set; `/health` needs none."""
        token = self._broker.settings.metrics_token
        if token and request.path != "/health" and not has_token(request.authorization, token):
            self._broker.limited_logger.write(
                "metrics token", f"Rejected a request of {request.peer} for {request.path}: no token, or a wrong one"
            )
            return 401, _PLAIN_TEXT, b"This page requires the token of moldau.metrics.token.\n"
        return await self.page(request.path)

    async def page(self, path: str) -> Page:
        if path == "/metrics":
            return 200, CONTENT_TYPE, await self._metrics()
        if path == "/health":
            return 200, _PLAIN_TEXT, b"ok\n"
        if path == "/health/ready":
            problems = list(self._problems())
            return 503 if problems else 200, _PLAIN_TEXT, "".join(f"{each}\n" for each in problems or ["ok"]).encode()
        return 404, _PLAIN_TEXT, b"There are /metrics, /health and /health/ready here.\n"

    def _problems(self) -> Iterator[str]:
        """The problems of this broker, with cause and remedy; user topics first."""
        offline = self._broker.partitions.offline
        for path, cause, remedy in self._broker.log_dirs.offline:
            yield f"log dir {path} is offline: {cause}; {remedy}"
        causes = Counter(offline.values())
        for (topic, index), cause in sorted(offline.items(), key=lambda each: (is_internal(each[0][0]), each[0])):
            count = causes.pop(cause, 0)  # one line for each cause
            if count:
                more = f" and {count - 1} more" if count > 1 else ""
                yield f"{topic}-{index}{more} offline: {cause}"

    async def _metrics(self) -> bytes:
        groups = await self._broker.groups.positions()
        transactions = await open_transactions(self._broker.transactions.shards())
        lines: list[str] = []
        page = bytearray()
        slices = Slices(self._broker.clock, SLICE_MS)
        for line in self._lines(groups, transactions):
            lines.append(line)
            if len(lines) % LINES_PER_CHECK == 0 and slices.is_over():
                page += "".join(lines).encode()
                lines.clear()
                await slices.yield_to_requests()
        page += "".join(lines).encode()
        return bytes(page)

    def _lines(self, groups: list[Position], transactions: Open) -> Iterator[str]:
        yield from self._traffic()
        yield from self._requests()
        yield from self._logs()
        yield from self._groups(groups)
        yield from self._transactions(transactions)
        yield from share_lines(self._broker.shares)
        yield from cluster_lines(self._broker)
        yield from self._node()
        yield from quota_lines(self._broker.client_quotas, self._limits.rates)
        yield from telemetry_lines(self._broker.client_telemetry)
        yield from self._more()

    def _traffic(self) -> Iterator[str]:
        meter: TrafficMeter = self._broker.traffic
        by_topic = list(self._broker.partitions.traffic.items())
        for metric, field in _BY_TOPIC:
            others = (self._broker.partitions.traffic_of_removed, meter)  # deleted topics, and unknown ones
            total = sum(getattr(each, field) for each in others)
            samples: list[Sample] = []
            for topic, each in by_topic:
                number = getattr(each, field)
                total += number
                samples.append(((topic,), number))
                yield ""
            yield from plain(metric, chain([((), total)], samples))
        for metric, field in _IN_ALL:
            yield from plain(metric, [((), getattr(meter, field))])

    def _requests(self) -> Iterator[str]:
        apis = self._apis
        yield from plain(catalogue.REQUESTS, [((api.name,), api.meter.count) for api in apis])
        yield from plain(catalogue.REQUEST_ERRORS, [((api.name,), api.meter.errors) for api in apis])
        yield from summary(catalogue.REQUEST_TIME, [((api.name,), api.meter) for api in apis if api.meter.count])
        yield from summary(catalogue.FLUSH_TIME, [((), self._broker.log_flusher.latency)])

    def _logs(self) -> Iterator[str]:
        partitions = self._broker.partitions.all()
        reads: tuple[tuple[Metric, Callable[[Partition], int]], ...] = (
            (catalogue.LOG_SIZE, lambda each: each.log.size_bytes),
            (catalogue.LOG_START, lambda each: each.log.start_offset),
            (catalogue.LOG_END, lambda each: each.log.end_offset),
            (catalogue.LOG_SEGMENTS, lambda each: len(each.log.segment_base_offsets)),
        )
        for metric, read in reads:
            yield from plain(
                metric, (((p.name.topic, str(p.name.partition)), read(p)) for p in partitions if p.role.is_open)
            )
        yield from plain(
            catalogue.PARTITION_END,
            (
                ((p.name.topic, str(p.name.partition)), p.high_watermark)
                for p in partitions
                if p.role.is_open and p.role.is_leader  # dashboards sum over brokers: report each partition once
            ),
        )

    def _groups(self, groups: list[Position]) -> Iterator[str]:
        yield from plain(
            catalogue.GROUP_OFFSET, (((each.group_id, each.topic, str(each.partition)), each.offset) for each in groups)
        )
        yield from plain(
            catalogue.GROUP_LAG,
            (((each.group_id, each.topic, str(each.partition)), each.lag) for each in groups if each.lag is not None),
        )

    def _transactions(self, found: Open) -> Iterator[str]:
        markers = self._broker.transactions.markers
        yield from plain(catalogue.OPEN_TRANSACTIONS, [((), found.transactions)])
        yield from plain(catalogue.OLDEST_TRANSACTION, [((), found.oldest_ms)])
        outcomes = (("committed", markers.ended[True]), ("aborted", markers.ended[False]))
        yield from plain(catalogue.ENDED_TRANSACTIONS, [((name,), number) for name, number in outcomes])
        yield from plain(catalogue.MARKERS_WAITING, [((), markers.backlog)])
        yield from plain(
            catalogue.STABLE_LAG,
            (((each.topic, str(each.partition)), each.records) for each in stable_lags(self._broker.partitions)),
        )

    def _log_dirs(self) -> Iterator[str]:
        log_dirs = self._broker.log_dirs
        spaces = {path: _space_of(self._broker, path) for path in log_dirs.paths}
        known = {path: space for path, space in spaces.items() if space[0] >= 0}
        yield from plain(catalogue.DISK_TOTAL, [((path,), total) for path, (total, _) in known.items()])
        yield from plain(catalogue.DISK_FREE, [((path,), free) for path, (_, free) in known.items()])
        offline = {path for path, _, _ in log_dirs.offline}
        paths = dict.fromkeys((*log_dirs.paths, *offline))
        yield from plain(catalogue.LOG_DIR_OFFLINE, [((path,), int(path in offline)) for path in paths])

    def _node(self) -> Iterator[str]:
        broker = self._broker
        numbers = (
            (catalogue.FETCH_SESSIONS, len(broker.fetch_sessions)),
            (catalogue.SESSION_PARTITIONS, broker.fetch_sessions.partition_count),
            (catalogue.SESSION_EVICTIONS, broker.fetch_sessions.evictions),
            (catalogue.CONNECTIONS, len(self._limits)),
            (catalogue.REJECTED_CONNECTIONS, self._limits.rejected),
            (catalogue.BUGS, broker.bugs),
            (catalogue.DISK_ERRORS, broker.disk_errors),
            (catalogue.OFFLINE_LOG_DIRS, len(broker.log_dirs.offline)),
            (catalogue.SCRUBBED_BYTES, broker.log_scrubber.bytes_read),
            (catalogue.SCRUB_PASSES, broker.log_scrubber.passes),
            (catalogue.SCRUB_PROGRESS, round(broker.log_scrubber.progress, 4)),
            (catalogue.CORRUPT_RANGES, broker.log_scrubber.corrupt_ranges),
            (catalogue.RESTORED_INDEXES, broker.log_scrubber.restored_indexes),
        )
        for metric, number in numbers:
            yield from plain(metric, [((), number)])
        yield from self._log_dirs()
        yield from histogram(catalogue.LOOP_STALL, broker.loop_stalls.lateness)


def _space_of(broker: MetricsHost, path: str) -> tuple[int, int]:
    """The total and free bytes of a log dir; unknown if its disk fails."""
    try:
        return broker.disk_space(path)
    except OSError:
        return -1, -1


def has_token(authorization: str, token: str) -> bool:
    """Whether a header has the token, as bearer token or as password of basic authentication with any user name."""
    scheme, _, credentials = authorization.partition(" ")
    presented = credentials.strip().encode("latin-1")
    if scheme.lower() == "basic":
        try:
            presented = b64decode(presented, validate=True).partition(b":")[2]
        except ValueError:
            return False
    elif scheme.lower() != "bearer":
        return False
    return hmac.compare_digest(presented, token.encode())
