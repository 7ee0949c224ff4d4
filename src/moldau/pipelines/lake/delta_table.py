"""Delta Lake through `deltalake`: a batch is a commit with an application transaction (writer, batch).

A commit reads the application's last version; the library rejects a commit if another writer has changed it in the
meantime. Checkpoints and compaction keep application versions, and log retention does not expire them.
"""

import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Schema, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction

from moldau.pipelines.lake.column_types import conform
from moldau.pipelines.lake.lake_table import BatchId, CommitConflict, Compaction
from moldau.pipelines.lake.layout import KEY, TOMBSTONE, Layout
from moldau.pipelines.lake.table_files import TableFile

LOG: Final = "_delta_log"
_HOUR_S: Final = 3600.0
_ROUNDING_H: Final = 0.01
_NUMBERS: Final = ("INT64",)


class DeltaLakeTable:
    """A Delta table in a local or mounted folder."""

    def __init__(self, folder: Path, layout: Layout) -> None:
        self._layout = layout
        self.data_folder = folder

    def _open(self) -> DeltaTable | None:
        path = str(self.data_folder)
        return DeltaTable(path) if DeltaTable.is_deltatable(path) else None

    def _existing(self) -> DeltaTable:
        return DeltaTable(str(self.data_folder))

    def last_batch(self, writer: str) -> int | None:
        table = self._open()
        return None if table is None else table.transaction_version(writer)

    def schema(self) -> pa.Schema | None:
        table = self._open()
        return None if table is None else _arrow_schema(table)

    def create(self, schema: pa.Schema) -> None:
        self.data_folder.mkdir(parents=True, exist_ok=True)
        DeltaTable.create(
            str(self.data_folder),
            Schema.from_arrow(schema),
            mode="ignore",
            partition_by=list(self._layout.partition_columns),
        )

    def append(self, batch: BatchId, files: Sequence[TableFile], schema: pa.Schema) -> None:
        table = self._grown(schema)
        actions: list[AddAction | RemoveAction] = [self._action(each) for each in files]
        with _conflicts():
            table.create_write_transaction(
                actions,
                "append",
                table.schema(),
                list(self._layout.partition_columns),
                commit_properties=_properties(batch),
            )

    def upsert(self, batch: BatchId, rows: pa.Table, deleted: pa.Array, schema: pa.Schema) -> None:
        table = self._grown(schema)
        columns = _arrow_schema(table)
        changes = conform(rows, columns).append_column(TOMBSTONE, pa.array([False] * len(rows), pa.bool_()))
        gone = conform(pa.table({KEY: deleted}), columns)
        gone = gone.append_column(TOMBSTONE, pa.array([True] * len(deleted), pa.bool_()))
        values = {f"`{each}`": f"s.`{each}`" for each in columns.names}
        with _conflicts():
            (
                table.merge(
                    pa.concat_tables([changes, gone]),
                    f"t.`{KEY}` = s.`{KEY}`",
                    source_alias="s",
                    target_alias="t",
                    commit_properties=_properties(batch),
                )
                .when_matched_delete(f"s.`{TOMBSTONE}`")
                .when_matched_update(values)
                .when_not_matched_insert(values, predicate=f"not s.`{TOMBSTONE}`")
                .execute()
            )

    def _grown(self, schema: pa.Schema) -> DeltaTable:
        """Return the table with at least the columns of the schema; adding them again changes nothing."""
        table = self._existing()
        known = _arrow_schema(table)
        if all(each.name in known.names and known.field(each.name).type == each.type for each in schema):
            return table
        write_deltalake(table, schema.empty_table(), mode="append", schema_mode="merge")
        return self._existing()

    def _action(self, file: TableFile) -> AddAction:
        place = self.data_folder / file.path
        found = place.stat()
        return AddAction(
            path=file.path,  # which the library encodes for the log
            size=found.st_size,
            partition_values=dict(file.values),
            modification_time=int(found.st_mtime * 1000),
            data_change=True,
            stats=json.dumps(statistics(pq.read_metadata(place))),
        )

    def compact(self, file_bytes: int) -> Compaction:
        with _conflicts():
            found = self._existing().optimize.compact(target_size=file_bytes)
        return Compaction(found["numFilesRemoved"], found["numFilesAdded"])

    def expire(self, older_than_s: float) -> int:
        """Write a checkpoint, remove the log before it, and delete the files of versions before that time."""
        table = self._existing()
        table.create_checkpoint()
        table.cleanup_metadata()
        return self._vacuum(older_than_s, is_full=False)

    def remove_orphans(self, older_than_s: float) -> int:
        return self._vacuum(older_than_s, is_full=True)

    def _vacuum(self, older_than_s: float, *, is_full: bool) -> int:
        hours = max(math.ceil((time.time() - older_than_s) / _HOUR_S - _ROUNDING_H), 0)
        before = self._file_count()
        self._existing().vacuum(hours, dry_run=False, enforce_retention_duration=False, full=is_full)
        return before - self._file_count()

    def _file_count(self) -> int:
        """Return the number of data files there are; the library's list names files again that are gone."""
        return sum(LOG not in each.parts for each in self.data_folder.rglob("*.parquet"))

    def scan(self) -> Iterator[pa.Table]:
        dataset = self._existing().to_pyarrow_dataset()
        for fragment in dataset.get_fragments():
            yield fragment.to_table(schema=dataset.schema)


def _arrow_schema(table: DeltaTable) -> pa.Schema:
    return pa.schema(table.schema().to_arrow())


def _properties(batch: BatchId) -> CommitProperties:
    return CommitProperties(app_transactions=[Transaction(batch.writer, batch.number)])


@contextmanager
def _conflicts() -> Iterator[None]:
    try:
        yield
    except CommitFailedError as error:
        raise CommitConflict(str(error)) from error


def statistics(footer: Any) -> Mapping[str, Any]:
    """Return the statistics of a file for Delta's log: counts, and the limits of its numbers and times."""
    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for group in range(footer.num_row_groups):
        for place in range(footer.num_columns):
            column = footer.row_group(group).column(place)
            found, name = column.statistics, column.path_in_schema
            if found is None or "." in name or column.physical_type not in _NUMBERS:
                continue
            nulls[name] = nulls.get(name, 0) + found.null_count
            if found.has_min_max:
                least[name] = min(least.get(name, found.min), found.min)
                most[name] = max(most.get(name, found.max), found.max)
    return {
        "numRecords": footer.num_rows,
        "minValues": {name: _limit(each) for name, each in least.items()},
        "maxValues": {name: _limit(each, is_upper=True) for name, each in most.items()},
        "nullCount": nulls,
    }


def _limit(value: Any, *, is_upper: bool = False) -> Any:
    """Format a limit; times are rounded outwards to milliseconds."""
    if not isinstance(value, datetime):
        return value
    micros = round(value.replace(tzinfo=UTC).timestamp() * 1_000_000)
    millis = -(-micros // 1000) if is_upper else micros // 1000
    return datetime.fromtimestamp(millis / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
