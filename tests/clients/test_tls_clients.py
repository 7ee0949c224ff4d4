"""Real clients over TLS: produce, consume in a group, and what they say where something is wrong."""

import asyncio
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from kafka import KafkaConsumer, KafkaProducer

from moldau.cli.certificates import Authority
from moldau.testing import Broker

KINDS = ("ssl", "mtls", "scram")
VALUES = [str(number).encode() * 500 for number in range(100)]
RULES = {"ssl.principal.mapping.rules": "RULE:^CN=([^,]*).*$/$1/L"}


@pytest.fixture(scope="module", params=KINDS)
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    with Broker(security=request.param) as broker:
        yield broker


def test_confluent_kafka_produces_and_consumes_in_a_group(broker: Broker) -> None:
    topic = broker.create_topic("confluent", partitions=2)
    config = {"bootstrap.servers": broker.bootstrap_servers, **broker.librdkafka_settings}
    producer = Producer({**config, "enable.idempotence": True})
    for value in VALUES:
        producer.produce(topic, value)
    assert producer.flush(20) == 0
    consumer = Consumer({**config, "group.id": "confluent", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    values: list[bytes] = []
    while len(values) < len(VALUES):
        found = [message.value() or b"" for message in consumer.consume(100, timeout=10)]
        assert found
        values += found
    consumer.commit(asynchronous=False)
    consumer.close()
    assert sorted(values) == sorted(VALUES)


def test_kafka_python_produces_and_consumes_in_a_group(broker: Broker) -> None:
    topic = broker.create_topic("kafka-python")
    config = {"bootstrap_servers": broker.bootstrap_servers, **broker.kafka_python_settings}
    producer = KafkaProducer(**config)
    for value in VALUES:
        producer.send(topic, value)
    producer.flush(20)
    producer.close()
    consumer = KafkaConsumer(
        topic, group_id="kafka-python", auto_offset_reset="earliest", consumer_timeout_ms=20_000, **config
    )
    values = [message.value for _, message in zip(VALUES, consumer, strict=False)]
    consumer.close()
    assert values == VALUES


def test_kafka_python_commits_and_aborts_transactions(broker: Broker) -> None:
    topic = broker.create_topic("kafka-python-transactions")
    config = {"bootstrap_servers": broker.bootstrap_servers, **broker.kafka_python_settings}
    producer = KafkaProducer(transactional_id="kafka-python", **config)
    producer.init_transactions()
    ends: dict[bytes, Callable[[], object]] = {
        b"aborted": producer.abort_transaction,
        b"committed": producer.commit_transaction,
    }
    for value, end in ends.items():
        producer.begin_transaction()
        producer.send(topic, value).get(20)
        end()
    producer.close()
    consumer = KafkaConsumer(
        topic,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        consumer_timeout_ms=20_000,
        **config,
    )
    assert next(consumer).value == b"committed"
    consumer.close()


def aiokafka_settings(broker: Broker) -> dict[str, Any]:
    config: dict[str, Any] = {"bootstrap_servers": broker.bootstrap_servers, **broker.kafka_python_settings}
    config["ssl_context"] = context = ssl.create_default_context(cafile=config.pop("ssl_cafile"))
    if "ssl_certfile" in config:
        context.load_cert_chain(config.pop("ssl_certfile"), config.pop("ssl_keyfile"))
    return config


async def test_aiokafka_commits_and_aborts_transactions(broker: Broker) -> None:
    topic = await asyncio.to_thread(broker.create_topic, "aiokafka-transactions")
    config = aiokafka_settings(broker)
    async with AIOKafkaProducer(transactional_id="aiokafka", **config) as producer:
        for value, end in ((b"aborted", producer.abort_transaction), (b"committed", producer.commit_transaction)):
            await producer.begin_transaction()
            await producer.send_and_wait(topic, value)
            await end()
    async with AIOKafkaConsumer(
        topic, auto_offset_reset="earliest", isolation_level="read_committed", **config
    ) as consumer:
        assert (await asyncio.wait_for(consumer.getone(), 20)).value == b"committed"


async def test_aiokafka_produces_and_consumes_in_a_group(broker: Broker) -> None:
    topic = await asyncio.to_thread(broker.create_topic, "aiokafka")
    config = aiokafka_settings(broker)
    async with AIOKafkaProducer(**config) as producer:
        for value in VALUES:
            await producer.send_and_wait(topic, value)
    async with AIOKafkaConsumer(topic, group_id="aiokafka", auto_offset_reset="earliest", **config) as consumer:
        values = [(await asyncio.wait_for(consumer.getone(), 20)).value for _ in VALUES]
    assert values == VALUES


def test_own_client_produces_and_fetches(broker: Broker) -> None:
    topic = broker.create_topic("own")
    with broker.client() as client:
        client.produce(topic, 0, [(0, None, value, ()) for value in VALUES])
        fetched = client.fetch(topic, 0, 0)
        assert fetched.high_watermark == len(VALUES)
        assert all(value in bytes(fetched.records) for value in VALUES)


def test_confluent_kafka_without_certificate_cannot_connect() -> None:
    with Broker(security="mtls") as broker:
        config: dict[str, Any] = {**broker.librdkafka_settings, "bootstrap.servers": broker.bootstrap_servers}
        del config["ssl.certificate.location"], config["ssl.key.location"]
        with pytest.raises(KafkaException):
            AdminClient(config).list_topics(timeout=1.5)
        assert "the client sent no certificate (ssl.client.auth=required)" in broker.log


def test_replaced_certificate_is_used_without_a_restart(tmp_path: Path) -> None:
    """The old authority signs the first certificate, a new one the second; the client trusts only the new one."""
    with Broker(security="ssl") as broker:
        assert broker.security is not None
        keystore = Path(broker.security.broker_settings["ssl.keystore.location"])
        renewed = Authority.create("New CA")
        (tmp_path / "ca.pem").write_text(renewed.pem)
        keystore.write_text(renewed.issue("node", ["127.0.0.1"]))
        config = {"bootstrap.servers": broker.bootstrap_servers, "security.protocol": "SSL"}
        admin = AdminClient({**config, "ssl.ca.location": str(tmp_path / "ca.pem")})
        assert admin.list_topics(timeout=20).brokers  # librdkafka tries again until the new files are read
