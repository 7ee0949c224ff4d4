"""Every client library authenticates by SASL: produces, consumes in a group, uses transactions, renews sessions."""

import asyncio
import json
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiokafka
import confluent_kafka
import jwt
import kafka
import pytest
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from cryptography.hazmat.primitives.asymmetric import rsa

from moldau.cli.certificates import LOCAL_HOSTS, Authority
from moldau.cli.files import write_private
from moldau.testing import Broker

USER, PASSWORD = "alice", "pw of alice, with = and ,"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
LIFETIME_MS = 2000
WAIT_S = 30.0


def settings(**others: object) -> dict[str, object]:
    return {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "security.inter.broker.protocol": "SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": f'{MODULE} required user_{USER}="{PASSWORD}";',
        "moldau.metrics.listener": "",
        **others,
    }


@pytest.fixture(scope="module")
def secured() -> Iterator[Broker]:
    """A broker whose sessions last two seconds; the user has SCRAM credentials, made by librdkafka."""
    with Broker(listen=None, settings=settings(**{"connections.max.reauth.ms": LIFETIME_MS})) as broker:
        admin = AdminClient(librdkafka(broker, "PLAIN"))
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            upsertion = UserScramCredentialUpsertion(USER, ScramCredentialInfo(mechanism, 4096), PASSWORD.encode())
            result(admin.alter_user_scram_credentials([upsertion]))
        yield broker


def result(futures: Any) -> Any:
    """Return the result of an admin request about one user."""
    (future,) = futures.values()
    return future.result(WAIT_S)


def librdkafka(broker: Broker, mechanism: str, password: str = PASSWORD, user: str = USER) -> dict[str, Any]:
    return {
        "bootstrap.servers": broker.bootstrap_servers,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": password,
        "log_level": 0,
    }


def python(broker: Broker, mechanism: str, password: str = PASSWORD) -> dict[str, Any]:
    """Return the settings of kafka-python and aiokafka."""
    return {
        "bootstrap_servers": broker.bootstrap_servers,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_plain_username": USER,
        "sasl_plain_password": password,
    }


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_librdkafka_produces_and_consumes_while_its_sessions_are_renewed(secured: Broker, mechanism: str) -> None:
    topic = f"librdkafka-{mechanism}"
    failed: list[confluent_kafka.KafkaError] = []
    config = librdkafka(secured, mechanism)
    producer = confluent_kafka.Producer({**config, "transactional.id": topic, "error_cb": failed.append})
    consumer = confluent_kafka.Consumer(
        {**config, "group.id": topic, "auto.offset.reset": "earliest", "error_cb": failed.append}
    )
    consumer.subscribe([topic])
    producer.init_transactions(WAIT_S)
    until = time.monotonic() + 2.5 * LIFETIME_MS / 1000
    sent = 0
    values: list[bytes | None] = []
    while time.monotonic() < until or len(values) < sent:
        assert time.monotonic() < until + WAIT_S
        if time.monotonic() < until:
            producer.begin_transaction()
            producer.produce(topic, b"%d" % sent)
            producer.commit_transaction(WAIT_S)
            sent += 1
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            values.append(message.value())
    consumer.close()
    assert values == [b"%d" % number for number in range(sent)]
    assert not [error for error in failed if error.code() == confluent_kafka.KafkaError._AUTHENTICATION]


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafka_python_produces_and_consumes(secured: Broker, mechanism: str) -> None:
    topic, config = f"kafka-python-{mechanism}", python(secured, mechanism)
    producer = kafka.KafkaProducer(**config)
    offsets = [producer.send(topic, b"%d" % number).get(WAIT_S).offset for number in range(3)]
    producer.close()
    consumer = kafka.KafkaConsumer(topic, group_id=topic, auto_offset_reset="earliest", **config)
    values = [next(consumer).value for _ in offsets]
    consumer.commit()
    consumer.close()
    assert (offsets, values) == ([0, 1, 2], [b"0", b"1", b"2"])


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_aiokafka_produces_in_transactions_and_consumes(secured: Broker, mechanism: str) -> None:
    topic, config = f"aiokafka-{mechanism}", python(secured, mechanism)

    async def run() -> list[bytes | None]:
        producer = aiokafka.AIOKafkaProducer(transactional_id=topic, **config)
        async with producer, producer.transaction():
            for number in range(3):
                await producer.send_and_wait(topic, b"%d" % number)
        consumer = aiokafka.AIOKafkaConsumer(topic, group_id=topic, auto_offset_reset="earliest", **config)
        async with consumer:
            return [(await consumer.getone()).value for _ in range(3)]

    assert asyncio.run(asyncio.wait_for(run(), WAIT_S)) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("user", [USER, "stranger"])
def test_wrong_password_and_unknown_user_are_reported_by_librdkafka(secured: Broker, mechanism: str, user: str) -> None:
    errors: list[confluent_kafka.KafkaError] = []
    config = librdkafka(secured, mechanism, "wrong", user)
    producer = confluent_kafka.Producer({**config, "error_cb": errors.append})
    until = time.monotonic() + WAIT_S
    while not errors and time.monotonic() < until:
        producer.poll(0.1)
    assert errors[0].code() == confluent_kafka.KafkaError._AUTHENTICATION
    cause = "Invalid username or password" if mechanism == "PLAIN" else "due to invalid credentials"
    assert cause in errors[0].str()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_wrong_password_keeps_aiokafka_from_starting(secured: Broker, mechanism: str) -> None:
    async def run() -> None:
        producer = aiokafka.AIOKafkaProducer(**python(secured, mechanism, "wrong"))
        try:
            with pytest.raises(aiokafka.errors.KafkaConnectionError):
                await producer.start()
        finally:
            await producer.stop()

    asyncio.run(asyncio.wait_for(run(), WAIT_S))


KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)


@pytest.fixture(scope="module")
def with_tokens(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker that accepts tokens over TLS, with the issuer's keys in a file."""
    folder = tmp_path_factory.mktemp("issuer")
    keys, keystore = folder / "keys.json", folder / "node.pem"
    authority = Authority.create()
    (folder / "ca.pem").write_text(authority.pem)
    write_private(keystore, authority.issue("node", LOCAL_HOSTS))
    public = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(KEY.public_key()))
    keys.write_text(json.dumps({"keys": [{**public, "kid": "1"}]}))
    tokens = {
        "listeners": "SASL_SSL://127.0.0.1:0",
        "security.inter.broker.protocol": "SASL_SSL",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(keystore),
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
        "sasl.oauthbearer.expected.audience": "kafka",
        "connections.max.reauth.ms": LIFETIME_MS,
    }
    with Broker(listen=None, settings=settings(**tokens)) as broker:
        yield broker


@pytest.fixture(scope="module")
def authority_file(with_tokens: Broker) -> str:
    return str(Path(str(with_tokens.settings["ssl.keystore.location"])).with_name("ca.pem"))


def token(lifetime_s: float, audience: str = "kafka") -> tuple[str, float]:
    """Return a token of the issuer, and when it expires."""
    expires_s = time.time() + lifetime_s
    claims = {"sub": USER, "aud": audience, "exp": expires_s}
    return jwt.encode(claims, KEY, algorithm="RS256", headers={"kid": "1"}), expires_s


def test_librdkafka_authenticates_by_token_and_renews_its_session(with_tokens: Broker, authority_file: str) -> None:
    errors: list[confluent_kafka.KafkaError] = []
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": with_tokens.bootstrap_servers,
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": authority_file,
            "sasl.mechanism": "OAUTHBEARER",
            "oauth_cb": lambda _: token(60),
            "error_cb": errors.append,
        }
    )
    delivered: list[int] = []
    until = time.monotonic() + 2.5 * LIFETIME_MS / 1000
    while time.monotonic() < until:
        producer.produce("tokens", b"a", on_delivery=lambda error, _: delivered.append(0 if error is None else 1))
        producer.poll(0.1)
    assert producer.flush(WAIT_S) == 0
    assert delivered
    assert not any(delivered)
    assert not errors


def test_aiokafka_authenticates_by_token(with_tokens: Broker, authority_file: str) -> None:
    class Provider(aiokafka.abc.AbstractTokenProvider):
        def __init__(self, audience: str) -> None:
            self.audience = audience

        async def token(self) -> str:
            return token(60, self.audience)[0]

    async def run(audience: str) -> int:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=with_tokens.bootstrap_servers,
            security_protocol="SASL_SSL",
            ssl_context=ssl.create_default_context(cafile=authority_file),
            sasl_mechanism="OAUTHBEARER",
            sasl_oauth_token_provider=Provider(audience),
        )
        try:
            await producer.start()
            return int((await producer.send_and_wait("aio-tokens", b"a")).offset)
        finally:
            await producer.stop()

    assert asyncio.run(asyncio.wait_for(run("kafka"), WAIT_S)) == 0
    with pytest.raises(aiokafka.errors.KafkaConnectionError):
        asyncio.run(asyncio.wait_for(run("another"), WAIT_S))


def test_credentials_are_described_and_deleted_by_librdkafka(secured: Broker) -> None:
    admin = AdminClient(librdkafka(secured, "PLAIN"))
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 8192)
    result(admin.alter_user_scram_credentials([UserScramCredentialUpsertion("bob", info, b"pw-b")]))
    described = result(admin.describe_user_scram_credentials(["bob"]))
    assert [(each.mechanism, each.iterations) for each in described.scram_credential_infos] == [
        (ScramMechanism.SCRAM_SHA_512, 8192)
    ]
    deletion = UserScramCredentialDeletion("bob", ScramMechanism.SCRAM_SHA_512)
    result(admin.alter_user_scram_credentials([deletion]))
    with pytest.raises(confluent_kafka.KafkaException, match="bob"):
        result(admin.describe_user_scram_credentials(["bob"]))
