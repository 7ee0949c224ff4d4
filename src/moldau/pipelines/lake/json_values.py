"""JSON objects to columns. A block of values is parsed at once; only a block with a bad value is split.

Arrow's parser infers types, so each block may reveal new fields. A value that Arrow cannot parse, or that has another
type than its column, is bad; bisection finds it among the values of its block.
"""

import json
from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from moldau.pipelines.lake.column_types import IncompatibleTypes, conform, merged_schema, stored_fields
from moldau.pipelines.lake.shared_schema import SharedSchema
from moldau.pipelines.lake.values import Decoded, NewFields, UnknownFields

_ONE_THREAD: Final = False
_REASON_CHARS: Final = 300


class JsonValues:
    """Parses JSON objects into the columns of a schema that all tasks share."""

    def __init__(self, shared: SharedSchema, new_fields: NewFields = NewFields.ADD) -> None:
        self._shared, self._new_fields = shared, new_fields
        self._schema = shared.read()

    def decode(self, values: pa.Array) -> Decoded:
        block = pc.fill_null(values.cast(pa.binary()), b"{}")
        joined = _joined(block)
        if joined is not None:
            try:
                return Decoded(conform(self._parsed(joined, len(block)), self._schema))
            except (pa.ArrowInvalid, IncompatibleTypes):
                pass  # some value is bad; find it
        return self._decode_slowly(block.to_pylist())

    def _decode_slowly(self, values: Sequence[bytes]) -> Decoded:
        bad: dict[int, str] = {}
        lines: list[tuple[int, bytes]] = []
        for number, value in enumerate(values):
            try:
                lines.append((number, _line_of(value)))
            except (ValueError, RecursionError) as error:
                bad[number] = _reason(error)
        parts = self._parts(lines, bad)
        kept = [number for number, _ in lines if number not in bad]
        columns = [conform(each, self._schema) for each in parts]
        table = pa.concat_tables(columns) if columns else self._schema.empty_table()
        return Decoded(table, kept, bad)

    def _parts(self, lines: Sequence[tuple[int, bytes]], bad: dict[int, str]) -> list[pa.Table]:
        """Parse lines, or else both halves of them, down to the single lines that are bad."""
        if not lines:
            return []
        try:
            return [self._parsed(pa.py_buffer(b"\n".join(line for _, line in lines)), len(lines))]
        except (pa.ArrowInvalid, IncompatibleTypes) as error:
            if len(lines) == 1:
                bad[lines[0][0]] = _reason(error)
                return []
        middle = len(lines) // 2
        return self._parts(lines[:middle], bad) + self._parts(lines[middle:], bad)

    def _parsed(self, joined: pa.Buffer, count: int) -> pa.Table:
        if self._new_fields is NewFields.IGNORE and len(self._schema):
            return _read(joined, self._schema, "ignore", count)
        table = _read(joined, self._schema, "infer", count)
        seen = pa.schema(stored_fields(table.schema))
        if merged_schema(self._schema, seen) != self._schema:
            self._grow(seen)
        if not all(table.schema.field(each.name).type == each.type for each in self._schema):
            table = _read(joined, self._schema, "ignore", count)
        return table.select(self._schema.names)

    def _grow(self, seen: pa.Schema) -> None:
        if self._new_fields is NewFields.STOP and len(self._schema):
            known = set(self._schema.names)
            names = [each for each in seen.names if each not in known] or seen.names
            raise UnknownFields(f"the table has no column for the fields {', '.join(names)}; use --new-fields add")
        self._schema = self._shared.extend(seen)


def _joined(block: pa.Array) -> pa.Buffer | None:
    """Return the values as lines; None if some value is not one line of text."""
    try:
        texts = block.cast(pa.string())
    except pa.ArrowInvalid:
        return None  # not UTF-8
    is_blank = pc.equal(pc.binary_length(pc.utf8_trim_whitespace(texts)), 0)
    if pc.any(pc.or_(is_blank, pc.match_substring(texts, "\n"))).as_py():
        return None
    lines = pa.LargeListArray.from_arrays(pa.array([0, len(texts)], pa.int64()), texts)
    return pc.binary_join(lines, "\n")[0].as_buffer()


def _read(joined: pa.Buffer, schema: pa.Schema, unexpected: str, count: int) -> pa.Table:
    if joined.size >= 2**31 - 1:  # the parser's limit for a block
        raise pa.ArrowInvalid("the values of a block are too long")
    table = pyarrow.json.read_json(
        pa.BufferReader(joined),
        read_options=pyarrow.json.ReadOptions(use_threads=_ONE_THREAD, block_size=joined.size + 1),
        parse_options=pyarrow.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior=unexpected),
    )
    if table.num_rows != count:
        raise pa.ArrowInvalid("a value holds several JSON objects")
    return table


def _line_of(value: bytes) -> bytes:
    """Return a JSON object on one line. Raises ValueError."""
    found = json.loads(value.decode())
    if not isinstance(found, dict):
        raise ValueError("the value is not a JSON object")
    return json.dumps(found, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def _reason(error: Exception) -> str:
    text = str(error).removeprefix("JSON parse error: ").removesuffix(" in row 0").removesuffix(".")
    return (text or type(error).__name__)[:_REASON_CHARS]
