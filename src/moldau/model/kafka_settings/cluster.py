"""Kafka's settings of replication, brokers among themselves and the controllers' quorum that have no effect here."""

from typing import Final

from moldau.model.kafka_settings.row import CLUSTER, INT, LONG, STRING, row
from moldau.model.settings import LONG_MAX
from moldau.model.units import DAY_MS, MINUTE_MS, SECOND_MS, KiB, MiB

ROWS: Final = (
    # Replication
    row("replica.socket.receive.buffer.bytes", INT, 64 * KiB, "A follower's receive buffer."),
    row("num.replica.fetchers", INT, 1, "Fetchers per leader that is followed.", at_least=1, scope=CLUSTER),
    row(
        "unclean.leader.election.interval.ms",
        LONG,
        5 * MINUTE_MS,
        "How often partitions without a leader are looked for.",
        at_least=1,
        is_internal=True,
    ),
    # Throttles, which Kafka takes only while it runs
    row(
        "replica.alter.log.dirs.io.max.bytes.per.second",
        LONG,
        LONG_MAX,
        "Bytes per second for moves between folders.",
        at_least=0,
        scope=CLUSTER,
    ),
    # Brokers and the controller
    row("controller.socket.timeout.ms", INT, 30 * SECOND_MS, "Patience with the controller's socket."),
    row(
        "controller.performance.always.log.threshold.ms",
        LONG,
        2 * SECOND_MS,
        "A controller event slower than this is logged.",
        at_least=0,
        is_internal=True,
    ),
    row(
        "controller.performance.sample.period.ms",
        LONG,
        MINUTE_MS,
        "How often the controller logs its speed.",
        at_least=100,
        is_internal=True,
    ),
    # The quorum
    row("controller.quorum.append.linger.ms", INT, 25, "How long the leader gathers writes.", at_least=0),
    # The metadata log
    row("metadata.log.dir", STRING, None, "Another folder for the metadata log."),
    row("metadata.max.retention.bytes", LONG, 100 * MiB, "How much old metadata is kept; here: one snapshot."),
    row("metadata.max.retention.ms", LONG, 7 * DAY_MS, "How long old metadata is kept; here: one snapshot."),
    row(
        "metadata.log.segment.min.bytes",
        INT,
        8 * MiB,
        "The smallest segment of the metadata log.",
        at_least=12,
        is_internal=True,
    ),
    row("metadata.max.idle.interval.ms", INT, 500, "How often an idle controller writes a record.", at_least=0),
    row("internal.metadata.log.segment.bytes", INT, None, "Metadata segment size, for tests.", is_internal=True),
    row("internal.metadata.delete.delay.millis", LONG, MINUTE_MS, "Delay of deletion, for tests.", is_internal=True),
    row("internal.metadata.max.batch.size.in.bytes", INT, 8 * MiB, "Metadata batch size, for tests.", is_internal=True),
    row("internal.metadata.max.fetch.size.in.bytes", INT, 8 * MiB, "Metadata fetch size, for tests.", is_internal=True),
)
