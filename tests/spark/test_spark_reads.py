"""Batch reads through Spark: `spark.read.format("moldau")`."""

from typing import Any

import pytest

from moldau.testing.broker import Broker
from moldau_dev.spark import numbers, produce, reading


@pytest.mark.proves("D1")
def test_topic_is_read_as_a_table(spark: Any, moldau_broker: Broker, topic: str) -> None:
    produce(moldau_broker, topic, 100)
    frame = reading(spark.read, moldau_broker, topic)
    assert frame.dtypes == [
        ("key", "binary"),
        ("value", "binary"),
        ("topic", "string"),
        ("partition", "int"),
        ("offset", "bigint"),
        ("timestamp", "timestamp"),
        ("timestampType", "int"),
    ]
    rows = frame.collect()
    assert numbers(rows) == list(range(100))
    assert {(row["topic"], row["partition"], row["timestampType"]) for row in rows} == {(topic, 0, 0), (topic, 1, 0)}


def test_headers_are_read_on_request(spark: Any, moldau_broker: Broker, topic: str) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": moldau_broker.bootstrap_servers})
    producer.produce(topic, b"1", headers=[("a", b"x"), ("b", None)], partition=0)
    producer.produce(topic, None, key=b"", partition=0)
    assert producer.flush(30) == 0
    first, second = reading(spark.read, moldau_broker, topic, includeHeaders="true").orderBy("offset").collect()
    assert [(each["key"], each["value"]) for each in first["headers"]] == [("a", b"x"), ("b", None)]
    assert (second["headers"], second["value"], second["key"]) == (None, None, b"")


def test_partition_is_split_into_tasks(spark: Any, moldau_broker: Broker, topic: str) -> None:
    produce(moldau_broker, topic, 1_000)
    frame = reading(spark.read, moldau_broker, topic, minPartitions=5)
    assert frame.rdd.getNumPartitions() == 5
    assert numbers(frame.collect()) == list(range(1_000))


def test_empty_topic_has_no_rows(spark: Any, moldau_broker: Broker, topic: str) -> None:
    assert reading(spark.read, moldau_broker, topic).count() == 0


def test_both_fetchers_read_the_same_table(spark: Any, moldau_broker: Broker, topic: str) -> None:
    produce(moldau_broker, topic, 500)
    raw, oracle = (
        reading(spark.read, moldau_broker, topic, fetcher=name).orderBy("partition", "offset").collect()
        for name in ("raw", "librdkafka")
    )
    assert raw == oracle
    assert len(raw) == 500


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kafka__auto__offset__reset": "earliest"}, "startingOffsets"),
        ({"startingOffsets": "latest"}, "batch query"),
        ({"assign": "{}", "subscribePattern": "x"}, "Exactly one"),
        ({"includeHeaders": "perhaps"}, "includeHeaders"),
        ({"kafka__fetch__max__byte": "1"}, r"kafka.fetch.max.bytes"),
    ],
)
def test_invalid_read_option_is_reported(
    spark: Any, moldau_broker: Broker, topic: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(Exception, match=message):
        reading(spark.read, moldau_broker, topic, **options).count()
