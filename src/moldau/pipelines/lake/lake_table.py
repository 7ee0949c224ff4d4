"""The interface of a table format to a lake job, and the identity of a batch in it.

A commit names its writer (Spark's query id) and batch. Both become part of the table in the same commit as the data,
and outlive compaction and the expiry of snapshots. A batch that is already there is not committed again; a batch before
the last one means that the checkpoint is an older copy.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import pyarrow as pa

from moldau.pipelines.lake.table_files import TableFile
from moldau.pipelines.requirements import PipelineError

COMMITS_MAX: Final = 20  # attempts, each after another writer's commit


@dataclass(frozen=True, slots=True)
class BatchId:
    """The identity of a commit."""

    writer: str
    number: int


@dataclass(frozen=True, slots=True)
class Compaction:
    """The result of a compaction."""

    removed: int
    added: int


class CommitConflict(Exception):
    """Another writer has committed in the meantime; the commit must be built again."""


class LakeTable(Protocol):
    """A table of one format at one place."""

    @property
    def data_folder(self) -> Path:
        """Return the folder for the files of the tasks."""

    def last_batch(self, writer: str) -> int | None:
        """Return the number of the last batch that this writer has committed."""

    def schema(self) -> pa.Schema | None:
        """Return the columns; None if there is no table."""

    def create(self, schema: pa.Schema) -> None:
        """Create the table."""

    def append(self, batch: BatchId, files: Sequence[TableFile], schema: pa.Schema) -> None:
        """Commit files, and the columns of this schema that the table lacks. Raises CommitConflict."""

    def upsert(self, batch: BatchId, rows: pa.Table, deleted: pa.Array, schema: pa.Schema) -> None:
        """Commit the only row of each key, and remove the rows of deleted keys. Raises CommitConflict."""

    def compact(self, file_bytes: int) -> Compaction:
        """Combine small files. Raises CommitConflict."""

    def expire(self, older_than_s: float) -> int:
        """Forget the versions before that time; return their number."""

    def remove_orphans(self, older_than_s: float) -> int:
        """Delete files that no version refers to; return their number."""

    def scan(self) -> Iterator[pa.Table]:
        """Yield the rows of the table, file by file."""


def is_committed(table: LakeTable, batch: BatchId) -> bool:
    """Whether the batch is in the table. Raises PipelineError if a later one is, too."""
    last = table.last_batch(batch.writer)
    if last is not None and last > batch.number:
        raise PipelineError(
            f"batch {batch.number} is a replay, but the table already has batch {last} of this query: the checkpoint "
            "is an old copy; choose another --name"
        )
    return last == batch.number


def old_files(folder: Path, pattern: str, keep: set[Path], before_s: float) -> Iterator[Path]:
    """Yield files below a folder that are older than a time and not to be kept."""
    for each in folder.rglob(pattern):
        if each not in keep and each.is_file() and each.stat().st_mtime <= before_s:
            yield each
