"""The lower bound of a write: a Python sink that receives the rows of a stream as Arrow batches and discards them.

Spark passes rows to it as to `format("moldau")`, and it does no work of its own, so no Python sink can be faster.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT: Final = "moldau-bench-discard"


class DiscardingSink(DataSource):
    """Without options."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: ARG002, N802
        return DiscardingWriter()


class DiscardingWriter(DataSourceStreamArrowWriter):
    """Iterate over all batches; Spark does not send rows that are never requested."""

    def write(self, iterator: Iterator["pa.RecordBatch"]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """There is nothing to commit."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """There is nothing to undo."""
