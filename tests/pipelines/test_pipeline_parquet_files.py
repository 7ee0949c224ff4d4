"""Parquet files written by tasks, without Spark: contents, reported metadata, and cleanup after failures."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from moldau.pipelines import parquet_source
from moldau.pipelines.archive_files import StagingFolder, WrittenFile
from moldau.pipelines.parquet_source import COLUMNS, ParquetTarget
from pyspark_moldau.codec.columns import ROW_WITH_HEADERS

SNAPPY = "snappy"


def rows(first: int, count: int, value: bytes = b"v") -> pa.RecordBatch:
    odd = {"key": None, "value": b"", "headers": [{"key": "b", "value": None}, {"key": "", "value": b"x"}]}
    plain = {"key": b"k", "value": value, "headers": []}
    return pa.RecordBatch.from_pylist(
        [
            {**(odd if number % 3 else plain), "topic": "t", "partition": 4, "offset": number}
            | {"timestamp": number * 1000, "timestampType": 0}
            for number in range(first, first + count)
        ],
        schema=ROW_WITH_HEADERS,
    )


def folder_of(tmp_path: Path) -> Path:
    return tmp_path / "_incoming" / "writer"


@pytest.mark.proves("D3", part="archive and restore")
@pytest.mark.parametrize("codec", ["snappy", "none", "gzip", "zstd", "lz4"])
def test_written_file_has_all_records_and_is_reported(tmp_path: Path, codec: str) -> None:
    batches = [rows(10, 5), rows(15, 0), rows(20, 7)]
    (reported,) = ParquetTarget(str(folder_of(tmp_path)), codec).write_parquet(iter(batches), 4)
    (row,) = reported.to_pylist()
    assert {name: row[name] for name in ("partition", "records", "first", "last")} == {
        "partition": 4,
        "records": 12,
        "first": 10,
        "last": 26,
    }
    found = pq.read_table(row["path"], partitioning=None)
    assert found.to_pylist() == pa.Table.from_batches(batches).select(list(COLUMNS)).to_pylist()
    assert [str(each) for each in folder_of(tmp_path).iterdir()] == [row["path"]]


def test_no_file_is_written_without_records(tmp_path: Path) -> None:
    assert list(ParquetTarget(str(folder_of(tmp_path)), SNAPPY).write_parquet(iter([rows(0, 0)]), 4)) == []
    assert list(folder_of(tmp_path).iterdir()) == []


@pytest.mark.proves("D3", part="archive and restore")
def test_failed_task_leaves_no_parquet_file(tmp_path: Path) -> None:
    def failing() -> Iterator[pa.RecordBatch]:
        yield rows(0, 5)
        raise ConnectionError("gone")

    with pytest.raises(ConnectionError, match="gone"):
        list(ParquetTarget(str(folder_of(tmp_path)), SNAPPY).write_parquet(failing(), 4))
    assert list(folder_of(tmp_path).iterdir()) == []


def test_row_groups_are_bounded_in_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_source, "_GROUP_BYTES", 100_000)
    batches = [rows(number * 10, 10, bytes(10_000)) for number in range(10)]
    (reported,) = ParquetTarget(str(folder_of(tmp_path)), SNAPPY).write_parquet(iter(batches), 4)
    described = pq.ParquetFile(reported.to_pylist()[0]["path"]).metadata
    assert [described.row_group(each).num_rows for each in range(described.num_row_groups)] == [30, 30, 30, 10]


@pytest.mark.proves("D3", part="archive and restore")
def test_files_of_a_batch_are_moved_and_others_removed(tmp_path: Path) -> None:
    incoming = StagingFolder(tmp_path, "writer", SNAPPY)
    incoming.folder.mkdir(parents=True)
    paths = [incoming.folder / f"{name}.parquet" for name in ("a", "b", "of a crashed task")]
    for path in paths:
        path.write_text(path.stem)
    before = tmp_path / "_incoming" / "run-3" / "partition=9"
    before.mkdir(parents=True)
    (before / "of an earlier attempt").touch()
    incoming.gather(
        [WrittenFile(partition=number, path=str(path), first=0, last=1) for number, path in enumerate(paths[:2])],
        "run-3",
    )
    found = {str(each.relative_to(tmp_path)): each.read_text() for each in tmp_path.rglob("*") if each.is_file()}
    assert found == {
        "_incoming/run-3/partition=0/a.parquet": "a",
        "_incoming/run-3/partition=1/b.parquet": "b",
    }
