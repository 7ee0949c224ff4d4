"""Unique secrets, planted everywhere, must not appear in any output: logs, pages, responses, errors, `ps`."""

import io
import json
import logging
import re
import subprocess
import sys
import tarfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import KafkaException, Producer
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

import moldau
from moldau.api.types import Failed
from moldau.broker.authorizer import STANDARD_AUTHORIZER
from moldau.cli.certificates import Authority
from moldau.cli.files import write_private
from moldau.client.security_settings import parse_security
from moldau.client.types import Resource, ResourceKind
from moldau.model.errors import KafkaError
from moldau.node.configuration import load_configuration
from moldau.node.ports.randomness import system_random
from moldau.node.properties import format_properties
from moldau.testing import Broker
from moldau.testing.client import SocketClient
from pyspark_moldau.options.sink_options import sink_stream_options
from pyspark_moldau.options.source_options import batch_options

pytestmark = [pytest.mark.timeout(240), pytest.mark.proves("O4", part="secrets")]

PLANTED: Final = re.compile(r"planted-?[0-9a-z]+", re.IGNORECASE)
PLAIN: Final = "org.apache.kafka.common.security.plain.PlainLoginModule required"
SCRAM: Final = "org.apache.kafka.common.security.scram.ScramLoginModule required"
NODE, ADMIN, KEY, TOKENS, METRICS, OTHER, WRONG, SCRAM_USER = (
    f"planted-{each}" for each in ("node", "admin", "key", "tokens", "metricstokenoflength", "other", "wrong", "scram")
)


class Scene:
    """A secured broker, the settings of its administrator, and everything that was ever shown."""

    def __init__(self, broker: Broker, folder: Path, client: dict[str, str]) -> None:
        self.broker, self.folder, self.client = broker, folder, client
        self.shown: dict[str, str] = {}

    def config(self, name: str = "admin", **overrides: str) -> str:
        """A file of client settings; in the names of overrides, `_` stands for a dot."""
        path = self.folder / f"{name}.properties"
        settings = {**self.client, **{key.replace("_", "."): text for key, text in overrides.items()}}
        write_private(path, format_properties({"bootstrap.servers": self.broker.bootstrap_servers, **settings}))
        return str(path)

    def run(self, *words: str, stdin: str | None = None, fails: bool = False) -> None:
        """Run a command in a process of its own, and keep its output."""
        command = [sys.executable, "-P", "-m", "moldau.cli.main", *words]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode != 0) == fails, done.stdout + done.stderr
        self.shown[" ".join(words)] = done.stdout + done.stderr

    def leaks(self) -> list[str]:
        return [f"{where}: {found[0]}" for where, text in self.shown.items() if (found := PLANTED.search(text))]


def encrypted(pem: str, password: str) -> str:
    """The same key, encrypted, and the certificates."""
    key = load_pem_private_key(pem.encode(), None)
    text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(password.encode())).decode()
    return text + pem[pem.index("-----BEGIN CERTIFICATE") :]


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("scene")
    authority = Authority.create()
    write_private(folder / "node.pem", encrypted(authority.issue("node", ["localhost", "127.0.0.1"]), KEY))
    (folder / "ca.pem").write_text(authority.pem)
    users = f'username="node" password="{NODE}" user_node="{NODE}" user_admin="{ADMIN}" user_other="{OTHER}"'
    settings = {
        "listeners": "SASL_SSL://127.0.0.1:0",
        "inter.broker.listener.name": "SASL_SSL",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": f"{PLAIN} {users};",
        "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": f'{SCRAM} username="x" password="{SCRAM_USER}";',
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(folder / "node.pem"),
        "ssl.key.password": KEY,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(folder / "ca.pem"),
        "delegation.token.secret.key": TOKENS,
        "moldau.metrics.token": METRICS,
        "moldau.log.level": "debug",
        "authorizer.class.name": STANDARD_AUTHORIZER,
        "super.users": "User:admin;User:node",
    }
    client = {
        "security.protocol": "SASL_SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(folder / "ca.pem"),
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": f'{PLAIN} username="admin" password="{ADMIN}";',
    }
    with Broker(listen=None, settings=settings) as broker:
        yield Scene(broker, folder, client)


def test_broker_shows_no_secret(scene: Scene) -> None:
    """Its log at the most verbose level, metrics, described settings, arguments, environment and audit log."""
    broker = scene.broker
    with SocketClient(broker.bootstrap_servers, security=scene.client) as client:
        entries = client.describe_configs(Resource(ResourceKind.BROKER, "1"))
    scene.shown["described settings"] = repr(entries)
    by_name = {each.name: each for each in entries}
    for name in ("ssl.key.password", "delegation.token.secret.key", "moldau.metrics.token"):
        assert by_name[name].is_sensitive
        assert by_name[name].value is None
    other = scene.config("other", sasl_jaas_config=f'{PLAIN} username="other" password="{OTHER}";')
    scene.run("topic", "create", "denied", "--command-config", other, fails=True)
    wrong = scene.config("wrong", sasl_jaas_config=f'{PLAIN} username="admin" password="{WRONG}";')
    scene.run("topic", "list", "--command-config", wrong, fails=True)
    page = urllib.request.Request(str(broker.metrics), headers={"Authorization": f"Bearer {METRICS}"})
    scene.shown["metrics"] = urllib.request.urlopen(page).read().decode()
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(urllib.request.Request(str(broker.metrics), headers={"Authorization": WRONG}))
    scene.shown["metrics without the token"] = refused.value.read().decode() + str(refused.value.headers)
    process = Path(f"/proc/{broker.pid}")
    if process.exists():  # Linux
        for name in ("cmdline", "environ"):
            scene.shown[name] = (process / name).read_bytes().decode(errors="replace")
    scene.shown["log"] = broker.log
    scene.shown["audit log"] = (broker.data / "audit.jsonl").read_text()
    assert "denied" in scene.shown["audit log"]
    for each in broker.data.rglob("*"):
        if each.is_file():
            scene.shown[str(each)] = each.read_bytes().decode("latin-1")
    assert not scene.leaks()


def test_commands_show_no_secret(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their tables, JSON and archives, and with `--debug` the tracebacks of each layer that fails."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(scene.folder / "config"))
    admin = scene.config()
    scene.run(
        "user", "create", "bob", "--password-file", "-", "--json", "--command-config", admin, stdin="planted-bob\n"
    )
    scene.run("profile", "create", "one", "--from", admin, "--json")
    token = scene.folder / "token.properties"
    scene.run("token", "create", "-o", str(token), "--json", "--command-config", admin)
    for words in (
        ("profile", "show"),
        ("profile", "show", "--json"),
        ("user", "list", "--json"),
        ("token", "list", "--json"),
        ("config", "get", "broker", "1", "--json"),
        ("cluster", "health", "--json"),
        ("debug", "bundle", "-o", str(scene.folder / "bundle.tgz"), "--log", str(scene.broker._log_path)),
    ):
        scene.run(*words)
    with tarfile.open(scene.folder / "bundle.tgz") as archive:
        for member in archive.getmembers():
            file = archive.extractfile(member)
            scene.shown[member.name] = io.TextIOWrapper(file, errors="replace").read() if file else ""
    secret = next(line for line in token.read_text().splitlines() if "sasl.jaas.config" in line or "password" in line)
    scene.shown["token"] = "planted0" if any(secret.split("=", 1)[1] in text for text in scene.shown.values()) else ""
    failing = {
        "password": {"sasl_jaas_config": f'{PLAIN} username="admin" password="{WRONG}";'},
        "syntax": {"sasl_jaas_config": f'{PLAIN} username="admin" password="{WRONG}'},
        "mechanism": {"sasl_mechanism": "SCRAM-SHA-256"},
        "scram": {"sasl_mechanism": "SCRAM-SHA-512"},
        "protocol": {"security_protocol": "SASL_PLAINTEXT"},
        "key": {
            "ssl_keystore_type": "PEM",
            "ssl_keystore_location": str(scene.folder / "node.pem"),
            "ssl_key_password": WRONG,
        },
        "inline": {
            "ssl_keystore_type": "PEM",
            "ssl_keystore_key": "-----BEGIN PRIVATE KEY-----\nplanted0\n-----END PRIVATE KEY-----",
            "ssl_keystore_certificate_chain": "planted1",
        },
        "pkcs12": {
            "ssl_keystore_type": "PKCS12",
            "ssl_keystore_location": str(scene.folder / "node.pem"),
            "ssl_keystore_password": WRONG,
        },
    }
    for name, overrides in failing.items():
        config = scene.config(name, **overrides)
        scene.run("--debug", "topic", "list", "--command-config", config, fails=True)
    assert not scene.leaks()


def test_node_that_does_not_start_shows_no_secret(scene: Scene) -> None:
    """Settings that are invalid, each with a secret in it, and users of a new cluster."""
    invalid = {
        "jaas": {"listener.name.sasl_ssl.plain.sasl.jaas.config": f'{PLAIN} user_a="{WRONG}'},
        "key": {"ssl.key.password": WRONG},
        "module": {"listener.name.sasl_ssl.plain.sasl.jaas.config": f'Other required user_a="{WRONG}";'},
        "misspelled": {"sasl.jaas.confg": WRONG, "node.id": "x"},
        "key without chain": {"ssl.keystore.key": WRONG, "ssl.keystore.location": ""},
    }
    for name, changed in invalid.items():
        path = scene.folder / "invalid.properties"
        settings = {**{key: str(text) for key, text in scene.broker.settings.items()}, **changed}
        write_private(path, format_properties(settings))
        folder = str(scene.folder / f"data of {name}")
        scene.run("--debug", "start", "--config", str(path), "--data", folder, fails=True)
    for entry in ("SCRAM-SHA-512=[name=a,password=planted-a", "SCRAM-SHA-512=[name=a,planted-a]", "X=planted-a"):
        scene.run("--debug", "storage", "format", "--data", str(scene.folder / "new"), "--add-scram", entry, fails=True)
    shown = {where: text.replace(where, "") for where, text in scene.shown.items()}
    assert not [where for where, text in shown.items() if PLANTED.search(text)]


def test_values_in_memory_show_no_secret(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    """Reprs, and exceptions with what they refer to, as a debugger, a log or a Spark plan would show them."""
    caplog.set_level(logging.DEBUG)
    text = format_properties({name: str(value) for name, value in scene.broker.settings.items()})
    configuration = load_configuration([("broker.properties", text)])
    scene.shown["configuration"] = repr(configuration) + repr(configuration.settings)
    secured = {**scene.client, "ssl.key.password": KEY, "ssl.keystore.password": KEY}
    security = parse_security(secured, system_random().randbytes)
    scene.shown["security"] = repr(security) + repr(security.tls) + repr(security.sasl)
    options = {f"kafka.{name}": value for name, value in scene.client.items()}
    options |= {"kafka.bootstrap.servers": scene.broker.bootstrap_servers, "topic": "t", "stagingLocation": "/tmp"}
    source = batch_options({name: text for name, text in options.items() if name != "topic"} | {"subscribe": "t"})
    scene.shown["Spark's options"] = repr(source) + repr(sink_stream_options(options))
    librdkafka = {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(scene.folder / "ca.pem"),
        "sasl.mechanism": "PLAIN",
        "sasl.username": "admin",
        "sasl.password": WRONG,
    }
    config: dict[str, Any] = {name.replace(".", "_"): text for name, text in librdkafka.items()}
    config["message_timeout_ms"] = 500
    connection = moldau.connect(scene.broker.bootstrap_servers, **config)
    scene.shown["connection"] = repr(connection)
    with pytest.raises(Failed) as failed:
        connection.publish("t", "v", waits=True)
    scene.shown["publish"] = described(failed.value)
    wrong = {**scene.client, "sasl.jaas.config": f'{PLAIN} username="admin" password="{WRONG}";'}
    with (
        pytest.raises((KafkaError, OSError)) as rejected,
        SocketClient(scene.broker.bootstrap_servers, security=wrong) as client,
    ):
        client.describe_topics()
    scene.shown["own client"] = described(rejected.value)
    with pytest.raises(KafkaException) as invalid:
        Producer({**librdkafka, "bootstrap.servers": "localhost:1", "sasl.mechanism": "NONE"})
    scene.shown["librdkafka"] = described(invalid.value)
    scene.shown["log records"] = caplog.text
    assert not scene.leaks()


def described(error: BaseException) -> str:
    """An exception and its causes."""
    texts = [repr(error), str(error), repr(error.args), json.dumps(getattr(error, "__notes__", []))]
    cause = error.__cause__ or error.__context__
    return "".join(texts) + ("" if cause is None else described(cause))
