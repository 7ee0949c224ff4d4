"""`moldau profile`: the settings of a cluster under a name, for every command, readable by their owner alone."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from moldau.cli.client_options import use_client_settings
from moldau.cli.main import app
from moldau.node.properties import format_properties
from moldau.testing import Broker

pytestmark = pytest.mark.proves("O4", part="profiles")

TOPIC = "orders"


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(security="scram") as broker:
        broker.create_topic(TOPIC)
        yield broker


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path


def moldau(*words: str, code: int = 0, stdin: str | None = None) -> str:
    result = CliRunner().invoke(app, words, input=stdin)
    use_client_settings({})
    assert result.exit_code == code, f"{result.output}{result.exception!r}"
    return result.output


def create(name: str, broker: Broker, home: Path) -> Path:
    """Create a profile; return its file."""
    source = home / "client.properties"
    source.write_text(format_properties(broker.client_settings))
    return Path(
        json.loads(
            moldau("profile", "create", name, "--servers", broker.bootstrap_servers, "--from", str(source), "--json")
        )["file"]
    )


def test_commands_use_the_current_profile_unless_an_address_is_given(broker: Broker, home: Path) -> None:
    create("prod", broker, home)
    assert TOPIC in moldau("topic", "list")
    assert "error" in moldau("topic", "list", "-b", "127.0.0.1:1", code=1)
    moldau("profile", "create", "elsewhere", "--servers", "127.0.0.1:1")
    moldau("topic", "list", code=1)
    moldau("profile", "use", "prod")
    assert TOPIC in moldau("topic", "list")


def test_profile_is_chosen_by_option_and_variable(broker: Broker, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create("prod", broker, home)
    moldau("profile", "create", "elsewhere", "--servers", "127.0.0.1:1")
    assert TOPIC in moldau("topic", "list", "--profile", "prod")
    monkeypatch.setenv("MOLDAU_PROFILE", "prod")
    assert TOPIC in moldau("topic", "list")
    moldau("topic", "list", "--profile", "elsewhere", code=1)


def test_command_config_replaces_the_profile(broker: Broker, home: Path) -> None:
    file = create("prod", broker, home)
    moldau("profile", "create", "elsewhere", "--servers", "127.0.0.1:1")
    assert TOPIC in moldau("topic", "list", "--command-config", str(file))  # a profile is such a file
    assert "exclude" in moldau("topic", "list", "--command-config", str(file), "--profile", "prod", code=2)


def test_commands_with_a_broker_of_their_own_ignore_the_current_profile() -> None:
    from moldau.cli.client_options import read_client_settings

    moldau("profile", "create", "prod", "--servers", "prod:9092")
    assert read_client_settings(None, None, uses_current=False) == {}
    assert read_client_settings(None, None, uses_current=True) == {"bootstrap.servers": "prod:9092"}


def test_only_the_owner_may_access_a_profile(broker: Broker, home: Path) -> None:
    file = create("prod", broker, home)
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700
    file.chmod(0o640)
    for words in (("topic", "list"), ("profile", "show"), ("topic", "list", "--profile", "prod")):
        assert f"chmod 600 {file}" in moldau(*words, code=1)
    file.chmod(0o600)
    assert TOPIC in moldau("topic", "list")


def test_secrets_are_hidden_and_never_arguments(home: Path) -> None:
    password = home / "password"
    password.write_text("planted-1\n")
    protocol = ("--set", "security.protocol=SASL_SSL", "--set", "ssl.truststore.location=ca.pem")
    moldau("profile", "create", "one", *protocol, "--user", "alice", "--password-file", str(password))
    moldau("profile", "create", "two", *protocol, "--user", "bob", "--password-file", "-", stdin="planted-2\n")
    for name, user in (("one", "alice"), ("two", "bob")):
        shown, as_json = moldau("profile", "show", name), moldau("profile", "show", name, "--json")
        assert "planted" not in shown + as_json
        settings = json.loads(as_json)["settings"]
        assert (settings["sasl.username"], settings["sasl.password"]) == (user, "[hidden]")
        assert settings["ssl.truststore.location"] == str(Path("ca.pem").absolute())
    for name in ("sasl.password", "ssl.key.password", "sasl.jaas.config", "ssl.keystore.key"):
        assert "other users" in moldau("profile", "create", "three", "--set", f"{name}=x", code=2)
    assert "--user needs" in moldau("profile", "create", "three", "--user", "a", code=2)


def test_profiles_are_listed_and_deleted() -> None:
    assert "no profiles" in moldau("profile", "list")
    assert "no profile is current" in moldau("profile", "show", code=2)
    moldau("profile", "create", "a")
    moldau("profile", "create", "b")
    assert json.loads(moldau("profile", "list", "--json")) == [
        {"profile": "a", "current": False},
        {"profile": "b", "current": True},
    ]
    assert "exists already" in moldau("profile", "create", "a", code=1)
    moldau("profile", "delete", "b")
    assert json.loads(moldau("profile", "list", "--json")) == [{"profile": "a", "current": False}]
    for words in (("use", "b"), ("delete", "b"), ("show", "b")):
        assert "there is no profile b; there are: a" in moldau("profile", *words, code=1)
    assert "there is no profile b" in moldau("topic", "list", "--profile", "b", code=1)


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "-x", "a" * 65])
def test_name_is_no_path(name: str) -> None:
    assert "name of a profile" in moldau("profile", "create", "--", name, code=2)


def test_profile_of_a_process_is_read_from_the_home_directory(broker: Broker, home: Path) -> None:
    create("prod", broker, home)
    (home / "config").rename(home / ".config")
    environment = {name: text for name, text in os.environ.items() if name != "XDG_CONFIG_HOME"} | {"HOME": str(home)}
    command = [sys.executable, "-P", "-m", "moldau.cli.main", "topic", "list"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30, check=True)
    assert TOPIC in done.stdout
