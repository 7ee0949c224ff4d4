"""The driver's side of a lake job: commits the files of a batch once, publishes its dead letters, maintains it.

Order in a batch: (1) is it in the table already? (2) the tasks write files, (3) dead letters are published, exactly
once by the same identity, (4) one commit with data and identity, (5) staged files are deleted. A crash at any place
repeats the batch, and each step either did nothing or is recognized.
"""

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from moldau.pipelines.lake.column_types import conform
from moldau.pipelines.lake.lake_table import COMMITS_MAX, BatchId, CommitConflict, LakeTable, is_committed
from moldau.pipelines.lake.layout import KEY, TOMBSTONE, Layout, Mode
from moldau.pipelines.lake.rows import latest_rows
from moldau.pipelines.lake.shared_schema import SharedSchema
from moldau.pipelines.lake.table_files import BAD, GOOD, TableFile
from moldau.pipelines.progress import OBSERVED_ROWS
from moldau.pipelines.requirements import PipelineError

log = logging.getLogger("moldau.pipelines")

_RETRY_S: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetters:
    """The topic for records that do not fit the table, and the options of its sink."""

    source_topic: str
    options: Mapping[str, str]

    def publish(self, spark: Any, files: Sequence[Path], batch: BatchId) -> None:
        """Write the records of these files with the reason, topic, partition and offset as headers, exactly once."""
        frame = spark.read.parquet(*(each.as_uri() for each in files)).selectExpr("key", "value", self._headers())
        identity = {"txnAppId": f"{batch.writer}-dead-letters", "txnVersion": str(batch.number)}
        frame.write.format("moldau").options(**self.options, **identity).mode("append").save()

    def _headers(self) -> str:
        texts = {"reason": "reason", "topic": f"'{self.source_topic}'", "partition": "partition", "offset": "offset"}
        added = ", ".join(
            f"named_struct('key', 'moldau.{name}', 'value', cast(cast({text} as string) as binary))"
            for name, text in texts.items()
        )
        own = "filter(coalesce(headers, array()), each -> not startswith(each.key, 'moldau.'))"
        return f"concat({own}, array({added})) as headers"


def never(spark: Any) -> None:
    """Do no maintenance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeSink:
    """Commits the files that LakeSource reports."""

    table: LakeTable
    layout: Layout
    staging: Path
    shared: SharedSchema
    letters: DeadLetters | None = None
    after: Callable[[Any], None] = never
    bounded_writer: str = ""

    def stream(self, frame: Any) -> Any:
        from pyspark.sql.functions import expr

        counted = frame.observe(OBSERVED_ROWS, expr(f"sum(records) as {OBSERVED_ROWS}"))
        return counted.writeStream.foreachBatch(self._take)

    def write(self, frame: Any) -> None:
        self.put(frame, BatchId(self.bounded_writer, 0))

    def code(self, *, is_bounded: bool) -> str:  # noqa: ARG002
        raise PipelineError("a lake job cannot be ejected: its tasks write files, which plain PySpark cannot express")

    def _take(self, frame: Any, number: int) -> None:
        query = frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        if not query:
            raise RuntimeError("Spark has not set the query id of this batch.")
        self.put(frame, BatchId(query, number))
        self.after(frame.sparkSession)

    def put(self, frame: Any, batch: BatchId) -> None:
        """Write and commit a batch, unless it is in the table."""
        if is_committed(self.table, batch):
            return
        files = [_file_of(each.asDict()) for each in frame.collect()]
        good, bad = ([each for each in files if each.kind == kind] for kind in (GOOD, BAD))
        if bad:
            self._publish(frame.sparkSession, [self.staging / each.path for each in bad], batch)
        if good:
            self._commit(good, batch)
        for each in files:
            (self.staging / each.path).unlink(missing_ok=True)

    def _publish(self, spark: Any, files: Sequence[Path], batch: BatchId) -> None:
        if self.letters is None:
            first = pq.read_table(files[0]).slice(0, 1).to_pylist()[0]
            raise PipelineError(
                f"the record at partition {first['partition']}, offset {first['offset']} does not fit the table: "
                f"{first['reason']}; use --dead-letters TOPIC to set such records aside"
            )
        self.letters.publish(spark, files, batch)

    def _commit(self, files: Sequence[TableFile], batch: BatchId) -> None:
        """Commit, again after each commit of another writer, unless that was this batch."""
        schema = self.layout.schema(self._values_schema())
        for _ in range(COMMITS_MAX):
            try:
                return self._commit_once(files, batch, schema)
            except CommitConflict as conflict:
                log.warning("batch %d of %s: another writer has committed, retrying: %s", *_words(batch, conflict))
                time.sleep(_RETRY_S)
                if is_committed(self.table, batch):
                    return None
        raise PipelineError(f"batch {batch.number} was not committed: other writers commit all the time")

    def _commit_once(self, files: Sequence[TableFile], batch: BatchId, schema: pa.Schema) -> None:
        if self.layout.mode is Mode.APPEND:
            self.table.append(batch, files, schema)
            return
        tables = [pq.ParquetFile(self.staging / each.path).read() for each in files]
        rows = pa.concat_tables(tables, promote_options="permissive")
        latest = latest_rows(rows)
        is_gone = latest[TOMBSTONE]
        deleted = latest.filter(is_gone)[KEY].combine_chunks()
        self.table.upsert(batch, conform(latest.filter(pc.invert(is_gone)), schema), deleted, schema)

    def _values_schema(self) -> pa.Schema:
        return pa.schema([("value", pa.binary())]) if self.layout.is_raw else self.shared.read()


def _words(batch: BatchId, conflict: Exception) -> tuple[int, str, str]:
    return batch.number, batch.writer, str(conflict)


def _file_of(row: Mapping[str, Any]) -> TableFile:
    return TableFile(path=row["path"], records=row["records"], values=json.loads(row["values"]), kind=row["kind"])
