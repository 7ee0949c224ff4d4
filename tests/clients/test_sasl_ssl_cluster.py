"""Three nodes with SASL_SSL everywhere and ACLs: commands set it up, client libraries use it, others are denied."""

import asyncio
import json
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import aiokafka
import kafka
import pytest
from confluent_kafka import Consumer, KafkaError, Producer
from sasl_ssl_scene import PASSWORDS, SCRAM, SecuredCluster

from moldau.cli.certificates import AUTHORITY_FILE, Authority

TOPIC = "orders"
WAIT_S = 30.0


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredCluster]:
    """A running cluster with a topic and two users, one of whom may use the topic; all of it made by commands."""
    secured = SecuredCluster(tmp_path_factory.mktemp("secured"), SCRAM)
    with secured.cluster:
        for user in ("alice", "eve"):
            secured.moldau("admin", "user", "create", user, "--password-file", "-", stdin=PASSWORDS[user])
        secured.moldau("admin", "topic", "create", TOPIC, "--partitions", "3")
        secured.moldau("admin", "acl", "allow", "-p", "alice", "-t", TOPIC, "--producer")
        secured.moldau("admin", "acl", "allow", "-p", "alice", "-t", TOPIC, "-g", "*", "--consumer")
        yield secured


@pytest.fixture(scope="module")
def wrong_authority(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("authority")
    Authority.create().save(directory)
    return str(directory / AUTHORITY_FILE)


# What works -----------------------------------------------------------------------------------------------------------


def test_commands_use_the_settings_of_the_file(secured: SecuredCluster) -> None:
    secured.moldau("alice", "produce", TOPIC, stdin="by command\n")
    consumed = secured.moldau("alice", "consume", TOPIC, "--from", "start", "--until", "end")
    assert "by command" in consumed.splitlines()
    users = json.loads(secured.moldau("admin", "user", "list", "--json"))
    assert {each["user"] for each in users} == {"node", "admin", "alice", "eve"}
    assert "User:alice" in secured.moldau("admin", "acl", "list", "-t", TOPIC)
    assert len(json.loads(secured.moldau("admin", "broker", "list", "--json"))) == 3


def test_confluent_kafka_produces_and_consumes(secured: SecuredCluster) -> None:
    config = {"bootstrap.servers": secured.cluster.bootstrap_servers, **secured.librdkafka("alice")}
    producer = Producer({**config, "enable.idempotence": True})
    for number in range(100):
        producer.produce(TOPIC, b"confluent %d" % number)
    assert producer.flush(WAIT_S) == 0
    consumer = Consumer({**config, "group.id": "confluent", "auto.offset.reset": "earliest"})
    consumer.subscribe([TOPIC])
    deadline = time.monotonic() + WAIT_S
    wanted = {b"confluent %d" % number for number in range(100)}
    while wanted:
        found = consumer.consume(500, timeout=1)
        assert time.monotonic() < deadline
        wanted -= {message.value() for message in found}
    consumer.commit(asynchronous=False)
    consumer.close()


def test_quota_of_an_authenticated_user_throttles(secured: SecuredCluster) -> None:
    entity = ("--user", "alice", "--client-id", "throttled")
    secured.moldau("admin", "quota", "set", *entity, "--produce", "1000")
    assert "alice" in secured.moldau("admin", "quota", "list")
    throttled: list[float] = []
    config = {"bootstrap.servers": secured.cluster.bootstrap_servers, **secured.librdkafka("alice")}
    producer = Producer(
        {**config, "client.id": "throttled", "throttle_cb": lambda event: throttled.append(event.throttle_time)}
    )
    deadline = time.monotonic() + WAIT_S
    while not throttled:
        assert time.monotonic() < deadline
        producer.produce(TOPIC, bytes(2000))
        producer.poll(0.1)
    assert throttled[0] > 0
    producer.purge()
    secured.moldau("admin", "quota", "delete", *entity)


def test_kafka_python_produces_and_consumes(secured: SecuredCluster) -> None:
    config = {**secured.python("alice"), "ssl_cafile": secured.authority}
    producer = kafka.KafkaProducer(**config)
    wanted = {b"kafka-python %d" % number for number in range(20)}
    for value in wanted:
        producer.send(TOPIC, value)
    producer.flush(WAIT_S)
    producer.close()
    consumer = kafka.KafkaConsumer(
        TOPIC, group_id="kafka-python", auto_offset_reset="earliest", consumer_timeout_ms=WAIT_S * 1000, **config
    )
    while wanted:
        wanted -= {next(consumer).value}
    consumer.close()


def test_aiokafka_produces_and_consumes(secured: SecuredCluster) -> None:
    config = {**secured.python("alice"), "ssl_context": ssl.create_default_context(cafile=secured.authority)}
    wanted = {b"aiokafka %d" % number for number in range(20)}

    async def run() -> None:
        async with aiokafka.AIOKafkaProducer(**config) as producer:
            for value in wanted:
                await producer.send_and_wait(TOPIC, value)
        consumer = aiokafka.AIOKafkaConsumer(TOPIC, group_id="aiokafka", auto_offset_reset="earliest", **config)
        async with consumer:
            while wanted:
                wanted.discard((await consumer.getone()).value)

    asyncio.run(asyncio.wait_for(run(), WAIT_S))


# What is rejected -----------------------------------------------------------------------------------------------------


def first_error(config: dict[str, str]) -> KafkaError:
    """Return the first error that librdkafka reports."""
    errors: list[KafkaError] = []
    producer = Producer({**config, "error_cb": errors.append, "log_level": 0})
    deadline = time.monotonic() + WAIT_S
    while not errors:
        assert time.monotonic() < deadline
        producer.poll(0.1)
    return errors[0]


def test_wrong_password_fails_with_a_clear_error(secured: SecuredCluster) -> None:
    address = {"bootstrap.servers": secured.cluster.bootstrap_servers}
    error = first_error(address | secured.librdkafka("alice", "wrong"))
    assert error.code() == KafkaError._AUTHENTICATION
    assert "invalid credentials" in error.str()
    config = secured.command_config("wrong-password", secured.java("alice", "wrong"))
    command = secured.run(config, "topic", "list")
    assert command.returncode == 1
    assert "invalid credentials" in command.stderr
    with pytest.raises(kafka.errors.KafkaError):
        kafka.KafkaAdminClient(
            **secured.python("alice", "wrong"), ssl_cafile=secured.authority, api_version_auto_timeout_ms=2000
        )


def test_wrong_authority_fails_with_a_clear_error(secured: SecuredCluster, wrong_authority: str) -> None:
    address = {"bootstrap.servers": secured.cluster.bootstrap_servers}
    error = first_error(address | secured.librdkafka("alice", authority=wrong_authority))
    assert "certificate verify failed" in error.str()
    config = secured.command_config("wrong-authority", secured.java("alice", authority=wrong_authority))
    command = secured.run(config, "topic", "list")
    assert command.returncode == 1
    assert "certificate" in command.stderr


def test_user_without_acls_is_denied(secured: SecuredCluster) -> None:
    outcomes: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": secured.cluster.bootstrap_servers, **secured.librdkafka("eve")})
    producer.produce(TOPIC, b"v", on_delivery=lambda error, _: outcomes.append(error))
    assert producer.flush(WAIT_S) == 0
    assert [error.code() for error in outcomes if error is not None] == [KafkaError.TOPIC_AUTHORIZATION_FAILED]
    config = secured.command_config("eve", secured.java("eve"))
    for arguments in (["produce", TOPIC], ["consume", TOPIC, "--from", "start", "--until", "end"], ["user", "list"]):
        command = secured.run(config, *arguments, stdin="v\n")
        assert command.returncode == 1
        assert "authoriz" in command.stderr.lower(), command.stderr
    assert secured.moldau("eve", "topic", "list", "--json").strip() == "[]"
    audits = [node.folder / "audit.jsonl" for node in secured.cluster.layout.nodes]
    denied = [json.loads(line) for file in audits if file.exists() for line in file.read_text().splitlines()]
    assert {each["principal"] for each in denied} == {"User:eve"}
    assert all(each["listener"] == "SASL_SSL" for each in denied)


def test_nodes_authenticate_to_each_other_by_plain(tmp_path: Path) -> None:
    secured = SecuredCluster(tmp_path, "PLAIN")
    with secured.cluster as cluster:
        topic = cluster.create_topic(TOPIC)
        cluster.kill(cluster.leader_of(topic))
        secured.moldau("admin", "produce", topic, stdin="after the leader was killed\n")
        consumed = secured.moldau("admin", "consume", topic, "--from", "start", "--until", "end")
        assert consumed.splitlines() == ["after the leader was killed"]
