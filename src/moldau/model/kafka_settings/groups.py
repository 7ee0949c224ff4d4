"""Kafka's per-group settings, by their names in DescribeConfigs."""

import re
from typing import Final

from moldau.model.kafka_settings.row import BOOLEAN, DOUBLE, INT, STRING, row
from moldau.model.units import DAY_MS, MINUTE_MS, SECOND_MS

# ISO 8601, as Java parses it: P1DT2H3M4.5S with at least one part.
_DURATION: Final = re.compile(r"P(?=.)([0-9]{1,9}D)?(T(?=.)([0-9]{1,9}H)?([0-9]{1,9}M)?([0-9]{1,9}(\.[0-9]{1,9})?S)?)?")


_TOPIC_NAME: Final = re.compile(r"(?!\.\.?$)[a-zA-Z0-9._-]{1,249}")


def _offset_reset(value: str) -> str | None:
    if value in ("latest", "earliest"):
        return None
    prefix, _, duration = value.partition(":")
    if prefix == "by_duration" and _DURATION.fullmatch(duration):
        return None
    return "it must be latest, earliest, or by_duration: with an ISO 8601 duration such as PT1H"


def _topic_name(value: str) -> str | None:
    if value and not _TOPIC_NAME.fullmatch(value):
        return "it must be a topic name: up to 249 letters, digits, dots, underscores and hyphens"
    return None


ROWS: Final = (
    row(
        "consumer.assignment.interval.ms",
        INT,
        SECOND_MS,
        "Minimum interval between assignments of a group.",
        at_least=0,
    ),
    row("consumer.heartbeat.interval.ms", INT, 5 * SECOND_MS, "Heartbeat interval of members.", at_least=1),
    row("consumer.session.timeout.ms", INT, 45 * SECOND_MS, "Session timeout of members.", at_least=1),
    row(
        "share.acquire.mode",
        STRING,
        "batch_optimized",
        "Whether fetches acquire whole batches, or at most as many records as the member asks for. Not in Kafka.",
        one_of=("batch_optimized", "record_limit"),
    ),
    row(
        "errors.deadletterqueue.copy.record.enable",
        BOOLEAN,
        True,
        "Whether dead letters have the key, value and headers of the record; false by default in Kafka (KIP-1191).",
    ),
    row(
        "errors.deadletterqueue.topic.name",
        STRING,
        "",
        "The topic for records that a share group rejects, or fails to process in all attempts; empty: none.",
        check=_topic_name,
    ),
    row("share.assignment.interval.ms", INT, SECOND_MS, "Minimum interval between assignments of a group.", at_least=0),
    row("share.delivery.count.limit", INT, 5, "Maximum number of delivery attempts of a record.", at_least=2),
    row(
        "share.order",
        STRING,
        "none",
        "Whether the records of a key are delivered one at a time and in order. Not in Kafka.",
        one_of=("none", "key"),
    ),
    row("share.partition.max.record.locks", INT, 2000, "Maximum number of locked records per partition.", at_least=100),
    row(
        "share.retry.backoff.factor",
        DOUBLE,
        2.0,
        "Growth of the back-off with each delivery attempt. Not in Kafka.",
        at_least=1,
        at_most=100,
    ),
    row(
        "share.retry.backoff.max.ms",
        INT,
        10 * MINUTE_MS,
        "Maximum back-off of a released record. Not in Kafka.",
        at_least=0,
        at_most=DAY_MS,
    ),
    row(
        "share.retry.backoff.ms",
        INT,
        0,
        "Back-off before a released record, or one whose lock expired, is available again; 0: none. Not in Kafka.",
        at_least=0,
        at_most=DAY_MS,
    ),
    row("share.renew.acknowledge.enable", BOOLEAN, True, "Whether members may renew record locks."),
    row(
        "streams.assignment.interval.ms", INT, SECOND_MS, "Minimum interval between assignments of a group.", at_least=0
    ),
    row("share.auto.offset.reset", STRING, "latest", "Initial offset of a new share group.", check=_offset_reset),
    row("share.heartbeat.interval.ms", INT, 5 * SECOND_MS, "Heartbeat interval of share group members.", at_least=1),
    row(
        "share.isolation.level",
        STRING,
        "read_uncommitted",
        "Isolation level of share fetches.",
        one_of=("read_committed", "read_uncommitted"),
    ),
    row(
        "share.record.lock.duration.ms",
        INT,
        30 * SECOND_MS,
        "Duration of a record lock.",
        at_least=SECOND_MS,
    ),
    row("share.session.timeout.ms", INT, 45 * SECOND_MS, "Session timeout of share group members.", at_least=1),
    row(
        "streams.heartbeat.interval.ms", INT, 5 * SECOND_MS, "Heartbeat interval of streams group members.", at_least=1
    ),
    row(
        "streams.initial.rebalance.delay.ms",
        INT,
        3 * SECOND_MS,
        "Delay of the first rebalance of a streams group.",
        at_least=0,
    ),
    row("streams.num.standby.replicas", INT, 0, "Standby replicas of each task.", at_least=0),
    row("streams.session.timeout.ms", INT, 45 * SECOND_MS, "Session timeout of streams group members.", at_least=1),
)
