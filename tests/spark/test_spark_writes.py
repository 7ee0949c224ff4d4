"""Writes through Spark: `df.write` and `df.writeStream` with `format("moldau")`."""

import json
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql.types import StringType, StructField, StructType

from moldau.client.partitioner import partition_for_key
from moldau.testing.broker import Broker
from moldau_dev.spark import numbers, produce, reading, until_all_done, until_done
from pyspark_moldau.options.sink_options import sink_stream_options
from pyspark_moldau.sink.staged_batches import StagedBatches
from pyspark_moldau.sink.writers import ProducedMessage, StagedMessage, StreamWriter

ROW = "key string, value string, partition int, headers array<struct<key: string, value: binary>>"


def writing(write: Any, broker: Broker, **options: object) -> Any:
    """`df.write` or `df.writeStream` into `format("moldau")`; in the names of options, `__` stands for a dot."""
    sink = write.format("moldau").option("kafka.bootstrap.servers", broker.bootstrap_servers)
    for name, value in options.items():
        sink = sink.option(name.replace("__", "."), str(value))
    return sink


def save(frame: Any, broker: Broker, **options: object) -> None:
    writing(frame.write, broker, **options).mode("append").save()


def run(frame: Any, broker: Broker, checkpoint: Path, **options: object) -> None:
    """Run a stream over all existing records."""
    until_done(writing(frame.writeStream, broker, checkpointLocation=checkpoint, **options))


def rows_of(spark: Any, broker: Broker, topic: str, **options: object) -> list[Any]:
    frame = reading(spark.read, broker, topic, kafka__isolation__level="read_committed", **options)
    return list(frame.orderBy("partition", "offset").collect())


@pytest.fixture
def target(moldau_broker: Broker, topic: str) -> str:
    return moldau_broker.create_topic(f"{topic}-out", partitions=3)


@pytest.mark.proves("D2")
@pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once"])
def test_keys_values_partitions_and_headers_are_written(
    spark: Any, moldau_broker: Broker, target: str, guarantee: str
) -> None:
    rows = [
        ("a", "1", None, [("h", b"x"), ("h", None)]),
        ("b", "", None, None),
        (None, "3", 2, []),
        ("", None, 0, None),
    ]
    save(spark.createDataFrame(rows, ROW), moldau_broker, topic=target, deliveryGuarantee=guarantee)
    found = {row["key"]: row for row in rows_of(spark, moldau_broker, target, includeHeaders="true")}
    assert {key: row["value"] for key, row in found.items()} == {b"a": b"1", b"b": b"", None: b"3", b"": None}
    assert found[b"a"]["partition"] == partition_for_key(b"a", 3)
    assert found[b"b"]["partition"] == partition_for_key(b"b", 3)
    assert (found[None]["partition"], found[b""]["partition"]) == (2, 0)
    assert [tuple(each) for each in found[b"a"]["headers"]] == [("h", b"x"), ("h", None)]
    assert found[b"b"]["headers"] is None


def test_rows_name_their_topic_unless_the_option_does(
    spark: Any, moldau_broker: Broker, topic: str, target: str
) -> None:
    frame = spark.createDataFrame([(topic, "1"), (target, "2")], "topic string, value string")
    save(frame, moldau_broker)
    save(frame, moldau_broker, topic=target)
    assert numbers(rows_of(spark, moldau_broker, topic)) == [1]
    assert numbers(rows_of(spark, moldau_broker, target)) == [1, 2, 2]


def test_timestamps_are_written_on_request(spark: Any, moldau_broker: Broker, target: str) -> None:
    frame = spark.sql("select 'x' as value, timestamp_millis(1234567890123) as timestamp")
    save(frame, moldau_broker, topic=target, includeTimestamp="true")
    (row,) = rows_of(spark, moldau_broker, target)
    assert row["timestamp"].timestamp() == 1234567890.123


@pytest.mark.parametrize(
    ("select", "words"),
    [
        ("select 1 as value", "Column 'value' has type int; it must be string or binary"),
        ("select 'x' as value, 1L as partition", "Column 'partition' has type bigint; it must be int"),
        ("select 'x' as payload", "Column 'value' is required; the columns are payload"),
        ("select 'x' as value, cast(null as string) as topic", "the column 'topic' is null"),
    ],
)
def test_invalid_rows_are_reported(spark: Any, moldau_broker: Broker, select: str, words: str) -> None:
    options = {} if "topic" in select else {"topic": "some"}
    with pytest.raises(Exception, match=words):
        save(spark.sql(select), moldau_broker, **options)


def test_invalid_rows_become_dead_letters(spark: Any, moldau_broker: Broker, topic: str, target: str) -> None:
    rows = [(target, "1"), (None, "2"), ("no topic!", "3"), (target, "4")]
    frame = spark.createDataFrame(rows, "topic string, value string")
    save(frame, moldau_broker, deadLetterTopic=topic)
    assert numbers(rows_of(spark, moldau_broker, target)) == [1, 4]
    dead = rows_of(spark, moldau_broker, topic, includeHeaders="true")
    reasons = {row["value"]: {each["key"]: each["value"].decode() for each in row["headers"]} for row in dead}
    assert reasons[b"2"]["moldau.reason"] == "the column 'topic' is null"
    assert reasons[b"3"]["moldau.topic"] == "no topic!"


@pytest.mark.proves("D2")
def test_stream_writes_each_batch_in_one_transaction(
    spark: Any, moldau_broker: Broker, topic: str, target: str, tmp_path: Path
) -> None:
    produce(moldau_broker, topic, 100)
    settings = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": 40}
    frame = reading(spark.readStream, moldau_broker, topic, **settings).select("key", "value")
    run(frame, moldau_broker, tmp_path / "checkpoint", topic=target)
    query_id = json.loads((tmp_path / "checkpoint" / "metadata").read_text())["id"]
    assert numbers(rows_of(spark, moldau_broker, target)) == list(range(100))
    markers = rows_of(spark, moldau_broker, "moldau-spark-commits")
    mine = [row["value"] for row in markers if row["key"] == query_id.encode()]
    assert [value.split(b",")[0] for value in mine] == [b'{"batch": 0', b'{"batch": 1', b'{"batch": 2']
    assert not list((tmp_path / "checkpoint").rglob("*.arrow"))
    produce(moldau_broker, topic, 20, first=100)
    run(frame, moldau_broker, tmp_path / "checkpoint", topic=target)
    assert numbers(rows_of(spark, moldau_broker, target)) == list(range(120))


@pytest.mark.proves("D2")
def test_concurrent_streams_continue_in_any_committing_process(
    spark: Any, moldau_broker: Broker, topic: str, tmp_path: Path
) -> None:
    """The committing processes form a pool, so streams of unequal speed swap processes."""
    produce(moldau_broker, topic, 60)

    def start(rows: int) -> Any:
        frame = reading(spark.readStream, moldau_broker, topic, startingOffsets="earliest", maxOffsetsPerTrigger=rows)
        place = {"topic": f"{topic}.{rows}", "checkpointLocation": tmp_path / f"{rows}"}
        return writing(frame.select("value").writeStream, moldau_broker, **place).trigger(availableNow=True).start()

    until_all_done([partial(start, rows) for rows in (10, 20, 60)])
    for rows in (10, 20, 60):
        assert numbers(rows_of(spark, moldau_broker, f"{topic}.{rows}")) == list(range(60))


def test_at_least_once_stream_leaves_no_marker(
    spark: Any, moldau_broker: Broker, topic: str, target: str, tmp_path: Path
) -> None:
    produce(moldau_broker, topic, 50)
    frame = reading(spark.readStream, moldau_broker, topic, startingOffsets="earliest")
    options = {"topic": target, "deliveryGuarantee": "at-least-once", "commitTopic": f"{target}-commits"}
    run(frame, moldau_broker, tmp_path / "checkpoint", **options)
    assert set(numbers(rows_of(spark, moldau_broker, target))) == set(range(50))
    with moldau_broker.client() as client:
        assert f"{target}-commits" not in {each.name for each in client.describe_topics()}


def test_application_version_is_written_once(spark: Any, moldau_broker: Broker, target: str) -> None:
    for version, first in ((0, 0), (0, 0), (1, 10), (1, 10)):
        frame = spark.range(first, first + 10).selectExpr("cast(id as string) as value")
        save(frame, moldau_broker, topic=target, txnAppId=f"app/{target}", txnVersion=version)
    assert numbers(rows_of(spark, moldau_broker, target)) == list(range(20))
    with pytest.raises(Exception, match="has committed txnVersion 1, and versions must not decrease"):
        save(frame, moldau_broker, topic=target, txnAppId=f"app/{target}", txnVersion=0)


@pytest.mark.proves("D2")
def test_concurrent_versions_are_committed_by_any_process(spark: Any, moldau_broker: Broker, target: str) -> None:
    """Any committing process may get the next version or a repeated one."""

    def write(app: str, version: int) -> None:
        frame = spark.createDataFrame([(app, f"{version}")], "key string, value string").coalesce(1)
        save(frame, moldau_broker, topic=target, txnAppId=f"{app}/{target}", txnVersion=version)

    with ThreadPoolExecutor(2) as threads:  # starts two committing processes, which take turns from now on
        for version in (0, 1):
            list(threads.map(write, "ab", [version] * 2))
    for version in (2, 2, 3, 7):
        write("a", version)
    found = sorted((row["key"], row["value"]) for row in rows_of(spark, moldau_broker, target))
    assert found == [(b"a", b"0"), (b"a", b"1"), (b"a", b"2"), (b"a", b"3"), (b"a", b"7"), (b"b", b"0"), (b"b", b"1")]


def test_stream_is_written_with_foreach_batch(
    spark: Any, moldau_broker: Broker, topic: str, target: str, tmp_path: Path
) -> None:
    produce(moldau_broker, topic, 40)

    def twice(frame: Any, batch: int) -> None:
        for _ in range(2):  # like a replay
            save(frame.select("value"), moldau_broker, topic=target, txnAppId=f"each/{target}", txnVersion=batch)

    frame = reading(spark.readStream, moldau_broker, topic, startingOffsets="earliest", maxOffsetsPerTrigger=25)
    by_hand = frame.writeStream.foreachBatch(twice).option("checkpointLocation", str(tmp_path))
    until_done(by_hand)
    assert numbers(rows_of(spark, moldau_broker, target)) == list(range(40))


def test_rows_of_the_source_are_written_unchanged(
    spark: Any, moldau_broker: Broker, topic: str, target: str, tmp_path: Path
) -> None:
    """A frame of the source has more columns than the sink uses, and its column `topic` names the source."""
    producer = Producer({"bootstrap.servers": moldau_broker.bootstrap_servers})
    producer.produce(topic, b"7", key=b"k", headers=[("a", b"b")], partition=1)
    assert producer.flush(30) == 0
    frame = reading(spark.readStream, moldau_broker, topic, startingOffsets="earliest", includeHeaders="true")
    run(frame, moldau_broker, tmp_path / "checkpoint", topic=target)
    (row,) = rows_of(spark, moldau_broker, target, includeHeaders="true")
    assert (row["key"], row["value"], row["partition"]) == (b"k", b"7", 1)
    assert [tuple(each) for each in row["headers"]] == [("a", b"b")]


def test_complete_mode_is_written_and_update_mode_rejected(
    spark: Any, moldau_broker: Broker, topic: str, target: str, tmp_path: Path
) -> None:
    """A Python sink cannot declare support of update mode; the guide shows `foreachBatch` for it."""
    produce(moldau_broker, topic, 30)
    frame = reading(spark.readStream, moldau_broker, topic, startingOffsets="earliest")
    counts = frame.groupBy("key").count().selectExpr("key", "cast(count as string) as value")
    sink = writing(counts.writeStream, moldau_broker, topic=target, checkpointLocation=tmp_path / "complete")
    until_done(sink.outputMode("complete"))
    assert numbers(rows_of(spark, moldau_broker, target)) == [6] * 5
    updates = writing(counts.writeStream, moldau_broker, topic=target, checkpointLocation=tmp_path / "update")
    with pytest.raises(Exception, match=r"(?i)update"):
        until_done(updates.outputMode("update"))


def test_abort_removes_only_its_staged_files(tmp_path: Path) -> None:
    schema = StructType([StructField("value", StringType())])
    options = sink_stream_options({"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t"})
    lost, kept = tmp_path / "7" / "1.arrow", tmp_path / "7" / "2.arrow"
    lost.parent.mkdir()
    lost.touch()
    kept.touch()
    staged = StagedMessage(StagedBatches("query", 0, 1, None, str(lost)))
    StreamWriter(options, schema).abort([staged, None, ProducedMessage(3)], 7)
    assert (lost.exists(), kept.exists()) == (False, True)
