"""The driver of a lake job is killed at every named point: the table is the input, exactly once."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from lake_kills import POINTS

from moldau.pipelines.lake.layout import Mode
from moldau.pipelines.lake.tables import TableFormat

HERE = Path(__file__).parent
# `make test` runs a selection, `make soak-spark` all of them.
SELECTED = (
    ("after files", "delta"),
    ("during compaction", "iceberg"),
    ("after commit", "parquet"),
)


def run_cases(folder: Path, cases: list[tuple[str, str, str]]) -> list[dict[str, Any]]:
    path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, str(HERE / "lake_kills.py"), str(folder), json.dumps(cases)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": path})
    return [json.loads(line) for line in done.stdout.splitlines()]


def expected(mode: str) -> list[list[Any]]:
    """Return the rows of three batches, each of ten records whose keys overlap with the batch before."""
    appended = [
        [each // 5, 5 * number + each % 5, f"k{number + each}", 10 * number + each]
        for number in range(3)
        for each in range(10)
    ]
    if mode == Mode.UPSERT.value:
        # The second half of a batch is in partition 1, so a key moves between them; its latest batch wins.
        appended = list({row[2]: row for row in appended}.values())
    return sorted(appended)


@pytest.mark.proves("D6", part="kill matrix")
def test_tables_are_their_input_when_the_driver_is_killed(tmp_path: Path) -> None:
    every = [(point, kind.value, mode.value) for kind in TableFormat for point in POINTS for mode in Mode]
    kills = int(os.environ.get("LAKE_KILLS", "0"))
    cases = every * -(-kills // len(every))
    if not kills:
        cases = [each for each in every if each[:2] in SELECTED and each[2] == Mode.APPEND.value]
    found = run_cases(tmp_path, cases)
    assert [(each["point"], each["kind"], each["mode"]) for each in found] == cases
    for each in found:
        assert each["is_killed"], each
        is_committed = each["point"] == "after commit"
        assert each["last"] == (2 if is_committed else 1), each
        assert sorted(each["rows"]) == expected(each["mode"]), each
        assert each["orphans"] == 0, each
