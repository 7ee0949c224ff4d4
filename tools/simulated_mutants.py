"""Applies each listed mutant to a copy of the source and records which seed of the simulator finds it.

`python tools/simulated_mutants.py [--only 'vote'] [--seeds 0-199]`; the record is docs/simulated-mutants.json.
"""

import argparse
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

from mutation import ROOT, apply, shape

LIST = ROOT / "tools/simulated_mutants.toml"
RECORD = ROOT / "docs/simulated-mutants.json"
FAILED = re.compile(r"^seed (\d+) FAILED", re.MULTILINE)
WORDS = re.compile(r"^(?:\w+\.)*(\w*(?:Violation|Failed|Deadlock|Error)): (.*)$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One mutation: in `function` of `file`, `search` becomes `replace`; some seed of this world must then fail."""

    id: str
    name: str
    file: str
    function: str = ""
    search: str
    replace: str
    faults: str = "process"
    world: str = "cluster"
    seeds: str = "0-199"


@dataclass(frozen=True, kw_only=True)
class Catch:
    """How a mutant was found."""

    id: str
    shape: str
    faults: str
    seed: int
    finding: str


def load(text: str) -> list[Mutant]:
    return [Mutant(**entry) for entry in tomllib.loads(text)["mutant"]]


def hunt(mutant: Mutant, source: Path, seeds: str, jobs: int) -> Catch | None:
    """Run seeds over the mutated source until one fails."""
    path = source / Path(mutant.file).relative_to("src")
    clean = path.read_text()
    try:
        path.write_text(apply(mutant, clean))
        command = [sys.executable, "-m", "moldau_dev.simulation.sweep", "--world", mutant.world, "--first"]
        command += ["--seeds", seeds or mutant.seeds, "--faults", mutant.faults, "--jobs", str(jobs)]
        environment = {**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0"}
        said = subprocess.run(command, env=environment, capture_output=True, text=True, check=False).stdout
    finally:
        path.write_text(clean)
    found = FAILED.search(said)
    if found is None:
        return None
    words = WORDS.findall(said[: found.start()])
    finding = f"{words[-1][0]}: {words[-1][1]}" if words else ""
    return Catch(
        id=mutant.id,
        shape=shape(mutant),
        faults=mutant.faults,
        seed=int(found.group(1)),
        finding=finding[:200],
    )


def recorded() -> dict[str, Catch]:
    """The catches by mutant id."""
    rows = json.loads(RECORD.read_text()) if RECORD.exists() else []
    return {row["id"]: Catch(**row) for row in rows}


def is_caught(mutant: Mutant, known: dict[str, Catch]) -> bool:
    return mutant.id in known and known[mutant.id].shape == shape(mutant)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="a part of the name")
    parser.add_argument("--seeds", default="", help="instead of those in the list")
    parser.add_argument("--jobs", type=int, default=1, help="so many seeds at the same time")
    parser.add_argument("--new", action="store_true", help="leave out those already recorded as caught")
    options = parser.parse_args(arguments)
    mutants = load(LIST.read_text())
    known = recorded()
    chosen = [
        mutant for mutant in mutants if options.only in mutant.name and not (options.new and is_caught(mutant, known))
    ]
    missed = 0
    with tempfile.TemporaryDirectory(prefix="moldau-mutants-") as folder:
        source = Path(folder) / "src"
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
        for mutant in chosen:
            caught = hunt(mutant, source, options.seeds, options.jobs)
            known.pop(mutant.id, None)
            if caught is None:
                missed += 1
                print(f"missed: {mutant.name}", flush=True)
            else:
                known[mutant.id] = caught
                print(f"{mutant.faults} seed {caught.seed}: {mutant.name}: {caught.finding}", flush=True)
            rows = [f" {json.dumps(asdict(known[each.id]))}" for each in mutants if each.id in known]
            RECORD.write_text("[\n" + ",\n".join(rows) + "\n]\n")  # after each mutant: a hunt takes long
    print(f"{len(chosen) - missed} caught, {missed} missed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
