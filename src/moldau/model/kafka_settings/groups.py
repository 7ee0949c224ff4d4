"""The settings that Kafka lets one group have, by the names that DescribeConfigs uses for a group."""

import re
from typing import Final

from moldau.model.kafka_settings.row import BOOLEAN, INT, STRING, row
from moldau.model.units import SECOND_MS

# ISO 8601, as Java reads it: P1DT2H3M4.5S with at least one part.
_DURATION: Final = re.compile(r"P(?=.)([0-9]{1,9}D)?(T(?=.)([0-9]{1,9}H)?([0-9]{1,9}M)?([0-9]{1,9}(\.[0-9]{1,9})?S)?)?")


def _offset_reset(value: str) -> str | None:
    if value in ("latest", "earliest"):
        return None
    prefix, _, duration = value.partition(":")
    if prefix == "by_duration" and _DURATION.fullmatch(duration):
        return None
    return "it must be latest, earliest, or by_duration: with an ISO 8601 duration such as PT1H"


ROWS: Final = (
    row("consumer.assignment.interval.ms", INT, SECOND_MS, "The pause between assignments of a group.", at_least=0),
    row("consumer.heartbeat.interval.ms", INT, 5 * SECOND_MS, "How often a member tells it is alive.", at_least=1),
    row("consumer.session.timeout.ms", INT, 45 * SECOND_MS, "A silent member leaves after this.", at_least=1),
    row("share.assignment.interval.ms", INT, SECOND_MS, "The pause between its assignments.", at_least=0),
    row("share.delivery.count.limit", INT, 5, "Tries before a record is given up.", at_least=2),
    row("share.partition.max.record.locks", INT, 2000, "The most records of a partition that are held.", at_least=100),
    row("share.renew.acknowledge.enable", BOOLEAN, True, "Whether members may hold records for longer."),
    row("streams.assignment.interval.ms", INT, SECOND_MS, "The pause between its assignments.", at_least=0),
    row("share.auto.offset.reset", STRING, "latest", "Where a new share group begins.", check=_offset_reset),
    row("share.heartbeat.interval.ms", INT, 5 * SECOND_MS, "How often a share member tells it is alive.", at_least=1),
    row(
        "share.isolation.level",
        STRING,
        "read_uncommitted",
        "Whether records of open transactions are shared.",
        one_of=("read_committed", "read_uncommitted"),
    ),
    row(
        "share.record.lock.duration.ms",
        INT,
        30 * SECOND_MS,
        "How long a share member holds a record.",
        at_least=SECOND_MS,
    ),
    row("share.session.timeout.ms", INT, 45 * SECOND_MS, "A silent share member leaves after this.", at_least=1),
    row(
        "streams.heartbeat.interval.ms", INT, 5 * SECOND_MS, "How often a streams member tells it is alive.", at_least=1
    ),
    row("streams.initial.rebalance.delay.ms", INT, 3 * SECOND_MS, "A new streams group's wait.", at_least=0),
    row("streams.num.standby.replicas", INT, 0, "Standby copies of each task.", at_least=0),
    row("streams.session.timeout.ms", INT, 45 * SECOND_MS, "A silent streams member leaves after this.", at_least=1),
)
