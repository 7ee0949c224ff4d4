"""The tests, in two lanes beside each other: those of real clients and of Spark, which mostly wait, and all others.

Tests that measure how long something takes run before them, alone. A folder that is named nowhere is among the others.
What failed is said once more at the end: of a long output, often only the end is kept.
"""

import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
MEASURING: Final = (
    "tests/bench",
    "tests/hostile/test_live_broker.py",
    "tests/machines/test_consumer_groups_speed.py",
    "tests/wire/test_wire_schemas.py",
)
CLIENTS: Final = ("tests/clients",)
SPARK: Final = ("tests/spark",)  # in a process of its own: its session and its JVM end with it
SEEDS: Final = ("tests/simulation/test_found_seeds.py",)  # they compute, but that lane ends first
CHECKED: Final = ("tests/house",)  # by `make check`
PATIENT: Final = "others"  # they compute, and clients have deadlines: so they stand back

FAILURE: Final = ("FAILED ", "ERROR ")  # how pytest's summary begins its lines
LAST_LINES: Final = 60  # of a run that failed, which mostly hold the last failure and the summary

Lane = Sequence[Sequence[str]]


def steps() -> list[dict[str, Lane]]:
    """Step after step, the lanes of each beside each other; a lane is what pytest is told, run after run."""
    elsewhere = [f"--ignore={each}" for each in (*MEASURING, *CLIENTS, *SPARK, *SEEDS, *CHECKED)]
    return [
        {"measuring": [MEASURING]},
        {"clients": [CLIENTS, SPARK, SEEDS], PATIENT: [["tests", *elsewhere]]},
    ]


class Run:
    """One pytest: how it ended, and what is to be said of it once more."""

    def __init__(self, lane: str) -> None:
        self.lane = lane
        self.code: int | None = None
        self._failures: list[str] = []
        self._last: deque[str] = deque(maxlen=LAST_LINES)

    def printed(self, line: str) -> None:
        self._last.append(line)
        if line.startswith(FAILURE):
            self._failures.append(line)

    def recap(self) -> list[str]:
        """Nothing, if all is well."""
        if self.code == 0:
            return []
        return [f"a run ended with {self.code}; its last lines, and what failed:\n", *self._last, *self._failures]


def run_step(lanes: Mapping[str, Lane]) -> list[Run]:
    """All lanes to their end, whatever the others find."""
    runs = {name: [Run(name) for _ in lane] for name, lane in lanes.items()}
    threads = [threading.Thread(target=run_lane, args=(runs[name], lane)) for name, lane in lanes.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [run for lane in runs.values() for run in lane]


def run_lane(runs: Sequence[Run], lane: Lane) -> None:
    for run, words in zip(runs, lane, strict=True):
        # -u for this Python alone: what it starts buffers as it would elsewhere.
        command = [*(["nice"] if run.lane == PATIENT else []), sys.executable, "-u", "-m", "pytest", *words]
        with subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        ) as process:
            for line in process.stdout or ():
                run.printed(line)
                print(f"{run.lane:9} {line}", end="", flush=True)
        run.code = process.returncode


def main() -> int:
    runs = [run for lanes in steps() for run in run_step(lanes)]
    for run in runs:
        for line in run.recap():
            print(f"{run.lane:9} {line}", end="", flush=True)
    return 0 if all(run.code == 0 for run in runs) else 1


if __name__ == "__main__":
    sys.exit(main())
