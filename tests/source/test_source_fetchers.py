"""Ranges read from a real broker by both fetchers, raw and librdkafka, which must give the same rows."""

import asyncio
import itertools
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka import TopicPartition as DecodeRange

from moldau.client.async_client import AsyncClient
from moldau.client.types import FetchResult
from moldau.model.ids import TopicPartition
from moldau.node.ports.clock import SystemClock
from moldau.node.ports.randomness import system_random
from moldau.node.ports.sockets import SocketNetwork
from moldau.testing.broker import Broker
from pyspark_moldau.codec import columns
from pyspark_moldau.options.source_options import Pattern, SourceOptions, Topics, batch_options
from pyspark_moldau.source.cluster import BrokersUnreachable, ConfluentCluster
from pyspark_moldau.source.librdkafka_consumer import read_with_librdkafka
from pyspark_moldau.source.offset_ranges import OffsetRange
from pyspark_moldau.source.raw_fetcher import RangeFetcher, read_raw
from pyspark_moldau.source.read_plan import RecordsLost, plan_batch

Read = Callable[[OffsetRange, SourceOptions], Iterator[Any]]
READERS: list[Read] = [read_raw, read_with_librdkafka]


@pytest.fixture
def topic(moldau_broker: Broker) -> str:
    return moldau_broker.create_topic(f"source-{uuid.uuid4().hex}", partitions=2)


def options(broker: Broker, topic: str, **given: object) -> SourceOptions:
    words = {name.replace("__", "."): str(value) for name, value in given.items()}
    must = {"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": topic, "includeHeaders": "true"}
    return batch_options(must | words)


def produce(broker: Broker, topic: str, count: int, partition: int = 0, settings: dict[str, Any] | None = None) -> None:
    """Produce varied records: every third has headers, some keys and values are null or empty."""
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 5, **(settings or {})})
    for index in range(count):
        producer.produce(
            topic,
            key=(None, b"", b"k%d" % index)[index % 3],
            value=(b"v" * (index % 200), None, b"")[(index // 3) % 3],
            headers=[("a", b"1"), ("b", None), ("a", b"")] if index % 3 == 0 else None,
            partition=partition,
            timestamp=1_700_000_000_000 + index * 7,
        )
    assert producer.flush(30) == 0


def table(read: Read, ranges: list[OffsetRange], wanted: SourceOptions) -> pa.Table:
    made = [each for one in ranges for each in read(one, wanted)]
    return pa.Table.from_batches(made, columns.schema(with_headers=wanted.includes_headers))


def planned(wanted: SourceOptions) -> list[OffsetRange]:
    cluster = ConfluentCluster(wanted)
    try:
        return plan_batch(wanted, cluster)
    finally:
        cluster.close()


def both(wanted: SourceOptions) -> pa.Table:
    ranges = planned(wanted)
    raw, oracle = (table(read, ranges, wanted) for read in READERS)
    assert raw.equals(oracle)
    return raw


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_both_fetchers_read_the_same_rows(moldau_broker: Broker, topic: str, codec: str) -> None:
    produce(moldau_broker, topic, 3_000, settings={"compression.type": codec})
    produce(moldau_broker, topic, 100, partition=1, settings={"compression.type": codec, "batch.num.messages": 3})
    rows = both(options(moldau_broker, topic))
    assert rows.num_rows == 3_100
    assert rows["offset"].to_pylist() == [*range(3_000), *range(100)]


def test_both_fetchers_read_the_same_rows_over_mutual_tls() -> None:
    with Broker(security="mtls") as broker:
        topic = broker.create_topic("secured")
        produce(broker, topic, 3_000, settings=broker.librdkafka_settings)
        kafka = {f"kafka.{name}": value for name, value in broker.client_settings.items()}
        assert both(options(broker, topic, **kafka)).num_rows == 3_000


def test_splits_of_a_partition_add_up_to_it(moldau_broker: Broker, topic: str) -> None:
    produce(moldau_broker, topic, 2_000, settings={"batch.num.messages": 150})
    wanted = options(moldau_broker, topic, minPartitions=7, maxRecordsPerPartition=500)
    ranges = planned(wanted)
    assert len(ranges) >= 7
    assert table(read_raw, ranges, wanted).equals(both(options(moldau_broker, topic)))


def test_small_fetches_read_the_same_rows(moldau_broker: Broker, topic: str) -> None:
    produce(moldau_broker, topic, 1_000, settings={"batch.num.messages": 50})
    tiny = options(moldau_broker, topic, kafka__max__partition__fetch__bytes=100)
    assert both(tiny).num_rows == 1_000


def test_records_produced_after_planning_are_not_read(moldau_broker: Broker, topic: str) -> None:
    produce(moldau_broker, topic, 10)
    wanted = options(moldau_broker, topic)
    ranges = planned(wanted)
    produce(moldau_broker, topic, 10)
    for read in READERS:
        assert table(read, ranges, wanted)["offset"].to_pylist() == list(range(10))


@pytest.mark.proves("D1")
@pytest.mark.parametrize("read", READERS)
def test_deleted_records_are_a_loss_or_are_skipped(moldau_broker: Broker, topic: str, read: Read) -> None:
    produce(moldau_broker, topic, 100, settings={"batch.num.messages": 10})
    with moldau_broker.client() as client:
        client.delete_records(topic, 0, 45)
    with pytest.raises(RecordsLost, match="failOnDataLoss"):
        table(read, [OffsetRange(topic, 0, 3, 90)], options(moldau_broker, topic))
    lenient = options(moldau_broker, topic, failOnDataLoss="false")
    assert table(read, [OffsetRange(topic, 0, 3, 90)], lenient)["offset"].to_pylist() == list(range(45, 90))
    assert table(read, [OffsetRange(topic, 0, 3, 40)], lenient).num_rows == 0


@pytest.mark.parametrize("read", READERS)
def test_offsets_beyond_the_end_are_a_loss(moldau_broker: Broker, topic: str, read: Read) -> None:
    produce(moldau_broker, topic, 10)
    with pytest.raises(RecordsLost):
        table(read, [OffsetRange(topic, 0, 50, 60)], options(moldau_broker, topic))
    lenient = options(moldau_broker, topic, failOnDataLoss="false")
    assert table(read, [OffsetRange(topic, 0, 50, 60)], lenient).num_rows == 0


@pytest.mark.proves("D1")
def test_recreated_topic_is_a_loss(moldau_broker: Broker, topic: str) -> None:
    produce(moldau_broker, topic, 10)
    wanted = options(moldau_broker, topic)
    ranges = planned(wanted)
    with moldau_broker.client() as client:
        client.delete_topic(topic)
        client.create_topic(topic, partitions=2, replication_factor=1)
    produce(moldau_broker, topic, 10)
    with pytest.raises(RecordsLost, match="recreated"):
        table(read_raw, ranges, wanted)


@pytest.mark.proves("D1")
def test_topic_recreated_during_a_task_is_a_loss(moldau_broker: Broker, topic: str) -> None:
    small = {"batch.num.messages": 50}
    produce(moldau_broker, topic, 1_000, settings=small)
    wanted = options(moldau_broker, topic, kafka__max__partition__fetch__bytes=100)
    (whole,) = planned(wanted)
    rows = read_raw(whole, wanted)
    assert next(rows).num_rows > 0
    with moldau_broker.client() as client:
        client.delete_topic(topic)
        client.create_topic(topic, partitions=2, replication_factor=1)
    produce(moldau_broker, topic, 1_000, settings=small)
    with pytest.raises(RecordsLost, match="recreated"):
        list(rows)


def test_fetch_of_a_range_times_out(moldau_broker: Broker, topic: str) -> None:
    produce(moldau_broker, topic, 10)
    wanted = options(moldau_broker, topic, kafkaConsumer__pollTimeoutMs=300, kafka__fetch__max__wait__ms=50)
    for read in READERS:
        with pytest.raises(TimeoutError, match="300 ms"):
            table(read, [OffsetRange(topic, 0, 5, 50)], wanted)


@pytest.mark.proves("D1")
@pytest.mark.parametrize("read", READERS)
def test_truncated_log_is_read_to_its_end_without_fail_on_data_loss(
    moldau_broker: Broker, topic: str, read: Read, caplog: pytest.LogCaptureFixture
) -> None:
    """Like after an unclean election, or in a recreated topic."""
    produce(moldau_broker, topic, 10)
    wanted = options(moldau_broker, topic, failOnDataLoss="false", kafkaConsumer__pollTimeoutMs=300)
    assert table(read, [OffsetRange(topic, 0, 5, 50)], wanted)["offset"].to_pylist() == list(range(5, 10))
    assert f"{topic}-0 was to be read up to offset 50 but now ends at 10" in caplog.text


def test_range_with_a_compacted_end_is_no_loss(moldau_broker: Broker, topic: str) -> None:
    """The fetch response is empty although the log end is beyond the range."""

    class Compacted(AsyncClient):
        async def fetch(self, *where: Any, **how: Any) -> FetchResult:
            fetched = await super().fetch(*where, **how)
            return fetched if where[2] < 10 else replace(fetched, records=memoryview(b""))

    produce(moldau_broker, topic, 10, settings={"linger.ms": 100})
    produce(moldau_broker, topic, 10)
    wanted = options(moldau_broker, topic, kafka__max__partition__fetch__bytes=1)
    loop = asyncio.new_event_loop()
    client = Compacted(SocketNetwork(), SystemClock(), system_random(), moldau_broker.bootstrap_servers)
    reading = RangeFetcher(OffsetRange(topic, 0, 0, 20), wanted, client, loop)
    rows = pa.Table.from_batches(list(reading.rows()))
    reading.close()
    assert rows["offset"].to_pylist() == list(range(10))


def test_broker_restart_during_a_read_is_survived() -> None:
    with Broker() as broker:
        topic = broker.create_topic("restarted")
        produce(broker, topic, 1_000, settings={"batch.num.messages": 50})
        wanted = options(broker, topic, kafka__max__partition__fetch__bytes=100)
        rows = read_raw(OffsetRange(topic, 0, 0, 1_000), wanted)
        seen = next(rows)["offset"].to_pylist()
        broker.restart()
        for each in rows:
            seen += each["offset"].to_pylist()
        assert seen == list(range(1_000))


def test_abandoned_reader_closes_its_connection(moldau_broker: Broker, topic: str) -> None:
    produce(moldau_broker, topic, 1_000, settings={"batch.num.messages": 50})
    wanted = options(moldau_broker, topic, kafka__max__partition__fetch__bytes=100)
    rows = read_raw(OffsetRange(topic, 0, 0, 1_000), wanted)
    assert next(rows).num_rows > 0
    rows.close()  # type: ignore[attr-defined]


def test_offsets_are_found_by_timestamp(moldau_broker: Broker, topic: str) -> None:
    produce(moldau_broker, topic, 100)
    wanted = options(moldau_broker, topic)
    cluster = ConfluentCluster(wanted)
    where = TopicPartition(topic, 0)
    assert cluster.at_times({where: 1_700_000_000_000 + 10 * 7}) == {where: 10}
    assert cluster.at_times({where: 1_800_000_000_000}) == {where: None}
    assert cluster.earliest([where]) == {where: 0}
    assert cluster.latest([where]) == {where: 100}
    cluster.close()


def test_topics_are_found_by_name_and_pattern(moldau_broker: Broker, topic: str) -> None:
    wanted = options(moldau_broker, topic)
    cluster = ConfluentCluster(wanted)
    found = cluster.topics(Topics((topic, "there-is-no-such-topic")))
    assert list(found) == [topic]
    assert found[topic].partitions == (0, 1)
    assert len(found[topic].topic_id) == 22
    assert cluster.topics(wanted.subscription) == found
    cluster.close()


@pytest.mark.proves("D1")
def test_pattern_excludes_internal_topics_of_the_source(moldau_broker: Broker, topic: str) -> None:
    cluster = ConfluentCluster(options(moldau_broker, topic))
    cluster.commit(f"group-{topic}", {TopicPartition(topic, 0): 0})
    internal = "__consumer_offsets"
    found = cluster.topics(Pattern(".*"))
    assert topic in found
    assert internal not in found
    assert list(cluster.topics(Topics((internal,)))) == [internal]
    cluster.close()


@pytest.mark.parametrize("retries", [0, 2])
def test_cluster_lookup_is_retried_num_retries_times(retries: int) -> None:
    words = {"fetchOffset.numRetries": str(retries), "fetchOffset.retryIntervalMs": "1"}
    cluster = ConfluentCluster(batch_options({"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t", **words}))
    cluster._retry(list)  # a first response: an unreachable cluster is not retried
    attempts = []

    def fail() -> None:
        attempts.append(1)
        raise KafkaException(KafkaError(KafkaError._TRANSPORT))

    with pytest.raises(KafkaException):
        cluster._retry(fail)
    assert len(attempts) == retries + 1


@pytest.mark.proves("D1")
def test_unreachable_cluster_is_reported_quietly_without_retries(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyspark_moldau.source.cluster._FIRST_REQUEST_S_MAX", 1.0)
    cluster = ConfluentCluster(batch_options({"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t"}))
    requests = 0
    describe = cluster._describe

    def counted(*arguments: Any, **options: Any) -> Any:
        nonlocal requests
        requests += 1
        return describe(*arguments, **options)

    monkeypatch.setattr(cluster, "_describe", counted)
    with pytest.raises(BrokersUnreachable, match=r"127\.0\.0\.1:1: .*Connection refused"):
        cluster.topics(Topics(("t",)))
    assert requests == 1
    cluster.close()
    assert capfd.readouterr().err == ""


LOGIN = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="a" password="b";'


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kafka.security.protocol": "SSL", "fetchOffset.numRetries": "1"}, "SSL (handshake failed|connection closed)"),
        (  # not retried
            {
                "fetchOffset.numRetries": "1000",
                "kafka.security.protocol": "SASL_PLAINTEXT",
                "kafka.sasl.mechanism": "PLAIN",
                "kafka.sasl.jaas.config": LOGIN,
            },
            "SASL PLAIN mechanism handshake failed",
        ),
    ],
)
def test_unsupported_security_protocol_is_reported(
    moldau_broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], message: str
) -> None:
    monkeypatch.setattr("pyspark_moldau.source.cluster._FIRST_REQUEST_S_MAX", 1.0)
    where = {"kafka.bootstrap.servers": moldau_broker.bootstrap_servers, "subscribe": topic}
    cluster = ConfluentCluster(batch_options({**where, **settings}))
    with pytest.raises((BrokersUnreachable, KafkaException), match=message):
        cluster.topics(Topics((topic,)))
    cluster.close()


def test_progress_is_committed_to_a_group(moldau_broker: Broker, topic: str) -> None:
    cluster = ConfluentCluster(options(moldau_broker, topic))
    cluster.commit(f"group-{topic}", {TopicPartition(topic, 0): 5, TopicPartition(topic, 1): 7})
    cluster.close()
    consumer = Consumer({"bootstrap.servers": moldau_broker.bootstrap_servers, "group.id": f"group-{topic}"})
    places = consumer.committed([DecodeRange(topic, 0), DecodeRange(topic, 1)], timeout=30)
    consumer.close()
    assert [place.offset for place in places] == [5, 7]


@pytest.mark.proves("D1")
def test_read_committed_skips_aborted_and_open_transactions(moldau_broker: Broker, topic: str) -> None:
    producer = Producer({"bootstrap.servers": moldau_broker.bootstrap_servers, "transactional.id": f"tx-{topic}"})
    producer.init_transactions(30)
    for number, outcome in enumerate(itertools.islice(itertools.cycle("ca"), 6)):
        producer.begin_transaction()
        for index in range(10):
            producer.produce(topic, b"%s-%d-%d" % (outcome.encode(), number, index), partition=0)
        producer.flush(30)
        if outcome == "c":
            producer.commit_transaction(30)
        else:
            producer.abort_transaction(30)
    producer.begin_transaction()
    producer.produce(topic, b"open", partition=0)
    assert producer.flush(30) == 0
    committed = both(options(moldau_broker, topic, kafka__isolation__level="read_committed"))
    assert {value[:1] for value in committed["value"].to_pylist()} == {b"c"}
    assert committed.num_rows == 30
    everything = both(options(moldau_broker, topic))
    assert everything.num_rows == 61
    producer.abort_transaction(30)
