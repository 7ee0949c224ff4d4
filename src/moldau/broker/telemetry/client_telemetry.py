"""The metrics that clients push, combined for each client id and user.

Counters arrive as differences, which are added up. Gauges are kept per instance, until its next push or its end, and
combined when they are read: rates are added, of minima the lowest counts, of all others the highest. The values of one
metric with different attributes (nodes, topics) are combined in the same way, unless the client pushes their total.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from moldau.broker.configs.client_metrics import MetricsSubscription
from moldau.broker.configs.telemetry_settings import TelemetrySettings
from moldau.broker.runtime.time_slice import TimeSlice
from moldau.broker.telemetry.client_instances import (
    ClientInstance,
    ClientInstances,
    Push,
    TelemetryClient,
    too_large,
)
from moldau.broker.telemetry.otlp import PushedMetric, read_metrics
from moldau.machines.metadata.delta import MetadataDelta
from moldau.machines.metadata.image import MetadataImage, ResourceType
from moldau.model.errors import CorruptMessage, ErrorCode, InvalidConfig, InvalidRecord, KafkaError, MessageTooLarge
from moldau.model.ports import Clock, Executor, Random
from moldau.records.compression import Compression, decompress

CLIENTS_MAX: Final = 1_000  # with counters: pairs of user and client id, the most recent ones
NAMES_PER_CLIENT_MAX: Final = 200
GAUGES_MAX: Final = 50_000  # over all instances
LABEL_CHARACTERS_MAX: Final = 200


class ClientSample(NamedTuple):
    """A value of one client and metric."""

    client: TelemetryClient
    value: float


class TelemetryMeter:
    """Counts of requests and pushed metrics."""

    __slots__ = ("dropped_metrics", "failed_pushes", "pushes", "throttled", "unknown_subscriptions")

    def __init__(self) -> None:
        self.pushes = self.failed_pushes = self.throttled = self.unknown_subscriptions = self.dropped_metrics = 0


def combine(name: str, values: Iterable[float]) -> float:
    """One value for several nodes, topics or instances."""
    if name.endswith((".rate", ".total")):
        return sum(values)
    return min(values) if name.endswith(".min") else max(values)


class ClientTelemetry:
    """Receives the metrics of clients within bounds of memory and of labels."""

    def __init__(
        self, clock: Clock, random: Random, executor: Executor, settings: Callable[[], TelemetrySettings]
    ) -> None:
        self._clock = clock
        self._executor = executor
        self._settings = settings
        self._gauges = 0
        self.instances = ClientInstances(random.randbytes, self._removed)
        self._counters: OrderedDict[TelemetryClient, dict[str, float]] = OrderedDict()
        self.meter = TelemetryMeter()
        self._update_subscriptions(MetadataImage())

    @property
    def payload_bytes_max(self) -> int:
        return self._settings().telemetry_max_bytes

    def follow(self, image: MetadataImage, delta: MetadataDelta) -> None:
        """Apply client-metrics resources, and broker configs, which may change the default subscription."""
        if any(each.type in (ResourceType.CLIENT_METRICS, ResourceType.BROKER) for each in delta.configs):
            self._update_subscriptions(image)

    def _update_subscriptions(self, image: MetadataImage) -> None:
        settings = self._settings()
        subscriptions = []
        if settings.telemetry_default_metrics:
            subscriptions.append(
                MetricsSubscription(settings.telemetry_default_metrics, settings.telemetry_default_interval_ms)
            )
        for resource, texts in sorted(image.configs.items()):
            if resource.type == ResourceType.CLIENT_METRICS:
                try:
                    subscriptions.append(MetricsSubscription.parse(texts))
                except InvalidConfig:  # of a pattern that Kafka accepts and RE2 does not
                    continue
        self.instances.update_subscriptions(subscriptions)

    # -- requests

    def find(
        self, id_bytes: bytes, client: TelemetryClient, attributes: Callable[[], Mapping[str, str]]
    ) -> ClientInstance:
        shown = TelemetryClient(*(each[:LABEL_CHARACTERS_MAX] for each in client))
        return self.instances.find(id_bytes, shown, attributes, self._clock.monotonic_ms())

    def get(self, instance: ClientInstance) -> None:
        """The client asks for its subscription. Raises if it does so too early."""
        with_meter(self.meter, lambda: instance.get(self._clock.monotonic_ms()))

    async def push(self, instance: ClientInstance, push: Push, payload: memoryview, turn: TimeSlice) -> None:
        """Record pushed metrics. Raises if the push is rejected; nothing of it is recorded then."""
        payload_bytes_max = self.payload_bytes_max
        with_meter(self.meter, lambda: instance.push(push, payload_bytes_max, self._clock.monotonic_ms()))
        if not len(payload):
            self.meter.pushes += 1
            return
        try:
            plain = await self._decompress(push.compression_type, bytes(payload), payload_bytes_max)
            combined = await self._read(instance, plain, turn)
        except KafkaError as error:
            self.meter.failed_pushes += 1
            instance.last_error = error.code
            raise
        self.meter.pushes += 1
        self._record(instance, combined)

    async def _decompress(self, codec: int, payload: bytes, payload_bytes_max: int) -> bytes:
        if codec == Compression.NONE:
            return payload
        try:
            return await self._executor.run(decompress, codec, payload, payload_bytes_max)
        except MessageTooLarge:
            raise too_large(payload_bytes_max) from None
        except CorruptMessage as error:
            raise InvalidRecord(error.message) from None

    async def _read(self, instance: ClientInstance, plain: bytes, turn: TimeSlice) -> dict[tuple[str, bool], float]:
        """Read the requested metrics by name, combined over their attributes."""
        totals: dict[tuple[str, bool], float] = {}
        parts: dict[tuple[str, bool], float] = {}
        for metric in read_metrics(plain):
            if metric is not None:
                self._combine(instance, metric, totals, parts)
            if turn.is_over():
                await turn.next()
        return {**parts, **totals}

    def _combine(
        self,
        instance: ClientInstance,
        metric: PushedMetric,
        totals: dict[tuple[str, bool], float],
        parts: dict[tuple[str, bool], float],
    ) -> None:
        key = metric.name, metric.is_counter
        is_new = key not in totals and key not in parts
        if not instance.is_requested(metric.name) or (is_new and len(totals) + len(parts) >= NAMES_PER_CLIENT_MAX):
            self.meter.dropped_metrics += 1
            return
        for point in metric.points:
            known = parts if point.has_attributes else totals
            if key not in known:
                known[key] = point.value
            elif metric.is_counter:
                known[key] += point.value
            else:
                known[key] = combine(metric.name, (known[key], point.value))

    def _record(self, instance: ClientInstance, combined: Mapping[tuple[str, bool], float]) -> None:
        self._gauges -= len(instance.gauges)
        instance.gauges = {name: value for (name, is_counter), value in combined.items() if not is_counter}
        self._gauges += len(instance.gauges)
        if self._gauges > GAUGES_MAX:
            self.meter.dropped_metrics += len(instance.gauges)
            self._removed(instance)
        for (name, is_counter), value in combined.items():
            if is_counter and value >= 0:
                self._count(instance.client, name, value)

    def _count(self, client: TelemetryClient, name: str, value: float) -> None:
        counters = self._counters.get(client)
        if counters is None:
            if len(self._counters) >= CLIENTS_MAX:
                self._counters.popitem(last=False)
            counters = self._counters[client] = {}
        self._counters.move_to_end(client)
        if name in counters or len(counters) < NAMES_PER_CLIENT_MAX:
            counters[name] = counters.get(name, 0.0) + value
        else:
            self.meter.dropped_metrics += 1

    def _removed(self, instance: ClientInstance) -> None:
        self._gauges -= len(instance.gauges)
        instance.gauges = {}

    # -- metrics

    def counters(self) -> dict[str, list[ClientSample]]:
        """Counters by name."""
        by_name: dict[str, list[ClientSample]] = {}
        for client, counters in self._counters.items():
            for name, value in counters.items():
                by_name.setdefault(name, []).append(ClientSample(client, value))
        return by_name

    def gauges(self) -> dict[str, list[ClientSample]]:
        """Gauges by name, of clients that still push; combined over the instances of a client."""
        self.instances.expire(self._clock.monotonic_ms())
        values: dict[str, dict[TelemetryClient, list[float]]] = {}
        for name, client, value in self._instance_gauges():
            values.setdefault(name, {}).setdefault(client, []).append(value)
        return {
            name: [ClientSample(client, combine(name, each)) for client, each in clients.items()]
            for name, clients in values.items()
        }

    def _instance_gauges(self) -> Iterator[tuple[str, TelemetryClient, float]]:
        for instance in self.instances.values():
            for name, value in instance.gauges.items():
                yield name, instance.client, value


def with_meter(meter: TelemetryMeter, check: Callable[[], None]) -> None:
    """Run a check of a request, and count why it fails."""
    try:
        check()
    except KafkaError as error:
        meter.throttled += error.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED
        meter.unknown_subscriptions += error.code is ErrorCode.UNKNOWN_SUBSCRIPTION_ID
        raise
