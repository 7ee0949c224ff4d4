"""How the batches of an archive come into its folder: whole or not at all, and without what others have written."""

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
    """All rows of a batch, whole or not at all, in the place of whatever an earlier try has left there."""
    incoming = f"{root}/_incoming/{run}-{batch}"
    frame.write.mode("overwrite").partitionBy(by).parquet(incoming)
    replace_folder(frame.sparkSession, incoming, f"{root}/run={run}/batch={batch}")


def nothing(spark: Any) -> None:
    """Nobody waits for a batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What others have written to a folder before a query begins, by partition: it is not written again.

    The last batch of the query itself may come again, for nobody knows whether it was noted, and replaces its first
    copy. Others may have gone on before and after it: then its place is between them.
    """

    ends: Mapping[int, int] = field(default_factory=dict)  # after the last record of others
    last_batch: int = -1  # of the query
    floors: Mapping[int, int] = field(default_factory=dict)  # after the last record of others before that batch
    ceilings: Mapping[int, int] = field(default_factory=dict)  # the first record of others after it

    def lacks(self, batch: int) -> str:
        """A condition: the record of this batch is not in the folder, unless by an earlier try."""
        floors, ceilings = self.bounds(batch)
        condition = f"offset >= {by_partition(floors, 0)}"
        return f"{condition} and offset < {by_partition(ceilings, OFFSET_MAX)}" if ceilings else condition

    def bounds(self, batch: int) -> tuple[Mapping[int, int], Mapping[int, int]]:
        """By partition, from where on and up to where the folder lacks this batch, unless by an earlier try."""
        if batch > self.last_batch:
            return self.ends, {}
        if batch < self.last_batch:
            raise PipelineError(
                f"batch {batch} comes again, but the archive has batch {self.last_batch} of the same query: its "
                "checkpoint is an old copy; choose another --name"
            )
        return self.floors, self.ceilings


def by_partition(offsets: Mapping[int, int], otherwise: int) -> str:
    """The offset for a row's partition, as SQL has it."""
    cases = " ".join(f"when {partition} then {offset}" for partition, offset in sorted(offsets.items()))
    return f"case partition {cases} else {otherwise} end" if cases else str(otherwise)


@dataclass(frozen=True, slots=True)
class ArchiveSink:
    """A folder with a folder for each batch, in which rows lie by a column. `after` a batch is in its place, call.

    What others have written, `held`, is not written again; None: there are no others.
    """

    root: str
    by: str
    after: Callable[[Any], None] = nothing
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
        # A new checkpoint is a new query: it must not take the folders of an older one for its own.
        run = frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        if not run:
            raise RuntimeError("Spark does not say which query this batch belongs to.")
        self.put(frame, batch, run)
        self.after(frame.sparkSession)

    def put(self, frame: Any, batch: int, run: str) -> None:
        rows = frame if self.held is None else frame.where(self.held.lacks(batch))
        archive_batch(rows, batch, self.root, run, self.by)
