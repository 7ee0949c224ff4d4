"""The program as a whole: the table of commands, help, errors in one line, pipes and interrupts."""

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from typer.testing import CliRunner

from moldau import __version__
from moldau.cli.commands import COMMANDS
from moldau.cli.errors import CommandError, as_command_error
from moldau.cli.main import app
from moldau.cli.options import pairs
from moldau.cli.output import human_bytes, topic_id_text
from moldau.model.errors import InvalidConfig, UnknownTopicOrPartition
from moldau.testing.free_ports import free_ports

MOLDAU = [sys.executable, "-m", "moldau.cli.main"]


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*MOLDAU, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **environment},
    )


@pytest.fixture
def address() -> str:
    """An address without a listener."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{taken.getsockname()[1]}"


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "bench"])
def test_every_command_has_help(name: str) -> None:
    result = CliRunner().invoke(app, [name, "--help"])
    assert result.exit_code == 0, result.output
    assert f"moldau {name}" in result.stdout.replace("root", "moldau")


def test_program_lists_its_commands() -> None:
    result = CliRunner().invoke(app, ["--help"])
    assert result.exit_code == 0
    for name in ("start", "topic", "config", "produce", "consume", "log", "storage", "version"):
        assert name in result.stdout


def test_unknown_command_is_rejected() -> None:
    result = CliRunner().invoke(app, ["frobnicate"])
    assert result.exit_code == 2
    assert "No such command" in result.stderr


def test_version_is_printed() -> None:
    assert CliRunner().invoke(app, ["--version"]).stdout == f"moldau {__version__}\n"
    assert CliRunner().invoke(app, ["version"]).stdout.startswith(f"moldau {__version__} (Python")
    assert f'"version": "{__version__}"' in CliRunner().invoke(app, ["version", "--json"]).stdout


def test_start_does_not_import_modules_of_other_commands() -> None:
    code = "import sys, moldau.cli.main, moldau.cli.start; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not [name for name in loaded if name.startswith(("rich", "moldau.client", "moldau.broker", "moldau.wire"))]


def test_unreachable_cluster_is_one_line(address: str) -> None:
    result = run("topic", "list", "-b", address)
    assert result.returncode == 1
    assert (
        result.stderr
        == f"error: cannot reach {address}: connection refused; is the broker running? try: moldau start\n"
    )


@pytest.mark.parametrize("response", ["n\n", ""])
@pytest.mark.proves("A4", part="topics and settings")
def test_unconfirmed_command_reports_that_nothing_changed(response: str) -> None:
    """Typer's "Aborted." would be misleading for `moldau txn abort`."""
    result = CliRunner().invoke(app, ["partition", "elect-leaders", "--all", "--unclean"], input=response)
    assert result.exit_code == 1
    assert "Aborted" not in result.output
    assert result.stderr.endswith("error: not confirmed, nothing was changed; use --yes to skip the prompt\n")


def test_bootstrap_servers_come_from_the_environment(address: str) -> None:
    assert address in run("topic", "list", MOLDAU_BOOTSTRAP_SERVERS=address).stderr


@pytest.mark.parametrize("where", ["before", "after"])
def test_debug_shows_the_traceback_anywhere_on_the_line(where: str, address: str) -> None:
    arguments = ["topic", "list", "-b", address]
    result = run(*(["--debug", *arguments] if where == "before" else [*arguments, "--debug"]))
    assert result.returncode == 1
    assert "Traceback" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["topic", "list", "-b", "host:port"], "has an invalid port"),
        (["topic", "create", "t", "-c", "retention.ms"], "write it as KEY=VALUE"),
        (["topic", "alter", "t"], "nothing to alter"),
        (["config", "set", "topic", "t"], "nothing to change"),
        (["config", "get", "broker", "one"], "not a broker id"),
        (["consume", "t", "--from", "middle"], "not a position"),
        (["consume", "t", "--format", "%q"], "is unknown"),
        (["produce", "t", "-K", ""], "--key-separator is empty"),
        (["start", "-c", "no.such.setting=1"], "no.such.setting"),
        (["start", "-c", "num.partitions=none"], "num.partitions"),
        (["start", "--listen", "nowhere"], "write it as HOST:PORT"),
        (["storage", "format", "--data", "x", "--cluster-id", "short"], "22 letters"),
    ],
)
def test_wrong_usage_exits_with_2_and_a_hint(arguments: list[str], words: str) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2, result.output
    assert words in result.stderr
    assert "Traceback" not in result.stderr


def test_missing_settings_file_is_named(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["start", "--config", str(tmp_path / "none.properties")])
    assert result.exit_code == 1
    assert "none.properties: no such file or directory" in result.stderr


def test_invalid_setting_is_named_with_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text("# mine\nnum.partitions=many\n")
    result = CliRunner().invoke(app, ["start", "--config", str(path)])
    assert result.exit_code == 2
    assert f"{path}:2" in result.stderr


def test_broken_pipe_is_not_an_error(tmp_path: Path) -> None:
    big = tmp_path / "00000000000000000000.index"
    big.write_bytes(b"".join(n.to_bytes(4, "big") * 2 for n in range(1, 50_000)))
    command = f"{sys.executable} -m moldau.cli.main log dump {big} | head -n 2"
    result = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, timeout=60, check=False
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert len(result.stdout.splitlines()) == 2


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a device that is always full")
@pytest.mark.proves("A4", part="topics and settings")
@pytest.mark.parametrize("words", ["version", "--version", "--help", "topic --help"])
def test_output_to_a_full_disk_is_one_line_and_exits_with_1(words: str) -> None:
    command = f"unset PYTHONUNBUFFERED; {sys.executable} -m moldau.cli.main {words} > /dev/full"
    result = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert (result.returncode, result.stderr) == (1, "error: [Errno 28] No space left on device\n")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a device that is always full")
def test_error_on_a_full_disk_keeps_its_exit_code(address: str) -> None:
    command = f"{sys.executable} -m moldau.cli.main topic list -b {address} 2> /dev/full"
    assert subprocess.run(["sh", "-c", command], timeout=60, check=False).returncode == 1


def listed_topics(address: str, broker: "subprocess.Popen[bytes]") -> "subprocess.CompletedProcess[str]":
    """List the topics as soon as the broker accepts connections: each start of the command takes CPU time."""
    host, _, port = address.rpartition(":")
    until = time.monotonic() + 30
    while broker.poll() is None:
        assert time.monotonic() < until, f"{address} accepts no connection"
        with suppress(OSError):
            socket.create_connection((host, int(port)), timeout=1).close()
            break
        with suppress(subprocess.TimeoutExpired):
            broker.wait(0.05)
    while (listed := run("topic", "list", "-b", address)).returncode and broker.poll() is None:
        assert time.monotonic() < until, listed.stderr
    return listed


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a device that is always full")
@pytest.mark.proves("A4", part="topics and settings")
@pytest.mark.parametrize("command", ["start", "up"])
def test_brokers_serve_when_their_output_is_on_a_full_disk(tmp_path: Path, command: str) -> None:
    port = free_ports(1).start
    where = {"start": ["--listen", f"localhost:{port}"], "up": ["--port", str(port), "--brokers", "1"]}[command]
    options = ["--data", str(tmp_path), *where, "-c", "moldau.metrics.listener="]
    running = ["sh", "-c", 'unset PYTHONUNBUFFERED; exec "$@" > /dev/full 2> /dev/full', "sh", *MOLDAU, command]
    with subprocess.Popen([*running, *options]) as broker:
        listed = listed_topics(f"localhost:{port}", broker)
        broker.terminate()
        assert (broker.wait(30), listed.returncode) == (0, 0)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows what a descriptor leads to")
@pytest.mark.proves("S1", part="an append never overwrites existing records")
def test_broker_files_never_get_the_descriptor_of_a_closed_stream(tmp_path: Path, address: str) -> None:
    start = [*MOLDAU, "start", "--data", str(tmp_path), "--listen", address, "-c", "moldau.metrics.listener="]
    with subprocess.Popen(["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *start]) as broker:
        listed_topics(address, broker)
        leads_to = [os.readlink(f"/proc/{broker.pid}/fd/{number}") for number in range(3)]
        broker.terminate()
        assert broker.wait(30) == 0
    assert leads_to == [os.devnull] * 3


@pytest.mark.parametrize("closed", ["<&-", ">&-", "<&- >&- 2>&-"])
def test_commands_run_with_closed_streams(closed: str, tmp_path: Path) -> None:
    (tmp_path / "00000000000000000000.index").write_bytes(bytes(16))
    for words in (["version"], ["log", "dump", str(tmp_path)]):
        command = ["sh", "-c", f'exec "$@" {closed}', "sh", *MOLDAU, *words]
        result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert (result.returncode, result.stderr) == (0, "")


def test_interrupt_exits_with_130_without_traceback() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with subprocess.Popen([*MOLDAU, "topic", "list", "-b", address], stderr=subprocess.PIPE) as process:
            connection, _ = silent.accept()  # it has sent ApiVersions and waits for the response
            with connection:
                assert connection.recv(1)
                process.send_signal(signal.SIGINT)
                assert process.stderr is not None
                assert process.stderr.read() == b""
                assert process.wait(30) == 130


def test_bug_keeps_its_traceback() -> None:
    assert as_command_error(ValueError("a bug")) is None
    assert as_command_error(AssertionError()) is None


def test_cluster_and_system_errors_become_one_line() -> None:
    error = as_command_error(UnknownTopicOrPartition("topic x does not exist"))
    assert error is not None
    assert (str(error), error.exit_code) == ("topic x does not exist", 1)
    error = as_command_error(InvalidConfig("num.partitions"))
    assert error is not None
    assert error.exit_code == 2
    error = as_command_error(FileNotFoundError(2, "No such file or directory", "a.toml"))
    assert str(error) == "a.toml: no such file or directory"
    error = as_command_error(
        OSError(98, "error while attempting to bind on address ('127.0.0.1', 9092): address already in use")
    )
    assert str(error).startswith("127.0.0.1:9092 is in use; is a broker running already? choose another address")
    error = CommandError("as it is")
    assert as_command_error(error) is error


def test_pairs_may_contain_equal_signs() -> None:
    assert pairs(["a=b=c", " d = e "], "-c") == {"a": "b=c", "d": "e"}
    with pytest.raises(CommandError):
        pairs(["=x"], "-c")


def test_sizes_and_ids_are_human_readable() -> None:
    assert [human_bytes(size) for size in (0, 1023, 1024, 1536, 5 * 2**30, 2**60)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "1.5 KiB",
        "5.0 GiB",
        "1024.0 PiB",
    ]
    assert topic_id_text(bytes(range(16))) == "AAECAwQFBgcICQoLDA0ODw"
    assert topic_id_text(bytes(16)) is None


def test_completion_script_is_printed() -> None:
    result = run("--show-completion", "bash", _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    assert "complete" in result.stdout
