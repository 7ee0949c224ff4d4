"""Run the test suite in concurrent lanes, each a sequence of pytest runs.

Tests that measure durations run first and alone. Then three lanes of about equal length share the cores: tests with
real clients and of the command line, which mostly wait; tests that start other processes, and those with Spark; and all
other tests, which compute and run with a lower priority, because the clients have deadlines. A test folder that no lane
names belongs to the last one. The failures are printed again at the end, because often only the end of a long output is
kept.
"""

import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
MEASUREMENTS: Final = (
    "tests/bench",
    "tests/hostile/test_live_broker.py",
    "tests/machines/test_consumer_groups_speed.py",
    "tests/wire/test_wire_schemas.py",
)
CLIENTS: Final = ("tests/clients",)
COMMANDS: Final = ("tests/cli",)
SPARK: Final = ("tests/spark",)  # a pytest run of its own: its session and its JVM end with it
SEEDS: Final = ("tests/simulation/test_found_seeds.py",)
PROCESSES: Final = (
    "tests/api",
    "tests/console",
    "tests/docs",
    "tests/examples",
    "tests/gateway",
    "tests/golden",
    "tests/registry",
    "tests/sink",
    "tests/source",
    "tests/testing",
    "tests/web",
)
HOUSE: Final = ("tests/house",)  # run by `make check`
LOW_PRIORITY: Final = "others"

SUMMARY_PREFIXES: Final = ("FAILED ", "ERROR ")  # of pytest's summary lines
LAST_LINES: Final = 60  # kept of a failed run: usually the last failure and the summary

Lane = Sequence[Sequence[str]]


def steps() -> list[dict[str, Lane]]:
    """Return the steps in order; the lanes of a step run concurrently. A lane is a list of pytest arguments per run."""
    elsewhere = (*MEASUREMENTS, *CLIENTS, *COMMANDS, *SPARK, *SEEDS, *PROCESSES, *HOUSE)
    return [
        {"measuring": [MEASUREMENTS]},
        {
            "clients": [CLIENTS, COMMANDS],
            "processes": [PROCESSES, SPARK],
            LOW_PRIORITY: [["tests", *(f"--ignore={each}" for each in elsewhere)], SEEDS],
        },
    ]


class Run:
    """One pytest run: its exit code and the lines for the recap."""

    def __init__(self, lane: str) -> None:
        self.lane = lane
        self.code: int | None = None
        self._failures: list[str] = []
        self._last: deque[str] = deque(maxlen=LAST_LINES)

    def add_line(self, line: str) -> None:
        self._last.append(line)
        if line.startswith(SUMMARY_PREFIXES):
            self._failures.append(line)

    def recap(self) -> list[str]:
        """Return the lines to print again; none if the run passed."""
        if self.code == 0:
            return []
        return [f"a run exited with {self.code}; its last lines and its failures:\n", *self._last, *self._failures]


def run_step(lanes: Mapping[str, Lane]) -> list[Run]:
    """Run all lanes to the end, whether or not one of them fails."""
    runs = {name: [Run(name) for _ in lane] for name, lane in lanes.items()}
    threads = [threading.Thread(target=run_lane, args=(runs[name], lane)) for name, lane in lanes.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [run for lane in runs.values() for run in lane]


def run_lane(runs: Sequence[Run], lane: Lane) -> None:
    for run, arguments in zip(runs, lane, strict=True):
        # -u applies to this interpreter only: its child processes buffer as usual.
        nice = ["nice"] if run.lane == LOW_PRIORITY else []
        command = [*nice, sys.executable, "-u", "-m", "pytest", *arguments]
        with subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        ) as process:
            for line in process.stdout or ():
                run.add_line(line)
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
