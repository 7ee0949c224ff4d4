"""`moldau cert create`, and commands that connect with its certificates."""

import json
import ssl
from pathlib import Path

import pytest
from typer.testing import CliRunner

from moldau.cli.client_options import use_client_settings
from moldau.cli.main import app
from moldau.testing import Broker


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    directory = tmp_path / "certificates"
    run("cert", "create", "--dir", str(directory), "--client", "alice", "--host", "broker.example.org")
    return directory


def run(*words: str, exit_code: int = 0) -> str:
    result = CliRunner().invoke(app, list(words))
    use_client_settings({})
    assert result.exit_code == exit_code, result.output
    return result.output


def test_created_files_are_private_and_signed_by_the_authority(certificates: Path) -> None:
    assert {path.name for path in certificates.iterdir()} == {"ca.pem", "ca-key.pem", "node.pem", "alice.pem"}
    for name in ("ca-key.pem", "node.pem", "alice.pem"):
        assert (certificates / name).stat().st_mode & 0o777 == 0o600
    context = ssl.create_default_context(cafile=str(certificates / "ca.pem"))
    context.load_cert_chain(certificates / "alice.pem")
    names = ssl._ssl._test_decode_cert(str(certificates / "node.pem"))["subjectAltName"]  # type: ignore[attr-defined]
    assert ("DNS", "broker.example.org") in names
    assert ("IP Address", "127.0.0.1") in names


def test_second_call_keeps_the_authority(certificates: Path) -> None:
    before = (certificates / "ca.pem").read_text()
    output = run("cert", "create", "--dir", str(certificates), "--client", "bob", "--json")
    assert (certificates / "ca.pem").read_text() == before
    assert set(json.loads(output)["certificates"]) == {"node", "bob"}


@pytest.mark.parametrize("name", ["node", "ca", "../x", "", ".hidden"])
def test_client_that_is_no_file_name_is_rejected(name: str, tmp_path: Path) -> None:
    output = run("cert", "create", "--dir", str(tmp_path / "none"), "--client", name, exit_code=2)
    assert "cannot be the name of a file" in output
    assert not (tmp_path / "none").exists()


def test_commands_connect_with_the_settings_of_a_file_and_of_options(certificates: Path, tmp_path: Path) -> None:
    settings = {
        "listeners": "SSL://127.0.0.1:0",
        "ssl.keystore.location": certificates / "node.pem",
        "ssl.truststore.location": certificates / "ca.pem",
        "ssl.client.auth": "required",
    }
    with Broker(listen=None, settings=settings) as broker:
        config = tmp_path / "client.properties"
        config.write_text(
            f"bootstrap.servers={broker.bootstrap_servers}\nsecurity.protocol=SSL\n"
            f"ssl.truststore.location={certificates / 'ca.pem'}\nssl.keystore.location={certificates / 'alice.pem'}\n"
        )
        run("topic", "create", "orders", "--command-config", str(config))
        assert "orders" in run("topic", "list", "--command-config", str(config))
        output = run("topic", "list", "--command-config", str(config), "-X", "ssl.keystore.location=", exit_code=1)
        assert "requires a client certificate" in output
        output = run("topic", "list", "--command-config", str(config), "-X", "ssl.keystore.location=/no", exit_code=1)
        assert "/no cannot be read: No such file or directory" in output
    output = run("topic", "list", "-X", "security.protocol=TLS", exit_code=2)
    assert "must be one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL" in output
