"""Functions in a user's file: errors are one line with the place in the file."""

import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from moldau.cli.main import app
from moldau.pipelines.function_step import FunctionStep, with_future_first
from moldau.pipelines.requirements import PipelineError
from moldau.testing.broker import Broker


class Frame:
    """A fake that is accepted as a DataFrame."""

    writeStream = None  # noqa: N815

    def __init__(self, send: Callable[[Any], Any] = lambda function: function) -> None:
        self.send, self.sent = send, None


def step(source: str, name: str = "transform") -> FunctionStep:
    return FunctionStep(source, "my.py", name)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("x = 1", r"^my.py has no function transform\(frame\)$"),
        (
            "def double(frame): ...\ndef halve(frame): ...",
            r"has no function transform\(frame\); it has double, halve: choose one with my.py:NAME",
        ),
        ("class A:\n    def other(self): ...", r"has no function transform\(frame\)$"),
        ("\ndef transform(frame:\n", r"^my.py:2: invalid Python: '\(' was never closed$"),
        ("x = '\0'", r"^my.py(:\d)?: invalid Python: "),
    ],
)
def test_missing_function_is_reported_before_spark_starts(source: str, message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        step(source).check()


@pytest.mark.parametrize(
    "source",
    [
        "def transform(frame): return frame",
        "from mine import transform",
        "import mine as transform",
        "from mine import *",
        "transform = lambda frame: frame",
        "if True:\n    def transform(frame): return frame",
    ],
)
def test_function_may_be_defined_or_imported_in_any_way(source: str) -> None:
    step(source).check()


def test_function_is_applied_to_the_frame() -> None:
    frame = Frame()
    assert step("def transform(frame): return frame").apply(frame) is frame
    assert step("def same(frame): return frame", "same").apply(frame) is frame


@pytest.mark.proves("D3", part="user-defined functions")
@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("transform = 1", r"my.py has no function transform\(frame\)"),
        ("def transform(frame): pass", r"transform\(frame\) of my.py must return a DataFrame; it returned a NoneType"),
        ("def transform(frame):\n    return missing", r"^my.py:2: NameError: name 'missing' is not defined$"),
        ("import missing_module", r"^my.py:1: ModuleNotFoundError: No module named 'missing_module'$"),
        ("def transform(frame):\n    raise ValueError", r"^my.py:2: ValueError: it failed$"),
    ],
)
def test_error_in_a_function_is_reported_with_its_line(source: str, message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        step(source).apply(Frame())


def test_modules_beside_the_file_can_be_imported(tmp_path: Path) -> None:
    (tmp_path / "beside_the_file.py").write_text("def same(frame):\n    return frame\n")
    source = "from beside_the_file import same\ndef transform(frame): return same(frame)\n"
    frame = Frame()
    assert FunctionStep(source, str(tmp_path / "my.py"), "transform").apply(frame) is frame


POSTPONED = """\
\"\"\"Mine.\"\"\"

from __future__ import annotations  # they are texts

from __future__ import (
    division,
)
from dataclasses import dataclass


@dataclass
class Row:
    n: int = 1
    name: Later | None = None


def double(n: int) -> int:
    return Row(2 * n).n


def transform(frame):
    @dataclass
    class Inner:
        n: int = 1

    frame.sent = frame.send(double)
    return frame
"""


@pytest.mark.proves("D3", part="user-defined functions")
def test_file_may_postpone_annotations() -> None:
    frame = Frame()
    known = set(sys.modules)
    assert step(POSTPONED).apply(frame) is frame
    assert set(sys.modules) == known


@pytest.mark.proves("D3", part="user-defined functions")
def test_executors_do_not_import_the_file() -> None:
    cloudpickle = pytest.importorskip("pyspark.cloudpickle")
    frame = Frame(cloudpickle.dumps)
    step(POSTPONED).apply(frame)
    assert cloudpickle.loads(frame.sent)(4) == 8


@pytest.mark.proves("D3", part="user-defined functions")
@pytest.mark.parametrize("head", ["", "from __future__ import annotations; ä = 'ä'; from __future__ import division\n"])
def test_file_with_future_imports_is_ejected_as_a_valid_script(
    moldau_broker: Broker, tmp_path: Path, head: str
) -> None:
    topic = moldau_broker.create_topic(f"functions-{uuid.uuid4().hex}", partitions=1)
    (tmp_path / "my.py").write_text(head + POSTPONED)
    words = [str(tmp_path / "my.py"), "-t", topic, "--to", "out", "--eject", "-"]
    result = CliRunner().invoke(app, ["pipeline", "run", *words, "-b", moldau_broker.bootstrap_servers])
    assert result.exit_code == 0, result.output
    compile(result.stdout, "script", "exec")
    assert result.stdout.count("__future__") == 1
    assert "from __future__ import annotations, division\n\nfrom pyspark_moldau import session" in result.stdout
    assert ("ä = 'ä'" in result.stdout) == bool(head)


@pytest.mark.proves("D3", part="user-defined functions")
@pytest.mark.parametrize("test", ["__name__ == '__main__'", '(\n    "__main__"\n    == __name__\n)'])
def test_main_block_is_left_out_of_the_script(test: str) -> None:
    source = f"ä = 'ä'\ndef f(frame):\n    return frame, ä\nif {test}:\n    raise SystemExit(ä)\nelse:\n    b = 1\n"
    names = {"__name__": "__main__", "frame": 7}
    exec(step(source, "f").code(), names)
    assert (names["frame"], names["b"]) == ((7, "ä"), 1)


def test_script_without_future_imports_is_unchanged() -> None:
    script = '"""A script."""\n\nimport json\n'
    assert with_future_first(script) == script


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["transform", "--sql", "a.sql", "--python", "a.py"], "--sql and --python cannot be combined"),
        (["transform", "--step", "a.txt"], "--step a.txt: a step is FILE.sql or FILE.py[:FUNCTION]"),
        (["transform", "--sql", "empty.sql"], "empty.sql is empty"),
        (["transform", "--sql", "nowhere.sql"], "nowhere.sql: no such file or directory"),
        (["empty.py"], "empty.py is empty"),
        (["other.py"], "other.py has no function transform(frame)"),
        (["other.py:x"], "other.py has no function x(frame)"),
    ],
)
def test_invalid_step_files_are_rejected_in_one_line(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in (("empty.sql", " \n"), ("empty.py", ""), ("other.py", "y = 1\n")):
        (tmp_path / name).write_text(text)
    result = CliRunner().invoke(app, ["pipeline", "run", *words, "-t", "a", "--to", "b"])
    assert result.exit_code in (1, 2)
    assert result.stderr.startswith(f"error: {message}")
    assert len(result.stderr.splitlines()) == 1
