"""Kafka's settings for replication, inter-broker communication and the controller quorum that have no effect."""

from typing import Final

from moldau.model.kafka_settings.row import CLUSTER, INT, LONG, row
from moldau.model.units import DAY_MS, MINUTE_MS, SECOND_MS, KiB, MiB

ROWS: Final = (
    # Replication
    row("replica.socket.receive.buffer.bytes", INT, 64 * KiB, "SO_RCVBUF of replica fetchers."),
    row("num.replica.fetchers", INT, 1, "Replica fetchers per source broker.", at_least=1, scope=CLUSTER),
    row(
        "unclean.leader.election.interval.ms",
        LONG,
        5 * MINUTE_MS,
        "Interval of checks for unclean leader election.",
        at_least=1,
        is_internal=True,
    ),
    # Brokers and the controller
    row("controller.socket.timeout.ms", INT, 30 * SECOND_MS, "Socket timeout of controller connections."),
    row(
        "controller.performance.always.log.threshold.ms",
        LONG,
        2 * SECOND_MS,
        "Controller events slower than this are logged.",
        at_least=0,
        is_internal=True,
    ),
    row(
        "controller.performance.sample.period.ms",
        LONG,
        MINUTE_MS,
        "Interval of controller performance logs.",
        at_least=100,
        is_internal=True,
    ),
    # The quorum
    row("controller.quorum.append.linger.ms", INT, 25, "How long the leader accumulates writes.", at_least=0),
    # The metadata log
    row(
        "metadata.max.retention.bytes",
        LONG,
        100 * MiB,
        "Retention size of the metadata log; one snapshot is kept instead.",
    ),
    row(
        "metadata.max.retention.ms",
        LONG,
        7 * DAY_MS,
        "Retention time of the metadata log; one snapshot is kept instead.",
    ),
    row(
        "metadata.log.segment.min.bytes",
        INT,
        8 * MiB,
        "Minimum segment size of the metadata log.",
        at_least=12,
        is_internal=True,
    ),
    row("metadata.max.idle.interval.ms", INT, 500, "Interval of no-op records of an idle controller.", at_least=0),
    row("internal.metadata.log.segment.bytes", INT, None, "Metadata segment size, for tests.", is_internal=True),
    row("internal.metadata.delete.delay.millis", LONG, MINUTE_MS, "File deletion delay, for tests.", is_internal=True),
    row("internal.metadata.max.batch.size.in.bytes", INT, 8 * MiB, "Metadata batch size, for tests.", is_internal=True),
    row("internal.metadata.max.fetch.size.in.bytes", INT, 8 * MiB, "Metadata fetch size, for tests.", is_internal=True),
)
