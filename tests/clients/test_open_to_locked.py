"""The steps of docs/guides/open-to-locked.md on a running cluster: clients never stop until the controllers' step."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from typer.testing import CliRunner

from moldau.broker.authorizer import STANDARD_AUTHORIZER
from moldau.cli.client_options import use_client_settings
from moldau.cli.main import app
from moldau.testing import Cluster
from moldau.testing.free_ports import PortRange
from moldau.testing.security import BrokerSecurity

TOPIC = "orders"
WAIT_S = 30.0
PASSWORDS = {name: f"pw-of-{name}" for name in ("node", "admin", "app")}
SCRAM = "SCRAM-SHA-512"


class Migration:
    """A cluster of three that begins open, and the settings that its nodes get step by step."""

    def __init__(self, directory: Path) -> None:
        self.certificates = directory / "certificates"
        self.cluster = Cluster(3, settings={"auto.create.topics.enable": "false"})
        self._reserved = PortRange()
        first = self._reserved.draw(3).start
        self.secured = {node: f"127.0.0.1:{first + node - 1}" for node in self.cluster.nodes}
        self.open_servers = self.cluster.bootstrap_servers

    def close(self) -> None:
        self.cluster.close()
        self._reserved.release()

    def change(self, **settings: str) -> None:
        """Change settings of all nodes; they take effect when the nodes restart."""
        for node in self.cluster.nodes:
            self.cluster[node].settings |= {name.replace("__", "."): text for name, text in settings.items()}

    def add_listener(self) -> None:
        """Give every node a listener with SASL_SSL beside the open one."""
        for node in self.cluster.nodes:
            listeners = str(self.cluster[node].settings["listeners"]).split(",")
            self.cluster[node].settings["listeners"] = ",".join([*listeners, f"SASL_SSL://{self.secured[node]}"])
        self.change(
            listener__security__protocol__map="CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL",
            inter__broker__listener__name="PLAINTEXT",
            sasl__enabled__mechanisms=SCRAM,
            sasl__mechanism__inter__broker__protocol=SCRAM,
            ssl__keystore__location=str(self.certificates / "node.pem"),
            ssl__truststore__location=str(self.certificates / "ca.pem"),
        )
        login = f'ScramLoginModule required username="node" password="{PASSWORDS["node"]}";'
        self.change(**{"listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": login})

    def lock(self) -> None:
        """Remove the open listener and the exceptions; controllers use TLS."""
        for node in self.cluster.nodes:
            listeners = str(self.cluster[node].settings["listeners"]).split(",")
            self.cluster[node].settings["listeners"] = ",".join(
                each for each in listeners if "PLAINTEXT://" not in each
            )
        self.change(
            **{
                "listener.security.protocol.map": "CONTROLLER:SSL,SASL_SSL:SASL_SSL",
                "listener.name.controller.ssl.client.auth": "required",
                "ssl.principal.mapping.rules": "RULE:^CN=([^,]*).*$/$1/,DEFAULT",
                "super.users": "User:node;User:admin",
                "allow.everyone.if.no.acl.found": "false",
            }
        )

    def restart_one_by_one(self) -> None:
        for node in self.cluster.nodes:
            self.cluster.stop(node)
            self.cluster.start(node)
            self.cluster.wait_until_in_sync()

    def librdkafka(self, user: str) -> dict[str, Any]:
        return {
            "bootstrap.servers": ",".join(self.secured.values()),
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.certificates / "ca.pem"),
            "sasl.mechanism": SCRAM,
            "sasl.username": user,
            "sasl.password": PASSWORDS[user],
        }

    def java(self, user: str) -> dict[str, str]:
        return {
            "bootstrap.servers": ",".join(self.secured.values()),
            "security.protocol": "SASL_SSL",
            "ssl.truststore.location": str(self.certificates / "ca.pem"),
            "sasl.mechanism": SCRAM,
            "sasl.username": user,
            "sasl.password": PASSWORDS[user],
        }

    def moldau(self, *words: str, user: str | None = None, text: str = "") -> str:
        options = ["-b", self.open_servers]
        if user is not None:
            file = self.certificates / f"{user}.properties"
            file.write_text("".join(f"{name}={value}\n" for name, value in self.java(user).items()))
            options = ["--command-config", str(file)]
        result = CliRunner().invoke(app, [*words, *options], input=text)
        use_client_settings({})
        assert result.exit_code == 0, f"{words}: {result.output}{result.exception!r}"
        return result.output


class Stream:
    """A producer that sends in a thread until it is stopped; every delivery report is kept."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.failures: list[KafkaError] = []
        self.delivered = 0
        self._producer = Producer({**config, "enable.idempotence": True, "linger.ms": 5, "log_level": 0})
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.wait(0.01):
            self._producer.produce(TOPIC, b"value", on_delivery=self._on_delivery)
            self._producer.poll(0)

    def _on_delivery(self, error: KafkaError | None, _: object) -> None:
        if error is None:
            self.delivered += 1
        else:
            self.failures.append(error)

    def stop(self) -> int:
        """Return the number of delivered records; all of them must have been delivered."""
        self._stopping.set()
        self._thread.join()
        assert self._producer.flush(WAIT_S) == 0
        assert not self.failures, self.failures[0].str()
        assert self.delivered > 0
        return self.delivered


@pytest.fixture
def migration(tmp_path: Path) -> Iterator[Migration]:
    migration = Migration(tmp_path)
    try:
        migration.cluster.start()
        yield migration
    finally:
        migration.close()


def test_running_cluster_moves_from_plaintext_to_sasl_ssl_with_acls(migration: Migration) -> None:
    cluster = migration.cluster
    cluster.create_topic(TOPIC, partitions=3)
    stream = Stream({"bootstrap.servers": migration.open_servers})

    # 1. Certificates and users
    created = CliRunner().invoke(app, ["cert", "create", "--dir", str(migration.certificates)])
    assert created.exit_code == 0, created.output
    for user, password in PASSWORDS.items():
        migration.moldau("user", "create", user, "--password-file", "-", text=f"{password}\n")

    # 2. A second listener
    migration.add_listener()
    migration.restart_one_by_one()

    # 3. Clients move
    sent = stream.stop()
    stream = Stream(migration.librdkafka("app"))

    # 4. Brokers use the new listener; the authorizer still allows everything without an ACL
    migration.change(
        inter__broker__listener__name="SASL_SSL",
        authorizer__class__name=STANDARD_AUTHORIZER,
        super__users="User:node;User:admin;User:ANONYMOUS",
        allow__everyone__if__no__acl__found="true",
    )
    migration.restart_one_by_one()

    # 5. ACLs
    migration.moldau("acl", "allow", "-p", "app", "-t", TOPIC, "--producer", user="admin")
    migration.moldau("acl", "allow", "-p", "app", "-t", TOPIC, "-g", "readers", "--consumer", user="admin")
    sent += stream.stop()

    # 6. The last restart of all: controllers use TLS, the open listener and the exceptions are gone
    migration.lock()
    cluster.stop()
    cluster.security = BrokerSecurity("SASL_SSL", {}, migration.java("admin"), migration.librdkafka("admin"))
    cluster.start()

    consumed = migration.moldau("consume", TOPIC, "--from", "start", "--until", "end", user="app")
    assert len(consumed.splitlines()) == sent
    assert "no authentication is required" not in migration.moldau("cluster", "health", user="admin")
    with pytest.raises(KafkaException):
        AdminClient({"bootstrap.servers": migration.open_servers, "log_level": 0}).list_topics(timeout=1)
    denied: list[KafkaError | None] = []
    producer = Producer({**migration.librdkafka("app"), "log_level": 0})
    producer.produce("secrets", b"v", on_delivery=lambda error, _: denied.append(error))
    producer.flush(WAIT_S)
    assert denied[0] is not None
    assert denied[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
