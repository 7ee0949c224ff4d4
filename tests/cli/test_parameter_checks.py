"""Values that no option accepts are usage errors, before the command runs."""

import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer
from typer.testing import CliRunner

from moldau.cli.commands import COMMANDS
from moldau.cli.main import Program, app
from moldau.cli.parameter_checks import parameter_type

pytestmark = pytest.mark.proves("A4", part="topics and settings")


def error_of(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2, f"{result.output}{result.exception!r}"
    assert isinstance(result.exception, SystemExit)
    return result.stderr


class Given(NamedTuple):
    """An option or argument of a command. It is only parsed, so that no command runs if the check is missing."""

    words: str
    command: Any
    parameter: Any

    def error_of(self, value: str) -> str:
        places = [each for each in self.command.params if each.param_type_name == "argument"]
        is_option = self.parameter not in places
        before = [self.parameter.opts[0]] if is_option else ["x"] * places.index(self.parameter)
        with pytest.raises(typer.BadParameter) as rejected:
            self.command.make_context(self.words, [*before, value])
        return str(rejected.value)


def given_to(command: Any, words: str) -> list[Given]:
    below = getattr(command, "commands", {}).items()
    own = [Given(words, command, each) for each in command.params]
    return own + [one for name, each in below for one in given_to(each, f"{words} {name}")]


def name_of(given: Given) -> str:
    return f"{given.words} {given.parameter.opts[0]}"


EVERYTHING = [one for name in COMMANDS for one in given_to(Program().get_command(None, name), name)]
NUMBERS = [each for each in EVERYTHING if parameter_type(each.parameter) is float]
PATHS = [each for each in EVERYTHING if parameter_type(each.parameter) is Path]


def test_parametrized_options_exist() -> None:
    assert len(NUMBERS) >= 5
    assert len(PATHS) >= 20


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "-1", "1e308"])
@pytest.mark.parametrize("options", ["txn list --open-for", "txn find-hanging --max-timeout"])
def test_transaction_times_are_bounded(options: str, value: str) -> None:
    assert options.split()[-1] in error_of(*options.split(), value, "-b", "127.0.0.1:1")


@pytest.mark.parametrize("value", ["nan", "inf"])
@pytest.mark.parametrize("given", NUMBERS, ids=name_of)
def test_nan_and_infinity_are_rejected(given: Given, value: str) -> None:
    assert value in given.error_of(value)


@pytest.mark.parametrize("given", PATHS, ids=name_of)
def test_empty_path_is_rejected(given: Given) -> None:
    assert re.search("path is empty|does not exist", given.error_of(""))


def test_start_with_empty_path_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "the path is empty" in error_of("start", "--data", "", "--listen", "nowhere")
    assert list(tmp_path.iterdir()) == []


def test_format_rejects_a_node_id_that_cannot_start(tmp_path: Path) -> None:
    assert "--node-id" in error_of("storage", "format", "-d", str(tmp_path / "new"), "--node-id", str(2**31))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["start", "storage format"])
def test_settings_file_that_is_not_text_is_named(command: str, tmp_path: Path) -> None:
    good, bad = tmp_path / "good.properties", tmp_path / "bad.properties"
    good.write_text("num.partitions=3\n")
    bad.write_bytes(b"\xff")
    assert str(bad) in error_of(*command.split(), "--config", str(good), "--config", str(bad))
