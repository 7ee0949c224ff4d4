"""Rows on their way out: the columns of a DataFrame as records to produce, and those that cannot be, put aside."""

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
# What a batch of one record has around its key, value and headers.
_OVERHEAD_BYTES: Final = 128
_HEADER_OVERHEAD_BYTES: Final = 10
# Of a row that is too large for any topic, so much of its key and of its value goes to the dead letters.
TRUNCATED_BYTES: Final = 65_536
_NOTE_CHARACTERS_MAX: Final = 1_000
_TIME_ZERO: Final = (
    "column 'timestamp' is 1970-01-01 00:00:00 UTC, in whose place librdkafka writes the time of today; only exactly "
    "once, and without TLS and SASL, it can be written"
)
_CUT_NOTE_BYTES: Final = 128


class RowRejected(ValueError):
    """A row that no record can be made of."""


def check_columns(types: Mapping[str, str], options: SinkOptions) -> None:
    """`types` are the columns of the DataFrame and Spark's names of their types."""
    if "value" not in types:
        raise OptionError(f"Column 'value' is needed; there are {', '.join(sorted(types)) or 'no columns'}.")
    if options.topic is None and "topic" not in types:
        raise OptionError("Where shall the rows go? Set the option 'topic', or add a column 'topic'.")
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
    """Strings of any collation and length are strings."""
    return re.sub(r"^(string collate \w+|(var)?char\(\d+\))$", "string", type_name.replace(" ,", ",").lower())


def to_records(batch: pa.RecordBatch, options: SinkOptions) -> Iterator[pa.RecordBatch]:
    """The rows as records, in their order; then those for the dead-letter topic, if one is given."""
    records = _records(batch, options)
    rejected = find_rejections(records, options)
    if not rejected:
        yield records
        return
    if options.dead_letter_topic is None:
        row, reason = next(iter(sorted(rejected.items())))
        raise RowRejected(
            f"A row cannot be written: {reason} (row {row} of a batch of {batch.num_rows}, {len(rejected)} like it). "
            "With the option 'deadLetterTopic' such rows are put aside with the reason."
        )
    yield from split_rejected(records, rejected, options.dead_letter_topic, options.row_bytes_max)


def find_missing_partitions(records: pa.RecordBatch, partitions_of: Callable[[str], int | None]) -> dict[int, str]:
    """Row number → reason, for rows of partitions that their topic does not have. It may not exist yet: None.

    Nobody is asked for a topic that none of these rows is for: the name may be impossible, or come to be by asking.
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
            found[row] = f"column 'partition' is {numbers[row]}, and {topics[places[row]]} has {count} partitions"
    return found


def split_rejected(
    records: pa.RecordBatch, rejected: Mapping[int, str], dead_letter_topic: str, row_bytes_max: int
) -> Iterator[pa.RecordBatch]:
    """The good rows, then the refused ones on their way to the dead letters; above `row_bytes_max` they are cut."""
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
    # Rounded in UTC, whatever the session's zone is: where clocks are put back, an hour of local time is there twice.
    rounded = pc.floor_temporal(pc.cast(column, pa.timestamp("us", "UTC")), 1, "millisecond")
    return pc.cast(rounded, pa.timestamp("ms", "UTC")).cast(pa.int64())


def find_rejections(records: pa.RecordBatch, options: SinkOptions) -> dict[int, str]:
    """Row number → why it cannot be written. Looks at columns, and only at the rows that stand out."""
    found: dict[int, str] = {}
    if options.is_sent_by_librdkafka:  # it has no other word for "now" than the time 0
        found |= dict.fromkeys(_rows(pc.equal(records["timestamp_ms"], 0)), _TIME_ZERO)
    for row in _rows(_is_large(records, options.row_bytes_max)):
        found[row] = f"it has more than {options.row_bytes_max} bytes, which 'kafka.max.request.size' allows"
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
        row: "the column 'topic' is null" if number is None else f"{bad[number]!r} cannot be the name of a topic"
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
    """Its own key, value and headers, and why it is here. What is too large for any topic is cut, and says so."""
    kept = [each for each in row["headers"] or () if each is not None and each["key"] is not None]
    told = {REASON: reason, INTENDED_TOPIC: row["topic"], INTENDED_PARTITION: row["partition"]}
    notes = [_note(name, str(said)) for name, said in told.items() if said is not None]
    dead_letter = {**row, "headers": kept + notes}
    if _dead_letter_bytes(dead_letter) <= row_bytes_max - _OVERHEAD_BYTES:
        return dead_letter
    room = row_bytes_max - _OVERHEAD_BYTES - _headers_bytes(notes) - _CUT_NOTE_BYTES
    return _cut(row, kept, notes, max(0, min(TRUNCATED_BYTES, room // 3)))


def _note(name: str, said: str) -> dict[str, Any]:
    """A name of a topic that cannot be one may be of any length."""
    is_long = len(said) > _NOTE_CHARACTERS_MAX
    return {"key": name, "value": (said[:_NOTE_CHARACTERS_MAX] + "…" if is_long else said).encode()}


def _dead_letter_bytes(dead_letter: Mapping[str, Any]) -> int:
    return len(dead_letter["key"] or b"") + len(dead_letter["value"] or b"") + _headers_bytes(dead_letter["headers"])


def _cut(row: dict[str, Any], kept: list[Any], notes: list[Any], bytes_max: int) -> dict[str, Any]:
    """The beginning of its key and of its value, and its headers if they are not the reason; a note has the sizes."""
    sizes = {"key": len(row["key"] or b""), "value": len(row["value"] or b""), "headers": _headers_bytes(kept)}
    cut = {name: size for name, size in sizes.items() if size > bytes_max}
    beginnings: dict[str, Any] = {name: row[name][:bytes_max] for name in cut if name in ("key", "value")}
    rest = [] if "headers" in cut else kept
    return {**row, **beginnings, "headers": [*rest, *notes, _note(TRUNCATED, json.dumps(cut))]}
