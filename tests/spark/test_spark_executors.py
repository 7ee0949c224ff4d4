"""A cluster of two executors, one of which is killed during a task: the jobs complete exactly once."""

from pathlib import Path
from typing import Any, Final

import pyspark
import pytest
from confluent_kafka import Producer
from quick_settings import DRIVER_SETTINGS, JAVA_OPTIONS
from spark_drivers import run_driver

from moldau.testing.broker import Broker
from moldau_dev.spark import read_committed

MASTER: Final = "local-cluster[2,1,1024]"
ROWS: Final = 300
PADDING: Final = b" " * 20_000  # makes the rows of a task too large to be staged inline
SETTINGS: Final = {
    **DRIVER_SETTINGS,
    "spark.executor.memory": "1024m",
    "spark.executor.extraJavaOptions": JAVA_OPTIONS,
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "20",  # several Arrow batches per task
    "spark.shuffle.io.retryWait": "500ms",  # a killed executor does not come back
    "spark.locality.wait": "0s",
}


def fill(broker: Broker, topic: str) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for number in range(ROWS):
        producer.produce(topic, b"%d" % number + PADDING, partition=number % 2)
    assert producer.flush(60) == 0


def spark_home(folder: Path) -> Path:
    """Link the installed Spark from another directory, where its workers write their logs."""
    folder.mkdir()
    for each in Path(str(pyspark.__file__)).parent.iterdir():
        if each.name != "work":
            (folder / each.name).symlink_to(each)
    return folder


@pytest.mark.proves("D2", "D5")
def test_rows_are_written_once_when_executors_crash(moldau_broker: Broker, topic: str, tmp_path: Path) -> None:
    fill(moldau_broker, topic)
    targets = {kind: moldau_broker.create_topic(f"{topic}-{kind}", partitions=2) for kind in ("stream", "batch")}
    traps: dict[str, dict[str, Any]] = {
        "stream": {"place": "staging", "first_batch": 1, "note": str(tmp_path / "in-the-stream")},
        "batch": {"place": "staged", "first_batch": 0, "note": str(tmp_path / "in-the-batch")},
    }
    plan = {
        "master": MASTER,
        "settings": SETTINGS,
        "servers": moldau_broker.bootstrap_servers,
        "source": topic,
        "targets": targets,
        "traps": traps,
        "rows_per_batch": ROWS // 3,
        "checkpoint": str(tmp_path / "checkpoint"),
        "staging": str(tmp_path / "staging"),
    }
    home = spark_home(tmp_path / "home")
    code, words = run_driver("cluster_driver.py", plan, SPARK_HOME=str(home), SPARK_LOCAL_IP="127.0.0.1")
    assert code == 0, words
    killed = {int(Path(trap["note"]).read_text()) for trap in traps.values()}
    assert len(killed) == len(traps)
    for target in targets.values():
        rows = read_committed(moldau_broker, target, 2)
        assert sorted(int(value) for _, value in rows) == list(range(ROWS))
    assert not list(tmp_path.rglob("*.arrow"))
