"""Invalid plan and partition files are rejected in one line before any request."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from moldau.cli.main import app

UNREACHABLE = {"MOLDAU_BOOTSTRAP_SERVERS": "127.0.0.1:1"}


def error_of(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments, env=UNREACHABLE)
    assert result.exit_code == 2, f"{result.output}{result.exception!r}"
    return result.stderr


@pytest.mark.proves("A4", part="reassignment")
@pytest.mark.parametrize("command", ["execute", "verify", "cancel"])
@pytest.mark.parametrize(
    ("row", "words"),
    [
        (
            '{"topic": "t", "partition": 0, "replicas": [1], "log_dirs": 5}',
            't-0 has log_dirs that are not a list: write "any" for each replica, or nothing',
        ),
        (
            '{"topic": "t", "partition": 1.5, "replicas": [1]}',
            "the partition 1.5 of t is not a number from 0 to 2147483647",
        ),
        (
            '{"topic": "t", "partition": 0, "replicas": "12"}',
            't-0 has "12": replicas must be one or more distinct brokers',
        ),
    ],
)
def test_invalid_plan_entry_is_one_line(command: str, row: str, words: str, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(f'{{"partitions": [{row}]}}')
    assert error_of("reassign", command, str(plan)) == f"error: {plan}: {words}\n"


@pytest.mark.proves("A4", part="reassignment")
def test_deeply_nested_plan_is_one_line(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text("[" * 100_000)
    assert f"{plan}: not JSON: maximum recursion depth" in error_of("reassign", "execute", str(plan))


def test_impossible_partition_is_rejected_before_a_request(tmp_path: Path) -> None:
    file = tmp_path / "partitions.json"
    file.write_text('{"partitions": [{"topic": "t", "partition": 4294967296}]}')
    shown = error_of("partition", "elect-leaders", "--file", str(file))
    assert shown == f"error: {file}: the partition 4294967296 of t is not a number from 0 to 2147483647\n"
