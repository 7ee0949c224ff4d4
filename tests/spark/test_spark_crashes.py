"""A query whose driver is killed in the middle of its commits, and comes back with other cores: exactly once."""

import signal
from pathlib import Path
from typing import Any, Final

import pytest
from spark_scene import DRIVER_SETTINGS, live, produce, read_committed

from moldau.testing.broker import Broker

ROWS: Final = 900
# Place, the first batch in which it counts, cores; whether the process that commits dies with the driver.
LIVES: Final = [
    ("marker read", 0, 2, True),
    ("publishing", 1, 1, True),
    ("publishing", 2, 2, False),
    ("flushed", 3, 3, True),
    ("committed", 4, 1, True),
    ("returned", 5, 2, True),
]


@pytest.mark.proves("D2")
@pytest.mark.timeout(2400)  # seven sessions, one after the other
def test_every_row_is_out_once_though_the_driver_dies_at_each_place_of_a_commit(
    moldau_broker: Broker, topic: str, tmp_path: Path
) -> None:
    target = moldau_broker.create_topic(f"{topic}-out", partitions=2)
    produce(moldau_broker, topic, ROWS)
    plan: dict[str, Any] = {
        "servers": moldau_broker.bootstrap_servers,
        "source": topic,
        "target": target,
        "checkpoint": str(tmp_path / "checkpoint"),
        "rows_per_batch": ROWS // 9,
        "settings": DRIVER_SETTINGS,
    }
    for number, (place, first_batch, cores, with_committer) in enumerate(LIVES):
        note = tmp_path / f"fell-{number}"
        trap = {"place": place, "first_batch": first_batch, "note": str(note), "with_committer": with_committer}
        code, words = live("trapped_driver.py", {**plan, "master": f"local[{cores}]", "trap": trap})
        assert note.exists(), f"the trap at {place!r} did not fall: the life ended with {code}\n{words}"
        assert code == -signal.SIGKILL
    code, words = live("trapped_driver.py", {**plan, "master": "local[3]", "trap": {}})
    assert code == 0, words
    rows = read_committed(moldau_broker, target, 2)
    assert sorted(int(value) for _, value in rows) == list(range(ROWS))
    assert len({key for key, _ in rows}) == ROWS
    assert not list((tmp_path / "checkpoint").rglob("*.arrow"))
