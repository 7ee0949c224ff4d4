"""Spark's Python workers use this interpreter, without Spark's zips of packages that are installed anyway."""

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
    """A fake PySpark installation by pip, and a temporary directory of the test."""
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


def test_zips_of_spark_are_removed_from_the_python_path() -> None:
    python = worker_python()
    assert python != sys.executable
    home = "/opt/my spark"
    zips = [f"{home}/python/lib/pyspark.zip", f"{home}/python/lib/py4j-0.10.9.9-src.zip"]
    jar = f"{home}/jars/spark-core_2.13-4.3.0.jar"
    assert shown(python, *zips, jar, "/mine/a b", "/mine/*.zip") == "/mine/a b:/mine/*.zip ['a b', 'c']\n"
    assert shown(python, *zips, jar) == " ['a b', 'c']\n"
    assert shown(python) == " ['a b', 'c']\n"


def test_spark_home_linked_to_the_installed_spark_is_accepted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, packages: Path
) -> None:
    (tmp_path / "home").symlink_to(packages / "pyspark")
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "home"))
    assert worker_python() != sys.executable


def test_other_spark_keeps_its_own_pyspark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "other" / "python" / "lib").mkdir(parents=True)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "other"))
    assert worker_python() == sys.executable


def test_spark_without_a_bundled_lib_is_unchanged(packages: Path) -> None:
    (packages / "pyspark" / "python" / "lib").rmdir()
    assert worker_python() == sys.executable


def test_package_that_is_only_in_a_zip_is_kept(monkeypatch: pytest.MonkeyPatch, packages: Path) -> None:
    packed = packages / "py4j.zip"
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("py4j/__init__.py", "")
    specs = {
        "pyspark": Spec(packages / "pyspark" / "__init__.py"),
        "py4j": Spec(packed / "py4j" / "__init__.py"),
    }
    monkeypatch.setattr("importlib.util.find_spec", specs.get)
    assert worker_python() == sys.executable


def test_package_outside_site_packages_is_not_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, packages: Path
) -> None:
    shutil.move(packages, tmp_path / "elsewhere")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: Spec(tmp_path / "elsewhere" / name / "__init__.py"))
    assert worker_python() == sys.executable


def test_plain_python_is_used_when_no_script_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda _, mode: not mode & os.X_OK)
    assert worker_python() == sys.executable
