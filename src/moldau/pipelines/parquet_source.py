"""A source whose tasks write the records they read to Parquet files; Spark sees one row per file.

Passing each record through the JVM costs several times as much as reading and writing it.
"""

import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from moldau.model.units import MiB
from pyspark_moldau.data_source import MoldauSource
from pyspark_moldau.options.source_options import SourceOptions, batch_options, stream_options
from pyspark_moldau.source.readers import BatchReader, StreamReader

FOLDER: Final = "target.folder"
CODEC: Final = "target.codec"
COLUMNS: Final = ("key", "value", "headers", "timestamp", "timestampType", "offset")
_FILES: Final = pa.schema(
    [
        ("partition", pa.int32()),
        ("path", pa.string()),
        ("records", pa.int64()),
        ("first", pa.int64()),
        ("last", pa.int64()),
    ]
)
_FILES_DDL: Final = "partition int, path string, records bigint, first bigint, last bigint"
_GROUP_BYTES: Final = 64 * MiB  # of rows before encoding; also the memory a task needs
_DICTIONARY_TYPES: Final = (
    "key",
    "timestampType",
    "headers.list.element.key",
)  # dictionary encoding is likely to pay off
_STATISTICS_COLUMNS: Final = ("offset", "timestamp")  # min/max statistics let readers skip row groups


@dataclass(frozen=True, slots=True)
class ParquetTarget:
    """The folder and the compression codec of the files."""

    folder: str
    codec: str

    def write_parquet(self, rows: Iterator[Any], partition: int) -> Iterator[pa.RecordBatch]:
        """Write the rows to a file and yield one row that describes it; nothing if there are no rows."""
        path = Path(self.folder) / f"part-{uuid.uuid4().hex}.{self.codec}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        records, first, last = 0, -1, -1
        try:
            with pq.ParquetWriter(path, written_schema(), **self._settings()) as writer:
                for table in gathered(rows):
                    writer.write_table(table, row_group_size=table.num_rows)
                    offsets = table.column("offset")
                    first = offsets[0].as_py() if not records else first
                    records, last = records + table.num_rows, offsets[-1].as_py()
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        if not records:
            path.unlink()
            return
        file = {"partition": partition, "path": str(path), "records": records, "first": first, "last": last}
        yield pa.RecordBatch.from_pylist([file], schema=_FILES)

    def _settings(self) -> dict[str, Any]:
        return {
            "compression": self.codec,
            "use_dictionary": list(_DICTIONARY_TYPES),
            "write_statistics": list(_STATISTICS_COLUMNS),
            "column_encoding": {"offset": "DELTA_BINARY_PACKED"},
        }


def written_schema() -> pa.Schema:
    from pyspark_moldau.codec.columns import ROW_WITH_HEADERS

    return pa.schema([ROW_WITH_HEADERS.field(name) for name in COLUMNS])


def gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Combine batches into tables large enough for a row group."""
    some: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if batch.num_rows:
            some.append(batch.select(list(COLUMNS)))
            size += batch.nbytes
        if size >= _GROUP_BYTES:
            yield pa.Table.from_batches(some)
            some, size = [], 0
    if some:
        yield pa.Table.from_batches(some)


class ParquetSource(MoldauSource):
    """Reads like `format("moldau")`, but writes the records to files; its rows describe the files."""

    @classmethod
    def name(cls) -> str:
        return "moldau-target"

    def schema(self) -> str:
        return _FILES_DDL

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002
        target, others = self._split()
        return ParquetReader(batch_options(others), target)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802
        target, others = self._split()
        return ParquetStreamReader(stream_options(others), target)

    def _split(self) -> tuple[ParquetTarget, dict[str, str]]:
        others = {name.lower(): value for name, value in self.options.items()}
        return ParquetTarget(others.pop(FOLDER), others.pop(CODEC)), others


class ParquetReader(BatchReader):
    """`spark.read`."""

    def __init__(self, options: SourceOptions, target: ParquetTarget) -> None:
        super().__init__(options)
        self._target = target

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return write_range(super().read(partition), partition, self._target)


class ParquetStreamReader(StreamReader):
    """`spark.readStream`."""

    def __init__(self, options: SourceOptions, target: ParquetTarget) -> None:
        super().__init__(options)
        self._target = target

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_target": self._target}

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return write_range(super().read(partition), partition, self._target)


def write_range(rows: Iterator[Any], partition: InputPartition, target: ParquetTarget) -> Iterator[Any]:
    """Write one input partition, in a task. Spark passes a partition without a value for an empty batch."""
    return iter(()) if partition.value is None else target.write_parquet(rows, partition.value.partition)
