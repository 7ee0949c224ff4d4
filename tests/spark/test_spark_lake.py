"""`moldau pipeline run lake`: topics as tables, through Spark, read by engines that are not ours."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from typer.testing import CliRunner

from moldau.cli.main import app
from moldau.testing.broker import Broker
from moldau_dev.spark import read_committed

ENDED = 0


def produce(broker: Broker, topic: str, values: Sequence[tuple[str | None, bytes | None]]) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for number, (key, value) in enumerate(values):
        producer.produce(topic, value, key, partition=number % 2)
    assert producer.flush(30) == 0


def run_lake(broker: Broker, topic: str, folder: Path, kind: str, *options: str) -> str:
    words = ["pipeline", "run", "lake", topic, "--to", kind, "--table", str(folder / kind)]
    words += ["--folder", str(folder / "pipelines"), "--bootstrap-servers", broker.bootstrap_servers, *options]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == ENDED, done.output + repr(done.exception)
    return done.output


def clicks(first: int, count: int) -> list[tuple[str | None, bytes | None]]:
    shapes = [{"n": each, "at": f"2026-05-{each % 3 + 1:02d}T10:00:00Z"} for each in range(first, first + count)]
    return [("k", json.dumps(each).encode()) for each in shapes]


@pytest.mark.usefixtures("spark")
@pytest.mark.proves("D6")
def test_topic_becomes_an_iceberg_table(moldau_broker: Broker, topic: str, tmp_path: Path) -> None:
    letters = moldau_broker.create_topic(f"{topic}.dead", partitions=1)
    options = ("--value", "json", "--time", "at", "--partition-by", "day", "--dead-letters", letters, "--once")
    produce(moldau_broker, topic, [*clicks(0, 10), (None, b"not json"), (None, b"{}"), *clicks(10, 10)])
    run_lake(moldau_broker, topic, tmp_path, "iceberg", *options)
    produce(moldau_broker, topic, clicks(20, 10))
    # A new checkpoint continues where the table ends.
    shutil.rmtree(tmp_path / "pipelines")
    schedule = ("--maintain-every", "0 s", "--keep", "0 s", "--orphan-age", "0 s")
    run_lake(moldau_broker, topic, tmp_path, "iceberg", *options, *schedule)

    catalog = load_catalog("moldau", type="sql", uri=f"sqlite:///{tmp_path}/catalog.db")
    table = catalog.load_table("default.iceberg")
    found = table.scan().to_arrow()
    assert duckdb.execute("select count(*), count(distinct n), sum(n) from found").fetchall() == [(31, 30, 435)]
    assert len({(row["_partition"], row["_offset"]) for row in found.to_pylist()}) == 31
    assert len(list(table.scan().plan_files())) == 4  # compacted: a file per day
    assert len(table.snapshots()) == 1
    assert [value for _, value in read_committed(moldau_broker, letters, 1)] == [b"not json"]


@pytest.mark.proves("D6", part="upserts")
def test_changelog_becomes_an_upserted_delta_table(
    spark: Any, moldau_broker: Broker, topic: str, tmp_path: Path
) -> None:
    rows = [(f"k{number % 10}", json.dumps({"n": number}).encode()) for number in range(40)]
    produce(moldau_broker, topic, [*rows, ("k4", None), ("k5", None)])
    options = ("--value", "json", "--mode", "upsert", "--once")
    for _ in range(2):
        run_lake(moldau_broker, topic, tmp_path, "delta", *options, "--rows-per-batch", "20")
    frame = DeltaTable(tmp_path / "delta").to_pandas()
    assert dict(zip(frame["_key"], frame["n"], strict=True)) == {f"k{n}": 30 + n for n in range(10) if n not in (4, 5)}
    files = DeltaTable(tmp_path / "delta").file_uris()
    assert spark.read.parquet(*files).selectExpr("sum(n)").first()[0] == frame["n"].sum()


@pytest.mark.proves("D6")
def test_range_of_a_topic_becomes_parquet_files(spark: Any, moldau_broker: Broker, topic: str, tmp_path: Path) -> None:
    produce(moldau_broker, topic, [("k", b"%d" % number) for number in range(20)])
    for _ in range(2):
        run_lake(moldau_broker, topic, tmp_path, "parquet", "--until", "6", "--partition-by", "hour")
    table = tmp_path / "parquet"
    assert len(pd.read_parquet(table)) == 12
    query = f"select sum(cast(value as varchar)::int) from read_parquet('{table}/**/*.parquet')"
    assert duckdb.execute(query).fetchall() == [(66,)]
    assert spark.read.parquet(str(table)).where("event_hour is not null").count() == 12
