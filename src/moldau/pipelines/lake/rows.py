"""Records to rows of a lake table, in a task: decoded values, event time, partitions; bad rows apart."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from moldau.pipelines.lake import layout as names
from moldau.pipelines.lake.column_types import MOMENT
from moldau.pipelines.lake.json_values import JsonValues
from moldau.pipelines.lake.layout import Layout, Mode, ValueFormat
from moldau.pipelines.lake.shared_schema import SharedSchema
from moldau.pipelines.lake.values import Decoded, NewFields, RawValues, ValueDecoder
from moldau.pipelines.requirements import PipelineError

BAD_ROW: Final = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", names.headers_type()),
        ("reason", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
    ]
)
_MILLISECONDS_MIN: Final = 100_000_000_000  # a smaller number is in seconds


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a batch: for the table, and for the dead letters."""

    good: pa.Table
    bad: pa.Table


class RowBuilder:
    """Builds the rows of a table. `schema` is the path of the schema file."""

    def __init__(self, layout: Layout, schema: str) -> None:
        self._layout = layout
        self._decoder = decoder_for(layout, SharedSchema(schema))

    def build(self, batch: pa.RecordBatch) -> Rows:
        decoded = self._decoder.decode(batch.column("value"))
        bad = dict(decoded.bad)
        if not self._layout.is_raw or self._layout.mode is Mode.UPSERT:
            bad |= self._bad_keys(batch, bad)
        good, columns = self._kept(batch, decoded, bad)
        return Rows(self._table(good, columns), _bad_rows(batch, bad))

    def _bad_keys(self, batch: pa.RecordBatch, bad: dict[int, str]) -> dict[int, str]:
        keys = batch.column("key")
        found: dict[int, str] = {}
        if self._layout.mode is Mode.UPSERT and keys.null_count:
            nulls = pc.indices_nonzero(pc.is_null(keys)).to_pylist()
            found = dict.fromkeys(nulls, "a record without a key cannot be upserted")
        if not self._layout.is_raw and not _is_text(keys):
            texts = {number for number, key in enumerate(keys.to_pylist()) if key is not None and not _decodes(key)}
            found |= dict.fromkeys(texts, "the key is not UTF-8")
        return {number: reason for number, reason in found.items() if number not in bad}

    def _kept(self, batch: pa.RecordBatch, decoded: Decoded, bad: dict[int, str]) -> tuple[pa.Table, pa.Table]:
        """Return the rows that are not bad, and the columns of their values."""
        whole = pa.Table.from_batches([batch])
        if not bad:
            return whole, decoded.columns
        kept = range(batch.num_rows) if decoded.kept is None else decoded.kept
        places = [place for place, number in enumerate(kept) if number not in bad]
        chosen = pa.array([kept[place] for place in places], pa.int64())
        return whole.take(chosen), decoded.columns.take(pa.array(places, pa.int64()))

    def _table(self, records: pa.Table, values: pa.Table) -> pa.Table:
        columns: dict[str, Any] = {
            names.KEY: records["key"].cast(pa.binary() if self._layout.is_raw else pa.string()),
            names.HEADERS: records["headers"],
            names.PARTITION: records["partition"].cast(pa.int64()),
            names.OFFSET: records["offset"],
            names.TIMESTAMP: records["timestamp"],
        }
        columns |= self._times(records, values)
        schema = self._layout.schema(values.schema)
        check_partitions(self._layout, schema)
        found = [columns[each.name] if each.name in columns else values.column(each.name) for each in schema]
        table = pa.Table.from_arrays(found, schema=schema)
        table = with_time_partitions(table, self._layout)
        if self._layout.mode is Mode.UPSERT:
            table = table.append_column(names.TOMBSTONE, pc.is_null(records["value"]))
        return table

    def _times(self, records: pa.Table, values: pa.Table) -> dict[str, Any]:
        own = self._layout.time
        times = records["timestamp"]
        if own is not None:
            field = values[own] if own in values.column_names else pa.chunked_array([pa.nulls(len(values))])
            times = pc.coalesce(moments(field), times)
        return {
            **({} if own is None else {names.TIME: times}),
            **time_partitions(times, self._layout),
        }


def time_partitions(times: Any, layout: Layout) -> dict[str, Any]:
    """Return the partition columns that are computed from event times."""
    return {
        **({names.EVENT_DAY: times.cast(pa.date32())} if names.DAY in layout.by else {}),
        **({names.EVENT_HOUR: hours(times)} if names.HOUR in layout.by else {}),
    }


def with_time_partitions(table: pa.Table, layout: Layout) -> pa.Table:
    """Add the columns of day and hour that a table with hidden partitions lacks: its rows are divided by them."""
    for name, column in time_partitions(table[layout.event_time], layout).items():
        if name not in table.column_names:
            table = table.append_column(name, column)
    return table


def check_partitions(layout: Layout, schema: pa.Schema) -> None:
    hidden = {names.EVENT_DAY, names.EVENT_HOUR}
    missing = [each for each in layout.partition_columns if each not in schema.names and each not in hidden]
    if missing:
        raise PipelineError(f"--partition-by {missing[0]}: the values have no such field; name its type with --columns")


def decoder_for(layout: Layout, shared: SharedSchema) -> ValueDecoder:
    if layout.value is ValueFormat.RAW:
        return RawValues()
    if layout.value is ValueFormat.REGISTRY:
        from moldau.pipelines.lake.registry_rows import registry_rows

        return registry_rows(layout.registry, shared, NewFields(layout.new_fields))
    return JsonValues(shared, NewFields(layout.new_fields))


def moments(field: Any) -> pa.ChunkedArray:
    """Return event times: of ISO 8601 texts, of numbers (milliseconds, or seconds), or null."""
    if pa.types.is_timestamp(field.type):
        return field.cast(MOMENT)
    if pa.types.is_integer(field.type) or pa.types.is_floating(field.type):
        return _of_numbers(field)
    if pa.types.is_string(field.type):
        import pandas as pd

        found = pd.to_datetime(field.to_pandas(), errors="coerce", format="ISO8601", utc=True)
        return pa.chunked_array([pa.array(found).cast(MOMENT, safe=False)])
    return pa.chunked_array([pa.nulls(len(field), MOMENT)])


def _of_numbers(field: Any) -> pa.ChunkedArray:
    finite = pc.is_finite(field)
    numbers = pc.if_else(finite, field, None).cast(pa.float64())
    is_seconds = pc.less(pc.abs(numbers), _MILLISECONDS_MIN)
    micros = pc.multiply(numbers, pc.if_else(is_seconds, 1e6, 1e3))
    in_range = pc.less(pc.abs(micros), 2.0**56)  # until the year 4253
    return pc.round(pc.if_else(in_range, micros, None)).cast(pa.int64()).cast(MOMENT)


def hours(times: Any) -> Any:
    return pc.strftime(pc.floor_temporal(times, unit="hour").cast(pa.timestamp("s", "UTC")), "%Y-%m-%d-%H")


def _bad_rows(batch: pa.RecordBatch, bad: dict[int, str]) -> pa.Table:
    if not bad:
        return BAD_ROW.empty_table()
    places = sorted(bad)
    rows = pa.Table.from_batches([batch]).take(pa.array(places, pa.int64()))
    reasons = pa.array([bad[each] for each in places], pa.string())
    columns = [rows["key"], rows["value"], rows["headers"], reasons, rows["partition"], rows["offset"]]
    return pa.Table.from_arrays(columns, schema=BAD_ROW)


def _is_text(keys: Any) -> bool:
    try:
        keys.cast(pa.string())
    except pa.ArrowInvalid:
        return False
    return True


def _decodes(key: bytes) -> bool:
    try:
        key.decode()
    except UnicodeDecodeError:
        return False
    return True


def latest_rows(rows: pa.Table) -> pa.Table:
    """Return the last row of each key: by offset within a partition, by timestamp if a key is in several partitions."""
    for order, keys in (
        ([(names.OFFSET, "descending")], [names.KEY, names.PARTITION]),
        ([(names.TIMESTAMP, "descending"), (names.OFFSET, "descending")], [names.KEY]),
    ):
        rows = _first_of_each(rows.sort_by(order), keys)
    return rows


def _first_of_each(rows: pa.Table, keys: Sequence[str]) -> pa.Table:
    numbered = rows.select(list(keys)).append_column("_row", pa.array(range(len(rows)), pa.int64()))
    firsts = numbered.group_by(list(keys)).aggregate([("_row", "min")])["_row_min"]
    return rows.take(firsts) if len(firsts) < len(rows) else rows
