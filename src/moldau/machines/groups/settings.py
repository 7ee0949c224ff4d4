"""Settings of groups and committed offsets, by Kafka's names."""

from dataclasses import dataclass
from typing import Final

from moldau.machines.groups.consumer.settings import ConsumerGroupSettings
from moldau.machines.groups.share.settings import ShareGroupSettings
from moldau.model.settings import INT_MAX, Kind, setting
from moldau.model.units import MINUTE_MS, SECOND_MS, KiB, MiB

NEW_MEMBER_JOIN_TIMEOUT_MS: Final = 5 * MINUTE_MS
"""Timeout of a new member's waiting join: it cannot send heartbeats before it knows its id."""

PENDING_MAX: Final = 10_000
"""Maximum number of assigned member ids in a group that have not joined yet."""

DECISION_BYTES_MAX: Final = 16 * MiB
"""Maximum size of a request's records: they are one batch, which must fit into a segment."""

JOIN_BYTES_MAX: Final = DECISION_BYTES_MAX // 2
"""Maximum metadata size of a classic member: a replacing static member may need two of them in one batch."""

OFFSETS_PER_CLEANUP_STEP: Final = 1_000
"""Number of offsets per cleanup step; the rest follow in later steps."""


@dataclass(frozen=True, kw_only=True)
class GroupSettings(ConsumerGroupSettings, ShareGroupSettings):
    """Session timeouts, group sizes and offset retention."""

    group_initial_rebalance_delay_ms: int = setting(
        "group.initial.rebalance.delay.ms",
        3 * SECOND_MS,
        kind=Kind.INT,
        doc="Time an empty group waits for more members after the first join; each further join extends it.",
    )
    group_min_session_timeout_ms: int = setting(
        "group.min.session.timeout.ms",
        6 * SECOND_MS,
        kind=Kind.INT,
        doc="Minimum session timeout of members of classic groups.",
    )
    group_max_session_timeout_ms: int = setting(
        "group.max.session.timeout.ms",
        30 * MINUTE_MS,
        kind=Kind.INT,
        doc="Maximum session timeout of members of classic groups.",
    )
    group_max_size: int = setting(
        "group.max.size",
        INT_MAX,
        kind=Kind.INT,
        at_least=1,
        doc="Maximum number of members of a classic group; further joins are rejected.",
    )
    offset_metadata_max_bytes: int = setting(
        "offset.metadata.max.bytes",
        4 * KiB,
        kind=Kind.INT,
        doc="Maximum size of the metadata string of a committed offset.",
    )
    offsets_retention_minutes: int = setting(
        "offsets.retention.minutes",
        7 * 24 * 60,
        kind=Kind.INT,
        at_least=1,
        doc="Retention of offsets after their group became empty or unsubscribed from their topic.",
    )
    offsets_retention_check_interval_ms: int = setting(
        "offsets.retention.check.interval.ms",
        10 * MINUTE_MS,
        at_least=1,
        doc="Interval between searches for expired offsets.",
    )
