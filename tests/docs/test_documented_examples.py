"""The examples in the docs work: every `sh` and `python` block of a page is run against a broker."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from moldau.testing import Broker

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "docs/guides/celery-sqs.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs/concepts").glob("*.md")),
]
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
EXAMPLE_SECONDS_MAX = 60


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    for match in BLOCK.finditer(page.read_text()):
        yield match.group(1), match.group(2)


def run_shell(text: str, broker: Broker, folder: Path) -> None:
    """One command at a time, so that a failure names its line."""
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "MOLDAU_BOOTSTRAP_SERVERS": broker.bootstrap_servers,
    }
    for line in text.splitlines():
        result = subprocess.run(
            ["bash", "-o", "pipefail", "-c", line],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=EXAMPLE_SECONDS_MAX,
            check=False,
        )
        assert result.returncode == 0, f"{line}\n{result.stdout}{result.stderr}"


def run_python(text: str, broker: Broker, folder: Path) -> None:
    """Run it with pytest if it uses fixtures, otherwise as a program."""
    text = text.replace("localhost:9092", broker.bootstrap_servers)
    example = folder / ("test_example.py" if "def test_" in text else "example.py")
    example.write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, str(example)]
    if "def test_" not in text:
        command = [sys.executable, str(example)]
    result = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=EXAMPLE_SECONDS_MAX, check=False
    )
    assert result.returncode == 0, f"{text}\n{result.stdout}{result.stderr}"


@pytest.mark.proves("A1", "A4")
@pytest.mark.parametrize(
    "page", [page for page in PAGES if list(blocks(page))], ids=lambda page: page.relative_to(ROOT).as_posix()
)
def test_every_example_of_the_page_works(page: Path, tmp_path: Path) -> None:
    with Broker(data=tmp_path / "data") as broker:
        for language, text in blocks(page):
            (run_shell if language == "sh" else run_python)(text, broker, tmp_path)
