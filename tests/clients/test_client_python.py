"""Peculiarities of kafka-python and aiokafka: old protocol versions, missing topics."""

import asyncio
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError
from client_driver import WAIT_S, Sent
from client_driver_aiokafka import AioKafka
from client_driver_kafka_python import KafkaPython, kafka, kafka_errors

from moldau.testing import Broker


@pytest.mark.proves("A1")
@pytest.mark.parametrize("version", [(0, 11), (1, 0), (2, 0), (2, 4), (2, 8), (3, 9), (4, 0)])
def test_client_with_old_api_versions_is_served(
    broker: Broker, kafka_python: KafkaPython, topic_name: str, version: tuple[int, int]
) -> None:
    kafka_python.create_topic(topic_name)
    options: dict[str, Any] = {"bootstrap_servers": broker.bootstrap_servers, "api_version": version}
    producer = kafka.KafkaProducer(**options, compression_type="gzip", enable_idempotence=False)
    futures = [producer.send(topic_name, b"%d" % number, headers=[("n", b"%d" % number)]) for number in range(10)]
    assert [future.get(WAIT_S).offset for future in futures] == list(range(10))
    producer.close(WAIT_S)
    consumer = kafka.KafkaConsumer(**options, group_id=None, auto_offset_reset="earliest")
    partition = kafka.TopicPartition(topic_name, 0)
    consumer.assign([partition])
    assert [next(consumer).value for _ in range(10)] == [b"%d" % number for number in range(10)]
    assert consumer.end_offsets([partition]) == {partition: 10}
    consumer.close()


def test_kafka_python_gets_unknown_topic_error(broker: Broker, topic_name: str) -> None:
    producer = kafka.KafkaProducer(bootstrap_servers=broker.bootstrap_servers, max_block_ms=300)
    with pytest.raises(kafka_errors.KafkaError):
        producer.send(topic_name, b"").get(WAIT_S)
    producer.close(WAIT_S)
    consumer = kafka.KafkaConsumer(bootstrap_servers=broker.bootstrap_servers)
    assert not consumer.partitions_for_topic(topic_name)
    consumer.close()


@pytest.mark.parametrize("has_sessions", [True, False])
def test_kafka_python_reads_with_and_without_fetch_sessions(
    broker: Broker, kafka_python: KafkaPython, topic_name: str, has_sessions: bool
) -> None:
    kafka_python.create_topic(topic_name, partitions=5)
    consumer: Any = kafka.KafkaConsumer(
        bootstrap_servers=broker.bootstrap_servers,
        group_id=None,
        auto_offset_reset="earliest",
        enable_incremental_fetch_sessions=has_sessions,
        fetch_max_wait_ms=5000,
    )
    consumer.assign([kafka.TopicPartition(topic_name, index) for index in range(5)])
    for turn in range(10):
        kafka_python.produce(topic_name, [Sent(b"%d" % turn, partition=turn % 5)])
        record = next(consumer)
        assert (record.partition, record.value) == (turn % 5, b"%d" % turn)
    consumer.close()


def test_aiokafka_gets_unknown_topic_error(broker: Broker, topic_name: str) -> None:
    async def produce() -> None:
        producer: Any = AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers, request_timeout_ms=300)
        await producer.start()
        try:
            await producer.send_and_wait(topic_name, b"")
        finally:
            await producer.stop()

    with pytest.raises(KafkaError):
        asyncio.run(asyncio.wait_for(produce(), WAIT_S))


def test_aiokafka_seeks_and_gets_one_by_one(broker: Broker, aiokafka: AioKafka, topic_name: str) -> None:
    aiokafka.create_topic(topic_name)
    aiokafka.produce(topic_name, [Sent(b"%d" % number) for number in range(10)], is_idempotent=True)

    async def read() -> list[Any]:
        consumer: Any = AIOKafkaConsumer(bootstrap_servers=broker.bootstrap_servers, auto_offset_reset="earliest")
        partition = TopicPartition(topic_name, 0)
        await consumer.start()
        try:
            consumer.assign([partition])
            first = await consumer.getone()
            consumer.seek(partition, 7)
            seventh = await consumer.getone()
            await consumer.seek_to_beginning(partition)
            again = await consumer.getone()
            return [first.value, seventh.value, again.value, await consumer.position(partition)]
        finally:
            await consumer.stop()

    assert asyncio.run(asyncio.wait_for(read(), WAIT_S)) == [b"0", b"7", b"0", 1]
