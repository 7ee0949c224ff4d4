"""Writes rows to Parquet files, in a task: one open file per partition value, closed at the target size."""

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from moldau.model.units import MiB
from moldau.pipelines.lake.layout import EVENT_DAY, EVENT_HOUR, Layout

_BUFFER_BYTES: Final = 64 * MiB  # of rows in memory, over all partition values of a task
_OPEN_FILES_MAX: Final = 64
_HIVE_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
GOOD: Final = "rows"
BAD: Final = "dead-letters"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFile:
    """A written file: its path below the table's folder, and the values of its partition columns."""

    path: str
    records: int
    values: Mapping[str, str | None] = field(default_factory=dict)
    kind: str = GOOD


@dataclass(slots=True)
class _OpenFile:
    """A file that is being written, and the rows that it lacks."""

    values: tuple[str | None, ...]
    tables: list[pa.Table] = field(default_factory=list)
    size: int = 0
    writer: pq.ParquetWriter | None = None
    path: str = ""
    records: int = 0


class FileWriter:
    """Divides tables by partition value and writes them below a folder. `by` are the columns to divide by."""

    def __init__(self, folder: Path, layout: Layout, prefix: str, by: Sequence[str] = ()) -> None:
        self._folder, self._layout, self._prefix, self._by = folder, layout, prefix, list(by)
        self._outside = outside_files(layout) if by else set[str]()
        self._open: dict[tuple[str | None, ...], _OpenFile] = {}
        self._buffered = 0
        self._schema: pa.Schema | None = None
        self._written: list[str] = []

    def add(self, table: pa.Table) -> Iterator[TableFile]:
        """Take rows; yield the files that became complete."""
        if self._schema is not None and table.schema != self._schema:
            yield from self.finish()
        self._schema = table.schema
        for values, rows in divided(table, self._by):
            file = self._open.setdefault(values, _OpenFile(values))
            file.tables.append(rows)
            file.size += rows.nbytes
            self._buffered += rows.nbytes
        while self._buffered > _BUFFER_BYTES:
            yield from self._flush(max(self._open.values(), key=lambda each: each.size))

    def finish(self) -> Iterator[TableFile]:
        """Complete all files."""
        for file in list(self._open.values()):
            yield from self._close(file)

    def discard(self) -> None:
        """Delete all files of a failed task."""
        for each in self._written:
            (self._folder / each).unlink(missing_ok=True)

    def _flush(self, file: _OpenFile) -> Iterator[TableFile]:
        self._write(file)
        assert file.writer is not None
        if (self._folder / file.path).stat().st_size >= self._layout.file_bytes:
            yield from self._close(file)
        opened = [each for each in self._open.values() if each.writer is not None]
        if len(opened) > _OPEN_FILES_MAX:
            yield from self._close(opened[0])

    def _write(self, file: _OpenFile) -> None:
        if not file.tables:
            return
        rows = pa.concat_tables(file.tables)
        rows = rows.select([each for each in rows.column_names if each not in self._outside]).combine_chunks()
        if file.writer is None:
            file.path = self._new_path(file.values)
            self._written.append(file.path)
            (self._folder / file.path).parent.mkdir(parents=True, exist_ok=True)
            file.writer = pq.ParquetWriter(self._folder / file.path, rows.schema, compression=self._layout.codec)
        file.writer.write_table(rows, row_group_size=max(len(rows), 1))
        file.records += len(rows)
        self._buffered -= file.size
        file.tables, file.size = [], 0

    def _close(self, file: _OpenFile) -> Iterator[TableFile]:
        self._write(file)
        del self._open[file.values]
        if file.writer is not None:
            file.writer.close()
            named = dict(zip(self._by, file.values, strict=True))
            yield TableFile(path=file.path, records=file.records, values=named)

    def _new_path(self, values: tuple[str | None, ...]) -> str:
        folders = [
            f"{name}={_HIVE_NULL if value is None else _quoted(value)}/"
            for name, value in zip(self._by, values, strict=True)
        ]
        return f"{''.join(folders)}{self._prefix}-{uuid.uuid4().hex}.{self._layout.codec}.parquet"


def _quoted(value: str) -> str:
    return quote(value, safe=" ")


def folder_values(path: str) -> dict[str, str | None]:
    """Return the partition values in a file's path."""
    pairs = [each.split("=", 1) for each in path.split("/")[:-1] if "=" in each]
    return {name: None if value == _HIVE_NULL else unquote(value) for name, value in pairs}


def divided(table: pa.Table, by: list[str]) -> Iterator[tuple[tuple[str | None, ...], pa.Table]]:
    """Yield the rows of each combination of partition values."""
    if not by:
        yield (), table
        return
    groups = table.select(by).group_by(by).aggregate([])
    for row in groups.to_pylist():
        condition = None
        for name in by:
            column = table.column(name)
            is_value = pc.is_null(column) if row[name] is None else pc.equal(column, row[name])
            condition = is_value if condition is None else pc.and_(condition, is_value)
        rows = table if len(groups) == 1 else table.filter(pc.fill_null(condition, False))
        yield tuple(partition_text(row[name]) for name in by), rows


def partition_text(value: Any) -> str | None:
    """Format a partition value as Delta and Hive do."""
    if value is None:
        return None
    if isinstance(value, bool):
        return str(value).lower()
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def outside_files(layout: Layout) -> set[str]:
    """Return the columns that files lack: Delta and Hive keep partition values outside, Iceberg inside."""
    return {EVENT_DAY, EVENT_HOUR} if layout.has_hidden_partitions else set(layout.partition_columns)


def write_rows(batches: Iterable[tuple[pa.Table, pa.Table]], good: FileWriter, bad: FileWriter) -> Iterator[TableFile]:
    """Write the good and the bad rows of a task to their files."""
    try:
        for rows, letters in batches:
            if len(rows):
                yield from good.add(rows)
            if len(letters):
                yield from _as_bad(bad.add(letters))
        yield from good.finish()
        yield from _as_bad(bad.finish())
    except BaseException:
        good.discard()
        bad.discard()
        raise


def _as_bad(files: Iterable[TableFile]) -> Iterator[TableFile]:
    return (replace(each, kind=BAD) for each in files)
