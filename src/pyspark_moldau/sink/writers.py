"""The Spark writers behind `df.write` and `df.writeStream`, in tasks and on the driver.

Exactly once: tasks stage rows, the driver publishes them in one transaction. At least once: tasks produce them.
"""

import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pyspark_moldau.options.offset_limits import OptionError
from pyspark_moldau.options.sink_options import BatchIdentity, Guarantee, SinkOptions
from pyspark_moldau.sink.batch_builder import staging_batches
from pyspark_moldau.sink.librdkafka_sender import produce_all
from pyspark_moldau.sink.records import check_columns, to_records
from pyspark_moldau.sink.staged_batches import StagedBatches, remove_writer, stage
from pyspark_moldau.sink.transaction_commit import BatchCommitters

if TYPE_CHECKING:
    import pyarrow as pa

_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"
_RUN: Final = "spark.jobGroup.id"  # the run id of a streaming query
_DRIVER: Final = ("spark.app.id", "spark.app.startTime")  # some masters reuse the id when they restart a driver

# The committing process is reused between batches, and so are its transactional producers.
_COMMITTERS: Final = BatchCommitters()


@dataclass(frozen=True)
class StagedMessage(WriterCommitMessage):
    """The staged rows of a task."""

    part: StagedBatches


@dataclass(frozen=True)
class ProducedMessage(WriterCommitMessage):
    """A task has produced its rows directly."""

    rows: int


def column_types(schema: StructType) -> dict[str, str]:
    return {field.name: field.dataType.simpleString() for field in schema.fields}


class BatchWriter(DataSourceArrowWriter):
    """`df.write`: one object, created on the driver and copied to the tasks."""

    def __init__(self, options: SinkOptions, schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise OptionError("A topic cannot be overwritten: write with mode('append').")
        check_columns(column_types(schema), options)
        self._options = options
        self._identity = options.identity or BatchIdentity(str(uuid.uuid4()), 0, is_durable=False)

    def write(self, iterator: Iterator["pa.RecordBatch"]) -> WriterCommitMessage:
        return write_rows(iterator, self._options, replace(self._identity, run=driver_id(TaskContext.get())))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        parts = staged_in(messages)
        if parts:
            self.committers().commit(self._options, replace(self._identity, run=parts[0].run), parts)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        delete_staged(messages)
        if not self._identity.is_durable:  # including files of failed tasks
            remove_writer(self._options.staging, self._identity.writer)

    def committers(self) -> BatchCommitters:
        return _COMMITTERS


class StreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream`: created for every batch. Only tasks receive the ids of query and batch."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        check_columns(column_types(schema), options)
        self._options = options

    def write(self, iterator: Iterator["pa.RecordBatch"]) -> WriterCommitMessage:
        context = TaskContext.get()
        query, batch, run = (context.getLocalProperty(each) for each in (_QUERY, _BATCH, _RUN))
        return write_rows(iterator, self._options, BatchIdentity(query, int(batch), run=run))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        parts = staged_in(messages)
        if parts:
            self.committers().commit(self._options, BatchIdentity(parts[0].writer, batchId, run=parts[0].run), parts)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803
        """Delete staged rows; a transaction is never aborted from here."""
        delete_staged(messages)

    def committers(self) -> BatchCommitters:
        return _COMMITTERS


def driver_id(context: Any) -> str | None:
    """Return the id of the driver; Spark passes it to tasks only."""
    properties = [context.getLocalProperty(each) for each in _DRIVER]
    return "/".join(properties) if all(properties) else None


def write_rows(
    batches: Iterable["pa.RecordBatch"], options: SinkOptions, identity: BatchIdentity
) -> WriterCommitMessage:
    """Stage or produce the rows of a task."""
    records = (each for batch in batches for each in to_records(batch, options))
    if options.guarantee is Guarantee.EXACTLY_ONCE:
        context = TaskContext.get()
        with staging_batches(records, options) as ready:
            return StagedMessage(
                stage(ready, options.staging, identity, context.partitionId(), context.taskAttemptId())
            )
    return ProducedMessage(produce_all(records, options))


def staged_in(messages: Sequence[WriterCommitMessage | None]) -> list[StagedBatches]:
    return [message.part for message in messages if isinstance(message, StagedMessage)]


def delete_staged(messages: Sequence[WriterCommitMessage | None]) -> None:
    for part in staged_in(messages):
        part.delete()
