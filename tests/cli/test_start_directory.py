"""`moldau start` formats empty directories only: it never writes among files of something else."""

import subprocess
import sys
from pathlib import Path

from typer.testing import CliRunner

from moldau.cli.main import app
from moldau.testing.broker import Broker


def test_start_rejects_directory_with_foreign_files(tmp_path: Path) -> None:
    names = ["Makefile", "notes.txt", "photos-2024", "src"]
    for name in names:
        (tmp_path / name).mkdir()
    result = CliRunner().invoke(app, ["start", "--data", str(tmp_path), "--listen", "127.0.0.1:0"])
    assert result.exit_code == 1
    assert f"{tmp_path} is not a data directory but holds other files (Makefile, notes.txt, photos-2024, …)" in (
        result.stderr
    )
    assert sorted(each.name for each in tmp_path.iterdir()) == names


def test_start_accepts_foreign_files_after_explicit_format(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    result = CliRunner().invoke(app, ["storage", "format", "--data", str(tmp_path)])
    assert result.exit_code == 0, result.output
    with Broker(data=tmp_path) as broker:
        assert broker.is_running


def test_start_accepts_directory_whose_formatting_was_interrupted(tmp_path: Path) -> None:
    for name in ("__cluster_metadata-0", "lost+found"):
        (tmp_path / name).mkdir()
    (tmp_path / ".lock").touch()
    with Broker(data=tmp_path) as broker:
        assert broker.is_running


def test_start_rejects_current_directory_of_a_project(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").touch()
    command = [sys.executable, "-m", "moldau", "start", "--data", ".", "--listen", "127.0.0.1:0"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "pyproject.toml" in done.stderr
