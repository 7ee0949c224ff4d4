"""Plain Parquet files in Hive folders, with a journal that makes a batch's commit atomic for its writer.

<table>/[column=value/]*.parquet   the rows, for any reader of Parquet
<table>/_moldau/journal.json       the last batch of each writer, the schema, and the moves of a commit
<table>/_moldau/incoming/          files that are not committed; readers skip names with an underscore

The commit is the replacement of the journal: it names the batch and the files to move into and out of the table. The
moves follow at once; if the process dies before, the next one makes them first. So a batch is in the table exactly
once, but a reader that lists the folder during the moves may see a part of a batch or of a compaction.
"""

import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from moldau.pipelines.lake.column_types import conform, merged_schema
from moldau.pipelines.lake.file_rewrite import rows_without, small_groups
from moldau.pipelines.lake.lake_table import BatchId, CommitConflict, Compaction, old_files
from moldau.pipelines.lake.layout import OWN, Layout
from moldau.pipelines.lake.shared_schema import schema_of_text, schema_text
from moldau.pipelines.lake.table_files import FileWriter, TableFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """The state of a table. `incoming` are files to move into it, `outgoing` files to delete."""

    schema: str
    batches: dict[str, int] = field(default_factory=dict)
    incoming: list[str] = field(default_factory=list)
    outgoing: list[str] = field(default_factory=list)


class ParquetLakeTable:
    """A folder of Parquet files."""

    def __init__(self, folder: Path, layout: Layout) -> None:
        self._folder, self._layout = folder, layout
        self.data_folder = folder / OWN / "incoming"

    @property
    def _place(self) -> Path:
        return self._folder / OWN / "journal.json"

    def last_batch(self, writer: str) -> int | None:
        journal = self._read()
        return None if journal is None else journal.batches.get(writer)

    def schema(self) -> pa.Schema | None:
        journal = self._read()
        return None if journal is None else schema_of_text(journal.schema.encode())

    def create(self, schema: pa.Schema) -> None:
        self.data_folder.mkdir(parents=True, exist_ok=True)
        with self._locked():
            if self._read() is None:
                self._write(Journal(schema=schema_text(schema).decode()))

    def append(self, batch: BatchId, files: Sequence[TableFile], schema: pa.Schema) -> None:
        with self._locked():
            self._commit(batch, [each.path for each in files], [], schema)

    def upsert(self, batch: BatchId, rows: pa.Table, deleted: pa.Array, schema: pa.Schema) -> None:
        keys = pa.concat_arrays([rows.column("_key").combine_chunks(), deleted])
        with self._locked():
            self._finish()
            columns = merged_schema(self._columns(), schema)
            writer = FileWriter(self.data_folder, self._layout, "upsert", self._layout.partition_columns)
            fresh, outgoing = list[TableFile](), list[str]()
            for path in self._files():
                left = rows_without(path, keys)
                if left is not None:
                    outgoing.append(self._name(path))
                    fresh += writer.add(self._whole(left, path, columns)) if len(left) else ()
            fresh += writer.add(conform(rows, columns)) if len(rows) else ()
            fresh += writer.finish()
            self._commit(batch, [each.path for each in fresh], outgoing, schema)

    def compact(self, file_bytes: int) -> Compaction:
        with self._locked():
            self._finish()
            files = {self._name(each): each.stat().st_size for each in self._files()}
            groups = small_groups(files, {each: str(Path(each).parent) for each in files}, file_bytes)
            writer = FileWriter(self.data_folder, self._layout, "compact", self._layout.partition_columns)
            fresh, columns = list[TableFile](), self._columns()
            for group in groups:
                for name in group:
                    path = self._folder / name
                    fresh += writer.add(self._whole(pq.ParquetFile(path).read(), path, columns))
            fresh += writer.finish()
            outgoing = [name for group in groups for name in group]
            if outgoing:
                self._commit(None, [each.path for each in fresh], outgoing, columns)
        return Compaction(len(outgoing), len(fresh))

    def expire(self, older_than_s: float) -> int:  # noqa: ARG002
        """Return 0: plain files have no versions."""
        return 0

    def remove_orphans(self, older_than_s: float) -> int:
        with self._locked():
            self._finish()
            orphans = list(old_files(self.data_folder, "*.parquet", set(), older_than_s))
            for each in orphans:
                each.unlink(missing_ok=True)
        return len(orphans)

    def scan(self) -> Iterator[pa.Table]:
        columns = self._columns()
        for path in self._files():
            yield self._whole(pq.ParquetFile(path).read(), path, columns)

    def _columns(self) -> pa.Schema:
        found = self.schema()
        assert found is not None
        return found

    def _commit(self, batch: BatchId | None, incoming: list[str], outgoing: list[str], schema: pa.Schema) -> None:
        """Replace the journal, which is the commit, and make its moves."""
        self._finish()
        before = self._read()
        assert before is not None
        if batch is not None and before.batches.get(batch.writer, -1) >= batch.number:
            raise CommitConflict("another driver has committed this batch")
        columns = merged_schema(schema_of_text(before.schema.encode()), schema)
        noted = {} if batch is None else {batch.writer: batch.number}
        after = replace(
            before,
            schema=schema_text(columns).decode(),
            batches=before.batches | noted,
            incoming=incoming,
            outgoing=outgoing,
        )
        self._write(after)
        self._finish()

    def _finish(self) -> None:
        """Make the moves of the last commit that have not been made."""
        journal = self._read()
        if journal is None or not (journal.incoming or journal.outgoing):
            return
        for name in journal.outgoing:
            (self._folder / name).unlink(missing_ok=True)
        for name in journal.incoming:
            target = self._folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if (self.data_folder / name).exists():
                os.replace(self.data_folder / name, target)
        self._write(replace(journal, incoming=[], outgoing=[]))

    def _files(self) -> list[Path]:
        return [each for each in self._folder.rglob("*.parquet") if OWN not in each.relative_to(self._folder).parts]

    def _name(self, path: Path) -> str:
        return str(path.relative_to(self._folder))

    def _whole(self, rows: pa.Table, path: Path, columns: pa.Schema) -> pa.Table:
        """Return the rows of a file with the partition columns of its folders."""
        from moldau.pipelines.lake.table_files import folder_values

        for name, value in folder_values(self._name(path)).items():
            constant = pa.array([value] * len(rows), pa.string()).cast(columns.field(name).type)
            rows = rows.append_column(name, constant)
        return conform(rows, columns)

    def _read(self) -> Journal | None:
        try:
            return Journal(**json.loads(self._place.read_text()))
        except FileNotFoundError:
            return None

    def _write(self, journal: Journal) -> None:
        fresh = self._place.with_suffix(".new")
        with fresh.open("w") as file:
            file.write(json.dumps(asdict(journal)))
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, self._place)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the table's lock; writers on other machines need a file system whose locks reach them."""
        self.data_folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / OWN / "lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
