"""Kafka's settings of groups, committed offsets, transactions and share groups that have no effect here."""

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
from moldau.model.units import HOUR_MS, MINUTE_MS, SECOND_MS, KiB, MiB


def _assignment_intervals(prefix: str) -> tuple[Setting, ...]:
    """How often the coordinator makes a group a new assignment: three settings of each kind of group."""
    return (
        row(
            f"{prefix}.assignment.interval.ms",
            INT,
            SECOND_MS,
            "The pause between assignments.",
            at_least=0,
            scope=CLUSTER,
        ),
        row(f"{prefix}.min.assignment.interval.ms", INT, 0, "The shortest such pause a group may set.", at_least=0),
        row(
            f"{prefix}.max.assignment.interval.ms",
            INT,
            15 * SECOND_MS,
            "The longest such pause a group may set.",
            at_least=0,
        ),
    )


def _kept_buffer(name: str) -> Setting:
    return row(
        name, INT, MiB + 12, "The largest write buffer that is kept for reuse.", at_least=512 * KiB, scope=CLUSTER
    )


def _timeouts(prefix: str, word: str) -> tuple[Setting, ...]:
    """The six settings that consumer, share and streams groups have alike."""
    return (
        row(f"{prefix}.session.timeout.ms", INT, 45 * SECOND_MS, f"A silent {word} leaves after this.", at_least=1),
        row(
            f"{prefix}.min.session.timeout.ms",
            INT,
            45 * SECOND_MS,
            "The shortest such time a group may set.",
            at_least=1,
        ),
        row(f"{prefix}.max.session.timeout.ms", INT, MINUTE_MS, "The longest such time a group may set.", at_least=1),
        row(
            f"{prefix}.heartbeat.interval.ms", INT, 5 * SECOND_MS, f"How often a {word} tells it is alive.", at_least=1
        ),
        row(f"{prefix}.min.heartbeat.interval.ms", INT, 5 * SECOND_MS, "The least pause a group may set.", at_least=1),
        row(
            f"{prefix}.max.heartbeat.interval.ms", INT, 15 * SECOND_MS, "The longest pause a group may set.", at_least=1
        ),
    )


def _stays_off(value: bool) -> str | None:
    return "transactions that another system decides are not served" if value else None


GROUPS: Final = (
    row("group.coordinator.threads", INT, 4, "Threads for group work.", at_least=1),
    row("group.coordinator.append.linger.ms", INT, -1, "How long group records are gathered.", at_least=-1),
    row("group.coordinator.new.enable", BOOLEAN, True, "Use Kafka's newer group code.", is_internal=True),
    row(
        "group.coordinator.rebalance.protocols",
        LIST,
        ("classic", "consumer", "streams"),
        "The kinds of group that are served.",
        one_of=("consumer", "classic", "share", "streams"),
    ),
    row("group.coordinator.background.threads", INT, 2, "Threads for group work that can wait.", at_least=1),
    _kept_buffer("group.coordinator.cached.buffer.max.bytes"),
    *_assignment_intervals("group.consumer"),
    *_assignment_intervals("group.streams"),
    *_timeouts("group.streams", "streams member"),
    row("group.streams.initial.rebalance.delay.ms", INT, 3 * SECOND_MS, "A new streams group's wait.", at_least=0),
    row("group.streams.max.size", INT, INT_MAX, "The most members of a streams group.", at_least=1),
    row("group.streams.num.standby.replicas", INT, 0, "Standby copies of each task.", at_least=0),
    row("group.streams.max.standby.replicas", INT, 2, "The most standby copies a group may set.", at_least=0),
)

OFFSETS: Final = ()

TRANSACTIONS: Final = (
    row("add.partitions.to.txn.retry.backoff.ms", INT, 20, "The pause before a partition is added again.", at_least=1),
    row("add.partitions.to.txn.retry.backoff.max.ms", INT, 100, "How long that is tried.", at_least=0),
    row(
        "transaction.two.phase.commit.enable",
        BOOLEAN,
        False,
        "Transactions that another system decides; they are not served, so it cannot be true.",
        check=_stays_off,
    ),
)

SHARE_GROUPS: Final = (
    *_assignment_intervals("group.share"),
    *_timeouts("group.share", "share member"),
    row("group.share.min.delivery.count.limit", INT, 2, "The fewest tries a group may set.", at_least=2, at_most=5),
    row("group.share.max.delivery.count.limit", INT, 10, "The most tries a group may set.", at_least=5, at_most=25),
    row(
        "group.share.min.partition.max.record.locks",
        INT,
        100,
        "The fewest held records a group may set.",
        at_least=100,
        at_most=2000,
    ),
    row(
        "group.share.max.partition.max.record.locks",
        INT,
        4000,
        "The most held records a group may set.",
        at_least=2000,
        at_most=10_000,
    ),
    _kept_buffer("share.coordinator.cached.buffer.max.bytes"),
    row("group.share.enable", BOOLEAN, False, "Turn share groups on.", is_internal=True),
    row("group.share.assignors", LIST, ("simple",), "Who assigns partitions to share members."),
    row("group.share.delivery.count.limit", INT, 5, "Tries before a record is given up.", at_least=2, at_most=10),
    row(
        "group.share.initialize.retry.interval.ms",
        INT,
        30 * SECOND_MS,
        "The pause before a share partition is set up again.",
        at_least=1,
        is_internal=True,
    ),
    row("group.share.max.groups", SHORT, 10, "The most share groups.", at_least=1, at_most=100),
    row("group.share.max.size", INT, 200, "The most members of a share group.", at_least=1, at_most=1000),
    row("group.share.max.share.sessions", INT, 2000, "The most share sessions of a broker.", at_least=1),
    row(
        "group.share.record.lock.duration.ms",
        INT,
        30 * SECOND_MS,
        "How long a member holds a record.",
        at_least=SECOND_MS,
        at_most=HOUR_MS,
    ),
    row(
        "group.share.min.record.lock.duration.ms",
        INT,
        15 * SECOND_MS,
        "The shortest such time a group may set.",
        at_least=SECOND_MS,
        at_most=30 * SECOND_MS,
    ),
    row(
        "group.share.max.record.lock.duration.ms",
        INT,
        MINUTE_MS,
        "The longest such time a group may set.",
        at_least=30 * SECOND_MS,
        at_most=HOUR_MS,
    ),
    row(
        "group.share.partition.max.record.locks",
        INT,
        2000,
        "The most records of a partition that are held.",
        at_least=100,
        at_most=10_000,
    ),
    row(
        "group.share.persister.class.name",
        STRING,
        "org.apache.kafka.server.share.persister.DefaultStatePersister",
        "The class that keeps the state of share groups.",
        is_internal=True,
    ),
    row("share.coordinator.append.linger.ms", INT, -1, "How long share records are gathered.", at_least=-1),
    row(
        "share.coordinator.cold.partition.snapshot.interval.ms",
        INT,
        5 * MINUTE_MS,
        "How often quiet share partitions are snapshotted.",
        at_least=1,
        is_internal=True,
    ),
    row("share.coordinator.load.buffer.size", INT, 5 * MiB, "Read size when share state is loaded.", at_least=1),
    row(
        "share.coordinator.snapshot.update.records.per.snapshot",
        INT,
        500,
        "Updates between two snapshots of share state.",
        at_least=0,
    ),
    row("share.coordinator.state.topic.compression.codec", INT, 0, "The codec of the share state topic."),
    row("share.coordinator.state.topic.min.isr", SHORT, 2, "In-sync replicas it needs.", at_least=1),
    row("share.coordinator.state.topic.num.partitions", INT, 50, "Its partitions.", at_least=1),
    row(
        "share.coordinator.state.topic.prune.interval.ms",
        INT,
        5 * MINUTE_MS,
        "How often its old records are deleted.",
        at_least=1,
        is_internal=True,
    ),
    row("share.coordinator.state.topic.replication.factor", SHORT, 3, "Its replicas.", at_least=1),
    row("share.coordinator.state.topic.segment.bytes", INT, 100 * MiB, "Its segment size.", at_least=1),
    row("share.coordinator.threads", INT, 1, "Threads for share state.", at_least=1),
    row("share.coordinator.write.timeout.ms", INT, 5 * SECOND_MS, "How long a share write may take.", at_least=1),
    row("share.fetch.max.fetch.records", INT, INT_MAX, "Records in one share fetch.", is_internal=True),
)

ROWS: Final = (*GROUPS, *OFFSETS, *TRANSACTIONS, *SHARE_GROUPS)
