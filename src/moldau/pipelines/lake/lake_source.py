"""A source whose tasks write the records they read to data files of a table; Spark sees one row per file.

A task does not commit anything: files that no commit names are orphans, which maintenance removes.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from moldau.pipelines.lake.layout import Layout, Mode
from moldau.pipelines.lake.rows import RowBuilder, Rows
from moldau.pipelines.lake.table_files import FileWriter, TableFile, write_rows
from pyspark_moldau.data_source import MoldauSource
from pyspark_moldau.options.source_options import SourceOptions, batch_options, stream_options
from pyspark_moldau.source.readers import BatchReader, StreamReader

DATA: Final = "lake.data"
STAGING: Final = "lake.staging"
SCHEMA_FILE: Final = "lake.schema"
LAYOUT: Final = "lake.layout"
FILES: Final = pa.schema(
    [("path", pa.string()), ("records", pa.int64()), ("values", pa.string()), ("kind", pa.string())]
)
_FILES_DDL: Final = "path string, records bigint, values string, kind string"


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeTarget:
    """Where tasks write: data files, files that the driver reads, and the schema that they share."""

    data: str
    staging: str
    schema: str
    layout: Layout

    def write(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        builder, prefix = RowBuilder(self.layout, self.schema), file_prefix()
        bad = FileWriter(Path(self.staging), self.layout, prefix)
        for file in write_rows((_pair(builder.build(each)) for each in batches), self._good(prefix), bad):
            yield pa.RecordBatch.from_pylist([_row(file)], schema=FILES)

    def _good(self, prefix: str) -> FileWriter:
        if self.layout.mode is Mode.UPSERT:  # the driver merges them
            return FileWriter(Path(self.staging), self.layout, prefix)
        return FileWriter(Path(self.data), self.layout, prefix, self.layout.partition_columns)


def _pair(rows: Rows) -> tuple[pa.Table, pa.Table]:
    return rows.good, rows.bad


def _row(file: TableFile) -> dict[str, Any]:
    return {"path": file.path, "records": file.records, "values": json.dumps(dict(file.values)), "kind": file.kind}


def file_prefix() -> str:
    """Return the start of file names: the query and the batch that write them."""
    context = TaskContext.get()
    query = context.getLocalProperty("sql.streaming.queryId") if context else None
    batch = context.getLocalProperty("streaming.sql.batchId") if context else None
    return f"{query or 'bounded'}-{batch or 0}"


class LakeSource(MoldauSource):
    """Reads like `format("moldau")`, but writes the records to data files; its rows describe the files."""

    @classmethod
    def name(cls) -> str:
        return "moldau-lake"

    def schema(self) -> str:
        return _FILES_DDL

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002
        target, others = self._split()
        return LakeReader(batch_options(others), target)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802
        target, others = self._split()
        return LakeStreamReader(stream_options(others), target)

    def _split(self) -> tuple[LakeTarget, dict[str, str]]:
        others = {name.lower(): value for name, value in self.options.items()}
        layout = Layout.of_text(others.pop(LAYOUT))
        data, staging, schema = others.pop(DATA), others.pop(STAGING), others.pop(SCHEMA_FILE)
        return LakeTarget(data=data, staging=staging, schema=schema, layout=layout), others


class LakeReader(BatchReader):
    """`spark.read`."""

    def __init__(self, options: SourceOptions, target: LakeTarget) -> None:
        super().__init__(options)
        self._target = target

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return written(super().read(partition), partition, self._target)


class LakeStreamReader(StreamReader):
    """`spark.readStream`."""

    def __init__(self, options: SourceOptions, target: LakeTarget) -> None:
        super().__init__(options)
        self._target = target

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_target": self._target}

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return written(super().read(partition), partition, self._target)


def written(rows: Iterator[Any], partition: InputPartition, target: LakeTarget) -> Iterator[Any]:
    """Write one input partition, in a task. Spark passes a partition without a value for an empty batch."""
    return iter(()) if partition.value is None else target.write(rows)
