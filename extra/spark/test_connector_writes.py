"""Writes: what Spark's own connector writes to our broker, and what ours writes, are the same records."""

import uuid
from pathlib import Path
from typing import Any

import pytest
from connector import BOTH, OFFICIAL, OURS, table, with_options
from connector_scene import produce_numbers

from moldau.testing.broker import Broker
from moldau_dev.spark import until_done

COLUMNS = "key string, value string, partition int, headers array<struct<key: string, value: binary>>"
ROWS: list[tuple[Any, ...]] = [
    *((f"k{number}", f"v{number}", None, None) for number in range(40)),
    ("", "empty key", None, [("h", b"1"), ("h", None)]),
    ("\u00e4", "", None, []),
    ("gone", None, None, None),
    (None, "placed", 2, [("only", b"")]),
    ("k1", "placed", 0, None),
]


def save(frame: Any, form: str, broker: Broker, **options: object) -> None:
    with_options(frame.write, form, broker, options).mode("append").save()


def written(spark: Any, broker: Broker, topic: str) -> list[tuple[Any, ...]]:
    """Return the columns without topic, offsets and timestamps, which differ."""
    options = {"subscribe": topic, "includeHeaders": "true", "kafka.isolation.level": "read_committed"}
    return [
        (row["partition"], row["key"], row["value"], row["timestampType"], row["headers"])
        for row in table(spark, OFFICIAL, broker, options)
    ]


def fresh(broker: Broker, partitions: int = 3) -> str:
    return broker.create_topic(f"written-{uuid.uuid4().hex}", partitions=partitions)


@pytest.mark.proves("D2")
@pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once"])
def test_both_connectors_write_the_same_records(spark: Any, moldau_broker: Broker, guarantee: str) -> None:
    """To the same partitions, in the same order within each."""
    frame = spark.createDataFrame(ROWS, COLUMNS).coalesce(1)
    topics = {form: fresh(moldau_broker) for form in BOTH}
    save(frame, OFFICIAL, moldau_broker, topic=topics[OFFICIAL])
    save(frame, OURS, moldau_broker, topic=topics[OURS], deliveryGuarantee=guarantee)
    official, ours = (written(spark, moldau_broker, topics[form]) for form in BOTH)
    assert len(official) == len(ROWS)
    assert ours == official


@pytest.mark.parametrize("form", BOTH)
def test_topic_option_overrides_the_column(spark: Any, moldau_broker: Broker, form: str) -> None:
    by_column, by_option = fresh(moldau_broker), fresh(moldau_broker)
    frame = spark.createDataFrame([(by_column, b"1")], "topic string, value binary")
    save(frame, form, moldau_broker)
    save(frame, form, moldau_broker, topic=by_option)
    assert len(written(spark, moldau_broker, by_column)) == len(written(spark, moldau_broker, by_option)) == 1


@pytest.mark.parametrize("form", BOTH)
def test_unknown_columns_are_ignored(spark: Any, moldau_broker: Broker, form: str) -> None:
    """A frame that was read, with its offsets and times, is written as it is."""
    first, second = fresh(moldau_broker), fresh(moldau_broker)
    save(spark.createDataFrame(ROWS, COLUMNS), OFFICIAL, moldau_broker, topic=first)
    frame = with_options(spark.read, form, moldau_broker, {"subscribe": first, "includeHeaders": "true"}).load()
    save(frame, form, moldau_broker, topic=second)
    assert sorted(map(repr, written(spark, moldau_broker, second))) == sorted(
        map(repr, written(spark, moldau_broker, first))
    )


def test_both_connectors_write_the_current_time_by_default(spark: Any, moldau_broker: Broker) -> None:
    """A column `timestamp` is written by neither, except by ours with the option."""
    frame = spark.sql("select 'x' as value, timestamp_millis(1000) as timestamp")
    old = {}
    for form in BOTH:
        topic = fresh(moldau_broker)
        save(frame, form, moldau_broker, topic=topic)
        (row,) = table(spark, OFFICIAL, moldau_broker, {"subscribe": topic})
        old[form] = row["timestamp"].year < 1980
    assert old[OURS] == old[OFFICIAL]


@pytest.mark.proves("D2")
@pytest.mark.parametrize("form", BOTH)
def test_stream_is_written(spark: Any, moldau_broker: Broker, topic: str, tmp_path: Path, form: str) -> None:
    target = fresh(moldau_broker)
    produce_numbers(moldau_broker, topic, 100)
    reading = {"subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": 30}
    frame = with_options(spark.readStream, form, moldau_broker, reading).load().select("key", "value")
    writing = {"topic": target, "checkpointLocation": tmp_path, "kafka.compression.type": "zstd"}
    until_done(with_options(frame.writeStream, form, moldau_broker, writing))
    rows = written(spark, moldau_broker, target)
    assert sorted(int(row[2]) for row in rows) == list(range(100))


def test_rows_of_each_connector_are_read_by_the_other(spark: Any, moldau_broker: Broker) -> None:
    topic = fresh(moldau_broker)
    for form in BOTH:
        save(spark.range(50).selectExpr("cast(id as string) as value"), form, moldau_broker, topic=topic)
    official, ours = (table(spark, form, moldau_broker, {"subscribe": topic}) for form in BOTH)
    assert len(official) == 100
    assert ours == official


def test_batch_write_of_moldau_requires_append_mode(spark: Any, moldau_broker: Broker) -> None:
    """Spark's default is to fail where there is something already, and sources in Python cannot take it otherwise."""
    frame, topic = spark.sql("select 'x' as value"), fresh(moldau_broker)
    with_options(frame.write, OFFICIAL, moldau_broker, {"topic": topic}).save()
    with pytest.raises(Exception, match=r"(?i)append"):
        with_options(frame.write, OURS, moldau_broker, {"topic": topic}).save()
    assert len(written(spark, moldau_broker, topic)) == 1


def test_only_the_spark_connector_writes_update_mode(
    spark: Any, moldau_broker: Broker, topic: str, tmp_path: Path
) -> None:
    """A sink in Python cannot say that it takes updates; `foreachBatch` does it, as the guide shows."""
    produce_numbers(moldau_broker, topic, 30)
    frame = with_options(spark.readStream, OURS, moldau_broker, {"subscribe": topic, "startingOffsets": "earliest"})
    counts = frame.load().groupBy("key").count().selectExpr("key", "cast(count as string) as value")
    for form in BOTH:
        target = fresh(moldau_broker)
        options = {"topic": target, "checkpointLocation": tmp_path / form}
        updates = with_options(counts.writeStream, form, moldau_broker, options).outputMode("update")
        if form == OURS:
            with pytest.raises(Exception, match=r"(?i)update"):
                until_done(updates)
        else:
            until_done(updates)
            assert [row[2] for row in written(spark, moldau_broker, target)] == [b"6"] * 5
