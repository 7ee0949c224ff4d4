"""`make test-pythons`: which Pythons are tried, and what is said of the others."""

import sys
from pathlib import Path

import pytest
from pythons import ROOT, TELLING, Python, ask, choose, main

NEW = Python((3, 13, 0), "/opt/new/python3")
OLD = Python((3, 11, 2), "/usr/bin/python3")


def test_every_python_version_is_tried_once() -> None:
    again = Python((3, 13, 0), "/elsewhere/python3")
    assert choose([NEW, again, OLD], ours=(3, 11, 7)) == ([OLD, NEW], [])


def test_own_and_too_old_pythons_are_skipped() -> None:
    too_old = Python((3, 10, 13), "/usr/bin/python3.10")
    assert choose([too_old, OLD, NEW], ours=OLD.version) == ([NEW], [])


def test_python_without_venv_is_reported_unless_another_of_its_version_has_it() -> None:
    bare, unable = NEW._replace(program="/bare", can_make_environments=False), OLD._replace(can_make_environments=False)
    chosen, left_out = choose([bare, unable, NEW], ours=(3, 12, 1))
    assert chosen == [NEW]
    assert left_out == ["left out: /usr/bin/python3 (3.11.2) has no venv, or no ensurepip"]


def test_version_of_an_interpreter_is_read(tmp_path: Path) -> None:
    python = ask(sys.executable)
    assert python is not None
    assert python.version == sys.version_info[:3]
    stand_in = tmp_path / "python3.99"
    stand_in.write_text("#!/bin/sh\nexit 127\n")
    stand_in.chmod(0o755)
    assert ask(str(stand_in)) is None
    assert ask(str(tmp_path / "nothing")) is None


def test_named_interpreter_that_is_invalid_fails_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["/nowhere/python3"]) == 1
    assert "/nowhere/python3 is no Python that runs here" in capsys.readouterr().out


def test_selected_tests_exist() -> None:
    assert [each for each in TELLING if not (ROOT / each).exists()] == []
