"""A topic straight into Parquet files: the tasks that read the records write them as well, and tell Spark of the files.

A record that goes through the JVM on its way costs several times what it takes to read and write it.
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

FOLDER: Final = "filing.folder"
CODEC: Final = "filing.codec"
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
_GROUP_BYTES: Final = 64 * MiB  # of rows, before they are encoded; a task holds as much
_SELDOM_NEW: Final = (
    "key",
    "timestampType",
    "headers.list.element.key",
)  # these may be worth a dictionary
_SOUGHT: Final = ("offset", "timestamp")  # by them readers pass over what they do not want


@dataclass(frozen=True, slots=True)
class Filing:
    """Where the files go, and how they are compressed."""

    folder: str
    codec: str

    def filed(self, rows: Iterator[Any], partition: int) -> Iterator[pa.RecordBatch]:
        """One row for the file, if there is anything to be written."""
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
        told = {"partition": partition, "path": str(path), "records": records, "first": first, "last": last}
        yield pa.RecordBatch.from_pylist([told], schema=_FILES)

    def _settings(self) -> dict[str, Any]:
        return {
            "compression": self.codec,
            "use_dictionary": list(_SELDOM_NEW),
            "write_statistics": list(_SOUGHT),
            "column_encoding": {"offset": "DELTA_BINARY_PACKED"},
        }


def written_schema() -> pa.Schema:
    from pyspark_moldau.codec.columns import ROW_WITH_HEADERS

    return pa.schema([ROW_WITH_HEADERS.field(name) for name in COLUMNS])


def gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """So many of them together that they are worth a row group."""
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


class FilingSource(MoldauSource):
    """What `format("moldau")` reads, written to files; its rows are the files."""

    @classmethod
    def name(cls) -> str:
        return "moldau-filing"

    def schema(self) -> str:
        return _FILES_DDL

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002
        filing, others = self._split()
        return FilingReader(batch_options(others), filing)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802
        filing, others = self._split()
        return FilingStreamReader(stream_options(others), filing)

    def _split(self) -> tuple[Filing, dict[str, str]]:
        others = {name.lower(): value for name, value in self.options.items()}
        return Filing(others.pop(FOLDER), others.pop(CODEC)), others


class FilingReader(BatchReader):
    """`spark.read`."""

    def __init__(self, options: SourceOptions, filing: Filing) -> None:
        super().__init__(options)
        self._filing = filing

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return filed_range(super().read(partition), partition, self._filing)


class FilingStreamReader(StreamReader):
    """`spark.readStream`."""

    def __init__(self, options: SourceOptions, filing: Filing) -> None:
        super().__init__(options)
        self._filing = filing

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_filing": self._filing}

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return filed_range(super().read(partition), partition, self._filing)


def filed_range(rows: Iterator[Any], partition: InputPartition, filing: Filing) -> Iterator[Any]:
    """In a task. Spark makes up a partition without a range where there is none."""
    return iter(()) if partition.value is None else filing.filed(rows, partition.value.partition)
