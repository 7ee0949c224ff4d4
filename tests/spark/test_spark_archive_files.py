"""Parquet files written by tasks are read by Spark like its own."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from archive_scene import archive, dump, fill, in_archive, parse_offsets_json, transact

from moldau.pipelines.archive_files import StagingFolder
from moldau.pipelines.archive_sink import RECORD
from moldau.pipelines.parquet_source import ParquetTarget
from moldau.testing.broker import Broker
from pyspark_moldau.codec.columns import ROW_WITH_HEADERS

LAKE = "viewfs://lakes"
TIMES_US = [-62_135_596_800_000_000, -12_219_292_800_000_001, -1000, 0, 1, 253_402_300_799_999_999, 2**55]


def files_of(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.rglob("*.parquet"))


@pytest.mark.proves("D3", part="archive and restore")
def test_timestamps_of_any_age_round_trip(spark: Any, tmp_path: Path) -> None:
    rows = [{"offset": at, "timestamp": time_us, "timestampType": 0} for at, time_us in enumerate(TIMES_US)]
    batch = pa.RecordBatch.from_pylist(rows, schema=ROW_WITH_HEADERS)
    list(ParquetTarget(str(tmp_path), "snappy").write_parquet(iter([batch]), 0))
    found = spark.read.schema(RECORD).parquet(str(tmp_path)).selectExpr("offset", "unix_micros(timestamp) as us")
    assert [row["us"] for row in found.orderBy("offset").collect()] == TIMES_US


@pytest.mark.proves("D3", part="archive and restore")
def test_spark_writes_the_archive_where_tasks_cannot(spark: Any, moldau_broker: Broker, tmp_path: Path) -> None:
    spark._jsc.hadoopConfiguration().set("fs.viewfs.mounttable.lakes.link./here", f"file:{tmp_path}")
    topic = moldau_broker.create_topic("kept-elsewhere", partitions=2, **{"retention.ms": "-1"})
    fill(moldau_broker, topic)
    job = archive(moldau_broker, topic, tmp_path, root=f"{LAKE}/here/{topic}")
    assert StagingFolder.if_local(spark, job.root) is None
    assert in_archive(spark, job) == parse_offsets_json(dump(moldau_broker, topic))
    names = files_of(tmp_path / topic)
    assert names
    assert all(name.startswith("part-0000") for name in names)

    transact(moldau_broker, topic, is_commit=True)
    job = archive(moldau_broker, topic, tmp_path, root=str(tmp_path / topic))
    assert in_archive(spark, job) == parse_offsets_json(dump(moldau_broker, topic))
    assert set(names) < set(files_of(tmp_path / topic))
    assert not list(tmp_path.glob("*/_incoming/*"))
