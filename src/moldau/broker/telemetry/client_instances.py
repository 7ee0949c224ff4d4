"""Client instances: what each client is to push, and when it may push again (KIP-714).

A client asks for its subscription, pushes metrics at the interval of the response, and asks again when a push fails
with UNKNOWN_SUBSCRIPTION_ID. The id of a subscription follows from its content and the client, so that any broker
accepts a push, whichever broker the client asked. Times and limits are those of Kafka's ClientMetricsManager.
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from crc32c import crc32c

from moldau.broker.configs.client_metrics import (
    ALL_METRICS,
    INTERVAL_MS_DEFAULT,
    MetricsSubscription,
)
from moldau.model.errors import (
    ErrorCode,
    InvalidRequest,
    KafkaError,
    TelemetryTooLarge,
    ThrottlingQuotaExceeded,
    UnknownSubscriptionId,
    UnsupportedCompressionType,
)
from moldau.model.ids import UUID_BYTES
from moldau.model.units import MINUTE_MS
from moldau.records.compression import Compression

INSTANCES_MAX: Final = 16_384
EXPIRY_MS_MIN: Final = MINUTE_MS
INTERVALS_UNTIL_EXPIRY: Final = 3
# Clients take the first one that they support.
COMPRESSION_TYPES: Final = (Compression.ZSTD, Compression.LZ4, Compression.GZIP, Compression.SNAPPY)
RESERVED_IDS: Final = (bytes(UUID_BYTES), bytes(UUID_BYTES - 1) + b"\1")
_RETRIES_AT_ONCE: Final = (ErrorCode.UNKNOWN_SUBSCRIPTION_ID, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)


class TelemetryClient(NamedTuple):
    """A client as quotas and metrics name it."""

    user: str
    client_id: str


class Push(NamedTuple):
    """The fields of a PushTelemetry request that are checked first."""

    subscription_id: int
    compression_type: int
    is_terminating: bool
    payload_bytes: int


class ClientInstance:
    """One producer, consumer or admin client, from its start to its end."""

    __slots__ = (
        "attributes",
        "client",
        "gauges",
        "interval_ms",
        "is_terminating",
        "last_error",
        "last_get_ms",
        "last_push_ms",
        "last_used_ms",
        "metrics",
        "subscription_id",
        "version",
    )

    def __init__(self, client: TelemetryClient, attributes: Mapping[str, str]) -> None:
        self.client = client
        self.attributes = attributes
        self.gauges: Mapping[str, float] = {}
        self.last_used_ms = 0.0
        self.version = -1

    def subscribe(self, subscriptions: Sequence[MetricsSubscription], version: int, id_bytes: bytes) -> None:
        """Apply new subscriptions; the client may ask for them and push at once."""
        wanted = [each for each in subscriptions if each.matches(self.attributes)]
        metrics = sorted({name for each in wanted for name in each.metrics})
        self.metrics = (ALL_METRICS,) if ALL_METRICS in metrics else tuple(metrics)
        self.interval_ms = min([INTERVAL_MS_DEFAULT, *(each.interval_ms for each in wanted)])
        content = f"{','.join(self.metrics)} {self.interval_ms}".encode(errors="surrogateescape")
        self.subscription_id = crc32c(id_bytes, crc32c(content)) - (1 << 31)
        self.version = version
        self.last_get_ms = self.last_push_ms = -math.inf
        self.last_error = ErrorCode.NONE
        self.is_terminating = False

    def is_requested(self, name: str) -> bool:
        return self.metrics == (ALL_METRICS,) or name.startswith(self.metrics)

    def is_expired(self, now_ms: float) -> bool:
        return now_ms - self.last_used_ms > max(EXPIRY_MS_MIN, INTERVALS_UNTIL_EXPIRY * self.interval_ms)

    def get(self, now_ms: float) -> None:
        """The client asks for its subscription. Raises if it does so too early."""
        elapsed_ms = now_ms - max(self.last_get_ms, self.last_push_ms)
        if elapsed_ms >= self.interval_ms:
            self.last_get_ms = now_ms
        elif self.last_error not in _RETRIES_AT_ONCE:
            raise _too_early()
        self.last_error = ErrorCode.NONE

    def push(self, push: Push, payload_bytes_max: int, now_ms: float) -> None:
        """The client pushes metrics. Raises if it must not."""
        try:
            self._check(push, payload_bytes_max, now_ms)
        except KafkaError as error:
            self.last_error = error.code
            raise
        finally:
            self.is_terminating = push.is_terminating
        self.last_error = ErrorCode.NONE

    def _check(self, push: Push, payload_bytes_max: int, now_ms: float) -> None:
        if self.is_terminating:
            raise InvalidRequest("The client has pushed its last metrics before: no request may follow.")
        # The first push after a get comes early: clients add jitter to the interval.
        if self.last_get_ms > self.last_push_ms or now_ms - self.last_push_ms >= self.interval_ms:
            self.last_push_ms = now_ms
        elif not push.is_terminating:
            raise _too_early()
        if push.subscription_id != self.subscription_id:
            raise UnknownSubscriptionId("The subscription of the client has changed: it must ask for the new one.")
        if push.compression_type not in (Compression.NONE, *COMPRESSION_TYPES):
            raise UnsupportedCompressionType(f"Unknown compression type {push.compression_type}.")
        if push.payload_bytes > payload_bytes_max:
            raise too_large(payload_bytes_max)


def _too_early() -> ThrottlingQuotaExceeded:
    return ThrottlingQuotaExceeded("The request arrived before the push interval was over.")


def too_large(payload_bytes_max: int) -> TelemetryTooLarge:
    return TelemetryTooLarge(f"The pushed metrics are larger than telemetry.max.bytes ({payload_bytes_max}).")


class ClientInstances:
    """The instances of all clients of this broker, the least recently used first."""

    def __init__(self, randbytes: Callable[[int], bytes], on_removed: Callable[[ClientInstance], None]) -> None:
        self._randbytes = randbytes
        self._on_removed = on_removed
        self._subscriptions: tuple[MetricsSubscription, ...] = ()
        self._version = 0
        self._instances: OrderedDict[bytes, ClientInstance] = OrderedDict()

    def __len__(self) -> int:
        return len(self._instances)

    def values(self) -> list[ClientInstance]:
        return list(self._instances.values())

    def update_subscriptions(self, subscriptions: Sequence[MetricsSubscription]) -> None:
        if tuple(subscriptions) != self._subscriptions:
            self._subscriptions = tuple(subscriptions)
            self._version += 1

    def new_id(self) -> bytes:
        """An id for a client that has none yet."""
        while True:
            new = self._randbytes(UUID_BYTES)
            if new not in self._instances and new not in RESERVED_IDS:
                return new

    def find(
        self, id_bytes: bytes, client: TelemetryClient, attributes: Callable[[], Mapping[str, str]], now_ms: float
    ) -> ClientInstance:
        """The instance with this id, which is new if this broker has not seen it."""
        self.expire(now_ms)
        instance = self._instances.get(id_bytes)
        if instance is not None and instance.client != client:
            self._remove(id_bytes)  # an id is no secret: another client that uses it gets a new instance
            instance = None
        if instance is None:
            if len(self._instances) >= INSTANCES_MAX:
                self._remove(next(iter(self._instances)))
            instance = self._instances[id_bytes] = ClientInstance(client, attributes())
        if instance.version != self._version:
            instance.subscribe(self._subscriptions, self._version, id_bytes)
        instance.last_used_ms = now_ms
        self._instances.move_to_end(id_bytes)
        return instance

    def expire(self, now_ms: float) -> None:
        """Remove instances that stopped pushing. Those with longer intervals may delay others behind them."""
        while self._instances:
            oldest = next(iter(self._instances))
            if not self._instances[oldest].is_expired(now_ms):
                return
            self._remove(oldest)

    def _remove(self, id_bytes: bytes) -> None:
        self._on_removed(self._instances.pop(id_bytes))
