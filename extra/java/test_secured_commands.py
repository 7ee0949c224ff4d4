"""Kafka's own tools against a secured broker of Moldau: their output is that of the same commands on Apache Kafka."""

import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import pytest
from apache_kafka import ApacheKafka, has_java, java

from moldau.broker.authorizer import STANDARD_AUTHORIZER
from moldau.cli.files import write_private
from moldau.cli.local import credentials
from moldau.node.properties import format_properties
from moldau.testing import Broker
from moldau.testing.security import PASSWORD, USER

pytestmark = [pytest.mark.skipif(not has_java, reason="needs java and `mvn package`"), pytest.mark.timeout(120)]

ACLS: Final = "org.apache.kafka.tools.AclCommand"
CONFIGS: Final = "kafka.admin.ConfigCommand"
TOKENS: Final = "org.apache.kafka.tools.DelegationTokenCommand"
CLIENT_METRICS: Final = "org.apache.kafka.tools.ClientMetricsCommand"
MODULE: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"
LISTENER: Final = "listener.name.sasl_plaintext"
EXIT: Final = "exit code "
SAME_S_MAX: Final = 20.0  # Apache Kafka's broker lags behind its controller
SECURED: Final = {
    "authorizer.class.name": STANDARD_AUTHORIZER,
    "delegation.token.secret.key": "a secret of all brokers",
    "super.users": f"User:ANONYMOUS;User:{credentials.NODE_USER};User:{USER}",
}
SASL: Final = {
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
    f"{LISTENER}.plain.sasl.jaas.config": f'{MODULE} required user_{USER}="{PASSWORD}";',
    f"{LISTENER}.scram-sha-512.sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required;",
}
BOOTSTRAP_USER: Final = re.compile(f"SCRAM credential configs for user-principal '({credentials.NODE_USER}|{USER})'")
# Each token has an id, a key and dates of its own.
DIFFERENT: Final = (
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d(:[\d.]+Z)?"), "DATE"),
    (re.compile(r"[\w-]{22}(?= )"), "ID"),
    (re.compile(r"[\w+/]{86}=="), "KEY"),
)


class Tools:
    """Kafka's tools, one after the other in a process: `with Tools() as tools: tools.run(ACLS, "--list", …)`."""

    def __enter__(self) -> Self:
        command = java("moldau.CommandLoop")
        command.insert(1, "-Dorg.slf4j.simpleLogger.defaultLogLevel=off")
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._process.communicate(timeout=30)
        finally:
            self._process.kill()

    def run(self, *words: str) -> tuple[int, list[str]]:
        """Return the exit code and the lines of the output, without stack traces."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\t".join(words) + "\n")
        self._process.stdin.flush()
        lines: list[str] = []
        for line in self._process.stdout:
            if line.startswith(EXIT):
                return int(line.removeprefix(EXIT)), lines
            if line.strip() and not line.startswith("\tat "):
                lines.append(line.rstrip())
        raise AssertionError(f"{words} ended the process: {lines}")


class Scene:
    """A broker of Moldau and one of Apache Kafka, each with the settings of a client."""

    def __init__(self, tools: Tools, clients: dict[str, tuple[str, Path]]) -> None:
        self.tools, self.clients = tools, clients

    def run(self, broker: str, tool: str, *options: str) -> tuple[int, list[str]]:
        servers, config = self.clients[broker]
        where = ("--bootstrap-server", servers, "--command-config", str(config))
        code, lines = self.tools.run(tool, *where, *options)
        return code, sorted(_comparable(line) for line in lines if not BOOTSTRAP_USER.search(line))

    def same(self, tool: str, *options: str, code: int = 0) -> str:
        """Run a command on both; return the common output. The exit code must be `code`."""
        ours, theirs = self.run("moldau", tool, *options), self.run("kafka", tool, *options)
        assert ours == theirs
        assert ours[0] == code, ours[1]
        return "\n".join(ours[1])

    def same_in_time(self, tool: str, *options: str) -> str:
        """Run a command that changes nothing on both, until the output is the same, and return it."""
        ours = self.run("moldau", tool, *options)
        deadline_s = time.monotonic() + SAME_S_MAX
        while (theirs := self.run("kafka", tool, *options)) != ours and time.monotonic() < deadline_s:
            pass
        assert ours == theirs
        assert ours[0] == 0, ours[1]
        return "\n".join(ours[1])


def _comparable(line: str) -> str:
    for pattern, name in DIFFERENT:
        line = pattern.sub(name, line)
    return line


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("tools")
    config, sasl = folder / "moldau.properties", folder / "kafka.properties"
    with (
        Broker(security="scram", settings=SECURED) as broker,
        ApacheKafka(folder / "kafka", settings=SECURED | SASL, has_sasl=True) as kafka,
        Tools() as tools,
    ):
        write_private(config, format_properties(broker.client_settings))
        of_client = {"security.protocol": "SASL_PLAINTEXT", **credentials.sasl_of_clients("PLAIN", USER, PASSWORD)}
        write_private(sasl, format_properties(of_client))
        yield Scene(tools, {"moldau": (broker.bootstrap_servers, config), "kafka": (kafka.sasl_servers, sasl)})


def test_acl_command(scene: Scene) -> None:
    scene.same(
        ACLS, "--add", "--allow-principal", "User:alice", "--producer", "--topic", "orders", "--idempotent"
    )  # fmt: skip
    scene.same(ACLS, "--add", "--deny-principal", "User:bob", "--operation", "Read", "--topic", "ord")
    prefixed = ("--topic", "pre", "--group", "g", "--resource-pattern-type", "prefixed")
    scene.same(ACLS, "--add", "--allow-principal", "User:bob", "--consumer", *prefixed)
    listed = scene.same_in_time(ACLS, "--list")
    for part in ("User:alice", "operation=WRITE", "operation=IDEMPOTENT_WRITE", "patternType=PREFIXED", "DENY"):
        assert part in listed
    assert "User:bob" in scene.same_in_time(ACLS, "--list", "--topic", "pre-1", "--resource-pattern-type", "match")
    assert "orders" in scene.same_in_time(ACLS, "--list", "--principal", "User:alice")
    scene.same(ACLS, "--remove", "--force", "--topic", "orders")
    assert "orders" not in scene.same_in_time(ACLS, "--list")


def test_config_command_manages_users_and_quotas(scene: Scene) -> None:
    alice = ("--entity-type", "users", "--entity-name", "alice")
    scene.same(CONFIGS, "--alter", "--add-config", "SCRAM-SHA-512=[iterations=8192,password=pw-a]", *alice)
    assert "SCRAM-SHA-512=iterations=8192" in scene.same_in_time(CONFIGS, "--describe", *alice)
    clients = ("--entity-type", "clients", "--entity-default")
    bounds = "producer_byte_rate=1024,consumer_byte_rate=2048"
    scene.same(CONFIGS, "--alter", "--add-config", bounds, *alice)
    scene.same(CONFIGS, "--alter", "--add-config", "request_percentage=50", *alice, *clients)
    scene.same(CONFIGS, "--alter", "--add-config", "controller_mutation_rate=5", *clients)
    scene.same(CONFIGS, "--alter", "--add-config", "connection_creation_rate=10", "--ip", "127.0.0.9")
    for options in (("--entity-type", "users"), ("--entity-type", "clients"), ("--entity-type", "ips")):
        assert "Quota configs for" in scene.same_in_time(CONFIGS, "--describe", *options)
    both = ("--entity-type", "users", "--entity-type", "clients")
    assert "request_percentage=50" in scene.same_in_time(CONFIGS, "--describe", *both)
    scene.same(CONFIGS, "--alter", "--delete-config", "producer_byte_rate", *alice)
    assert "producer_byte_rate" not in scene.same_in_time(CONFIGS, "--describe", *alice)
    scene.same(CONFIGS, "--alter", "--delete-config", "SCRAM-SHA-512", *alice)
    assert "SCRAM" not in scene.same_in_time(CONFIGS, "--describe", *alice)
    for broker in scene.clients:
        code, lines = scene.run(broker, CONFIGS, "--alter", "--delete-config", "SCRAM-SHA-512", *alice)
        assert (code, "ResourceNotFoundException" in lines[0]) == (1, True)


def test_config_command_manages_client_metrics(scene: Scene) -> None:
    configs = "metrics=[org.apache.kafka.producer.],interval.ms=5000,match=[client_id=a.*]"
    resource = ("--entity-type", "client-metrics", "--entity-name", "of-producers")
    scene.same(CONFIGS, "--alter", "--add-config", configs, *resource)
    assert "interval.ms=5000" in scene.same_in_time(CONFIGS, "--describe", *resource)
    scene.same(CONFIGS, "--alter", "--delete-config", "metrics,interval.ms,match", *resource)
    assert "interval.ms=5000" not in scene.same_in_time(CONFIGS, "--describe", *resource)


def test_client_metrics_command(scene: Scene) -> None:
    name = ("--name", "of-consumers")
    choice = ("--metrics", "org.apache.kafka.consumer.", "--match", "client_software_name=apache-kafka-java")
    scene.same(CLIENT_METRICS, "--alter", *name, *choice, "--interval", "6000")
    assert "interval.ms=6000" in scene.same_in_time(CLIENT_METRICS, "--describe", *name)
    assert "of-consumers" in scene.same_in_time(CLIENT_METRICS, "--list")
    assert scene.same(CLIENT_METRICS, "--alter", *name, "--interval", "1", code=1)
    scene.same(CLIENT_METRICS, "--delete", *name)
    assert "of-consumers" not in scene.same_in_time(CLIENT_METRICS, "--list")


def test_config_command_changes_a_broker_logger(scene: Scene) -> None:
    """The names of loggers are not those of Kafka, except the root."""
    broker = ("--entity-type", "broker-loggers", "--entity-name", "1")
    code, lines = scene.run("moldau", CONFIGS, "--describe", *broker)
    assert code == 0
    assert any("moldau" in line for line in lines)
    logger = next(line.split("=")[0].strip() for line in lines if line.strip().startswith("moldau."))
    assert scene.run("moldau", CONFIGS, "--alter", "--add-config", f"{logger}=DEBUG", *broker)[0] == 0
    assert any(
        line.strip().startswith(f"{logger}=DEBUG") for line in scene.run("moldau", CONFIGS, "--describe", *broker)[1]
    )
    assert scene.run("moldau", CONFIGS, "--alter", "--delete-config", logger, *broker)[0] == 0
    assert "no.such.logger" in scene.same(CONFIGS, "--alter", "--add-config", "no.such.logger=DEBUG", *broker, code=1)


def test_delegation_token_command(scene: Scene) -> None:
    keys: dict[str, str] = {}
    for broker, (servers, config) in scene.clients.items():
        where = ("--bootstrap-server", servers, "--command-config", str(config))
        options = ("--create", "--max-life-time-period", "-1", "--renewer-principal", "User:bob")
        code, lines = scene.tools.run(TOKENS, *where, *options)
        assert code == 0, lines
        (keys[broker],) = re.findall(r"[\w+/]{86}==", "\n".join(lines))
    of_owner = ("--describe", "--owner-principal", f"User:{USER}")
    described = scene.same_in_time(TOKENS, *of_owner)
    assert f"User:{USER}" in described
    assert "KEY" in described

    def change(*options: str) -> str:
        ours, theirs = (scene.run(each, TOKENS, *options, "--hmac", keys[each]) for each in ("moldau", "kafka"))
        assert ours == theirs
        assert ours[0] == 0, ours[1]
        return "\n".join(ours[1])

    assert "DATE" in change("--renew", "--renew-time-period", "3600000")
    change("--expire", "--expiry-time-period", "-1")
    assert "KEY" not in scene.same_in_time(TOKENS, *of_owner)
    unknown = "a" * 86 + "=="
    assert "DelegationTokenNotFound" in scene.same(
        TOKENS, "--expire", "--expiry-time-period", "-1", "--hmac", unknown, code=1
    )
