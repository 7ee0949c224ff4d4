"""Settings of consumer groups by Kafka's names, and the configs of a single group."""

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Final, NamedTuple

from moldau.machines.groups.consumer.assignors import ASSIGNORS
from moldau.model.errors import InvalidConfig
from moldau.model.settings import INT_MAX, Kind, setting
from moldau.model.units import MINUTE_MS, SECOND_MS

REGEX_REFRESH_MIN_MS: Final = 10 * SECOND_MS
"""Minimum interval between regular expression refreshes: several topics created in it cost one rebalance."""

SESSION_TIMEOUT: Final = "consumer.session.timeout.ms"
HEARTBEAT_INTERVAL: Final = "consumer.heartbeat.interval.ms"
POLICIES: Final = ("bidirectional", "upgrade", "downgrade", "disabled")  # case-insensitive, as in Kafka


def _assignors(names: tuple[str, ...]) -> str | None:
    if not names:
        return "at least one assignor is required"
    return None if len(set(names)) == len(names) else "an assignor is named twice"


def _policy(word: str) -> str | None:
    return None if word.lower() in POLICIES else f"it must be one of {', '.join(POLICIES)}"


@dataclass(frozen=True, kw_only=True)
class ConsumerGroupSettings:
    """Session timeouts, heartbeat intervals and group sizes."""

    group_consumer_session_timeout_ms: int = setting(
        "group.consumer.session.timeout.ms",
        45 * SECOND_MS,
        kind=Kind.INT,
        at_least=1,
        doc="Time without a heartbeat after which a member of a consumer group is removed.",
    )
    group_consumer_min_session_timeout_ms: int = setting(
        "group.consumer.min.session.timeout.ms",
        45 * SECOND_MS,
        kind=Kind.INT,
        at_least=1,
        doc="Minimum session timeout configurable for a single consumer group.",
    )
    group_consumer_max_session_timeout_ms: int = setting(
        "group.consumer.max.session.timeout.ms",
        MINUTE_MS,
        kind=Kind.INT,
        at_least=1,
        doc="Maximum session timeout configurable for a single consumer group.",
    )
    group_consumer_heartbeat_interval_ms: int = setting(
        "group.consumer.heartbeat.interval.ms",
        5 * SECOND_MS,
        kind=Kind.INT,
        at_least=1,
        doc="Heartbeat interval of members of consumer groups.",
    )
    group_consumer_min_heartbeat_interval_ms: int = setting(
        "group.consumer.min.heartbeat.interval.ms",
        5 * SECOND_MS,
        kind=Kind.INT,
        at_least=1,
        doc="Minimum heartbeat interval configurable for a single consumer group.",
    )
    group_consumer_max_heartbeat_interval_ms: int = setting(
        "group.consumer.max.heartbeat.interval.ms",
        15 * SECOND_MS,
        kind=Kind.INT,
        at_least=1,
        doc="Maximum heartbeat interval configurable for a single consumer group.",
    )
    group_consumer_max_size: int = setting(
        "group.consumer.max.size",
        INT_MAX,
        kind=Kind.INT,
        at_least=1,
        doc="Maximum number of members of a consumer group; further joins are rejected.",
    )
    group_consumer_assignors: tuple[str, ...] = setting(
        "group.consumer.assignors",
        tuple(ASSIGNORS),
        one_of=tuple(ASSIGNORS),
        check=_assignors,
        doc="Server-side assignors that members may select; the first is the default.",
    )
    group_consumer_migration_policy: str = setting(
        "group.consumer.migration.policy",
        "bidirectional",
        check=_policy,
        doc="Allowed online migrations of a group between the classic and the consumer protocol.",
    )
    group_consumer_regex_refresh_interval_ms: int = setting(
        "group.consumer.regex.refresh.interval.ms",
        10 * MINUTE_MS,
        kind=Kind.INT,
        at_least=REGEX_REFRESH_MIN_MS,
        is_internal=True,
        doc="Interval at which regular expressions of consumer groups are matched again, even if no topic was created.",
    )
    group_consumer_unsettled_heartbeat_interval_ms: int = setting(
        "moldau.group.consumer.unsettled.heartbeat.interval.ms",
        SECOND_MS,
        kind=Kind.INT,
        at_least=1,
        doc="Heartbeat interval while partitions change owners, if shorter than the configured one.",
    )

    @property
    def may_upgrade(self) -> bool:
        return self.group_consumer_migration_policy.lower() in ("bidirectional", "upgrade")

    @property
    def may_downgrade(self) -> bool:
        return self.group_consumer_migration_policy.lower() in ("bidirectional", "downgrade")


class HeartbeatConfig(NamedTuple):
    """Session timeout and heartbeat interval of a group."""

    session_timeout_ms: int
    heartbeat_interval_ms: int


def heartbeat_config(settings: ConsumerGroupSettings, configs: Mapping[str, str]) -> HeartbeatConfig:
    """Return a group's configs, limited to the broker's bounds."""
    return HeartbeatConfig(
        _bounded(
            configs.get(SESSION_TIMEOUT),
            settings.group_consumer_session_timeout_ms,
            settings.group_consumer_min_session_timeout_ms,
            settings.group_consumer_max_session_timeout_ms,
        ),
        _bounded(
            configs.get(HEARTBEAT_INTERVAL),
            settings.group_consumer_heartbeat_interval_ms,
            settings.group_consumer_min_heartbeat_interval_ms,
            settings.group_consumer_max_heartbeat_interval_ms,
        ),
    )


def check_heartbeat_config(settings: ConsumerGroupSettings, configs: Mapping[str, str], changed: Set[str]) -> None:
    """Reject group configs outside the broker's bounds instead of limiting them silently."""
    bounds = {
        SESSION_TIMEOUT: (
            settings.group_consumer_min_session_timeout_ms,
            settings.group_consumer_max_session_timeout_ms,
        ),
        HEARTBEAT_INTERVAL: (
            settings.group_consumer_min_heartbeat_interval_ms,
            settings.group_consumer_max_heartbeat_interval_ms,
        ),
    }
    news = sorted(changed & configs.keys() & bounds.keys())
    for name in news:
        least, most = bounds[name]
        if not least <= int(configs[name]) <= most:
            kind = name.removeprefix("consumer.")
            raise InvalidConfig(
                f"Invalid value {configs[name]} for configuration {name}: it must be from {least} to {most} "
                f"(group.consumer.min.{kind}, group.consumer.max.{kind})."
            )
    found = heartbeat_config(settings, configs)
    if news and found.session_timeout_ms <= found.heartbeat_interval_ms:
        raise InvalidConfig(f"{SESSION_TIMEOUT} must be greater than {HEARTBEAT_INTERVAL}.")


def _bounded(text: str | None, default: int, least: int, most: int) -> int:
    """Limit a value: configs are validated when they are set, but the bounds may have changed since."""
    return default if text is None else min(max(int(text), least), most)
