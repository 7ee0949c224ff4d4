"""`moldau token` against a broker with SCRAM users: a worker that has only the token acts as its owner."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from moldau.cli.client_options import use_client_settings
from moldau.cli.main import app
from moldau.testing import Broker

pytestmark = pytest.mark.proves("O4", part="delegation tokens")

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
USERS = {"alice": "pw-a", "bob": "pw-b"}


class Scene:
    """A broker, and a file of client settings per user."""

    def __init__(self, broker: Broker, directory: Path) -> None:
        self.broker, self.directory = broker, directory
        self.servers = broker.bootstrap_servers

    def settings_of(self, user: str) -> str:
        file = self.directory / f"{user}.properties"
        file.write_text(
            f"bootstrap.servers={self.servers}\nsecurity.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
            f"sasl.username={user}\nsasl.password={USERS[user]}\n"
        )
        return str(file)

    def run(self, config: str, *words: str, code: int = 0) -> str:
        result = CliRunner().invoke(app, [*words, "--command-config", config])
        use_client_settings({})
        assert result.exit_code == code, f"{result.output}{result.exception!r}"
        return result.output

    def moldau(self, user: str, *words: str, code: int = 0) -> str:
        return self.run(self.settings_of(user), *words, code=code)


def _settings(**others: str) -> dict[str, str]:
    users = " ".join(f'user_{name}="{password}"' for name, password in USERS.items())
    return {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "security.inter.broker.protocol": "SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": f"{PLAIN} required {users};",
        "moldau.metrics.listener": "",
        **others,
    }


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with Broker(listen=None, settings=_settings(**{"delegation.token.secret.key": "the key"})) as broker:
        yield Scene(broker, tmp_path_factory.mktemp("clients"))


def create(scene: Scene, *options: str) -> tuple[str, Path]:
    """Create a token of alice; return its id and the file of its settings."""
    file = scene.directory / "worker.properties"
    return json.loads(scene.moldau("alice", "token", "create", "-o", str(file), "--json", *options))["id"], file


def test_token_authenticates_by_the_written_settings_until_it_is_expired(scene: Scene) -> None:
    token_id, file = create(scene, "--renewer", "bob", "--lifetime", "12h")
    assert file.stat().st_mode & 0o777 == 0o600
    assert USERS["alice"] not in file.read_text()
    scene.run(str(file), "topic", "create", "by-token")
    assert "by-token" in scene.moldau("alice", "topic", "list")
    output = scene.run(str(file), "token", "list", code=1)
    assert "not by a token" in output
    assert f"token {token_id} is deleted" in scene.moldau("bob", "token", "expire", token_id)
    assert "invalid credentials" in scene.run(str(file), "topic", "list", code=1)


def test_tokens_are_listed_renewed_and_shortened_without_their_secrets(scene: Scene) -> None:
    token_id, file = create(scene, "--renewer", "User:bob", "--lifetime", "2d")
    secret = file.read_text().split('password="')[1].split('"')[0]
    (listed,) = json.loads(scene.moldau("bob", "token", "list", "--owner", "alice", "--json"))
    assert (listed["id"], listed["owner"], listed["renewers"]) == (token_id, "User:alice", ["User:bob"])
    assert listed["renewable_until_ms"] - listed["issued_ms"] == 2 * 86_400_000
    table = scene.moldau("alice", "token", "list")
    assert token_id in table
    assert secret not in table + json.dumps(listed)
    assert json.loads(scene.moldau("bob", "token", "list", "--owner", "bob", "--json")) == []
    shorter = json.loads(scene.moldau("alice", "token", "expire", token_id, "--in", "10m", "--json"))["expires_ms"]
    assert shorter < listed["expires_ms"]
    renewed = json.loads(scene.moldau("bob", "token", "renew", token_id, "--for", "1h", "--json"))["expires_ms"]
    assert shorter < renewed < listed["expires_ms"]
    assert token_id in scene.moldau("alice", "token", "renew", token_id)
    scene.moldau("alice", "token", "expire", token_id)


def test_token_of_another_owner_names_who_asked_for_it(scene: Scene) -> None:
    token_id, file = create(scene, "--owner", "bob", "--mechanism", "SCRAM-SHA-512")
    (listed,) = json.loads(scene.run(scene.settings_of("bob"), "token", "list", "--json"))
    assert (listed["owner"], listed["requester"]) == ("User:bob", "User:alice")
    scene.run(str(file), "topic", "list")
    scene.moldau("bob", "token", "expire", token_id)


def test_invalid_token_commands_are_rejected(scene: Scene, tmp_path: Path) -> None:
    worker = str(tmp_path / "worker.properties")
    for words, code, message in (
        (("create", "-o", worker, "--lifetime", "0d"), 2, "must be more than zero"),
        (("create", "-o", worker, "--lifetime", "soon"), 2, "write it as 30s, 90m, 12h or 7d"),
        (("create", "-o", "-", "--json"), 2, "does not show secrets"),
        (("create", "-o", str(tmp_path / "none" / "file")), 2, "its directory does not exist"),
        (("renew", "no-such-token"), 1, "there is no such token"),
        (("expire", "no-such-token"), 1, "moldau token list"),
    ):
        assert message in scene.moldau("alice", "token", *words, code=code)
    assert not Path(worker).exists()


def test_token_is_printed_on_demand(scene: Scene) -> None:
    printed = scene.moldau("alice", "token", "create", "-o", "-")
    assert 'tokenauth="true"' in printed
    assert f"bootstrap.servers={scene.servers}" in printed
    (token,) = json.loads(scene.moldau("alice", "token", "list", "--json"))
    scene.moldau("alice", "token", "expire", token["id"])


def test_cluster_without_a_secret_key_says_so(tmp_path: Path) -> None:
    with Broker(listen=None, settings=_settings()) as broker:
        scene = Scene(broker, tmp_path)
        assert "set delegation.token.secret.key" in scene.moldau("alice", "token", "create", "-o", "-", code=1)
