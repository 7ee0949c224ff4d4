"""Breaks the cluster on purpose, one bug at a time, and tells which seed of the simulator finds it.

`python tools/simulated_mutants.py [--only 'vote'] [--seeds 0-199]`; the record is docs/simulated-mutants.json.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bugs import ROOT, apply

LIST = ROOT / "tools/simulated_mutants.toml"
RECORD = ROOT / "docs/simulated-mutants.json"
FAILED = re.compile(r"^seed (\d+) FAILED", re.MULTILINE)
WORDS = re.compile(r"^(?:\w+\.)*(\w*(?:Violation|Failed|Deadlock|Error)): (.*)$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One bug: in `file`, `search` becomes `replace`, and some seed of this world in this trouble must then fail."""

    name: str
    file: str
    search: str
    replace: str
    trouble: str = "process"
    world: str = "cluster"
    seeds: str = "0-199"

    @property
    def digest(self) -> str:
        fields = asdict(self)
        if self.world == "cluster":
            del fields["world"]  # as it was when there was no other
        return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class Catch:
    """How a bug was found."""

    name: str
    digest: str
    trouble: str
    seed: int
    words: str


def load(text: str) -> list[Mutant]:
    return [Mutant(**entry) for entry in tomllib.loads(text)["mutant"]]


def hunt(mutant: Mutant, source: Path, seeds: str, jobs: int) -> Catch | None:
    """Run seeds over the broken source until one fails."""
    path = source / Path(mutant.file).relative_to("src")
    clean = path.read_text()
    try:
        path.write_text(apply(mutant, clean))
        command = [sys.executable, "-m", "moldau.testing.sweep", "--world", mutant.world, "--first"]
        command += ["--seeds", seeds or mutant.seeds, "--trouble", mutant.trouble, "--jobs", str(jobs)]
        environment = {**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0"}
        said = subprocess.run(command, env=environment, capture_output=True, text=True, check=False).stdout
    finally:
        path.write_text(clean)
    found = FAILED.search(said)
    if found is None:
        return None
    words = WORDS.findall(said[: found.start()])
    told = f"{words[-1][0]}: {words[-1][1]}" if words else ""
    return Catch(
        name=mutant.name, digest=mutant.digest, trouble=mutant.trouble, seed=int(found.group(1)), words=told[:200]
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="a part of the name")
    parser.add_argument("--seeds", default="", help="instead of those in the list")
    parser.add_argument("--jobs", type=int, default=1, help="so many seeds at the same time")
    parser.add_argument("--new", action="store_true", help="leave out those already recorded as caught")
    options = parser.parse_args(arguments)
    mutants = load(LIST.read_text())
    known = {row["digest"]: row for row in json.loads(RECORD.read_text())} if RECORD.exists() else {}
    chosen = [
        mutant for mutant in mutants if options.only in mutant.name and not (options.new and mutant.digest in known)
    ]
    missed = 0
    with tempfile.TemporaryDirectory(prefix="moldau-mutants-") as folder:
        source = Path(folder) / "src"
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
        for mutant in chosen:
            caught = hunt(mutant, source, options.seeds, options.jobs)
            known.pop(mutant.digest, None)
            if caught is None:
                missed += 1
                print(f"NOT caught: {mutant.name}", flush=True)
            else:
                known[mutant.digest] = asdict(caught)
                print(f"{mutant.trouble} seed {caught.seed}: {mutant.name}: {caught.words}", flush=True)
            rows = [known[each.digest] for each in mutants if each.digest in known]
            RECORD.write_text(json.dumps(rows, indent=1) + "\n")  # after each: a hunt takes long
    print(f"{len(chosen) - missed} caught, {missed} not")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
