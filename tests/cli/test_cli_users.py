"""`moldau user` against a broker."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from moldau.testing import Broker

SECRET = "a secret, with spaces"


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    with Broker() as broker:
        yield broker.bootstrap_servers


def moldau(servers: str, *arguments: str, stdin: str = "") -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-P", "-m", "moldau.cli.main", "user", *arguments, "-b", servers]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60, check=False)


def test_user_is_created_listed_and_deleted(servers: str, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text(SECRET + "\n")
    created = moldau(servers, "create", "alice", "--password-file", str(file), "--json")
    assert (created.returncode, created.stderr) == (0, "")
    assert json.loads(created.stdout) == {"user": "alice", "mechanisms": ["SCRAM-SHA-512"], "iterations": 8192}
    both = ("-m", "SCRAM-SHA-256", "-m", "SCRAM-SHA-512", "--iterations", "4096")
    assert moldau(servers, "create", "bob", *both, "--password-file", "-", stdin=SECRET).returncode == 0
    listed = [(each["user"], each["mechanism"]) for each in json.loads(moldau(servers, "list", "--json").stdout)]
    assert listed == [("alice", "SCRAM-SHA-512"), ("bob", "SCRAM-SHA-256"), ("bob", "SCRAM-SHA-512")]
    assert "SCRAM-SHA-256" in moldau(servers, "list").stdout
    assert moldau(servers, "delete", "bob", "-m", "SCRAM-SHA-256").returncode == 0
    assert json.loads(moldau(servers, "delete", "bob", "--json").stdout)["deleted"] == ["SCRAM-SHA-512"]
    missing = moldau(servers, "delete", "bob")
    assert (missing.returncode, "user bob has no SCRAM credentials" in missing.stderr) == (1, True)


def test_password_is_required_and_never_an_argument(servers: str) -> None:
    without = moldau(servers, "create", "carol")
    assert (without.returncode, "--password-file" in without.stderr) == (2, True)
    empty = moldau(servers, "create", "carol", "--password-file", "-", stdin="\n")
    assert (empty.returncode, "the password is empty" in empty.stderr) == (1, True)
    assert "--password " not in moldau(servers, "create", "--help").stdout
