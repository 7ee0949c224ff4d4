"""Streams through Spark: `spark.readStream.format("moldau")`, on to a folder of Parquet files."""

import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from moldau.testing.broker import Broker
from moldau_dev.spark import DONE_S_MAX, Kept, produce, reading


def committed(broker: Broker, group: str, topic: str) -> list[int]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": group})
    places = consumer.committed([TopicPartition(topic, 0), TopicPartition(topic, 1)], timeout=30)
    consumer.close()
    return [place.offset for place in places]


@pytest.mark.proves("D1", "D4")
def test_stream_resumes_and_commits_its_progress(spark: Any, moldau_broker: Broker, topic: str, tmp_path: Path) -> None:
    kept = Kept(spark, tmp_path)
    settings = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": 40, "commitOffsets": f"group-{topic}"}
    produce(moldau_broker, topic, 100)
    query = kept.run(reading(spark.readStream, moldau_broker, topic, **settings))
    assert [each["numInputRows"] for each in query.recentProgress if each["numInputRows"]] == [40, 40, 20]
    assert kept.numbers == list(range(100))
    assert [json.loads(each) for each in kept.stored_offsets] == [
        {topic: {"0": 20, "1": 20}},
        {topic: {"0": 40, "1": 40}},
        {topic: {"0": 50, "1": 50}},
    ]
    assert committed(moldau_broker, f"group-{topic}", topic) == [50, 50]

    produce(moldau_broker, topic, 11, first=100)
    kept.run(reading(spark.readStream, moldau_broker, topic, **settings))
    assert kept.numbers == list(range(111))
    assert committed(moldau_broker, f"group-{topic}", topic) == [56, 55]


def test_new_partitions_are_read_from_the_start(spark: Any, moldau_broker: Broker, topic: str, tmp_path: Path) -> None:
    kept = Kept(spark, tmp_path)
    produce(moldau_broker, topic, 4)
    kept.run(reading(spark.readStream, moldau_broker, topic, startingOffsets="earliest"))
    with moldau_broker.client() as client:
        client.create_partitions({topic: 3})
        client.produce(topic, 2, [(0, None, b"4", ())])
    kept.run(reading(spark.readStream, moldau_broker, topic, startingOffsets="latest"))
    assert kept.numbers == [0, 1, 2, 3, 4]


def test_query_fails_when_its_topic_is_recreated(spark: Any, moldau_broker: Broker, topic: str, tmp_path: Path) -> None:
    frame = reading(spark.readStream, moldau_broker, topic, startingOffsets="earliest")
    query = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()
    try:
        produce(moldau_broker, topic, 10)
        query.processAllAvailable()
        with moldau_broker.client() as client:
            client.delete_topic(topic)
            client.create_topic(topic, partitions=2, replication_factor=1)
        produce(moldau_broker, topic, 100)
        with pytest.raises(Exception, match=r"recreated|not exist|ends at"):
            query.awaitTermination(DONE_S_MAX)
    finally:
        query.stop()


def test_waiting_stream_reads_new_records(spark: Any, moldau_broker: Broker, topic: str, tmp_path: Path) -> None:
    seen: list[int] = []
    frame = reading(spark.readStream, moldau_broker, topic, startingOffsets="earliest")
    writing = frame.writeStream.foreachBatch(
        lambda batch, _: seen.extend(int(bytes(row.value)) for row in batch.collect())
    )
    query = writing.option("checkpointLocation", str(tmp_path)).start()
    try:
        produce(moldau_broker, topic, 10)
        query.processAllAvailable()
        produce(moldau_broker, topic, 10, first=10)
        query.processAllAvailable()
        assert sorted(seen) == list(range(20))
    finally:
        query.stop()


def test_stream_rejects_ending_offsets(spark: Any, moldau_broker: Broker, topic: str) -> None:
    def run() -> None:
        frame = reading(spark.readStream, moldau_broker, topic, endingOffsets="latest")
        frame.writeStream.format("noop").trigger(availableNow=True).start().awaitTermination(DONE_S_MAX)

    with pytest.raises(Exception, match="which have no end"):
        run()


def test_continuous_trigger_is_rejected(spark: Any, moldau_broker: Broker, topic: str) -> None:
    frame = reading(spark.readStream, moldau_broker, topic)
    with pytest.raises(Exception, match=r"(?i)continuous processing"):
        frame.writeStream.format("noop").trigger(continuous="1 second").start().awaitTermination(DONE_S_MAX)
