"""Lake tables without Spark: record batches, the tasks' and the driver's work on them, and what the tables contain."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from moldau.pipelines.lake.lake_sink import LakeSink
from moldau.pipelines.lake.lake_source import LakeTarget
from moldau.pipelines.lake.lake_table import BatchId, LakeTable
from moldau.pipelines.lake.layout import OWN, Layout, ValueFormat, note_layout
from moldau.pipelines.lake.shared_schema import SharedSchema
from moldau.pipelines.lake.tables import TableFormat, open_table
from pyspark_moldau.codec.columns import ROW_WITH_HEADERS

START_US: Final = 1_700_000_000_000_000
HOUR_US: Final = 3_600_000_000
WRITER: Final = "query"


def records(
    values: Sequence[bytes | None], first: int = 0, keys: Sequence[bytes | None] | None = None, partition: int = 0
) -> pa.RecordBatch:
    """Return records of one partition, an hour apart."""
    count = len(values)
    columns = {
        "key": [b"k%d" % number for number in range(count)] if keys is None else keys,
        "value": values,
        "topic": ["orders"] * count,
        "partition": [partition] * count,
        "offset": range(first, first + count),
        "timestamp": [START_US + number * HOUR_US for number in range(first, first + count)],
        "timestampType": [0] * count,
        "headers": [[{"key": "from", "value": b"shop"}]] * count,
    }
    arrays = [pa.array(columns[each.name], each.type) for each in ROW_WITH_HEADERS]
    return pa.RecordBatch.from_arrays(arrays, schema=ROW_WITH_HEADERS)


def objects(*values: dict[str, Any]) -> list[bytes]:
    return [json.dumps(each).encode() for each in values]


@dataclass(slots=True)
class Letters:
    """Stands for the dead-letter topic, which publishes exactly once."""

    published: list[dict[str, Any]] = field(default_factory=list)

    def publish(self, spark: Any, files: Sequence[Path], batch: BatchId) -> None:  # noqa: ARG002
        for each in files:
            self.published += pq.read_table(each).to_pylist()


class File(dict[str, Any]):
    """A row of Spark."""

    def asDict(self) -> dict[str, Any]:  # noqa: N802
        return dict(self)


@dataclass(frozen=True, slots=True)
class Frame:
    """The files that the tasks of a batch write when it is collected, as a DataFrame of LakeSource."""

    target: LakeTarget
    tasks: Sequence[Sequence[pa.RecordBatch]]
    sparkSession: Any = None  # noqa: N815

    def collect(self) -> list[File]:
        written = (each for task in self.tasks for each in self.target.write(iter(task)))
        return [File(row) for batch in written for row in batch.to_pylist()]


class Scene:
    """A table of a format, and a writer of batches."""

    def __init__(self, kind: TableFormat, folder: Path, columns: pa.Schema | None = None, **layout: Any) -> None:
        self.folder = folder / kind.value
        self.layout = Layout(**layout, has_hidden_partitions=kind is TableFormat.ICEBERG)
        self.table: LakeTable = open_table(kind, str(self.folder), self.layout)
        self.letters = Letters()
        self._staging = self.folder / OWN / "staging"
        self._staging.mkdir(parents=True, exist_ok=True)
        self._shared = SharedSchema(str(self.folder / OWN / "schema"))
        note_layout(self.folder, self.layout)
        self._shared.extend(columns or pa.schema([]))
        if self.table.schema() is None:
            self.table.create(self.layout.schema(self._values()))

    def _values(self) -> pa.Schema:
        is_raw = self.layout.value is ValueFormat.RAW
        return pa.schema([("value", pa.binary())]) if is_raw else self._shared.read()

    @property
    def sink(self) -> LakeSink:
        return LakeSink(
            table=self.table,
            layout=self.layout,
            staging=self._staging,
            shared=self._shared,
            letters=self.letters,  # type: ignore[arg-type]
        )

    def frame(self, *tasks: Sequence[pa.RecordBatch]) -> Frame:
        target = LakeTarget(
            data=str(self.table.data_folder),
            staging=str(self._staging),
            schema=self._shared.path,
            layout=self.layout,
        )
        return Frame(target, tasks)

    def put(self, number: int, *batches: pa.RecordBatch, writer: str = WRITER) -> None:
        self.sink.put(self.frame(batches), BatchId(writer, number))

    def rows(self) -> list[dict[str, Any]]:
        return rows_of(self.table.scan())


def rows_of(tables: Iterable[pa.Table]) -> list[dict[str, Any]]:
    rows = [row for each in tables for row in each.to_pylist()]
    return sorted(rows, key=lambda row: (row["_partition"], row["_offset"]))
