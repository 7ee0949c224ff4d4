"""The tests, in two lanes beside each other: those of real clients and of Spark, which mostly wait, and all others.

Tests that measure how long something takes run before them, alone. A folder that is named nowhere is among the others.
"""

import subprocess
import sys
import threading
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
CHECKED: Final = ("tests/house",)  # by `make check`
PATIENT: Final = "others"  # they compute, and clients have deadlines: so they stand back

Lane = Sequence[Sequence[str]]


def steps() -> list[dict[str, Lane]]:
    """Step after step, the lanes of each beside each other; a lane is what pytest is told, run after run."""
    elsewhere = [f"--ignore={each}" for each in (*MEASURING, *CLIENTS, *SPARK, *CHECKED)]
    return [
        {"measuring": [MEASURING]},
        {"clients": [CLIENTS, SPARK], PATIENT: [["tests", *elsewhere]]},
    ]


def run_step(lanes: Mapping[str, Lane]) -> bool:
    """All lanes to their end, whatever the others find. Says whether all is well."""
    found: list[int] = []
    threads = [threading.Thread(target=run_lane, args=(name, lane, found)) for name, lane in lanes.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return not any(found) and len(found) == sum(len(lane) for lane in lanes.values())


def run_lane(name: str, lane: Lane, found: list[int]) -> None:
    for words in lane:
        # -u for this Python alone: what it starts buffers as it would elsewhere.
        command = [*(["nice"] if name == PATIENT else []), sys.executable, "-u", "-m", "pytest", *words]
        with subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        ) as process:
            for line in process.stdout or ():
                print(f"{name:9} {line}", end="", flush=True)
        found.append(process.returncode)


def main() -> int:
    results = [run_step(lanes) for lanes in steps()]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
