"""The Spark readers of `format("moldau")` and the input partitions they pass to tasks."""

import time
from collections.abc import Iterator
from typing import Any, Protocol

from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from pyspark_moldau.options.offset_limits import offsets_json, parse_offsets_json
from pyspark_moldau.options.source_options import Fetcher, SourceOptions
from pyspark_moldau.source.cluster import ConfluentCluster
from pyspark_moldau.source.offset_ranges import OffsetRange
from pyspark_moldau.source.read_plan import StreamPlan, plan_batch
from pyspark_moldau.source.worker_exit import ignore_broken_pipe_at_exit


class ValueDecoder(Protocol):
    """Replaces binary values by structs, in tasks."""

    def row_type(self, *, with_headers: bool) -> Any:
        """Return Spark's type of the rows."""

    def apply(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Decode the values of batches."""


class BatchReader(DataSourceReader):
    """`spark.read`: planned once on the driver, read in tasks. It is pickled, so it holds only the options."""

    def __init__(self, options: SourceOptions, values: ValueDecoder | None = None) -> None:
        self._options, self._values = options, values

    def partitions(self) -> list[InputPartition]:
        cluster = ConfluentCluster(self._options)
        try:
            return [InputPartition(each) for each in plan_batch(self._options, cluster)]
        finally:
            cluster.close()

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return decoded(read_range(partition.value, self._options), self._values)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`spark.readStream`: one object on the driver per query; tasks receive copies with the options only."""

    def __init__(self, options: SourceOptions, values: ValueDecoder | None = None) -> None:
        self._options, self._values = options, values
        self._planned: StreamPlan | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_values": self._values, "_planned": None}

    @property
    def _plan(self) -> StreamPlan:
        if self._planned is None:
            cluster = ConfluentCluster(self._options)
            self._planned = StreamPlan(self._options, cluster, lambda: time.monotonic() * 1000)
        return self._planned

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return offsets_json(self._plan.initial())

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        # Spark accepts only one limit; `latestOffset` applies both from the options.
        if self._options.offsets_per_trigger_max is not None:
            return ReadMaxRows(self._options.offsets_per_trigger_max)
        if self._options.offsets_per_trigger_min is not None:
            return ReadMinRows(self._options.offsets_per_trigger_min)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._plan.prepare_available_now()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        return offsets_json(
            self._plan.latest(parse_offsets_json(start), is_limited=not isinstance(limit, ReadAllAvailable))
        )

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return offsets_json(self._plan.newest) if self._plan.newest else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [InputPartition(each) for each in self._plan.ranges(parse_offsets_json(start), parse_offsets_json(end))]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return decoded(read_range(partition.value, self._options), self._values)

    def commit(self, end: dict[str, Any]) -> None:
        self._plan.commit(parse_offsets_json(end))

    def stop(self) -> None:
        if self._planned is not None and isinstance(self._planned.cluster, ConfluentCluster):
            self._planned.cluster.close()
        ignore_broken_pipe_at_exit()


def read_range(wanted: OffsetRange | None, options: SourceOptions) -> Iterator[Any]:
    """Read a range in a task. Spark passes None for an empty batch."""
    if wanted is None:
        return iter(())
    if options.fetcher is Fetcher.LIBRDKAFKA:
        from pyspark_moldau.source.librdkafka_consumer import read_with_librdkafka

        return read_with_librdkafka(wanted, options)
    from pyspark_moldau.source.raw_fetcher import read_raw

    return read_raw(wanted, options)


def decoded(rows: Iterator[Any], values: ValueDecoder | None) -> Iterator[Any]:
    """Decode the values of batches, if the options want it."""
    return rows if values is None else values.apply(rows)
