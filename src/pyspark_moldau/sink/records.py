"""Converts DataFrame rows to records and separates rows that cannot be produced."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_moldau.codec import columns
from pyspark_moldau.options.offset_limits import OptionError
from pyspark_moldau.options.sink_options import SinkOptions
from pyspark_moldau.options.topic_names import is_topic_name

RECORD: Final = pa.schema(
    [
        ("topic", pa.dictionary(pa.int32(), pa.string())),
        ("partition", pa.int32()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", columns.HEADERS),
        ("timestamp_ms", pa.int64()),
    ]
)
REASON: Final = "moldau.reason"
INTENDED_TOPIC: Final = "moldau.topic"
INTENDED_PARTITION: Final = "moldau.partition"
TRUNCATED: Final = "moldau.cut"

_BYTES: Final = ("string", "binary")
_HEADERS_TYPE: Final = "array<struct<key:string,value:binary>>"
_TYPES: Final = {
    "topic": ("string",),
    "partition": ("int",),
    "key": _BYTES,
    "value": _BYTES,
    "headers": (_HEADERS_TYPE,),
    "timestamp": ("timestamp",),
}
# Size of a one-record batch without key, value and headers.
_OVERHEAD_BYTES: Final = 128
_HEADER_OVERHEAD_BYTES: Final = 10
# Keys and values of oversized rows are truncated to this size in the dead-letter topic.
TRUNCATED_BYTES: Final = 65_536
_NOTE_CHARACTERS_MAX: Final = 1_000
_TIME_ZERO: Final = (
    "column 'timestamp' is 1970-01-01 00:00:00 UTC, which librdkafka replaces by the current time; it can only be "
    "written exactly once and not through librdkafka"
)
_CUT_NOTE_BYTES: Final = 128


class RowRejected(ValueError):
    """A row that cannot be converted to a record."""


def check_columns(types: Mapping[str, str], options: SinkOptions) -> None:
    """Check the columns of the DataFrame; `types` maps them to Spark type names."""
    if "value" not in types:
        raise OptionError(f"Column 'value' is required; the columns are {', '.join(sorted(types)) or 'no columns'}.")
    if options.topic is None and "topic" not in types:
        raise OptionError("No topic given: set the option 'topic' or add a column 'topic'.")
    for name, allowed in _TYPES.items():
        if name in types and _is_used(name, options) and _plain(types[name]) not in allowed:
            raise OptionError(f"Column '{name}' has type {types[name]}; it must be {' or '.join(allowed)}.")


def _is_used(name: str, options: SinkOptions) -> bool:
    match name:
        case "topic":
            return options.topic is None
        case "headers":
            return options.has_headers
        case "timestamp":
            return options.has_timestamps
        case _:
            return True


def _plain(type_name: str) -> str:
    """Strip collation and length from string types."""
    return re.sub(r"^(string collate \w+|(var)?char\(\d+\))$", "string", type_name.replace(" ,", ",").lower())


def to_records(batch: pa.RecordBatch, options: SinkOptions) -> Iterator[pa.RecordBatch]:
    """Convert rows to records in order, followed by the rejected rows for the dead-letter topic."""
    records = _records(batch, options)
    rejected = find_rejections(records, options)
    if not rejected:
        yield records
        return
    if options.dead_letter_topic is None:
        row, reason = next(iter(sorted(rejected.items())))
        raise RowRejected(
            f"A row cannot be written: {reason} (row {row} of a batch of {batch.num_rows}, {len(rejected)} like it). "
            "Set the option 'deadLetterTopic' to write such rows there with the reason."
        )
    yield from split_rejected(records, rejected, options.dead_letter_topic, options.row_bytes_max)


def find_missing_partitions(records: pa.RecordBatch, partitions_of: Callable[[str], int | None]) -> dict[int, str]:
    """Return row number → reason for rows whose partition does not exist. A count of None: the topic does not exist.

    Only topics of rows with an explicit partition are looked up, because a lookup may create a topic.
    """
    if records["partition"].null_count == records.num_rows:
        return {}
    topics = records["topic"].dictionary.to_pylist()
    places, numbers = records["topic"].indices.to_pylist(), records["partition"].to_pylist()
    named = [row for row, number in enumerate(numbers) if number is not None]
    counts = {place: partitions_of(topics[place]) for place in sorted({places[row] for row in named})}
    found = {}
    for row in named:
        count = counts[places[row]]
        if count is not None and numbers[row] >= count:
            found[row] = f"column 'partition' is {numbers[row]}, but {topics[places[row]]} has {count} partitions"
    return found


def split_rejected(
    records: pa.RecordBatch, rejected: Mapping[int, str], dead_letter_topic: str, row_bytes_max: int
) -> Iterator[pa.RecordBatch]:
    """Yield the valid rows, then the rejected ones as dead letters, truncated above `row_bytes_max`."""
    yield records.filter(pa.array([row not in rejected for row in range(records.num_rows)]))
    yield _dead_letters(records, rejected, dead_letter_topic, row_bytes_max)


def _records(batch: pa.RecordBatch, options: SinkOptions) -> pa.RecordBatch:
    rows = batch.num_rows
    given = {name: batch.column(name) for name in batch.schema.names if name in _TYPES and _is_used(name, options)}
    if options.topic is not None:
        topic = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array([options.topic]))
    else:
        topic = _texts(given["topic"])
    return pa.RecordBatch.from_arrays(
        [
            topic,
            _or_nulls(given.get("partition"), pa.int32(), rows),
            _or_nulls(given.get("key"), pa.binary(), rows),
            _or_nulls(given.get("value"), pa.binary(), rows),
            _or_nulls(given.get("headers"), columns.HEADERS, rows),
            _times(given.get("timestamp"), rows),
        ],
        schema=RECORD,
    )


def _texts(column: pa.Array) -> pa.DictionaryArray:
    encoded = pc.dictionary_encode(pc.cast(column, pa.string()))
    return pc.cast(encoded, RECORD.field("topic").type)


def _or_nulls(column: pa.Array | None, kind: pa.DataType, rows: int) -> pa.Array:
    return pa.nulls(rows, kind) if column is None else pc.cast(column, kind)


def _times(column: pa.Array | None, rows: int) -> pa.Array:
    if column is None:
        return pa.nulls(rows, pa.int64())
    # Convert in UTC: in the session's time zone, local times are ambiguous when clocks are set back.
    rounded = pc.floor_temporal(pc.cast(column, pa.timestamp("us", "UTC")), 1, "millisecond")
    return pc.cast(rounded, pa.timestamp("ms", "UTC")).cast(pa.int64())


def find_rejections(records: pa.RecordBatch, options: SinkOptions) -> dict[int, str]:
    """Return row number → reason for rows that cannot be written; vectorised, rows are visited only if suspicious."""
    found: dict[int, str] = {}
    if options.is_sent_by_librdkafka:  # librdkafka interprets timestamp 0 as "now"
        found |= dict.fromkeys(_rows(pc.equal(records["timestamp_ms"], 0)), _TIME_ZERO)
    for row in _rows(_is_large(records, options.row_bytes_max)):
        found[row] = f"it is larger than {options.row_bytes_max} bytes, the limit of 'kafka.max.request.size'"
    for row in _rows(pc.less(records["partition"], 0)):
        found[row] = f"column 'partition' is {records['partition'][row].as_py()}"
    found |= _bad_headers(records["headers"]) | _bad_topics(records["topic"])
    return found


def _rows(mask: pa.Array) -> list[int]:
    return [] if not pc.any(mask).as_py() else pc.indices_nonzero(pc.fill_null(mask, False)).to_pylist()


def _is_large(records: pa.RecordBatch, row_bytes_max: int) -> pa.Array:
    sizes = pc.add(_lengths(records["key"]), _lengths(records["value"]))
    if records["headers"].null_count != records.num_rows:
        sizes = pc.add(sizes, pa.array(map(_headers_bytes, records["headers"].to_pylist()), pa.int64()))
    return pc.greater(sizes, row_bytes_max - _OVERHEAD_BYTES)


def _lengths(column: pa.Array) -> pa.Array:
    return pc.cast(pc.fill_null(pc.binary_length(column), 0), pa.int64())


def _headers_bytes(headers: list[dict[str, Any]] | None) -> int:
    return sum(
        len((each["key"] or "").encode()) + len(each["value"] or b"") + _HEADER_OVERHEAD_BYTES
        for each in headers or ()
        if each is not None
    )


def _bad_headers(headers: pa.Array) -> dict[int, str]:
    if headers.null_count == len(headers) or not _has_null_keys(headers):
        return {}
    return {
        row: "column 'headers' has a header without a key"
        for row, pairs in enumerate(headers.to_pylist())
        if any(each is None or each["key"] is None for each in pairs or ())
    }


def _has_null_keys(headers: pa.Array) -> bool:
    pairs = headers.flatten()
    return bool(pairs.null_count or pc.struct_field(pairs, "key").null_count)


def _bad_topics(topics: pa.DictionaryArray) -> dict[int, str]:
    bad = {number: name for number, name in enumerate(topics.dictionary.to_pylist()) if not is_topic_name(name)}
    if not bad and not topics.null_count:
        return {}
    return {
        row: "the column 'topic' is null" if number is None else f"{bad[number]!r} is not a valid topic name"
        for row, number in enumerate(topics.indices.to_pylist())
        if number is None or number in bad
    }


def _dead_letters(
    records: pa.RecordBatch, rejected: Mapping[int, str], topic: str, row_bytes_max: int
) -> pa.RecordBatch:
    rows = sorted(rejected)
    taken = records.take(pa.array(rows)).to_pylist()
    dead_letters = [_dead_letter(row, rejected[number], row_bytes_max) for number, row in zip(rows, taken, strict=True)]
    names = pa.DictionaryArray.from_arrays(pa.array([0] * len(rows), pa.int32()), pa.array([topic], pa.string()))
    return pa.RecordBatch.from_arrays(
        [
            names,
            pa.nulls(len(rows), pa.int32()),
            pa.array([each["key"] for each in dead_letters], pa.binary()),
            pa.array([each["value"] for each in dead_letters], pa.binary()),
            pa.array([each["headers"] for each in dead_letters], columns.HEADERS),
            pa.array([each["timestamp_ms"] for each in dead_letters], pa.int64()),
        ],
        schema=RECORD,
    )


def _dead_letter(row: dict[str, Any], reason: str, row_bytes_max: int) -> dict[str, Any]:
    """Return a row with its key, value, headers and the reason; oversized rows are truncated and marked."""
    kept = [each for each in row["headers"] or () if each is not None and each["key"] is not None]
    notes_by_name = {REASON: reason, INTENDED_TOPIC: row["topic"], INTENDED_PARTITION: row["partition"]}
    notes = [_note(name, str(said)) for name, said in notes_by_name.items() if said is not None]
    dead_letter = {**row, "headers": kept + notes}
    if _dead_letter_bytes(dead_letter) <= row_bytes_max - _OVERHEAD_BYTES:
        return dead_letter
    room = row_bytes_max - _OVERHEAD_BYTES - _headers_bytes(notes) - _CUT_NOTE_BYTES
    return _cut(row, kept, notes, max(0, min(TRUNCATED_BYTES, room // 3)))


def _note(name: str, said: str) -> dict[str, Any]:
    """Return a header with a truncated text, because an invalid topic name may be of any length."""
    is_long = len(said) > _NOTE_CHARACTERS_MAX
    return {"key": name, "value": (said[:_NOTE_CHARACTERS_MAX] + "…" if is_long else said).encode()}


def _dead_letter_bytes(dead_letter: Mapping[str, Any]) -> int:
    return len(dead_letter["key"] or b"") + len(dead_letter["value"] or b"") + _headers_bytes(dead_letter["headers"])


def _cut(row: dict[str, Any], kept: list[Any], notes: list[Any], bytes_max: int) -> dict[str, Any]:
    """Truncate key and value, keep headers unless they are too large, and note the original sizes."""
    sizes = {"key": len(row["key"] or b""), "value": len(row["value"] or b""), "headers": _headers_bytes(kept)}
    cut = {name: size for name, size in sizes.items() if size > bytes_max}
    beginnings: dict[str, Any] = {name: row[name][:bytes_max] for name in cut if name in ("key", "value")}
    rest = [] if "headers" in cut else kept
    return {**row, **beginnings, "headers": [*rest, *notes, _note(TRUNCATED, json.dumps(cut))]}
