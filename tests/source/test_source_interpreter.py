"""The Python of Spark's processes: this one, without the zips of Spark that hold what is installed anyway."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from pyspark_moldau.interpreter import worker_python

SHOW_PATH = "import os, sys; print(os.environ.get('PYTHONPATH'), sys.argv[1:])"


class Spec:
    def __init__(self, origin: Path) -> None:
        self.origin = str(origin)


@pytest.fixture(autouse=True)
def packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A PySpark as pip installs it, and temporary files of our own."""
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    packages = tmp_path / "packages"
    (packages / "pyspark" / "python" / "lib").mkdir(parents=True)
    (packages / "py4j").mkdir()
    for name in ("pyspark", "py4j"):
        (packages / name / "__init__.py").touch()
    monkeypatch.setattr("site.getsitepackages", lambda: [str(packages)])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: Spec(packages / name / "__init__.py"))
    return packages


def shown(python: str, *entries: str) -> str:
    command = [python, "-c", SHOW_PATH, "a b", "c"]
    environment = {**os.environ, "PYTHONPATH": ":".join(entries)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


def test_the_zips_of_spark_are_left_out_and_nothing_else_is() -> None:
    python = worker_python()
    assert python != sys.executable
    home = "/opt/my spark"
    zips = [f"{home}/python/lib/pyspark.zip", f"{home}/python/lib/py4j-0.10.9.9-src.zip"]
    jar = f"{home}/jars/spark-core_2.13-4.3.0.jar"
    assert shown(python, *zips, jar, "/mine/a b", "/mine/*.zip") == "/mine/a b:/mine/*.zip ['a b', 'c']\n"
    assert shown(python, *zips, jar) == " ['a b', 'c']\n"
    assert shown(python) == " ['a b', 'c']\n"


def test_a_home_that_is_the_same_spark_by_another_name_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, packages: Path
) -> None:
    (tmp_path / "home").symlink_to(packages / "pyspark")
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "home"))
    assert worker_python() != sys.executable


def test_another_spark_has_its_own_pyspark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "other" / "python" / "lib").mkdir(parents=True)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "other"))
    assert worker_python() == sys.executable


def test_a_pyspark_of_a_spark_that_is_not_from_pip_stays_as_it_is(packages: Path) -> None:
    (packages / "pyspark" / "python" / "lib").rmdir()
    assert worker_python() == sys.executable


def test_what_is_only_in_a_zip_is_left_there(monkeypatch: pytest.MonkeyPatch, packages: Path) -> None:
    packed = packages / "py4j.zip"
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("py4j/__init__.py", "")
    specs = {
        "pyspark": Spec(packages / "pyspark" / "__init__.py"),
        "py4j": Spec(packed / "py4j" / "__init__.py"),
    }
    monkeypatch.setattr("importlib.util.find_spec", specs.get)
    assert worker_python() == sys.executable


def test_a_package_that_only_this_process_was_told_of_is_none_for_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, packages: Path
) -> None:
    shutil.move(packages, tmp_path / "elsewhere")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: Spec(tmp_path / "elsewhere" / name / "__init__.py"))
    assert worker_python() == sys.executable


def test_where_no_program_may_be_put_there_is_the_plain_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda _, mode: not mode & os.X_OK)
    assert worker_python() == sys.executable
