"""Kafka's settings for groups, committed offsets, transactions and share groups that have no effect."""

from typing import Final

from moldau.model.kafka_settings.row import (
    BOOLEAN,
    CLUSTER,
    INT,
    LIST,
    SHORT,
    STRING,
    row,
)
from moldau.model.settings import INT_MAX, Setting
from moldau.model.units import MINUTE_MS, SECOND_MS, KiB, MiB


def _assignment_intervals(prefix: str) -> tuple[Setting, ...]:
    """Return the three assignment-interval settings of a group type."""
    return (
        row(
            f"{prefix}.assignment.interval.ms",
            INT,
            SECOND_MS,
            "Minimum interval between assignments.",
            at_least=0,
            scope=CLUSTER,
        ),
        row(f"{prefix}.min.assignment.interval.ms", INT, 0, "Minimum assignment interval a group may set.", at_least=0),
        row(
            f"{prefix}.max.assignment.interval.ms",
            INT,
            15 * SECOND_MS,
            "Maximum assignment interval a group may set.",
            at_least=0,
        ),
    )


def _kept_buffer(name: str) -> Setting:
    return row(name, INT, MiB + 12, "Maximum size of a cached write buffer.", at_least=512 * KiB, scope=CLUSTER)


def _timeouts(prefix: str, member: str) -> tuple[Setting, ...]:
    """Return the six timeout settings that share and streams groups have in common."""
    return (
        row(f"{prefix}.session.timeout.ms", INT, 45 * SECOND_MS, f"Session timeout of a {member}.", at_least=1),
        row(
            f"{prefix}.min.session.timeout.ms",
            INT,
            45 * SECOND_MS,
            "The shortest such time a group may set.",
            at_least=1,
        ),
        row(f"{prefix}.max.session.timeout.ms", INT, MINUTE_MS, "The longest such time a group may set.", at_least=1),
        row(f"{prefix}.heartbeat.interval.ms", INT, 5 * SECOND_MS, f"Heartbeat interval of a {member}.", at_least=1),
        row(
            f"{prefix}.min.heartbeat.interval.ms",
            INT,
            5 * SECOND_MS,
            "Minimum heartbeat interval a group may set.",
            at_least=1,
        ),
        row(
            f"{prefix}.max.heartbeat.interval.ms",
            INT,
            15 * SECOND_MS,
            "Maximum heartbeat interval a group may set.",
            at_least=1,
        ),
    )


def _stays_off(value: bool) -> str | None:
    return "externally coordinated transactions (2PC) are not supported" if value else None


GROUPS: Final = (
    row("group.coordinator.threads", INT, 4, "Threads for group work.", at_least=1),
    row(
        "group.coordinator.append.linger.ms",
        INT,
        -1,
        "How long group records are accumulated before a write.",
        at_least=-1,
    ),
    row("group.coordinator.new.enable", BOOLEAN, True, "Use Kafka's new group coordinator.", is_internal=True),
    row(
        "group.coordinator.rebalance.protocols",
        LIST,
        ("classic", "consumer", "streams"),
        "Enabled group protocols.",
        one_of=("consumer", "classic", "share", "streams"),
    ),
    row("group.coordinator.background.threads", INT, 2, "Threads for background work on groups.", at_least=1),
    _kept_buffer("group.coordinator.cached.buffer.max.bytes"),
    *_assignment_intervals("group.consumer"),
    *_assignment_intervals("group.streams"),
    *_timeouts("group.streams", "streams member"),
    row(
        "group.streams.initial.rebalance.delay.ms",
        INT,
        3 * SECOND_MS,
        "Delay of the first rebalance of a streams group.",
        at_least=0,
    ),
    row("group.streams.max.size", INT, INT_MAX, "Maximum number of members of a streams group.", at_least=1),
    row("group.streams.num.standby.replicas", INT, 0, "Standby replicas of each task.", at_least=0),
    row(
        "group.streams.max.standby.replicas", INT, 2, "Maximum number of standby replicas a group may set.", at_least=0
    ),
)

OFFSETS: Final = ()

TRANSACTIONS: Final = (
    row("add.partitions.to.txn.retry.backoff.ms", INT, 20, "Backoff before a partition is added again.", at_least=1),
    row("add.partitions.to.txn.retry.backoff.max.ms", INT, 100, "Maximum time of these retries.", at_least=0),
    row(
        "transaction.two.phase.commit.enable",
        BOOLEAN,
        False,
        "Externally coordinated transactions (2PC); not supported, so it cannot be true.",
        check=_stays_off,
    ),
)

SHARE_GROUPS: Final = (
    *_assignment_intervals("group.share"),
    _kept_buffer("share.coordinator.cached.buffer.max.bytes"),
    row("group.share.enable", BOOLEAN, False, "Enable share groups.", is_internal=True),
    row("group.share.assignors", LIST, ("simple",), "Assignors of share groups."),
    row("group.share.max.groups", SHORT, 10, "Maximum number of share groups.", at_least=1, at_most=100),
    row(
        "group.share.persister.class.name",
        STRING,
        "org.apache.kafka.server.share.persister.DefaultStatePersister",
        "Class that persists share group state.",
        is_internal=True,
    ),
    row(
        "share.coordinator.append.linger.ms",
        INT,
        -1,
        "How long share records are accumulated before a write.",
        at_least=-1,
    ),
    row("share.coordinator.threads", INT, 1, "Threads for share state.", at_least=1),
    row("share.fetch.max.fetch.records", INT, INT_MAX, "Records in one share fetch.", is_internal=True),
)

ROWS: Final = (*GROUPS, *OFFSETS, *TRANSACTIONS, *SHARE_GROUPS)
