"""Clients over SASL_SSL while sessions end, users are deleted, and certificates are replaced or expire."""

import socket
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from moldau.cli.certificates import LOCAL_HOSTS, Authority
from moldau.cli.files import write_private
from moldau.testing import Broker
from moldau.testing.client import SocketClient

WAIT_S = 30.0
LIFETIME_MS = 1500


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """A broker whose sessions last a second and a half."""
    with Broker(security="scram", settings={"connections.max.reauth.ms": LIFETIME_MS}) as broker:
        yield broker


def config(broker: Broker, **others: Any) -> dict[str, Any]:
    """The settings of librdkafka; `others` have `_` for `.`, except callbacks."""
    named = {name if name.endswith("_cb") else name.replace("_", "."): value for name, value in others.items()}
    secured = {"bootstrap.servers": broker.bootstrap_servers, **broker.librdkafka_settings}
    return {**secured, "log_level": 0, **named}


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "timed out"


def test_transactions_go_on_while_sessions_are_renewed(broker: Broker) -> None:
    topic = broker.create_topic("transactional")
    errors: list[KafkaError] = []
    producer = Producer(config(broker, transactional_id="t", error_cb=errors.append))
    producer.init_transactions(WAIT_S)
    sent, end = 0, time.monotonic() + 2.5 * LIFETIME_MS / 1000
    while time.monotonic() < end:
        producer.begin_transaction()
        producer.produce(topic, b"%d" % sent)
        producer.commit_transaction(WAIT_S)
        sent += 1
    consumer = Consumer(config(broker, group_id="readers", auto_offset_reset="earliest", error_cb=errors.append))
    consumer.subscribe([topic])
    values: list[bytes | None] = []
    deadline = time.monotonic() + WAIT_S
    while len(values) < sent:
        assert time.monotonic() < deadline
        values += [each.value() for each in consumer.consume(sent - len(values), timeout=1)]
    consumer.close()
    assert values == [b"%d" % number for number in range(sent)]
    assert not errors


def test_deleted_user_is_cut_off_when_its_session_ends(broker: Broker) -> None:
    topic = broker.create_topic("of-alice")
    admin = AdminClient(config(broker))
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    (created,) = admin.alter_user_scram_credentials([UserScramCredentialUpsertion("alice", info, b"pw-a")]).values()
    created.result(WAIT_S)
    errors: list[KafkaError] = []
    delivered: list[object] = []
    producer = Producer(
        {**config(broker, error_cb=errors.append), "sasl.username": "alice", "sasl.password": "pw-a", "linger.ms": 0}
    )

    def has_sent(condition: Callable[[], object]) -> bool:
        producer.produce(topic, b"v", on_delivery=lambda error, _: delivered.append(error))
        producer.poll(0.05)
        return bool(condition())

    until(lambda: has_sent(lambda: delivered))
    assert delivered[0] is None
    deletion = UserScramCredentialDeletion("alice", ScramMechanism.SCRAM_SHA_512)
    (deleted,) = admin.alter_user_scram_credentials([deletion]).values()
    deleted.result(WAIT_S)
    until(lambda: has_sent(lambda: any(each.code() == KafkaError._AUTHENTICATION for each in errors)))
    assert "invalid credentials" in next(each.str() for each in errors if each.code() == KafkaError._AUTHENTICATION)
    with broker.client() as client:
        end = client.fetch(topic, 0, 0).high_watermark
        seen = len(errors)
        until(lambda: has_sent(lambda: len(errors) > seen))  # it tries again
        assert client.fetch(topic, 0, 0).high_watermark == end
    producer.purge()


def _keystore(broker: Broker) -> Path:
    assert broker.security is not None
    return Path(broker.security.broker_settings["ssl.keystore.location"])


def test_certificates_are_replaced_under_load_without_an_error(broker: Broker) -> None:
    topic = broker.create_topic("under-load")
    authority = Authority.load(_keystore(broker).parent)
    errors: list[object] = []
    producer = Producer(config(broker, error_cb=errors.append))
    subjects = set()
    for number in range(3):
        name = f"node-{number}"
        write_private(_keystore(broker), authority.issue(name, LOCAL_HOSTS))
        until(lambda name=name: _subject(broker) == name)  # type: ignore[misc]
        subjects.add(name)
        for _ in range(100):
            producer.produce(topic, bytes(500), on_delivery=lambda error, _: errors.append(error) if error else None)
        fresh = Producer(config(broker, error_cb=errors.append))  # a new connection, with the new certificate
        fresh.produce(topic, b"fresh", on_delivery=lambda error, _: errors.append(error) if error else None)
        assert producer.flush(WAIT_S) == fresh.flush(WAIT_S) == 0
    assert len(subjects) == 3
    assert not errors
    with broker.client() as client:
        assert client.fetch(topic, 0, 0).high_watermark == 303


def _subject(broker: Broker) -> str:
    """Connect, and return the name in the certificate of the broker."""
    context = ssl.create_default_context(cafile=broker.librdkafka_settings["ssl.ca.location"])
    host, _, port = broker.bootstrap_servers.rpartition(":")
    with (
        socket.create_connection((host, int(port)), timeout=WAIT_S) as plain,
        context.wrap_socket(plain, server_hostname=host) as secured,
    ):
        certificate: Any = secured.getpeercert()
    return str(dict(each[0] for each in certificate["subject"])["commonName"])


def test_expired_certificate_of_a_broker_is_named_by_clients(broker: Broker) -> None:
    authority = Authority.load(_keystore(broker).parent)
    valid = _keystore(broker).read_text()
    try:
        write_private(_keystore(broker), authority.issue("node", LOCAL_HOSTS, days=-1))
        errors: list[KafkaError] = []
        producer = Producer(config(broker, error_cb=errors.append))
        until(lambda: producer.poll(0.05) or any("certificate has expired" in each.str() for each in errors))
        with (
            pytest.raises(OSError, match=r"certificate has expired: renew it"),
            SocketClient(broker.bootstrap_servers, security=broker.client_settings) as client,
        ):
            client.describe_topics()
    finally:
        write_private(_keystore(broker), valid)


def test_expired_certificate_of_a_client_is_rejected() -> None:
    with Broker(security="mtls") as broker:
        file = Path(broker.client_settings["ssl.keystore.location"])
        file.write_text(Authority.load(file.parent).issue("tester", days=-1))
        with (
            pytest.raises(OSError, match="certificate has expired"),
            SocketClient(broker.bootstrap_servers, security=broker.client_settings) as client,
        ):
            client.describe_topics()
        until(lambda: "certificate rejected: certificate has expired" in broker.log)
