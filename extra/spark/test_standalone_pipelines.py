"""A standalone cluster with two workers runs the pipelines as they are: only the master's address differs."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer
from standalone_cluster import Standalone

from moldau.testing.broker import Broker
from moldau_dev.spark import read_committed

RUN_S_MAX = 500
ROWS = 5_000
START_MS = 1_767_225_600_000
QUERY = "select key, cast(3 * cast(cast(value as string) as int) as string) as value from input"
CONF = (
    "--conf spark.driver.host=127.0.0.1 --conf spark.driver.memory=512m --conf spark.sql.shuffle.partitions=3"
).split()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with Standalone(tmp_path_factory.mktemp("cluster"), workers=2) as made:
        yield made


def run_pipeline(broker: Broker, folder: Path, master: str, *words: str) -> None:
    command = [sys.executable, "-m", "moldau.cli.main", "pipeline", "run", *words, "--once", "--json", "--master"]
    done = subprocess.run(
        [*command, master, *CONF, "-b", broker.bootstrap_servers],
        env={**os.environ, "MOLDAU_PIPELINES": str(folder), "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=RUN_S_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


def fill(broker: Broker, topic: str) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for number in range(ROWS):
        producer.produce(topic, b"%d" % number, b"k%d" % number, partition=number % 2)
    assert producer.flush(60) == 0


@pytest.mark.proves("D5")
@pytest.mark.timeout(1800)
def test_transform_gives_the_same_results_on_a_cluster(
    moldau_broker: Broker, topic: str, cluster: Standalone, tmp_path: Path
) -> None:
    fill(moldau_broker, topic)
    (tmp_path / "query.sql").write_text(QUERY)
    results = []
    for place, master in (("here", "local[2]"), ("there", cluster.master)):
        out = moldau_broker.create_topic(f"{topic}-{place}", partitions=2)
        words = ["transform", "--topic", topic, "--to", out, "--sql", str(tmp_path / "query.sql")]
        run_pipeline(moldau_broker, tmp_path / place, master, *words, "--rows-per-batch", "2000")
        results.append(sorted(read_committed(moldau_broker, out, 2)))
    here, there = results
    assert there == here == sorted((b"k%d" % number, b"%d" % (3 * number)) for number in range(ROWS))
    assert cluster.workers_that_ran("CoarseGrainedExecutorBackend") == ["worker-0", "worker-1"]


def event(number: int) -> bytes:
    kind = "purchase" if number % 10 == 0 else "view"
    at_ms = START_MS + number * 500
    user, page = f"u{number % 7}", f"/{number % 3}"
    return json.dumps({"event_id": f"e{number}", "user": user, "kind": kind, "page": page, "at": str(at_ms)}).encode()


@pytest.mark.proves("D5")
@pytest.mark.timeout(1800)
def test_activity_gives_the_same_results_on_a_cluster(
    moldau_broker: Broker, cluster: Standalone, tmp_path: Path
) -> None:
    """State, watermarks, two sinks and a report, executed by the workers."""
    topic = moldau_broker.create_topic("raw-events", partitions=2, **{"retention.ms": "-1"})
    producer = Producer({"bootstrap.servers": moldau_broker.bootstrap_servers})
    for number in [*range(400), *range(50)]:
        producer.produce(topic, event(number), b"k", number % 2, timestamp=START_MS + number * 500)
    producer.produce(topic, b"no event", b"k", 0, timestamp=START_MS)
    assert producer.flush(60) == 0
    results: list[dict[str, list[tuple[bytes, bytes]]]] = []
    for place, master in (("here", "local[2]"), ("there", cluster.master)):
        words = ["activity", "--topic", topic, "--out", place, "--partitions", "2", "--lateness", "10 seconds"]
        run_pipeline(moldau_broker, tmp_path / place, master, *words)
        kinds = ("events", "dead-letters", "counts")
        results.append({kind: sorted(read_committed(moldau_broker, f"{place}.{kind}", 2)) for kind in kinds})
        assert list((tmp_path / place).rglob("report.html"))
    here, there = results
    assert {kind: len(rows) for kind, rows in here.items() if kind != "counts"} == {"events": 400, "dead-letters": 1}
    assert here["counts"]
    assert there == here


@pytest.mark.proves("D5")
@pytest.mark.timeout(1800)
def test_archive_gives_the_same_results_on_a_cluster(
    moldau_broker: Broker, topic: str, cluster: Standalone, tmp_path: Path
) -> None:
    """Executors write the files by themselves, to a folder that all of them share."""
    fill(moldau_broker, topic)
    for place, master in (("here", "local[2]"), ("there", cluster.master)):
        words = ["archive", "--topic", topic, "--to", str(tmp_path / place / "lake"), "--rows-per-batch", "2000"]
        run_pipeline(moldau_broker, tmp_path / place, master, *words)
        rows = pq.read_table(tmp_path / place / "lake" / topic, partitioning="hive").select(
            ["partition", "offset", "value"]
        )
        found = sorted((row["partition"], row["offset"], row["value"]) for row in rows.to_pylist())
        assert found == sorted((number % 2, number // 2, b"%d" % number) for number in range(ROWS))
