"""Pipelines whose driver is killed in a batch: it is seen, and they go on with other cores, exactly once."""

import json
import signal
from pathlib import Path
from typing import Any, Final

import pytest
from spark_scene import DRIVER_SETTINGS, live, produce, read_committed
from trapped_pipeline import run_archive
from typer.testing import CliRunner

from moldau.cli.main import app
from moldau.pipelines.archive import records_of
from moldau.testing.broker import Broker

ROWS: Final = 300


def state_of(folder: Path, name: str) -> Any:
    result = CliRunner().invoke(app, ["pipeline", "status", name, "--folder", str(folder), "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.mark.proves("D3", "O3")
@pytest.mark.timeout(1200)  # two sessions, one after the other
def test_a_driver_that_is_killed_in_a_batch_of_transform_or_archive_costs_nothing(
    spark: Any, moldau_broker: Broker, topic: str, tmp_path: Path
) -> None:
    target = moldau_broker.create_topic(f"{topic}-out", partitions=2)
    produce(moldau_broker, topic, ROWS)
    publishing, renaming = tmp_path / "publishing", tmp_path / "renaming"
    trap = {"place": "publishing", "first_batch": 1, "note": str(publishing), "with_committer": True}
    plan: dict[str, Any] = {
        "servers": moldau_broker.bootstrap_servers,
        "topic": topic,
        "target": target,
        "folder": str(tmp_path / "pipelines"),
        "lake": str(tmp_path / "lake"),
        "rows_per_batch": ROWS // 3,
        "settings": DRIVER_SETTINGS,
        "archive_trap": {},
    }
    code, words = live("trapped_pipeline.py", {**plan, "master": "local[2]", "transform_trap": trap})
    assert publishing.exists(), f"the trap did not fall: {words}"
    assert code == -signal.SIGKILL
    assert state_of(tmp_path / "pipelines", "moved")["state"] == "died"

    trap = {"batch": 1, "note": str(renaming)}
    lives = {**plan, "master": "local[3]", "transform_trap": {}, "archive_trap": trap}
    code, words = live("trapped_pipeline.py", lives)
    assert renaming.exists(), f"the trap did not fall: {words}"
    assert code == -signal.SIGKILL
    moved = state_of(tmp_path / "pipelines", "moved")
    assert (moved["state"], moved["progress"]["lag_total"]) == ("done", 0)
    rows = read_committed(moldau_broker, target, 2)
    assert sorted(int(value) for _, value in rows) == list(range(ROWS))

    assert state_of(tmp_path / "pipelines", "kept")["state"] == "died"
    run_archive({**plan, "master": "local[2]", "settings": {}}, {})
    found = [(row["partition"], row["offset"]) for row in records_of(spark, plan["lake"]).collect()]
    assert sorted(found) == [(partition, offset) for partition in (0, 1) for offset in range(ROWS // 2)]
    assert state_of(tmp_path / "pipelines", "kept")["state"] == "done"
