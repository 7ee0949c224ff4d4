"""Settings of share groups by Kafka's names, and the configs of a single group."""

import re
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Final, NamedTuple

from moldau.machines.shares.retry import RetryBackoff
from moldau.model.errors import InvalidConfig
from moldau.model.settings import Kind, Scope, setting
from moldau.model.units import HOUR_MS, MINUTE_MS, SECOND_MS

SESSION_TIMEOUT: Final = "share.session.timeout.ms"
HEARTBEAT_INTERVAL: Final = "share.heartbeat.interval.ms"
RECORD_LOCK_DURATION: Final = "share.record.lock.duration.ms"
DELIVERY_COUNT_LIMIT: Final = "share.delivery.count.limit"
PARTITION_MAX_RECORD_LOCKS: Final = "share.partition.max.record.locks"
AUTO_OFFSET_RESET: Final = "share.auto.offset.reset"
ISOLATION_LEVEL: Final = "share.isolation.level"
RENEW_ACKNOWLEDGE: Final = "share.renew.acknowledge.enable"
DEAD_LETTER_TOPIC: Final = "errors.deadletterqueue.topic.name"  # KIP-1191
DEAD_LETTER_COPY: Final = "errors.deadletterqueue.copy.record.enable"
ORDER: Final = "share.order"
RETRY_BACKOFF: Final = "share.retry.backoff.ms"  # the configs from here on are not in Kafka
RETRY_BACKOFF_FACTOR: Final = "share.retry.backoff.factor"
RETRY_BACKOFF_MAX: Final = "share.retry.backoff.max.ms"
RETRY_BACKOFF_MAX_DEFAULT_MS: Final = 10 * MINUTE_MS
ACQUIRE_MODE: Final = "share.acquire.mode"  # a client setting in Kafka (KIP-1206), which librdkafka 2.16 lacks

_DURATION: Final = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?")
_DAY_MS: Final = 24 * HOUR_MS


@dataclass(frozen=True, kw_only=True)
class ShareGroupSettings:
    """Session timeouts, heartbeat intervals and group sizes, and the bounds of the configs of a single group."""

    group_share_session_timeout_ms: int = setting(
        "group.share.session.timeout.ms",
        45 * SECOND_MS,
        kind=Kind.INT,
        at_least=1,
        doc="Session timeout of a share member.",
    )
    group_share_min_session_timeout_ms: int = setting(
        "group.share.min.session.timeout.ms",
        45 * SECOND_MS,
        kind=Kind.INT,
        at_least=1,
        doc="The shortest such time a group may set.",
    )
    group_share_max_session_timeout_ms: int = setting(
        "group.share.max.session.timeout.ms",
        MINUTE_MS,
        kind=Kind.INT,
        at_least=1,
        doc="The longest such time a group may set.",
    )
    group_share_heartbeat_interval_ms: int = setting(
        "group.share.heartbeat.interval.ms",
        5 * SECOND_MS,
        kind=Kind.INT,
        at_least=1,
        doc="Heartbeat interval of a share member.",
    )
    group_share_min_heartbeat_interval_ms: int = setting(
        "group.share.min.heartbeat.interval.ms",
        5 * SECOND_MS,
        kind=Kind.INT,
        at_least=1,
        doc="Minimum heartbeat interval a group may set.",
    )
    group_share_max_heartbeat_interval_ms: int = setting(
        "group.share.max.heartbeat.interval.ms",
        15 * SECOND_MS,
        kind=Kind.INT,
        at_least=1,
        doc="Maximum heartbeat interval a group may set.",
    )
    group_share_max_size: int = setting(
        "group.share.max.size",
        200,
        kind=Kind.INT,
        at_least=1,
        at_most=1000,
        doc="Maximum number of members of a share group.",
    )
    group_share_max_share_sessions: int = setting(
        "group.share.max.share.sessions",
        2000,
        kind=Kind.INT,
        at_least=1,
        doc="Maximum number of share sessions per broker.",
    )
    group_share_initialize_retry_interval_ms: int = setting(
        "group.share.initialize.retry.interval.ms",
        30 * SECOND_MS,
        kind=Kind.INT,
        at_least=1,
        is_internal=True,
        doc="Backoff before a share partition is initialised again.",
    )
    group_share_record_lock_duration_ms: int = setting(
        "group.share.record.lock.duration.ms",
        30 * SECOND_MS,
        kind=Kind.INT,
        at_least=SECOND_MS,
        at_most=HOUR_MS,
        doc="Duration of a record lock.",
    )
    group_share_min_record_lock_duration_ms: int = setting(
        "group.share.min.record.lock.duration.ms",
        15 * SECOND_MS,
        kind=Kind.INT,
        at_least=SECOND_MS,
        at_most=30 * SECOND_MS,
        doc="The shortest such time a group may set.",
    )
    group_share_max_record_lock_duration_ms: int = setting(
        "group.share.max.record.lock.duration.ms",
        MINUTE_MS,
        kind=Kind.INT,
        at_least=30 * SECOND_MS,
        at_most=HOUR_MS,
        doc="The longest such time a group may set.",
    )
    group_share_delivery_count_limit: int = setting(
        "group.share.delivery.count.limit",
        5,
        kind=Kind.INT,
        at_least=2,
        at_most=10,
        doc="Maximum number of delivery attempts of a record.",
    )
    group_share_min_delivery_count_limit: int = setting(
        "group.share.min.delivery.count.limit",
        2,
        kind=Kind.INT,
        at_least=2,
        at_most=5,
        doc="Minimum delivery count limit a group may set.",
    )
    group_share_max_delivery_count_limit: int = setting(
        "group.share.max.delivery.count.limit",
        10,
        kind=Kind.INT,
        at_least=5,
        at_most=25,
        doc="Maximum delivery count limit a group may set.",
    )
    group_share_partition_max_record_locks: int = setting(
        "group.share.partition.max.record.locks",
        2000,
        kind=Kind.INT,
        at_least=100,
        at_most=10_000,
        doc="Maximum number of locked records per partition.",
    )
    group_share_min_partition_max_record_locks: int = setting(
        "group.share.min.partition.max.record.locks",
        100,
        kind=Kind.INT,
        at_least=100,
        at_most=2000,
        doc="Minimum number of record locks a group may set.",
    )
    group_share_max_partition_max_record_locks: int = setting(
        "group.share.max.partition.max.record.locks",
        4000,
        kind=Kind.INT,
        at_least=2000,
        at_most=10_000,
        doc="Maximum number of record locks a group may set.",
    )
    errors_deadletterqueue_topic_name_prefix: str = setting(
        "errors.deadletterqueue.topic.name.prefix",
        "dlq.",
        scope=Scope.CLUSTER,
        doc="The names of dead-letter topics of share groups must begin with this.",
    )
    errors_deadletterqueue_auto_create_topics_enable: bool = setting(
        "errors.deadletterqueue.auto.create.topics.enable",
        False,
        scope=Scope.CLUSTER,
        doc="Whether a missing dead-letter topic of a share group is created.",
    )


class OffsetReset(NamedTuple):
    """Where a share partition without state starts: `latest`, `earliest`, or `by_duration` before now."""

    strategy: str = "latest"
    duration_ms: int = 0


class ShareGroupConfig(NamedTuple):
    """The configs of a share group, within the broker's bounds."""

    session_timeout_ms: int
    heartbeat_interval_ms: int
    record_lock_duration_ms: int
    delivery_count_limit: int
    partition_max_record_locks: int
    offset_reset: OffsetReset = OffsetReset()
    is_read_committed: bool = False
    is_renewal_enabled: bool = True
    is_record_limited: bool = False  # whatever its members ask for
    retry_backoff: RetryBackoff = RetryBackoff()
    dead_letter_topic: str = ""  # none if empty
    copies_dead_records: bool = True
    is_ordered: bool = False  # by key


class _Bounds(NamedTuple):
    """A group config with the broker's default and bounds."""

    name: str
    default: int
    least: int
    most: int

    def value(self, configs: Mapping[str, str]) -> int:
        """Limit a value: configs are validated when they are set, but the bounds may have changed since."""
        text = configs.get(self.name)
        return self.default if text is None else min(max(int(text), self.least), self.most)


def _bounds(settings: ShareGroupSettings) -> tuple[_Bounds, ...]:
    """In the order of the fields of `ShareGroupConfig`."""
    return (
        _Bounds(
            SESSION_TIMEOUT,
            settings.group_share_session_timeout_ms,
            settings.group_share_min_session_timeout_ms,
            settings.group_share_max_session_timeout_ms,
        ),
        _Bounds(
            HEARTBEAT_INTERVAL,
            settings.group_share_heartbeat_interval_ms,
            settings.group_share_min_heartbeat_interval_ms,
            settings.group_share_max_heartbeat_interval_ms,
        ),
        _Bounds(
            RECORD_LOCK_DURATION,
            settings.group_share_record_lock_duration_ms,
            settings.group_share_min_record_lock_duration_ms,
            settings.group_share_max_record_lock_duration_ms,
        ),
        _Bounds(
            DELIVERY_COUNT_LIMIT,
            settings.group_share_delivery_count_limit,
            settings.group_share_min_delivery_count_limit,
            settings.group_share_max_delivery_count_limit,
        ),
        _Bounds(
            PARTITION_MAX_RECORD_LOCKS,
            settings.group_share_partition_max_record_locks,
            settings.group_share_min_partition_max_record_locks,
            settings.group_share_max_partition_max_record_locks,
        ),
    )


def share_group_config(settings: ShareGroupSettings, configs: Mapping[str, str]) -> ShareGroupConfig:
    """Return the configs of a group, limited to the broker's bounds."""
    session_timeout_ms, heartbeat_interval_ms, lock_ms, delivery_count_limit, record_locks = (
        each.value(configs) for each in _bounds(settings)
    )
    return ShareGroupConfig(
        session_timeout_ms,
        heartbeat_interval_ms,
        lock_ms,
        delivery_count_limit,
        record_locks,
        offset_reset=parse_offset_reset(configs.get(AUTO_OFFSET_RESET, "latest")),
        is_read_committed=configs.get(ISOLATION_LEVEL) == "read_committed",
        is_renewal_enabled=configs.get(RENEW_ACKNOWLEDGE, "true").lower() == "true",
        is_record_limited=configs.get(ACQUIRE_MODE) == "record_limit",
        retry_backoff=RetryBackoff(
            float(configs.get(RETRY_BACKOFF, 0)),
            float(configs.get(RETRY_BACKOFF_FACTOR, 2.0)),
            float(configs.get(RETRY_BACKOFF_MAX, RETRY_BACKOFF_MAX_DEFAULT_MS)),
        ),
        dead_letter_topic=configs.get(DEAD_LETTER_TOPIC, ""),
        is_ordered=configs.get(ORDER) == "key",
        copies_dead_records=configs.get(DEAD_LETTER_COPY, "true").lower() == "true",
    )


def check_share_group_config(settings: ShareGroupSettings, configs: Mapping[str, str], changed: Set[str]) -> None:
    """Reject group configs outside the broker's bounds instead of limiting them silently."""
    news = [each for each in _bounds(settings) if each.name in changed and each.name in configs]
    for name, _, least, most in news:
        if not least <= int(configs[name]) <= most:
            kind = name.removeprefix("share.")
            raise InvalidConfig(
                f"Invalid value {configs[name]} for configuration {name}: it must be from {least} to {most} "
                f"(group.share.min.{kind}, group.share.max.{kind})."
            )
    found = share_group_config(settings, configs)
    if news and found.session_timeout_ms <= found.heartbeat_interval_ms:
        raise InvalidConfig(f"{SESSION_TIMEOUT} must be greater than {HEARTBEAT_INTERVAL}.")
    prefix = settings.errors_deadletterqueue_topic_name_prefix
    if DEAD_LETTER_TOPIC in changed and found.dead_letter_topic and not found.dead_letter_topic.startswith(prefix):
        raise InvalidConfig(
            f"Invalid value {found.dead_letter_topic} for configuration {DEAD_LETTER_TOPIC}: "
            f"it must begin with {prefix} (errors.deadletterqueue.topic.name.prefix)."
        )
    backoff = found.retry_backoff
    if changed & {RETRY_BACKOFF, RETRY_BACKOFF_MAX} and backoff.max_ms < backoff.initial_ms:
        raise InvalidConfig(
            f"{RETRY_BACKOFF_MAX} is {backoff.max_ms:.0f}; "
            f"it must be at least {RETRY_BACKOFF} ({backoff.initial_ms:.0f})."
        )


def parse_offset_reset(text: str) -> OffsetReset:
    """Parse a valid `share.auto.offset.reset`: latest, earliest, or by_duration: with an ISO 8601 duration."""
    strategy, _, duration = text.partition(":")
    found = _DURATION.fullmatch(duration)
    if strategy != "by_duration" or found is None:
        return OffsetReset(strategy)
    days, hours, minutes, seconds = (float(part or 0) for part in found.groups())
    ms = days * _DAY_MS + hours * HOUR_MS + minutes * MINUTE_MS + seconds * SECOND_MS
    return OffsetReset(strategy, round(ms))
