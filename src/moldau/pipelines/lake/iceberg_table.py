"""Apache Iceberg through `pyiceberg`: a batch is a snapshot, and a table property that the same commit sets.

The snapshot's summary names writer and batch too, but snapshots expire; the property `moldau.batch.<writer>` does not.
The library would retry a commit after a commit of another writer, perhaps of the same batch, so its retries are off
here: the caller reads the property again. pyiceberg cannot rewrite data files yet, so compaction replaces files in an
overwrite of the table's current snapshot.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlparse

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchTableError,
    ValidationException,
)
from pyiceberg.io.pyarrow import parquet_file_to_data_file
from pyiceberg.table import Table, TableProperties

from moldau.pipelines.lake.column_types import conform
from moldau.pipelines.lake.file_rewrite import rows_without, small_groups
from moldau.pipelines.lake.lake_table import BatchId, CommitConflict, Compaction, old_files
from moldau.pipelines.lake.layout import DAY, HOUR, Layout
from moldau.pipelines.lake.table_files import FileWriter, TableFile
from moldau.pipelines.requirements import PipelineError

_BATCH: Final = "moldau.batch."
_WRITER: Final = "moldau.writer"
_NUMBER: Final = "moldau.batch"
NAMESPACE: Final = "default"
_NO_RETRIES: Final = "0"
_METADATA_VERSIONS: Final = "100"  # of the metadata file, as Iceberg's default


@dataclass(frozen=True, slots=True, kw_only=True)
class IcebergPlace:
    """A table's catalog, its name there, and its folder."""

    catalog: Mapping[str, str]
    name: tuple[str, ...]
    folder: Path | None = None  # None: the catalog chooses it

    @classmethod
    def embedded(cls, folder: Path) -> "IcebergPlace":
        """Return a table in a folder, with a SQLite catalog beside it."""
        warehouse = folder.parent
        catalog = {"type": "sql", "uri": f"sqlite:///{warehouse}/catalog.db", "warehouse": f"file://{warehouse}"}
        return cls(catalog=catalog, name=(NAMESPACE, folder.name), folder=folder)

    def load(self) -> Catalog:
        if self.catalog.get("type") == "sql" and self.folder is not None:
            self.folder.parent.mkdir(parents=True, exist_ok=True)
        return load_catalog("moldau", **self.catalog)


@dataclass(slots=True)
class IcebergLakeTable:
    """An Iceberg table whose files are in a local or mounted folder."""

    place: IcebergPlace
    layout: Layout
    _catalog: Catalog | None = field(default=None)

    @property
    def _loaded(self) -> Catalog:
        if self._catalog is None:
            self._catalog = self.place.load()
        return self._catalog

    def _open(self) -> Table | None:
        try:
            return self._loaded.load_table(self.place.name)
        except NoSuchTableError:
            return None

    def _existing(self) -> Table:
        table = self._loaded.load_table(self.place.name)
        table.metadata.properties[TableProperties.COMMIT_NUM_RETRIES] = _NO_RETRIES  # of this object only
        return table

    @property
    def data_folder(self) -> Path:
        return self._folder / "data"

    @property
    def _folder(self) -> Path:
        if self.place.folder is not None:
            return self.place.folder
        return local_folder(self._existing().location())

    def last_batch(self, writer: str) -> int | None:
        table = self._open()
        found = None if table is None else table.properties.get(f"{_BATCH}{writer}")
        return None if found is None else int(found)

    def schema(self) -> pa.Schema | None:
        table = self._open()
        return None if table is None else _arrow_schema(table)

    def create(self, schema: pa.Schema) -> None:
        catalog = self._loaded
        for depth in range(1, len(self.place.name)):
            with suppress(NamespaceAlreadyExistsError):
                catalog.create_namespace(self.place.name[:depth])
        location = None if self.place.folder is None else str(self.place.folder)
        properties = {
            TableProperties.METADATA_DELETE_AFTER_COMMIT_ENABLED: "true",
            TableProperties.METADATA_PREVIOUS_VERSIONS_MAX: _METADATA_VERSIONS,
        }
        with catalog.create_table_transaction(
            self.place.name, schema, location=location, properties=properties
        ) as change:
            with change.update_spec() as spec:
                for each in self.layout.by:
                    _add_partition(spec, each, self.layout.event_time)
            change.set_properties(
                {TableProperties.DEFAULT_NAME_MAPPING: change.table_metadata.schema().name_mapping.model_dump_json()}
            )

    def append(self, batch: BatchId, files: Sequence[TableFile], schema: pa.Schema) -> None:
        with (
            self._change(batch, schema) as (change, table),
            change.update_snapshot(snapshot_properties=_summary(batch)).fast_append() as update,
        ):
            for each in files:
                update.append_data_file(_described(table, change, self.data_folder / each.path))

    def upsert(self, batch: BatchId, rows: pa.Table, deleted: pa.Array, schema: pa.Schema) -> None:
        with self._change(batch, schema) as (change, table):
            keys = pa.concat_arrays([rows.column("_key").combine_chunks(), deleted])
            columns = _arrow_schema(table, change)
            writer = self._writer("upsert")
            replaced = []
            for file in table.scan().plan_files():
                left = rows_without(local_path(file.file.file_path), keys)
                if left is not None:
                    replaced.append(file.file)
                    self._rewrite(writer, left, columns)
            self._rewrite(writer, rows, columns)
            fresh = [*writer.finished, *writer.files.finish()]
            with change.update_snapshot(snapshot_properties=_summary(batch)).overwrite() as update:
                for data_file in replaced:
                    update.delete_data_file(data_file)
                for each in fresh:
                    update.append_data_file(_described(table, change, self.data_folder / each.path))

    def compact(self, file_bytes: int) -> Compaction:
        table = self._existing()
        columns = _arrow_schema(table)
        files = [each.file for each in table.scan().plan_files()]
        sizes = {each.file_path: each.file_size_in_bytes for each in files}
        by_path = {each.file_path: each for each in files}
        groups = small_groups(sizes, {each.file_path: str(each.partition) for each in files}, file_bytes)
        if not groups:
            return Compaction(0, 0)
        removed, writer = [path for group in groups for path in group], self._writer("compact")
        for group in groups:
            for path in group:
                self._rewrite(writer, pq.read_table(local_path(path), partitioning=None), columns)
        fresh = [*writer.finished, *writer.files.finish()]
        with _conflicts(), table.transaction() as change, change.update_snapshot().overwrite() as update:
            for path in removed:
                update.delete_data_file(by_path[path])
            for each in fresh:
                update.append_data_file(_described(table, change, self.data_folder / each.path))
        return Compaction(len(removed), len(fresh))

    def _writer(self, prefix: str) -> "_Rewriter":
        return _Rewriter(FileWriter(self.data_folder, self.layout, prefix, self.layout.partition_columns))

    def _rewrite(self, writer: "_Rewriter", rows: pa.Table, columns: pa.Schema) -> None:
        if len(rows):
            writer.finished.extend(writer.files.add(self._divided(conform(rows, columns))))

    def _divided(self, rows: pa.Table) -> pa.Table:
        from moldau.pipelines.lake.rows import with_time_partitions

        return with_time_partitions(rows, self.layout)

    @contextmanager
    def _change(self, batch: BatchId, schema: pa.Schema) -> Iterator[tuple[Any, Table]]:
        """Open a transaction that adds missing columns and notes the batch."""
        table = self._existing()
        with _conflicts(), table.transaction() as change:
            with change.update_schema() as update:
                update.union_by_name(schema)
            change.set_properties({f"{_BATCH}{batch.writer}": str(batch.number)})
            yield change, table

    def expire(self, older_than_s: float) -> int:
        table = self._existing()
        before = {each.snapshot_id for each in table.snapshots()}
        with _conflicts():
            table.maintenance.expire_snapshots().older_than(datetime.fromtimestamp(older_than_s, UTC)).commit()
        return len(before) - len(self._existing().snapshots())

    def remove_orphans(self, older_than_s: float) -> int:
        table, keep = self._existing(), set[Path]()
        for snapshot in table.snapshots():
            keep.add(local_path(snapshot.manifest_list))
            for manifest in snapshot.manifests(table.io):
                keep.add(local_path(manifest.manifest_path))
                entries = manifest.fetch_manifest_entry(table.io, discard_deleted=True)
                keep |= {local_path(each.data_file.file_path) for each in entries}
        orphans = list(old_files(self.data_folder, "*.parquet", keep, older_than_s))
        orphans += old_files(self._folder / "metadata", "*.avro", keep, older_than_s)
        for each in orphans:
            each.unlink(missing_ok=True)
        return len(orphans)

    def scan(self) -> Iterator[pa.Table]:
        for batch in self._existing().scan().to_arrow_batch_reader():
            yield pa.Table.from_batches([batch])


@dataclass(slots=True)
class _Rewriter:
    """A writer of replaced rows, and its files so far."""

    files: FileWriter
    finished: list[TableFile] = field(default_factory=list)


def _add_partition(spec: Any, name: str, event_time: str) -> None:
    if name in (DAY, HOUR):
        spec.add_field(event_time, name, f"event_{name}")
    else:
        spec.add_identity(name)


def _summary(batch: BatchId) -> dict[str, str]:
    return {_WRITER: batch.writer, _NUMBER: str(batch.number)}


def _described(table: Table, change: Any, path: Path) -> Any:
    return parquet_file_to_data_file(table.io, change.table_metadata, str(path))


def _arrow_schema(table: Table, change: Any = None) -> pa.Schema:
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    schema = table.schema() if change is None else change.table_metadata.schema()
    return schema_to_pyarrow(schema, include_field_ids=False)


@contextmanager
def _conflicts() -> Iterator[None]:
    try:
        yield
    except (CommitFailedException, ValidationException) as error:
        raise CommitConflict(str(error)) from error


def local_path(place: str) -> Path:
    return Path(unquote(urlparse(place).path)) if place.startswith("file:") else Path(place)


def local_folder(location: str) -> Path:
    if "://" in location and not location.startswith("file:"):
        raise PipelineError(f"the table is at {location}; the tasks need a local or mounted folder")
    return local_path(location)
