"""What rules groups and committed offsets, by Kafka's names."""

from dataclasses import dataclass
from typing import Final

from moldau.machines.groups.consumer.settings import ConsumerGroupSettings
from moldau.model.settings import INT_MAX, Kind, setting
from moldau.model.units import MINUTE_MS, SECOND_MS, KiB, MiB

NEW_MEMBER_JOIN_TIMEOUT_MS: Final = 5 * MINUTE_MS
"""A new member cannot send heartbeats before it is told its id, so a join that waits is given up after this."""

PENDING_MAX: Final = 10_000
"""How many ids of a group may be given out to clients that have not come back with them."""

DECISION_BYTES_MAX: Final = 16 * MiB
"""What one request may add to the log: its records are one batch, and a batch fits into a segment."""

JOIN_BYTES_MAX: Final = DECISION_BYTES_MAX // 2
"""What one classic member may say of itself: where it takes the place of another, both are written at once."""

OFFSETS_PER_SLICE: Final = 1_000
"""How many offsets one decision forgets or looks at, when there are many of them; the rest follow soon after."""


@dataclass(frozen=True, kw_only=True)
class GroupSettings(ConsumerGroupSettings):
    """How long members may be silent, how many there may be, and how long offsets are kept."""

    group_initial_rebalance_delay_ms: int = setting(
        "group.initial.rebalance.delay.ms",
        3 * SECOND_MS,
        kind=Kind.INT,
        doc="How long an empty group waits for more members once the first has joined; each newcomer extends it.",
    )
    group_min_session_timeout_ms: int = setting(
        "group.min.session.timeout.ms",
        6 * SECOND_MS,
        kind=Kind.INT,
        doc="The shortest session timeout that a member of a classic group may ask for.",
    )
    group_max_session_timeout_ms: int = setting(
        "group.max.session.timeout.ms",
        30 * MINUTE_MS,
        kind=Kind.INT,
        doc="The longest session timeout that a member of a classic group may ask for.",
    )
    group_max_size: int = setting(
        "group.max.size",
        INT_MAX,
        kind=Kind.INT,
        at_least=1,
        doc="The most members of a classic group; further ones are refused.",
    )
    offset_metadata_max_bytes: int = setting(
        "offset.metadata.max.bytes",
        4 * KiB,
        kind=Kind.INT,
        doc="The longest note that a client may leave with a committed offset.",
    )
    offsets_retention_minutes: int = setting(
        "offsets.retention.minutes",
        7 * 24 * 60,
        kind=Kind.INT,
        at_least=1,
        doc="How long offsets are kept once their group is empty, or nobody in it reads their topic any more.",
    )
    offsets_retention_check_interval_ms: int = setting(
        "offsets.retention.check.interval.ms",
        10 * MINUTE_MS,
        at_least=1,
        doc="How often groups are searched for offsets that are no longer kept.",
    )
