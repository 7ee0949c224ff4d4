"""`moldau generate systemd`: the unit is valid, and its command starts a broker that SIGTERM stops cleanly."""

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from moldau.cli.main import app

PROGRAM = Path(sys.executable).parent / "moldau"
SECTIONS = ["[Unit]", "[Service]", "[Install]"]


def unit(*options: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["generate", "systemd", *options])
    assert result.exit_code == code, f"{result.output}{result.exception!r}"
    return result.stdout if code == 0 else result.stderr


def values(text: str) -> dict[str, str]:
    lines = [line.partition("=") for line in text.splitlines() if line and line not in SECTIONS]
    assert len({name for name, _, _ in lines}) == len(lines)
    return {name: value for name, _, value in lines}


def test_default_unit_keeps_data_below_var_lib() -> None:
    text = unit("--program", "/opt/moldau/bin/moldau")
    assert [line for line in text.splitlines() if line.startswith("[")] == SECTIONS
    found = values(text)
    assert found["ExecStart"] == "/opt/moldau/bin/moldau start --data /var/lib/moldau"
    assert (found["User"], found["StateDirectory"], found["ProtectSystem"]) == ("moldau", "moldau", "strict")
    assert "ReadWritePaths" not in found


def test_only_the_data_directory_is_writable() -> None:
    found = values(unit("--program", "/usr/bin/moldau", "--data", "/srv/log-1", "--config", "/etc/moldau.properties"))
    assert found["ReadWritePaths"] == "/srv/log-1"
    assert "StateDirectory" not in found
    assert found["ExecStart"].endswith(" start --data /srv/log-1 --config /etc/moldau.properties")


def test_command_of_the_unit_starts_a_broker(tmp_path: Path) -> None:
    config = tmp_path / "moldau.properties"
    config.write_text("listeners=PLAINTEXT://127.0.0.1:0\nmoldau.metrics.listener=\n")
    text = unit("--program", str(PROGRAM), "--data", str(tmp_path / "data"), "--config", str(config))
    command = shlex.split(values(text)["ExecStart"])
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as broker:
        assert broker.stdout is not None
        try:
            assert " broker serves on 127.0.0.1:" in broker.stdout.readline()
            assert str(tmp_path / "data") in broker.stdout.readline()
        finally:
            broker.terminate()
    assert broker.returncode == 0, "Restart=on-failure must not restart a stopped broker"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    path = tmp_path / "moldau.service"
    path.write_text(unit("--program", str(PROGRAM), "--user", "root"))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "moldau.service" not in done.stderr


@pytest.mark.parametrize(
    "options",
    [
        ("--data", "relative/path"),
        ("--data", "/srv/two words"),
        ("--data", "/srv/%h"),
        ("--config", "/etc/$HOME"),
        ("--program", "/opt/a;b"),
        ("--user", "moldau\nExecStartPre=/bin/false"),
    ],
)
def test_text_that_systemd_would_expand_is_rejected(options: tuple[str, str]) -> None:
    assert f"{options[0]} " in unit(*options, code=2)
