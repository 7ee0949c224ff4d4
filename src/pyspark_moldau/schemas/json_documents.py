"""Values of JSON Schemas to structs: the columns are the schema's properties, the documents are parsed in blocks."""

import json
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.json

from moldau.schemas.types import InvalidSchema
from pyspark_moldau.schemas.registry_values import Decoded, Payloads

_KINDS: Final = {"string": pa.string(), "integer": pa.int64(), "number": pa.float64(), "boolean": pa.bool_()}
_REASON_CHARS: Final = 300
_DEPTH_MAX: Final = 50


class JsonDocuments:
    """Decodes the documents of one schema. They are not validated beyond the types of the columns."""

    def __init__(self, schema: Any) -> None:
        self.type = _struct(json.loads(schema.canonical), 0)

    def decode(self, payloads: Payloads) -> Decoded:
        lines: list[tuple[int, bytes]] = []
        bad: dict[int, str] = {}
        for number, payload in enumerate(payloads.each()):
            try:
                lines.append((number, _line(payload)))
            except (ValueError, RecursionError) as error:
                bad[number] = f"the value is not a JSON object: {error}"[:_REASON_CHARS]
        parts = self._parts(lines, bad)
        kept = [number for number, _ in lines if number not in bad]
        places: list[int | None] = [None] * len(payloads)
        for place, number in enumerate(kept):
            places[number] = place
        whole = pa.concat_arrays(parts) if parts else pa.nulls(0, self.type)
        return Decoded(whole.take(pa.array(places, pa.int64())), bad)

    def _parts(self, lines: list[tuple[int, bytes]], bad: dict[int, str]) -> list[pa.Array]:
        """Parse lines, or else both halves of them."""
        if not lines:
            return []
        try:
            return [self._parsed([line for _, line in lines])]
        except pa.ArrowInvalid as error:
            if len(lines) == 1:
                bad[lines[0][0]] = f"the value does not fit its schema: {error}"[:_REASON_CHARS]
                return []
        middle = len(lines) // 2
        return self._parts(lines[:middle], bad) + self._parts(lines[middle:], bad)

    def _parsed(self, lines: list[bytes]) -> pa.Array:
        joined = b"\n".join(lines)
        table = pyarrow.json.read_json(
            pa.BufferReader(joined),
            read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=len(joined) + 1),
            parse_options=pyarrow.json.ParseOptions(
                explicit_schema=pa.schema(list(self.type)), unexpected_field_behavior="ignore"
            ),
        )
        return table.to_struct_array().combine_chunks().cast(self.type)


def _line(payload: bytes) -> bytes:
    found = json.loads(payload.decode())
    if not isinstance(found, dict):
        raise ValueError("it is another value")
    return json.dumps(found, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def _struct(schema: Mapping[str, Any], depth: int) -> pa.DataType:
    properties = schema.get("properties")
    if not isinstance(properties, dict) or depth > _DEPTH_MAX:
        raise InvalidSchema("only objects with properties have columns")
    return pa.struct([pa.field(name, _kind(each, depth + 1)) for name, each in properties.items()])


def _kind(schema: Any, depth: int) -> pa.DataType:
    """Return the type of a property. One that may have several types has no column type."""
    if not isinstance(schema, dict):
        raise InvalidSchema("a property without a type has no column type")
    choices = schema.get("oneOf") or schema.get("anyOf")
    if choices:
        others = [each for each in choices if each.get("type") != "null"]
        if len(others) == 1:
            return _kind(others[0], depth)
    named = schema.get("type")
    names = [each for each in (named if isinstance(named, list) else [named]) if each != "null"]
    if len(names) != 1 or names[0] not in (*_KINDS, "object", "array"):
        raise InvalidSchema(f"a property of type {named} has no column type")
    if names[0] == "array":
        return pa.list_(pa.field("element", _kind(schema.get("items"), depth + 1)))
    return _struct(schema, depth) if names[0] == "object" else _KINDS[names[0]]
