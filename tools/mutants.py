"""Breaks the product on purpose, one bug at a time, and records which test caught it (docs/mutants.json)."""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bugs import ROOT, apply

LIST = ROOT / "tools/mutants.toml"
RECORD = ROOT / "docs/mutants.json"
TEST_SECONDS_MAX = 180
TESTS_FAILED = 1  # pytest's exit code; the others mean that no test ran to a verdict
SKIPPED = -1  # ours: the test needs something that this machine does not have
CAUGHT, LEFT_OUT = "caught", "left out, its test cannot run here"


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One bug: in `file`, `search` becomes `replace`, and `test` must then fail."""

    name: str
    code: str
    part: str = ""
    file: str
    search: str
    replace: str
    test: str

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:16]

    @property
    def row(self) -> dict[str, str]:
        return {"name": self.name, "code": self.code, "part": self.part, "test": self.test, "digest": self.digest}


def load(text: str) -> list[Mutant]:
    return [Mutant(**entry) for entry in tomllib.loads(text)["mutant"]]


def recorded() -> set[str]:
    """The digests of the mutants that were caught."""
    return {row["digest"] for row in json.loads(RECORD.read_text())} if RECORD.exists() else set()


def run_test(test: str, source: Path) -> int:
    """pytest's exit code for one test with the product taken from `source`, or `SKIPPED`."""
    command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", test]
    environment = {**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0"}
    try:
        result = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=TEST_SECONDS_MAX, check=False
        )
    except subprocess.TimeoutExpired:
        return TESTS_FAILED
    return SKIPPED if result.returncode == 0 and " passed" not in result.stdout else result.returncode


def verdict(mutant: Mutant, source: Path, passing: set[str]) -> str:
    """`CAUGHT` if the test passes on the clean copy and fails on the broken one; otherwise what went wrong."""
    path = source / Path(mutant.file).relative_to("src")
    clean = path.read_text()
    if mutant.test not in passing and (code := run_test(mutant.test, source)) != 0:
        return LEFT_OUT if code == SKIPPED else "the test fails without the bug too"
    passing.add(mutant.test)
    try:
        path.write_text(apply(mutant, clean))
        code = run_test(mutant.test, source)
    finally:
        path.write_text(clean)
    return {TESTS_FAILED: CAUGHT, 0: "NOT caught: the test still passes"}.get(code, f"pytest could not run it ({code})")


def hunt(mutants: Sequence[Mutant]) -> dict[Mutant, str]:
    """Try each mutant and say how it went."""
    verdicts: dict[Mutant, str] = {}
    passing: set[str] = set()
    with tempfile.TemporaryDirectory(prefix="moldau-mutants-") as folder:
        source = Path(folder) / "src"
        for name in ("src", "bench"):  # what a program of the source looks for beside it comes along
            if (ROOT / name).exists():
                shutil.copytree(ROOT / name, Path(folder) / name, ignore=shutil.ignore_patterns("__pycache__"))
        for mutant in mutants:
            verdicts[mutant] = verdict(mutant, source, passing)
            print(f"{mutant.code:3} {verdicts[mutant]}: {mutant.name}", flush=True)
    return verdicts


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="codes, or parts of names, separated by commas")
    parser.add_argument("--new", action="store_true", help="leave out those already recorded as caught")
    options = parser.parse_args(arguments)
    mutants = load(LIST.read_text())
    before = recorded()
    words = [word for word in options.only.split(",") if word]
    chosen = [
        mutant
        for mutant in mutants
        if not (options.new and mutant.digest in before)
        and (not words or any(word == mutant.code or word in mutant.name for word in words))
    ]
    verdicts = hunt(chosen)
    caught = {mutant.digest for mutant, said in verdicts.items() if said == CAUGHT}
    missed = {mutant.digest for mutant, said in verdicts.items() if said not in (CAUGHT, LEFT_OUT)}
    known = (before - missed) | caught
    rows = [mutant.row for mutant in mutants if mutant.digest in known]
    RECORD.write_text(json.dumps(rows, indent=1) + "\n")
    print(f"{len(caught)} mutants caught, {len(missed)} not, {len(chosen) - len(caught) - len(missed)} left out")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
