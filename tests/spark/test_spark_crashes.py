"""Queries whose driver is killed at each place of a commit and restarted with other cores and another plan."""

from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, TopicPartition
from quick_settings import DRIVER_SETTINGS
from spark_drivers import held_driver
from trapped_driver import start

from moldau.testing.broker import Broker
from moldau_dev.spark import produce, read_committed, until_all_done

ROWS: Final = 300
BATCHES: Final = 3
# Place and batch of each query when the driver is killed, in the first and the second process. The marker is
# read once per process, before its first transaction.
PLACES: Final = {
    "ana": [("marker read", 0), ("flushed", 1)],  # before the transaction begins; before EndTxn
    "ben": [("publishing", 1), ("committed", 2)],  # in its middle; after EndTxn
    "cleo": [("publishing", 1), ("returned", 2)],  # the same; after commit(), before Spark has noted it
}
ORPHAN: Final = "cleo"  # its committing process outlives the first driver
PROCESSES: Final = [(3, "plain"), (1, "gathered")]  # cores and plan
TASKS: Final = {  # tasks per attempt to commit each batch, by one plan and the other
    "ana": {0: [3, 1], 1: [1]},
    "ben": {0: [3], 1: [3, 1], 2: [1]},
    "cleo": {0: [3], 1: [3, 1], 2: [1]},
}
# Without adaptive execution, a shuffle keeps its number of tasks for few rows too.
SETTINGS: Final = {**DRIVER_SETTINGS, "spark.sql.adaptive.enabled": "false"}


def tasks_by_batch(commits: Path) -> dict[int, list[int]]:
    """Return the number of tasks of each attempt to commit each batch."""
    found: dict[int, list[int]] = {}
    for line in commits.read_text().splitlines():
        batch, tasks = map(int, line.split())
        found.setdefault(batch, []).append(tasks)
    return found


def offsets_used(broker: Broker, topic: str) -> int:
    """Return the number of offsets of rows, aborted rows and transaction markers."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "r"})
    ends = [consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=60) for number in (0, 1)]
    consumer.close()
    return sum(end for _, end in ends)


@pytest.mark.proves("D2")
def test_rows_are_written_once_when_the_driver_crashes_during_a_commit(
    spark: Any, moldau_broker: Broker, topic: str, tmp_path: Path
) -> None:
    for name in PLACES:
        moldau_broker.create_topic(f"{topic}.{name}", partitions=2)
    produce(moldau_broker, topic, ROWS)
    plan: dict[str, Any] = {
        "servers": moldau_broker.bootstrap_servers,
        "source": topic,
        "checkpoints": str(tmp_path / "checkpoints"),
        "rows_per_batch": ROWS // BATCHES,
        "settings": SETTINGS,
    }
    for number, (cores, shape) in enumerate(PROCESSES):
        traps = {
            name: {
                "place": places[number][0],
                "first_batch": places[number][1],
                "is_spared": name == ORPHAN and number == 0,
                "commits": str(tmp_path / f"commits-{name}"),
            }
            for name, places in PLACES.items()
        }
        run = {**plan, "master": f"local[{cores}]", "shape": shape, "traps": traps}
        with held_driver("trapped_driver.py", run, tmp_path / f"number-{number}", set(PLACES)) as held:
            found = {name: (each.place, each.batch) for name, each in held.items()}
            assert found == {name: places[number] for name, places in PLACES.items()}
    until_all_done([partial(start, spark, plan, name, "joined") for name in PLACES])
    for name in PLACES:
        rows = read_committed(moldau_broker, f"{topic}.{name}", 2)
        assert sorted(int(value) for _, value in rows) == list(range(ROWS))
        assert len({key for key, _ in rows}) == ROWS
        assert tasks_by_batch(tmp_path / f"commits-{name}") == TASKS[name]
    markers_max = 2 * (BATCHES + 2 * len(PROCESSES))
    assert offsets_used(moldau_broker, f"{topic}.ana") >= ROWS + ROWS // BATCHES, "no rows of an aborted attempt"
    assert offsets_used(moldau_broker, f"{topic}.ben") <= ROWS + ROWS // BATCHES + markers_max
    assert not list((tmp_path / "checkpoints").rglob("*.arrow"))
