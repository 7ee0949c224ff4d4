"""Settings of client-metrics resources (KIP-714): which clients push which metrics, and how often."""

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Final

from moldau.broker.runtime.patterns import InvalidPattern, check_pattern, matching
from moldau.model.errors import InvalidConfig, InvalidRequest
from moldau.model.settings import Kind, Setting, shorten
from moldau.model.units import HOUR_MS, MINUTE_MS

METRICS: Final = "metrics"
INTERVAL: Final = "interval.ms"
MATCH: Final = "match"

INTERVAL_MS_DEFAULT: Final = 5 * MINUTE_MS
INTERVAL_MS_MIN: Final = 100
INTERVAL_MS_MAX: Final = HOUR_MS
ALL_METRICS: Final = "*"
MATCHED_ATTRIBUTES: Final = (
    "client_instance_id",
    "client_id",
    "client_software_name",
    "client_software_version",
    "client_source_address",
    "client_source_port",
)

CLIENT_METRICS_SETTINGS: Final[Mapping[str, Setting]] = {
    each.name: each
    for each in (
        Setting(METRICS, (), Kind.LIST, "Prefixes of the metrics that clients push; * for all metrics."),
        Setting(INTERVAL, INTERVAL_MS_DEFAULT, Kind.INT, "Interval between pushes, in milliseconds."),
        Setting(MATCH, (), Kind.LIST, "Patterns of the clients, as attribute=regular expression; empty for all."),
    )
}


@dataclass(frozen=True, slots=True)
class MetricsSubscription:
    """The metrics that matching clients push."""

    metrics: tuple[str, ...]
    interval_ms: int = INTERVAL_MS_DEFAULT
    match: Mapping[str, str] | None = None  # patterns by attribute; None for all clients

    def matches(self, attributes: Mapping[str, str]) -> bool:
        """Whether every pattern matches the entire attribute; an attribute that the client lacks does not match."""
        return all(
            name in attributes and bool(matching(pattern, (attributes[name],)))
            for name, pattern in (self.match or {}).items()
        )

    @classmethod
    def parse(cls, texts: Mapping[str, str]) -> "MetricsSubscription":
        """The subscription of a stored resource. Raises `InvalidConfig`."""
        values = {
            name: setting.parse(texts[name]) if name in texts else setting.default
            for name, setting in CLIENT_METRICS_SETTINGS.items()
        }
        return cls(values[METRICS], values[INTERVAL], parse_match(values[MATCH]))


def parse_match(parts: Iterable[str]) -> dict[str, str]:
    """The patterns by attribute, of texts such as `client_id=orders-.*`."""
    patterns = {}
    for part in parts:
        name, _, pattern = (each.strip() for each in part.partition("="))
        if name not in MATCHED_ATTRIBUTES or not pattern or "=" in pattern:
            raise InvalidConfig(
                f"Illegal client matching pattern: {shorten(part)}. It must be attribute=pattern; "
                f"the attributes are {', '.join(MATCHED_ATTRIBUTES)}."
            )
        try:
            check_pattern(pattern)
        except InvalidPattern as error:
            raise InvalidConfig(f"Illegal client matching pattern: {shorten(part)}: {error}") from None
        patterns[name] = pattern
    return patterns


def check_client_metrics(name: str, texts: Mapping[str, str], changed: Set[str]) -> None:
    """Reject invalid names and values of a client-metrics resource, with Kafka's error codes."""
    if not name:
        raise InvalidRequest("Subscription name can't be empty")
    for key in sorted(changed & texts.keys()):
        if key not in CLIENT_METRICS_SETTINGS:
            raise InvalidRequest(f"Unknown client metrics configuration: {shorten(key)}")
    interval_ms = MetricsSubscription.parse(texts).interval_ms
    if not INTERVAL_MS_MIN <= interval_ms <= INTERVAL_MS_MAX:
        raise InvalidRequest(
            f"Invalid value {interval_ms} for {INTERVAL}, interval must be between {INTERVAL_MS_MIN} and "
            f"{INTERVAL_MS_MAX} (1 hour)"
        )
