"""`moldau up --secure`: its client files work, others are denied with advice, and no secret can be seen."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from typer.testing import CliRunner

from moldau.cli.certificates import AUTHORITY_FILE, Authority
from moldau.cli.client_options import use_client_settings
from moldau.cli.main import app
from moldau.testing import Broker
from moldau.testing.free_ports import PortRange

pytestmark = pytest.mark.proves("O4", part="safe by default")

MOLDAU = (sys.executable, "-P", "-m", "moldau.cli.main")
WAIT_S = 30.0
CONSUME = """
import json, sys, kafka
settings = json.load(open(sys.argv[1]))["kafka_python"]
print(next(kafka.KafkaConsumer("of-libraries", auto_offset_reset="earliest", **settings)).value)
"""


class SecureCluster:
    """`moldau up --secure` with one broker, in a process."""

    def __init__(self, data: Path, port: int) -> None:
        self.data, self.port = data, port
        self.output = ""
        self.start("--secure", "--brokers", "1")

    def start(self, *options: str) -> None:
        command = [*MOLDAU, "up", "--data", str(self.data), "--port", str(self.port), *options]
        self.process = subprocess.Popen(
            [*command, "-c", "moldau.metrics.listener=", "-c", "group.initial.rebalance.delay.ms=0"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.output += line
            if "Ctrl-C" in line:
                return
        raise AssertionError(self.output)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.output += self.process.communicate(timeout=60)[0]
        assert self.process.returncode == 0, self.output

    @property
    def node_pid(self) -> int:
        lines = [line.split() for line in self.output.splitlines()]
        header = next(number for number, line in enumerate(lines) if line[-1:] == ["PID"])
        return int(lines[header + 1][-1])

    @property
    def secrets(self) -> list[str]:
        saved = json.loads((self.data / "security.json").read_text())
        return [*saved["passwords"].values(), saved["token_key"]]

    def file(self, user: str, ending: str = "properties") -> str:
        return str(self.data / "clients" / f"{user}.{ending}")

    def libraries(self, user: str) -> Any:
        return json.loads(Path(self.file(user, "json")).read_text())

    def moldau(self, user: str, *words: str, code: int = 0, text: str = "") -> str:
        result = CliRunner().invoke(app, [*words, "--command-config", self.file(user)], input=text)
        use_client_settings({})
        assert result.exit_code == code, f"{result.output}{result.exception!r}"
        return result.output


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureCluster]:
    ports = PortRange()
    cluster = SecureCluster(tmp_path_factory.mktemp("secure") / "cluster", ports.draw(2).start)
    try:
        yield cluster
    finally:
        cluster.stop()
        ports.release()


def test_admin_and_app_work_with_their_files(secure: SecureCluster) -> None:
    secure.moldau("admin", "topic", "create", "orders")
    secure.moldau("app", "produce", "orders", text="by app\n")
    assert "by app" in secure.moldau(
        "app", "consume", "orders", "--group", "readers", "--from", "start", "--count", "1"
    )
    assert {each["user"] for each in json.loads(secure.moldau("admin", "user", "list", "--json"))} == {
        "admin",
        "app",
        "node",
    }
    denied = secure.moldau("app", "user", "list", code=1)
    assert "An administrator can allow it by an ACL: moldau acl allow --principal User:app" in denied
    worker = secure.data / "worker.properties"
    secure.moldau("app", "token", "create", "--output", str(worker))
    result = CliRunner().invoke(app, ["topic", "list", "--command-config", str(worker)])
    use_client_settings({})
    assert "orders" in result.output


def test_settings_of_client_libraries_are_ready(secure: SecureCluster) -> None:
    settings = secure.libraries("app")
    producer = Producer(settings["confluent_kafka"])
    producer.produce("of-libraries", b"confluent")
    assert producer.flush(WAIT_S) == 0
    consumed = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CONSUME, secure.file("app", "json")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "b'confluent'" in consumed.stdout, consumed.stderr
    of_kcat = dict(line.split("=", 1) for line in Path(secure.file("app", "kcat")).read_text().splitlines())
    assert of_kcat == settings["confluent_kafka"]
    assert settings["spark"]["kafka.security.protocol"] == "SASL_SSL"


def test_secrets_are_only_in_private_files(secure: SecureCluster) -> None:
    for each in secure.data.rglob("*"):
        if each.is_file() and any(secret.encode() in each.read_bytes() for secret in secure.secrets):
            assert each.stat().st_mode & 0o077 == 0, each
    assert (secure.data / "certificates" / "ca-key.pem").stat().st_mode & 0o077 == 0
    outputs = [
        secure.output,
        secure.moldau("admin", "cluster", "health", "--json"),
        secure.moldau("admin", "user", "list", "--json"),
        secure.moldau("admin", "config", "get", "broker", "1", "--json"),
        secure.moldau("app", "token", "list", "--json"),
    ]
    for pid in (secure.process.pid, secure.node_pid):
        process = Path(f"/proc/{pid}")
        if process.exists():  # Linux
            outputs += [(process / each).read_bytes().decode(errors="replace") for each in ("cmdline", "environ")]
    for secret in secure.secrets:
        assert not [output for output in outputs if secret in output]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("sasl.jaas.config=ScramLoginModule required username=admin password=hunter2;", "check name and password"),
        ("sasl.mechanism=PLAIN", "does not offer PLAIN; it offers SCRAM-SHA-512"),
        ("security.protocol=PLAINTEXT", "does it require TLS or passwords, and not security.protocol=PLAINTEXT?"),
        ("security.protocol=SASL_PLAINTEXT", "does it require TLS, and not"),
        ("security.protocol=SSL", "does it require authentication (SASL), and not security.protocol=SSL?"),
        ("ssl.truststore.location=other-ca.pem", "must contain the authority that has signed it"),
        ("ssl.truststore.location=/none.pem", "/none.pem cannot be read"),
    ],
)
def test_failed_connection_says_what_to_do(secure: SecureCluster, override: str, message: str, tmp_path: Path) -> None:
    authority = Authority.create()
    authority.save(tmp_path)
    override = override.replace("other-ca.pem", str(tmp_path / AUTHORITY_FILE))
    output = secure.moldau("admin", "topic", "list", "-X", override, code=1)
    assert message in output
    assert len(output.splitlines()) == 1
    assert "hunter2" not in output
    assert "moldau start" not in output


def test_secured_client_of_an_open_broker_says_what_to_do(secure: SecureCluster) -> None:
    with Broker() as broker:
        address = ("-b", broker.bootstrap_servers)
        assert "is its listener plain text (security.protocol)?" in secure.moldau(
            "admin", "topic", "list", *address, code=1
        )
        plain = ("-X", "security.protocol=SASL_PLAINTEXT")
        assert "has a listener without SASL: set security.protocol" in secure.moldau(
            "admin", "topic", "list", *address, *plain, code=1
        )


def test_second_start_continues_secured_with_the_same_passwords(secure: SecureCluster) -> None:
    before, file = secure.secrets, Path(secure.file("app"))
    file.write_text(file.read_text() + "client.id=mine\n")
    secure.stop()
    started = time.monotonic()
    secure.start()
    assert time.monotonic() - started < WAIT_S
    assert secure.secrets == before
    assert "client.id=mine" in file.read_text()
    secure.moldau("app", "topic", "list")


def test_open_cluster_is_not_secured_by_the_option(tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text("{}")
    result = CliRunner().invoke(app, ["up", "--secure", "--data", str(tmp_path)])
    assert result.exit_code == 2
    assert "was created without --secure" in result.output


def test_damaged_secrets_are_an_error_that_does_not_show_them(tmp_path: Path) -> None:
    (tmp_path / "security.json").write_text('{"passwords": {"node": "hunter2"}}')
    result = CliRunner().invoke(app, ["up", "--data", str(tmp_path)])
    assert result.exit_code == 1
    assert "security.json is not valid" in result.output
    assert "hunter2" not in result.output
