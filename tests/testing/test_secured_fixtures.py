"""Secured brokers and clusters of `moldau.testing`: who may connect, and where other users could see a secret."""

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from moldau.broker.authorizer import STANDARD_AUTHORIZER
from moldau.model.errors import KafkaError
from moldau.testing import Broker, Cluster
from moldau.testing.client import SocketClient
from moldau.testing.security import PASSWORDS, BrokerSecurity


@pytest.mark.parametrize("kind", ["scram", "plain"])
def test_secured_broker_serves_its_user_and_no_one_else(kind: str) -> None:
    with Broker(security=kind, authorizer_class_name=STANDARD_AUTHORIZER) as broker:
        broker.create_topic("orders")
        config: dict[str, Any] = {"bootstrap.servers": broker.bootstrap_servers, **broker.librdkafka_settings}
        assert "orders" in AdminClient(config).list_topics(timeout=20).topics
        wrong = {**broker.client_settings}
        wrong["sasl.jaas.config"] = wrong["sasl.jaas.config"].replace(PASSWORDS["tester"], "a guess")
        with pytest.raises((KafkaError, OSError)), SocketClient(broker.bootstrap_servers, security=wrong) as client:
            client.describe_topics()
        with pytest.raises(KafkaException):
            AdminClient({**config, "security.protocol": "SSL"}).list_topics(timeout=0.5)
        broker.restart()
        broker.create_topic("after-a-restart")


def test_passwords_are_neither_arguments_nor_in_readable_files_nor_in_the_log() -> None:
    with Broker(security="plain") as broker:
        process = Path(f"/proc/{broker.pid}")
        for secret in PASSWORDS.values():
            if process.exists():  # Linux
                assert secret.encode() not in (process / "cmdline").read_bytes()
                assert secret.encode() not in (process / "environ").read_bytes()
            assert secret not in broker.log
            assert secret not in repr(broker.security)
        holders = [
            each
            for each in broker._temporary.rglob("*")
            if each.is_file() and any(secret.encode() in each.read_bytes() for secret in PASSWORDS.values())
        ]
        assert {each.name for each in holders} == {"broker.properties"}
        assert {each.stat().st_mode & 0o777 for each in holders} == {0o600}


def test_secured_cluster_authenticates_its_nodes_and_clients() -> None:
    settings = {"authorizer.class.name": STANDARD_AUTHORIZER}
    with Cluster(3, security="scram", settings=settings) as cluster:
        topic = cluster.create_topic("orders")
        cluster.kill(cluster.leader_of(topic))
        with cluster.client() as client:
            client.produce(topic, 0, [(0, None, b"after a failover", ())])
        config: dict[str, Any] = {"bootstrap.servers": cluster.bootstrap_servers, **cluster.librdkafka_settings}
        assert topic in AdminClient(config).list_topics(timeout=20).topics


def test_unknown_security_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="security is 'tls'; it must be one of ssl, mtls, scram, plain"):
        BrokerSecurity.create("tls", tmp_path)
