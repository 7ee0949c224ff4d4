"""Batch reads: Spark's own connector on our broker, and the same options given to ours: the same rows."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from connector import OFFICIAL, OURS, table, with_options
from connector_scene import DELETED, RECORDS, START_MS, STEP_MS, Scene, build

from moldau.testing.broker import Broker

MIDDLE_MS = START_MS + 40 * STEP_MS
ALL = 3 * RECORDS - DELETED


@pytest.fixture(scope="module")
def scene(moldau_broker: Broker) -> Iterator[Scene]:
    made = build(moldau_broker)
    yield made
    made.open.abort_transaction(60)


def in_each(*numbers: int) -> str:
    """For the three partitions."""
    return json.dumps({"MANY": {str(partition): number for partition, number in enumerate(numbers)}})


# Options in addition to `subscribe` (None removes an option), and the least number of rows, since comparing no rows
# proves nothing. MANY, FEW and PREFIX stand for the names of the scene.
CASES: dict[str, tuple[dict[str, object], int]] = {
    "subscribe": ({}, ALL),
    "subscribe to two": ({"subscribe": "MANY, FEW"}, ALL + 1),
    "pattern": ({"subscribe": None, "subscribePattern": "PREFIX-.*"}, ALL + 1),
    "assign": ({"subscribe": None, "assign": '{"MANY": [2, 0]}'}, RECORDS),
    "headers": ({"includeHeaders": "true"}, ALL),
    "offsets": ({"startingOffsets": in_each(5, -2, 30), "endingOffsets": in_each(9, 50, -1)}, 100),
    "a start before what is there": ({"startingOffsets": in_each(0, 0, 0), "failOnDataLoss": "false"}, ALL),
    "from a time": ({"startingTimestamp": MIDDLE_MS}, 150),
    "until a time": ({"endingTimestamp": MIDDLE_MS}, 100),
    "until a time that never comes": ({"endingTimestamp": START_MS * 2}, ALL),
    "times by partition": (
        {
            "startingOffsetsByTimestamp": in_each(START_MS, MIDDLE_MS, MIDDLE_MS),
            "endingOffsetsByTimestamp": in_each(MIDDLE_MS, MIDDLE_MS + 3500, START_MS * 2),
        },
        90,
    ),
    "a time for all beats the rest": (
        {
            "startingTimestamp": MIDDLE_MS,
            "startingOffsetsByTimestamp": in_each(0, 0, 0),
            "startingOffsets": "earliest",
        },
        150,
    ),
    "no record that young": (
        {
            "startingTimestamp": START_MS + (RECORDS + 25) * STEP_MS,
            "startingOffsetsByTimestampStrategy": "latest",
        },
        4,
    ),
    "min partitions": ({"minPartitions": 11}, ALL),
    "max records per partition": ({"maxRecordsPerPartition": 13}, ALL),
    "read committed": ({"kafka.isolation.level": "read_committed"}, ALL),
    "read committed in pieces": (
        {"kafka.isolation.level": "read_committed", "minPartitions": 50, "includeHeaders": "true"},
        ALL,
    ),
    "a group of its own": ({"kafka.group.id": "g-PREFIX"}, ALL),
    "a prefix for groups": ({"groupIdPrefix": "p"}, ALL),
    "rates, which a batch ignores": (
        {"maxOffsetsPerTrigger": 5, "minOffsetsPerTrigger": 2, "maxTriggerDelay": "1s"},
        ALL,
    ),
    "small fetches": ({"kafka.max.partition.fetch.bytes": 500, "kafka.fetch.max.bytes": 500}, ALL),
    "patience": (
        {"kafkaConsumer.pollTimeoutMs": 60_000, "fetchOffset.numRetries": 2, "fetchOffset.retryIntervalMs": 5},
        ALL,
    ),
}


@pytest.mark.proves("D1")
@pytest.mark.parametrize("name", CASES)
def test_both_connectors_read_the_same_rows(spark: Any, moldau_broker: Broker, scene: Scene, name: str) -> None:
    given, rows_min = CASES[name]
    options = scene.named({"subscribe": "MANY", **given})
    official = table(spark, OFFICIAL, moldau_broker, options)
    assert len(official) >= rows_min
    assert table(spark, OURS, moldau_broker, options) == official


def test_both_connectors_have_the_same_columns(spark: Any, moldau_broker: Broker, scene: Scene) -> None:
    for headers in ("false", "true"):
        options = {"subscribe": scene.many, "includeHeaders": headers}
        official, ours = (
            with_options(spark.read, form, moldau_broker, options).load().schema for form in (OFFICIAL, OURS)
        )
        assert ours == official


def test_pattern_matches_no_internal_topic(spark: Any, moldau_broker: Broker, scene: Scene) -> None:
    """A pattern for all topics does not match the internal topics of transactions and groups."""
    del scene
    official, ours = (
        with_options(spark.read, form, moldau_broker, {"subscribePattern": "_.*"}).load().count()
        for form in (OFFICIAL, OURS)
    )
    assert official == ours == 0


def test_moldau_alone_reads_internal_topics_by_name(spark: Any, moldau_broker: Broker, scene: Scene) -> None:
    del scene  # its transactions have left records there
    official, ours = (
        with_options(spark.read, form, moldau_broker, {"subscribe": "__transaction_state"}).load().count()
        for form in (OFFICIAL, OURS)
    )
    assert official == 0
    assert ours > 0


@pytest.mark.parametrize("pattern", ["few", "scene-.*-few", "scene"])
def test_pattern_matches_the_same_topics(spark: Any, moldau_broker: Broker, scene: Scene, pattern: str) -> None:
    del scene
    official, ours = (
        {
            row["topic"]
            for row in with_options(spark.read, form, moldau_broker, {"subscribePattern": pattern}).load().collect()
        }
        for form in (OFFICIAL, OURS)
    )
    assert ours == official
