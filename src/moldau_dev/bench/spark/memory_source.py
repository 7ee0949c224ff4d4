"""The upper bound of a read: a Python data source that returns the same prepared Arrow batch repeatedly.

It has the schema of `format("moldau")` and does no work of its own, so no Python source can be faster.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_moldau.codec import columns
from pyspark_moldau.codec.decoder import ROWS_MAX

FORMAT: Final = "moldau-bench-memory"
_TIME_US: Final = 1_700_000_000_000_000


class MemorySource(DataSource):
    """Options: `rows` in all, `partitions`, `keyBytes`, `valueBytes`."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return columns.ddl(with_headers=False)

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002
        return MemoryReader({name.lower(): int(value) for name, value in self.options.items()})


class MemoryReader(DataSourceReader):
    """As many tasks as partitions, each with its share of the rows."""

    def __init__(self, options: dict[str, int]) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(self._options["partitions"])]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        batch = prepared(partition.value, self._options["keybytes"], self._options["valuebytes"])
        rows = self._options["rows"] // self._options["partitions"]
        for _ in range(rows // ROWS_MAX):
            yield batch
        if rows % ROWS_MAX:
            yield batch.slice(0, rows % ROWS_MAX)


@lru_cache(maxsize=8)
def prepared(partition: int, key_bytes: int, value_bytes: int) -> pa.RecordBatch:
    """Return a batch of the size that the source uses. Task processes are reused and cache it."""
    numbers = range(ROWS_MAX)
    made = [
        pa.array([b"%0*d" % (key_bytes, number) for number in numbers], pa.binary()),
        pa.array([b"%0*d" % (value_bytes, number) for number in numbers], pa.binary()),
        pa.array(["a-topic-with-a-name"] * ROWS_MAX, pa.string()),
        pa.array([partition] * ROWS_MAX, pa.int32()),
        pa.array(numbers, pa.int64()),
        pa.array([_TIME_US] * ROWS_MAX, columns.ROW.field("timestamp").type),
        pa.array([0] * ROWS_MAX, pa.int32()),
    ]
    return pa.RecordBatch.from_arrays(made, schema=columns.ROW)
