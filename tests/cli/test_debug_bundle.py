"""`moldau debug bundle`: the state of a cluster in one bounded archive, without records and without secrets."""

import json
import stat
import tarfile
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from moldau.cli import debug_bundle
from moldau.cli.debug_bundle import CUT_NOTE, end_of_log, redact
from moldau.cli.main import app
from moldau.model.jaas import parse_jaas
from moldau.testing import Broker

TOKEN = "metrics-token-0123456789"
RECORD = "a-confidential-record"


def members(path: Path) -> dict[str, str]:
    with tarfile.open(path) as archive:
        files = {each.name.removeprefix("moldau-debug/"): archive.extractfile(each) for each in archive.getmembers()}
        return {name: file.read().decode() for name, file in files.items() if file is not None}


def test_bundle_of_a_secured_broker_has_no_secret(tmp_path: Path) -> None:
    log = tmp_path / "broker.log"
    with Broker(security="scram", moldau_metrics_token=TOKEN) as broker:
        settings = tmp_path / "client.properties"
        settings.write_text("".join(f"{name}={value}\n" for name, value in broker.client_settings.items()))
        options = ("-b", broker.bootstrap_servers, "--command-config", str(settings))
        secrets = [TOKEN, RECORD, str(parse_jaas(broker.client_settings["sasl.jaas.config"]).password)]
        log.write_text(f"started\n{settings.read_text()}moldau.metrics.token={TOKEN}\nAuthorization: Bearer {TOKEN}\n")
        runner = CliRunner()
        produced = runner.invoke(app, ["produce", "orders", *options], input=f"{RECORD}\n")
        assert produced.exit_code == 0, produced.output
        path = tmp_path / "bundle.tar.gz"
        command = ["debug", "bundle", "-o", str(path), "--log", str(log), "--metrics", str(broker.metrics), *options]
        done = runner.invoke(app, [*command, "--json"])
        assert done.exit_code == 0, done.output
        again = runner.invoke(app, command)
        assert (again.exit_code, "exists already" in again.stderr) == (2, True)
        found = members(path)
    for secret in secrets:
        assert [name for name, text in found.items() if secret in text] == []
    shown = json.loads(done.stdout)
    assert list(shown["errors"]) == ["metrics/1.txt"], "the page requires the token"
    assert shown["parts"] == sorted(found)
    assert json.loads(found["cluster.json"])["is_healthy"]
    assert [each["name"] for each in json.loads(found["topics.json"]) if not each["name"].startswith("__")] == [
        "orders"
    ]
    assert json.loads(found["brokers.json"])["1"]["moldau.metrics.token"]["value"] == "[hidden]"
    assert json.loads(found["manifest.json"])["packages"]["moldau"]
    assert found["logs/1-broker.log"].startswith("started\n")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_bundle_without_a_cluster_names_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moldau.cli.debug.PART_TIMEOUT_MS", 300)
    log = tmp_path / "broker.log"
    log.write_text("the broker stopped\n")
    path = tmp_path / "bundle.tar.gz"
    done = CliRunner().invoke(app, ["debug", "bundle", "-o", str(path), "--log", str(log), "-b", "127.0.0.1:9"])
    assert done.exit_code == 0, done.output
    assert "warning: without cluster.json: " in done.stderr
    assert sorted(members(path)) == ["logs/1-broker.log", "manifest.json"]


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("ssl.keystore.password=hunter2", "ssl.keystore.password=[hidden]"),
        ('{"sasl_password": "hunter2", "a": 1}', '{"sasl_password": [hidden]'),
        ("sasl.jaas.config = org.apache… username=a password=hunter2;", "sasl.jaas.config = [hidden]"),
        ('  user_alice="hunter2" \\', "  user_alice=[hidden]"),
        ("--password hunter2 --user me", "--password [hidden]"),
        ("GET https://me:hunter2@host/path", "GET https://[hidden]@host/path"),
        ("authorization: Basic aHVudGVyMg==", "authorization: Basic [hidden]"),
        ("x\n-----BEGIN RSA PRIVATE KEY-----\nhunter2\n-----END RSA PRIVATE KEY-----\ny", "x\n[hidden]\ny"),
        ("hunter2\n-----END PRIVATE KEY-----", "[hidden]-----END PRIVATE KEY-----"),
        ("-----BEGIN PRIVATE KEY-----\nhunter2", "[hidden]"),
        ("partition=orders-3 truncated 120 → 97", "partition=orders-3 truncated 120 → 97"),
    ],
)
def test_secrets_in_logs_are_hidden(line: str, shown: str) -> None:
    assert redact(line) == shown


def test_long_log_keeps_its_last_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debug_bundle, "PART_BYTES_MAX", 50)
    path = tmp_path / "log"
    path.write_text("".join(f"line {number}\n" for number in range(100)))
    assert end_of_log(path) == CUT_NOTE + b"".join(b"line %d\n" % number for number in range(94, 100))


@pytest.mark.parametrize("text", ["a" * 1_000_000, "password" * 100_000, "://a:" * 200_000, "-----BEGIN " * 100_000])
def test_redaction_time_is_linear(text: str) -> None:
    begun = time.process_time()
    redact(text)
    assert time.process_time() - begun < 2
