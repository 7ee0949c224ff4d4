"""Run a few tests on the other Pythons of this machine: connections, a broker, a cluster, its program, fixtures.

Each gets an environment of its own beside `.venv`. A Python that cannot create one is reported and skipped.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[1]
OLDEST: Final = (3, 11)
ON_PATH: Final = ("python3.11", "python3.12", "python3.13", "python3.14")
ASK_S_MAX: Final = 30
TELLING: Final = (
    "tests/ports/test_sockets.py",
    "tests/ports/test_resolver.py",
    "tests/ports/test_files_and_pages.py",
    "tests/testing/test_simulated_loop.py",
    "tests/testing/test_broker_fixture.py",
    "tests/testing/test_cluster_process.py",
    "tests/clients/test_clients_produce.py",
    "tests/cli/test_cli_broker.py",
)
_QUESTION: Final = """\
import importlib.util, json, sys
able = all(importlib.util.find_spec(each) for each in ("venv", "ensurepip"))
print(json.dumps([sys.version_info[:3], sys.executable, able]))
"""


class Python(NamedTuple):
    """One interpreter, as it described itself."""

    version: tuple[int, int, int]
    program: str
    can_make_environments: bool = True

    @property
    def name(self) -> str:
        return ".".join(map(str, self.version))

    @property
    def environment(self) -> Path:
        return ROOT / f".venv-{self.name}"


def here() -> list[str]:
    """Return the usual locations of Python interpreters."""
    homes = sorted(Path.home().glob(".pyenv/versions/*/bin/python3"))
    return ["/usr/bin/python3", *filter(None, map(shutil.which, ON_PATH)), *map(str, homes)]


def ask(program: str) -> Python | None:
    """Return None if it does not run a Python, like many of pyenv's shims."""
    try:
        output = subprocess.run(
            [program, "-c", _QUESTION], capture_output=True, text=True, timeout=ASK_S_MAX, check=True
        ).stdout
        version, executable, is_able = json.loads(output)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return Python(tuple(version), executable, is_able)


def choose(found: Iterable[Python], ours: tuple[int, ...]) -> tuple[list[Python], list[str]]:
    """Return one interpreter per supported version other than ours, and messages about the skipped ones."""
    chosen: dict[tuple[int, ...], Python] = {}
    left_out: dict[tuple[int, ...], str] = {}
    for each in found:
        if each.version < OLDEST or each.version == ours:
            continue
        if each.can_make_environments:
            chosen.setdefault(each.version, each)
        else:
            left_out[each.version] = f"left out: {each.program} ({each.name}) has no venv, or no ensurepip"
    return [chosen[key] for key in sorted(chosen)], [left_out[key] for key in left_out.keys() - chosen.keys()]


def prepare(python: Python) -> None:
    """Create an environment with the dependencies of the tests, again when they have changed."""
    stamp, wanted = python.environment / ".installed", ROOT / "pyproject.toml"
    if stamp.exists() and stamp.stat().st_mtime >= wanted.stat().st_mtime:
        return
    subprocess.run([python.program, "-m", "venv", "--clear", str(python.environment)], check=True)
    install = ["-m", "pip", "install", "--quiet", "--editable", ".[test]"]
    subprocess.run([str(_program_in(python)), *install], cwd=ROOT, check=True)
    stamp.touch()


def passes(python: Python, tests: Sequence[str]) -> bool:
    print(f"Python {python.name}, {python.program}", flush=True)
    try:
        prepare(python)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"no environment: {error}", flush=True)
        return False
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    command = [str(_program_in(python)), "-m", "pytest", "-p", "no:cacheprovider", *tests]
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode == 0


def _program_in(python: Python) -> Path:
    return python.environment / "bin" / "python"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pythons", nargs="*", help="programs to try; default: all that are found")
    named = parser.parse_args(arguments).pythons
    found = {each: ask(each) for each in named or here()}
    unusable = [each for each, python in found.items() if python is None and each in named]
    for each in unusable:
        print(f"{each} is no Python that runs here")
    chosen, left_out = choose(filter(None, found.values()), () if named else sys.version_info[:3])
    for line in left_out:
        print(line, flush=True)
    results = {each.name: passes(each, TELLING) for each in chosen}
    for name, is_well in results.items():
        print(f"Python {name:8} {'passed' if is_well else 'FAILED'}")
    if not results:
        print("no other Python to try: name some with PYTHONS='python3.12 python3.13'")
    return 0 if all(results.values()) and not unusable else 1


if __name__ == "__main__":
    sys.exit(main())
