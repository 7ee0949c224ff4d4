"""Lake tables of all formats: what a batch adds, what a replay adds, what maintenance keeps, and what engines read."""

import os
from collections import Counter
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from lake_scene import HOUR_US, START_US, WRITER, Scene, objects, records

from moldau.pipelines.lake import table_files
from moldau.pipelines.lake.lake_table import BatchId, Compaction, LakeTable
from moldau.pipelines.lake.layout import Layout, Mode, ValueFormat, stored_layout
from moldau.pipelines.lake.maintenance import Maintenance, ScheduledMaintenance
from moldau.pipelines.lake.tables import TableFormat, open_table
from moldau.pipelines.requirements import PipelineError

ALL = pytest.mark.parametrize("kind", TableFormat, ids=lambda kind: kind.value)
JSON: dict[str, Any] = {"value": ValueFormat.JSON}
UPSERT: dict[str, Any] = {"value": ValueFormat.JSON, "mode": Mode.UPSERT}
MAINTENANCE = Maintenance(file_bytes=1_000_000, keep_s=0, orphan_s=0)


def data_files(scene: Scene) -> list[Path]:
    return [each for each in scene.folder.rglob("*.parquet") if "_delta_log" not in each.parts]


@ALL
@pytest.mark.proves("D6", part="exactly once")
def test_replayed_batch_is_committed_once(kind: TableFormat, tmp_path: Path) -> None:
    scene = Scene(kind, tmp_path)
    for number in (0, 1, 1):
        scene.put(number, records([b"%d" % number, None], first=2 * number))
    rows = scene.rows()
    assert [(row["_offset"], row["value"]) for row in rows] == [(0, b"0"), (1, None), (2, b"1"), (3, None)]
    assert [row["_key"] for row in rows] == [b"k0", b"k1"] * 2
    assert rows[0]["_headers"] == [{"key": "from", "value": b"shop"}]
    assert rows[1]["_timestamp"] == datetime.fromtimestamp((START_US + HOUR_US) / 1e6, UTC)
    with pytest.raises(PipelineError, match=r"already has batch 1 of this query: the checkpoint is an old copy"):
        scene.put(0, records([b"0"]))


@ALL
@pytest.mark.proves("D6", part="exactly once")
def test_batch_of_two_drivers_is_committed_once(
    kind: TableFormat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An old driver, which has not noticed its successor, opens the table before the other's commit."""
    old, new, batch = Scene(kind, tmp_path), Scene(kind, tmp_path), BatchId(WRITER, 0)
    frame = old.frame([records([b"1", b"2"])])
    opening = "_locked" if kind is TableFormat.PARQUET else "_existing"
    opened, names = getattr(type(old.table), opening), [old.table]

    def open_late(table: LakeTable) -> Any:
        if table not in names:
            return opened(table)
        names.clear()
        found = None if kind is TableFormat.PARQUET else opened(table)
        new.sink.put(frame, batch)
        return found or opened(table)

    monkeypatch.setattr(type(old.table), opening, open_late)
    old.sink.put(frame, batch)
    assert not names
    assert [row["value"] for row in new.rows()] == [b"1", b"2"]


@ALL
@pytest.mark.proves("D6", part="columns and partitions")
def test_json_fields_become_columns_that_grow(kind: TableFormat, tmp_path: Path) -> None:
    scene = Scene(kind, tmp_path, **JSON)
    scene.put(0, records(objects({"id": 1, "at": "2026-01-01T00:00:00Z"}, {"id": 2, "tags": [], "none": None})))
    scene.put(
        1, records([*objects({"id": 3, "tags": ["a"], "by": {"x": 1}}), b'{\n "id": 4,\n "by": {"y": "z"}}'], first=2)
    )
    rows = scene.rows()
    found = [{name: row[name] for name in ("id", "at", "tags", "by")} for row in rows]
    assert found == [
        {"id": 1, "at": "2026-01-01T00:00:00Z", "tags": None, "by": None},
        {"id": 2, "at": None, "tags": None, "by": None},
        {"id": 3, "at": None, "tags": ["a"], "by": {"x": 1, "y": None}},
        {"id": 4, "at": None, "tags": None, "by": {"x": None, "y": "z"}},
    ]
    assert "none" not in rows[0]


@ALL
@pytest.mark.proves("D6", part="dead letters")
def test_values_that_do_not_fit_become_dead_letters(kind: TableFormat, tmp_path: Path) -> None:
    scene = Scene(kind, tmp_path, **JSON)
    bad = [b'{"id": "one"}', b"\xff", b"", b"[1]", b'{"id": 1} {"id": 2}', b'{"id": 3', b'{"ID": 1}', b"{" * 100_000]
    scene.put(0, records([*objects({"id": 1}), *bad, b'{"id": 9}', b'{"id": 1, "id": 10}', None]))
    assert [(row["_offset"], row["id"]) for row in scene.rows()] == [(0, 1), (9, 9), (10, 10), (11, None)]
    assert [(letter["offset"], letter["value"]) for letter in scene.letters.published] == list(enumerate(bad, 1))
    reasons = [letter["reason"] for letter in scene.letters.published]
    assert all(reasons)
    assert "differs only in case" in reasons[6]


@pytest.mark.proves("D6", part="dead letters")
def test_value_that_does_not_fit_stops_the_job_without_dead_letters(tmp_path: Path) -> None:
    from dataclasses import replace

    scene = Scene(TableFormat.DELTA, tmp_path, **JSON)
    sink = replace(scene.sink, letters=None)
    with pytest.raises(PipelineError, match=r"partition 0, offset 1 does not fit the table: .*--dead-letters TOPIC"):
        sink.put(scene.frame([records([b"{}", b"x"])]), BatchId(WRITER, 0))
    assert scene.rows() == []


@pytest.mark.proves("D6", part="columns and partitions")
def test_new_fields_are_ignored_or_stop_the_job(tmp_path: Path) -> None:
    values = records(objects({"id": 1, "more": 2}))
    columns = pa.schema([("id", pa.int64())])
    ignoring = Scene(TableFormat.PARQUET, tmp_path / "ignore", columns, new_fields="ignore", **JSON)
    ignoring.put(0, values)
    assert [row["id"] for row in ignoring.rows()] == [1]
    assert "more" not in ignoring.rows()[0]
    stopping = Scene(TableFormat.PARQUET, tmp_path / "stop", columns, new_fields="stop", **JSON)
    with pytest.raises(PipelineError, match="no column for the fields more"):
        stopping.put(0, values)


@ALL
@pytest.mark.proves("D6", part="columns and partitions")
def test_late_rows_are_in_the_partition_of_their_event_time(kind: TableFormat, tmp_path: Path) -> None:
    columns = pa.schema([("shop", pa.string())])
    scene = Scene(kind, tmp_path, columns, time="at", by=("day", "shop"), **JSON)
    late = objects(
        {"at": "2026-03-02T23:59:59.5Z", "shop": "a/b c"},
        {"at": "2026-03-02T02:00:00+02:00", "shop": "x"},
        {"shop": None},
    )
    scene.put(0, records([late[0], late[2]]))
    scene.put(1, records(late[1:2], first=2))
    rows = scene.rows()
    assert [row["_time"] for row in rows] == [
        datetime(2026, 3, 2, 23, 59, 59, 500_000, UTC),
        rows[1]["_timestamp"],
        datetime(2026, 3, 2, tzinfo=UTC),
    ]
    assert [row["shop"] for row in rows] == ["a/b c", None, "x"]
    if kind is TableFormat.ICEBERG:
        files = scene.table._existing().scan().plan_files()  # type: ignore[attr-defined]
        assert Counter(each.file.partition[0] for each in files) == {20_514: 2, 19_675: 1}
    else:
        assert [row["event_day"] for row in rows] == [date(2026, 3, 2), date(2023, 11, 14), date(2026, 3, 2)]


@ALL
@pytest.mark.proves("D6", part="upserts")
def test_upserted_table_has_the_latest_row_of_each_key(kind: TableFormat, tmp_path: Path) -> None:
    scene = Scene(kind, tmp_path, **UPSERT)
    scene.put(0, records(objects({"n": 1}, {"n": 2}, {"n": 3}), keys=[b"a", b"b", b"a"]))
    assert {row["_key"]: row["n"] for row in scene.rows()} == {"a": 3, "b": 2}
    change = records([*objects({"n": 4}), None, None, *objects({"n": 5})], first=3, keys=[b"c", b"b", b"none", b"a"])
    for _ in range(2):
        scene.put(1, change)
    assert [(row["_key"], row["n"]) for row in scene.rows()] == [("c", 4), ("a", 5)]
    scene.put(2, records([*objects({"n": 6}), b"{}"], first=7, keys=[b"b", None]))
    assert {row["_key"]: row["n"] for row in scene.rows()} == {"a": 5, "b": 6, "c": 4}
    assert [each["reason"] for each in scene.letters.published] == ["a record without a key cannot be upserted"]


@ALL
@pytest.mark.proves("D6", part="maintenance")
def test_maintenance_keeps_rows_and_committed_batches(kind: TableFormat, tmp_path: Path) -> None:
    scene = Scene(kind, tmp_path, by=("day",))
    for number in range(4):
        scene.put(number, records([b"%d" % number] * 5, first=5 * number))
    before = scene.rows()
    orphan = scene.table.data_folder / "orphan.parquet"
    orphan.write_bytes(b"of a task that was killed")
    files = len(data_files(scene))
    done = MAINTENANCE.run(scene.table)
    assert done.compaction.removed > done.compaction.added > 0
    assert len(data_files(scene)) == files - done.compaction.removed + done.compaction.added - 1
    assert not orphan.exists()
    assert scene.rows() == before
    scene.put(3, records([b"again"] * 5, first=15))
    scene.put(4, records([b"4"], first=20))
    assert [row["_offset"] for row in scene.rows()] == list(range(21))


@ALL
@pytest.mark.proves("D6", part="engines")
def test_engines_read_the_table(kind: TableFormat, tmp_path: Path) -> None:
    scene = Scene(kind, tmp_path, by=("day",), **JSON)
    scene.put(0, records(objects(*({"n": number} for number in range(10)))))
    scene.put(1, records(objects({"n": 10, "more": "x"}), first=10))
    query = "select count(*), sum(n), count(more) from found"
    match kind:
        case TableFormat.DELTA:
            found = DeltaTable(scene.folder).to_pyarrow_dataset()
            frame = DeltaTable(scene.folder).to_pandas()
        case TableFormat.ICEBERG:
            opened = scene.table._existing().scan()  # type: ignore[attr-defined]
            found, frame = opened.to_arrow(), opened.to_pandas()
        case TableFormat.PARQUET:
            found = duckdb.read_parquet(f"{scene.folder}/**/[!_]*.parquet", union_by_name=True, hive_partitioning=True)
            frame = pd.read_parquet(scene.folder)
    assert duckdb.execute(query).fetchall() == [(11, 55, 1)], found
    assert (len(frame), frame["n"].sum()) == (11, 55)


@pytest.mark.proves("D6", part="maintenance")
def test_scheduled_maintenance_keeps_its_interval(tmp_path: Path) -> None:
    scene, now_s = Scene(TableFormat.PARQUET, tmp_path), [100.0]
    scheduled = ScheduledMaintenance(scene.table, MAINTENANCE, 60, lambda: now_s[0])
    for number in range(2):
        scene.put(number, records([b"1"], first=number))
    scheduled(None)
    assert len(list(scene.folder.glob("*.parquet"))) == 2
    now_s[0] += 60
    scheduled(None)
    assert len(list(scene.folder.glob("*.parquet"))) == 1


def test_large_files_are_closed_at_the_target_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_files, "_BUFFER_BYTES", 100_000)
    scene = Scene(TableFormat.PARQUET, tmp_path, file_bytes=300_000, codec="none")
    scene.put(0, *(records([os.urandom(10_000) for _ in range(10)], first=10 * number) for number in range(10)))
    sizes = [each.stat().st_size for each in scene.folder.glob("*.parquet")]
    assert len(sizes) == 4
    assert max(sizes) < 420_000
    assert len(scene.rows()) == 100


def test_table_is_not_written_with_another_layout(tmp_path: Path) -> None:
    scene = Scene(TableFormat.PARQUET, tmp_path, by=("day",))
    assert stored_layout(scene.folder) == scene.layout
    with pytest.raises(PipelineError, match=r"--partition-by: the table in .* was created with day, not with hour"):
        Scene(TableFormat.PARQUET, tmp_path, by=("hour",))
    with pytest.raises(PipelineError, match="is not the table of a lake job"):
        stored_layout(tmp_path)


def test_table_must_be_in_a_folder_that_the_tasks_reach(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="s3://bucket/table: the tasks need a local or mounted folder"):
        open_table(TableFormat.DELTA, "s3://bucket/table", Layout())
    with pytest.raises(PipelineError, match="--catalog is for Iceberg"):
        open_table(TableFormat.DELTA, "shop.clicks", Layout(), catalog="sqlite:///x.db")
    with pytest.raises(PipelineError, match="name a namespace and a table"):
        open_table(TableFormat.ICEBERG, "clicks", Layout(), catalog="sqlite:///x.db")
    uri, warehouse = f"sqlite:///{tmp_path}/all.db", f"file://{tmp_path}/warehouse"
    table = open_table(TableFormat.ICEBERG, "shop.clicks", Layout(), uri, {"warehouse": warehouse})
    table.create(pa.schema([("value", pa.binary())]))
    assert table.data_folder == tmp_path / "warehouse" / "shop" / "clicks" / "data"
    assert table.compact(1) == Compaction(0, 0)
