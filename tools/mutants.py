"""Applies each listed mutant to a copy of the source and records which test caught it (tools/mutants_caught.json)."""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mutation import ROOT, apply, shape

LIST = ROOT / "tools/mutants.toml"
RECORD = ROOT / "tools/mutants_caught.json"
TEST_SECONDS_MAX = 180
TESTS_FAILED = 1  # pytest's exit code; the others mean that no test ran to a verdict
SKIPPED = -1  # ours: the test needs something that this machine does not have
CAUGHT, LEFT_OUT = "caught", "skipped: its test cannot run here"


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One mutation: in `function` of `file`, `search` becomes `replace`, and `test` must then fail."""

    id: str
    name: str
    code: str
    part: str = ""
    file: str
    function: str = ""
    search: str
    replace: str
    test: str

    @property
    def verdict_row(self) -> dict[str, str]:
        """The record of a mutant that the test has caught; a changed shape or test voids the record."""
        return {"id": self.id, "shape": shape(self), "test": self.test}


def load(text: str) -> list[Mutant]:
    return [Mutant(**entry) for entry in tomllib.loads(text)["mutant"]]


def recorded() -> list[dict[str, str]]:
    """The rows of the mutants that were caught."""
    rows: list[dict[str, str]] = json.loads(RECORD.read_text()) if RECORD.exists() else []
    return rows


def write_record(rows: Sequence[dict[str, str]]) -> None:
    """One line per mutant, so that a diff shows which verdicts changed."""
    RECORD.write_text("[\n" + ",\n".join(f" {json.dumps(row)}" for row in rows) + "\n]\n")


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
    """`CAUGHT` if the test passes on the clean copy and fails on the mutated one; otherwise the reason."""
    path = source / Path(mutant.file).relative_to("src")
    clean = path.read_text()
    if mutant.test not in passing and (code := run_test(mutant.test, source)) != 0:
        return LEFT_OUT if code == SKIPPED else "the test fails on the clean source too"
    passing.add(mutant.test)
    try:
        path.write_text(apply(mutant, clean))
        code = run_test(mutant.test, source)
    finally:
        path.write_text(clean)
    return {TESTS_FAILED: CAUGHT, 0: "NOT caught: the test still passes"}.get(code, f"pytest could not run it ({code})")


def hunt(mutants: Sequence[Mutant]) -> dict[Mutant, str]:
    """Test each mutant and return the verdicts."""
    verdicts: dict[Mutant, str] = {}
    passing: set[str] = set()
    with tempfile.TemporaryDirectory(prefix="moldau-mutants-") as folder:
        source = Path(folder) / "src"
        for name in ("src", "bench"):  # programs in src find their data files in bench
            if (ROOT / name).exists():
                shutil.copytree(ROOT / name, Path(folder) / name, ignore=shutil.ignore_patterns("__pycache__"))
        for mutant in mutants:
            verdicts[mutant] = verdict(mutant, source, passing)
            print(f"{mutant.code:3} {verdicts[mutant]}: {mutant.name}", flush=True)
    return verdicts


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="codes, ids or parts of names, separated by commas")
    parser.add_argument("--new", action="store_true", help="skip those already recorded as caught")
    options = parser.parse_args(arguments)
    mutants = load(LIST.read_text())
    before = recorded()
    words = [word for word in options.only.split(",") if word]
    chosen = [
        mutant
        for mutant in mutants
        if not (options.new and mutant.verdict_row in before)
        and (not words or any(word in (mutant.code, mutant.id) or word in mutant.name for word in words))
    ]
    verdicts = hunt(chosen)
    caught = [mutant for mutant, said in verdicts.items() if said == CAUGHT]
    missed = [mutant for mutant, said in verdicts.items() if said not in (CAUGHT, LEFT_OUT)]
    write_record(
        [
            mutant.verdict_row
            for mutant in mutants
            if mutant in caught or (mutant.verdict_row in before and mutant not in missed)
        ]
    )
    print(f"{len(caught)} mutants caught, {len(missed)} missed, {len(chosen) - len(caught) - len(missed)} skipped")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
