"""The archive sink: a batch appears atomically, without records that other queries have written."""

import inspect
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from moldau.pipelines.hadoop_files import replace_folder
from moldau.pipelines.requirements import PipelineError

OFFSET_MAX: Final = 2**63 - 1
RECORD: Final = (
    "key binary, value binary, headers array<struct<key: string, value: binary>>, timestamp timestamp, "
    "timestampType int, offset bigint"
)


def archive_batch(frame: Any, batch: int, root: str, run: str, by: str) -> None:
    """Write a batch atomically; it replaces the output of an earlier attempt."""
    incoming = f"{root}/_incoming/{run}-{batch}"
    frame.write.mode("overwrite").partitionBy(by).parquet(incoming)
    replace_folder(frame.sparkSession, incoming, f"{root}/run={run}/batch={batch}")


def do_nothing(spark: Any) -> None:
    """Ignore a finished batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """Offsets that other queries wrote before this one starts, by partition; they are not written again.

    The query's own last batch may be replayed, because its commit may be missing from the checkpoint; it replaces its
    first copy. Other queries may have written before and after it; `floors` and `ceilings` bound it then.
    """

    ends: Mapping[int, int] = field(default_factory=dict)  # after the last record of others
    last_batch: int = -1  # of the query
    floors: Mapping[int, int] = field(default_factory=dict)  # after the last record of others before that batch
    ceilings: Mapping[int, int] = field(default_factory=dict)  # the first record of others after it

    def missing_condition(self, batch: int) -> str:
        """Return a SQL condition for rows of this batch that no other query has written."""
        floors, ceilings = self.bounds(batch)
        condition = f"offset >= {by_partition(floors, 0)}"
        return f"{condition} and offset < {by_partition(ceilings, OFFSET_MAX)}" if ceilings else condition

    def bounds(self, batch: int) -> tuple[Mapping[int, int], Mapping[int, int]]:
        """Return the first and the end offset, by partition, that no other query has written."""
        if batch > self.last_batch:
            return self.ends, {}
        if batch < self.last_batch:
            raise PipelineError(
                f"batch {batch} is a replay, but the archive already has batch {self.last_batch} of this query: the "
                "checkpoint is an old copy; choose another --name"
            )
        return self.floors, self.ceilings


def by_partition(offsets: Mapping[int, int], otherwise: int) -> str:
    """Return a SQL expression that maps the row's partition to an offset."""
    cases = " ".join(f"when {partition} then {offset}" for partition, offset in sorted(offsets.items()))
    return f"case partition {cases} else {otherwise} end" if cases else str(otherwise)


@dataclass(frozen=True, slots=True)
class ArchiveSink:
    """A folder with one folder per batch, partitioned by a column; `after` is called when a batch is in place.

    Records that other queries wrote (`held`) are skipped; None: there are no other queries.
    """

    root: str
    by: str
    after: Callable[[Any], None] = do_nothing
    held: Contents | None = None

    def stream(self, frame: Any) -> Any:
        return frame.writeStream.foreachBatch(self._take)

    def write(self, frame: Any) -> None:
        self.put(frame, 0, uuid.uuid4().hex)
        self.after(frame.sparkSession)

    def code(self, *, is_bounded: bool) -> str:
        functions = f"{inspect.getsource(replace_folder)}\n\n{inspect.getsource(archive_batch)}"
        head = f"from typing import Any\n\n\n{functions}\n\n"
        if is_bounded:
            return f"{head}import uuid\n\narchive_batch(frame, 0, {self.root!r}, uuid.uuid4().hex, {self.by!r})\n"
        return (
            f"{head}def take(frame, batch):\n"
            '    run = frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")\n'
            f"    archive_batch(frame, batch, {self.root!r}, run, {self.by!r})\n\n\n"
            "writer = frame.writeStream.foreachBatch(take)\n"
        )

    def _take(self, frame: Any, batch: int) -> None:
        # A new checkpoint means a new query id, so that batches never replace those of an older query.
        run = frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        if not run:
            raise RuntimeError("Spark has not set the query id of this batch.")
        self.put(frame, batch, run)
        self.after(frame.sparkSession)

    def put(self, frame: Any, batch: int, run: str) -> None:
        rows = frame if self.held is None else frame.where(self.held.missing_condition(batch))
        archive_batch(rows, batch, self.root, run, self.by)
