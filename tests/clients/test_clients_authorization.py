"""Client libraries with a principal of their own: what ACLs allow them, and what a revocation does in mid-stream."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka
import confluent_kafka.admin as admin
import kafka
import pytest
from confluent_kafka import KafkaError, Producer
from kafka.errors import TopicAuthorizationFailedError
from typer.testing import CliRunner

from moldau.broker.authorizer import STANDARD_AUTHORIZER
from moldau.cli.main import app
from moldau.testing import Broker

PASSWORDS = {"alice": "pw-a", "carol": "pw-c"}
JAAS = "org.apache.kafka.common.security.plain.PlainLoginModule required " + " ".join(
    f'user_{name}="{password}"' for name, password in PASSWORDS.items()
)
SETTINGS = {
    "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
    "inter.broker.listener.name": "PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": f"{JAAS};",
    "authorizer.class.name": STANDARD_AUTHORIZER,
    "super.users": "User:ANONYMOUS",
    "auto.create.topics.enable": "false",
    "moldau.metrics.listener": "",
}
WAIT_S = 30.0
BINDING = admin.AclBinding(
    admin.ResourceType.TOPIC,
    "managed-",
    admin.ResourcePatternType.PREFIXED,
    "User:alice",
    "*",
    admin.AclOperation.READ,
    admin.AclPermissionType.ALLOW,
)


class SecuredBroker:
    """A broker with a listener for administrators and one for authenticated clients."""

    def __init__(self, broker: Broker) -> None:
        self.admin_address, self.client_address = broker.bootstrap_servers.split(",")

    def moldau(self, *arguments: str) -> None:
        result = CliRunner().invoke(app, [*arguments, "--bootstrap-servers", self.admin_address])
        assert result.exit_code == 0, f"{result.output}{result.exception!r}"

    def config(self, user: str) -> dict[str, Any]:
        """The settings of librdkafka."""
        return {
            "bootstrap.servers": self.client_address,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": user,
            "sasl.password": PASSWORDS[user],
        }

    def kafka_python(self, user: str) -> dict[str, Any]:
        return {
            "bootstrap_servers": self.client_address,
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "PLAIN",
            "sasl_plain_username": user,
            "sasl_plain_password": PASSWORDS[user],
        }


@pytest.fixture(scope="module")
def secured() -> Iterator[SecuredBroker]:
    with Broker(listen=None, settings=SETTINGS) as broker:
        yield SecuredBroker(broker)


@pytest.fixture
def acl_topic(secured: SecuredBroker, topic_name: str) -> str:
    secured.moldau("topic", "create", topic_name)
    return topic_name


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "timed out"


def test_confluent_producer_is_revoked_in_mid_stream(secured: SecuredBroker, acl_topic: str) -> None:
    secured.moldau("acl", "allow", "-p", "alice", "-t", acl_topic, "--producer")
    outcomes: list[KafkaError | None] = []
    producer = Producer({**secured.config("alice"), "linger.ms": 0, "acks": "all"})

    def send_one() -> None:
        seen = len(outcomes)
        producer.produce(acl_topic, b"v", on_delivery=lambda error, _: outcomes.append(error))
        until(lambda: producer.poll(0.05) >= 0 and len(outcomes) > seen)

    for _ in range(20):
        send_one()
    assert outcomes == [None] * 20
    secured.moldau("acl", "delete", "-t", acl_topic, "--yes")
    send_one()
    error = outcomes[-1]
    assert error is not None
    assert error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    producer.flush(WAIT_S)


def test_kafka_python_consumer_is_revoked_in_mid_stream(secured: SecuredBroker, acl_topic: str) -> None:
    group = f"group-{acl_topic}"
    secured.moldau("acl", "allow", "-p", "carol", "-t", acl_topic, "-g", group, "--consumer")
    producer = Producer({"bootstrap.servers": secured.admin_address})
    for number in range(10):
        producer.produce(acl_topic, str(number).encode())
    producer.flush()
    consumer = kafka.KafkaConsumer(
        acl_topic,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        **secured.kafka_python("carol"),
    )
    read: list[bytes] = []

    def has_read(count: int) -> bool:
        for records in consumer.poll(timeout_ms=200).values():
            read.extend(record.value for record in records)
        return len(read) >= count

    until(lambda: has_read(10))
    secured.moldau("acl", "delete", "-t", acl_topic, "--yes")
    producer.produce(acl_topic, b"secret")
    producer.flush()
    with pytest.raises(TopicAuthorizationFailedError):
        until(lambda: has_read(11))
    assert len(read) == 10
    consumer.close(autocommit=False)


def test_admin_clients_manage_acls(secured: SecuredBroker) -> None:
    client = admin.AdminClient({"bootstrap.servers": secured.admin_address})
    (created,) = client.create_acls([BINDING]).values()
    assert created.result(WAIT_S) is None
    selected = admin.AclBindingFilter(
        admin.ResourceType.TOPIC,
        "managed-1",
        admin.ResourcePatternType.MATCH,
        "User:alice",
        None,  # type: ignore[arg-type]
        admin.AclOperation.ANY,
        admin.AclPermissionType.ANY,
    )
    assert client.describe_acls(selected).result(WAIT_S) == [BINDING]
    (deleted,) = client.delete_acls([selected]).values()
    assert deleted.result(WAIT_S) == [BINDING]
    assert client.describe_acls(selected).result(WAIT_S) == []


def test_acls_are_created_only_with_permission(secured: SecuredBroker) -> None:
    client = admin.AdminClient(secured.config("alice"))
    (created,) = client.create_acls([BINDING]).values()
    with pytest.raises(confluent_kafka.KafkaException) as denied:
        created.result(WAIT_S)
    assert denied.value.args[0].code() == KafkaError.CLUSTER_AUTHORIZATION_FAILED


def test_metadata_hides_topics_and_authorized_operations_follow_acls(secured: SecuredBroker, acl_topic: str) -> None:
    client = admin.AdminClient(secured.config("alice"))
    assert acl_topic not in client.list_topics(timeout=WAIT_S).topics
    secured.moldau("acl", "allow", "-p", "alice", "-t", acl_topic, "-o", "describe")
    assert acl_topic in client.list_topics(timeout=WAIT_S).topics
    (described,) = client.describe_topics(
        confluent_kafka.TopicCollection([acl_topic]), include_authorized_operations=True
    ).values()
    assert described.result(WAIT_S).authorized_operations == [admin.AclOperation.DESCRIBE]
