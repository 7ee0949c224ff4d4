"""Columns of registered values: five versions of a schema, unknown ids, damaged bytes, and what serializers write."""

import io
import json
import random
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from moldau.schemas import avro
from moldau.schemas.codecs import RegisteredSchema
from moldau.schemas.registry_client import RegistryUnavailable, RequestRejected
from moldau.schemas.types import AVRO, JSON, PROTOBUF, InvalidSchema
from moldau.schemas.wire_format import frame
from pyspark_moldau.schemas.avro_types import AvroTypes
from pyspark_moldau.schemas.avro_values import AvroValues
from pyspark_moldau.schemas.registry_column import AvroRows, JsonRows
from pyspark_moldau.schemas.registry_values import Decoded, RegistryValues, SchemaLookup, column_decoder, grouped

NOTE: Any = {"name": "note", "type": ["null", "string"], "default": None}
TAGS: Any = {"name": "tags", "type": {"type": "array", "items": "string"}, "default": ["x"]}
PRICE: Any = {
    "name": "price",
    "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
    "default": "\u0064",
}
KIND: Any = {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}, "default": "B"}
VERSIONS = (("int",), ("long", NOTE), ("long", TAGS), ("float", PRICE), ("double", NOTE, KIND))
VALUES: tuple[dict[str, Any], ...] = (
    {"id": 1},
    {"id": 2, "note": "n"},
    {"id": 3, "tags": ["a", "b"]},
    {"id": 4.0, "price": Decimal("1.25")},
    {"id": 5.5, "note": None, "kind": "A"},
)
FLAT: Any = {
    "type": "record",
    "name": "Flat",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "text", "type": ["null", "string"]},
        {"name": "number", "type": ["int", "null"]},
        {"name": "price", "type": "double"},
        {"name": "share", "type": "float"},
        {"name": "yes", "type": "boolean"},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B", "C"]}},
        {"name": "hash", "type": {"type": "fixed", "name": "Four", "size": 4}},
        {"name": "raw", "type": "bytes"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {
            "name": "by",
            "type": ["null", {"type": "record", "name": "By", "fields": [{"name": "name", "type": "string"}]}],
        },
    ],
}
ROW = some.fixed_dictionaries(
    {
        "id": some.integers(-(2**63), 2**63 - 1),
        "text": some.none() | some.text(),
        "number": some.none() | some.integers(-(2**31), 2**31 - 1),
        "price": some.floats(allow_nan=False),
        "share": some.floats(width=32, allow_nan=False),
        "yes": some.booleans(),
        "kind": some.sampled_from("ABC"),
        "hash": some.binary(min_size=4, max_size=4),
        "raw": some.binary(),
        "at": some.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1)).map(
            lambda at: at.replace(microsecond=at.microsecond // 1000 * 1000, tzinfo=UTC)
        ),
        "by": some.none() | some.fixed_dictionaries({"name": some.text()}),
    }
)
PROTO = """
syntax = "proto3";
import "google/protobuf/timestamp.proto";
message Order {
  int64 id = 1;
  optional string note = 2;
  repeated string tags = 3;
  map<string, int32> counts = 4;
  google.protobuf.Timestamp at = 5;
  message Line { string page = 1; bytes raw = 2; }
  repeated Line lines = 6;
  Line first = 7;
  enum Kind { NONE = 0; BOOK = 1; }
  Kind kind = 8;
}
"""
JSON_SCHEMA = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "note": {"type": ["string", "null"]},
        "lines": {"type": "array", "items": {"type": "object", "properties": {"price": {"type": "number"}}}},
    },
}


def record(id_type: str, *fields: Any) -> str:
    return json.dumps({"type": "record", "name": "Order", "fields": [{"name": "id", "type": id_type}, *fields]})


class Schemas:
    """A registry with numbered schemas, which counts requests."""

    def __init__(self, schemas: Mapping[int, RegisteredSchema]) -> None:
        self._schemas = schemas
        self.requests: list[int] = []

    def schema(self, schema_id: int) -> RegisteredSchema:
        self.requests.append(schema_id)
        if schema_id not in self._schemas:
            raise RequestRejected(40403, f"Schema {schema_id} not found")
        return self._schemas[schema_id]


ORDERS = {number: RegisteredSchema(number, AVRO, record(*version)) for number, version in enumerate(VERSIONS, 1)}


def encoded(schema_id: int, value: Mapping[str, Any]) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, json.loads(ORDERS[schema_id].text), value)
    return frame(schema_id, stream.getvalue())


def decoder(registry: Schemas, reader: RegisteredSchema) -> RegistryValues:
    return RegistryValues(SchemaLookup(registry, reader), column_decoder(reader).type)  # type: ignore[arg-type]


ALL = [encoded(number, value) for number, value in enumerate(VALUES, 1)]


@pytest.mark.proves("D7", part="evolution")
def test_five_versions_in_one_topic_are_read_as_each_of_them() -> None:
    registry = Schemas(ORDERS)
    found = decoder(registry, ORDERS[5]).decode(pa.array([*ALL, None], pa.binary()))
    assert found.bad == {}
    assert found.values.to_pylist() == [
        {"id": 1.0, "note": None, "kind": "B"},
        {"id": 2.0, "note": "n", "kind": "B"},
        {"id": 3.0, "note": None, "kind": "B"},
        {"id": 4.0, "note": None, "kind": "B"},
        {"id": 5.5, "note": None, "kind": "A"},
        None,
    ]
    tagged = decoder(registry, ORDERS[3]).decode(pa.array(ALL, pa.binary()))
    assert [row and row["tags"] for row in tagged.values.to_pylist()] == [["x"], ["x"], ["a", "b"], ["x"], None]
    assert list(tagged.bad) == [4]  # 5.5 is not an integer
    priced = decoder(registry, ORDERS[4]).decode(pa.array(ALL, pa.binary()))
    assert [row["price"] for row in priced.values.to_pylist()] == [
        Decimal(one) for one in ("1.00",) * 3 + ("1.25", "1.00")
    ]


@pytest.mark.proves("D7", part="bad values")
def test_values_without_a_known_schema_have_a_reason() -> None:
    now_s, registry = [0.0], Schemas(dict(ORDERS))
    lookup = SchemaLookup(registry, ORDERS[1], lambda: now_s[0])  # type: ignore[arg-type]
    values = RegistryValues(lookup, column_decoder(ORDERS[1]).type)
    column = pa.array(
        [b"", b"\0\0", b"plain text", frame(99, b"x"), ALL[0], b"\0\0\0\0\0\0", frame(1, b"")], pa.binary()
    )
    for _ in range(2):
        found = values.decode(column)
    assert found.values.to_pylist() == [None, None, None, None, {"id": 1}, None, None]
    assert found.bad[3] == "schema 99: Schema 99 not found"
    assert {found.bad[number] for number in (0, 1, 2, 5)} == {"the value does not begin with a schema id"}
    assert found.bad[6] == "the bytes are not a value of the schema"
    assert sorted(registry.requests) == [1, 99]
    now_s[0] = 11.0  # it may have been registered since
    values.decode(column)
    assert sorted(registry.requests) == [1, 99, 99]


@pytest.mark.proves("D7", part="bad values")
def test_registry_that_does_not_respond_is_an_error() -> None:
    class Silent(Schemas):
        def schema(self, schema_id: int) -> RegisteredSchema:  # noqa: ARG002
            raise RegistryUnavailable("the schema registry at … does not respond")

    with pytest.raises(RegistryUnavailable):
        decoder(Silent({}), ORDERS[1]).decode(pa.array(ALL, pa.binary()))


@pytest.mark.proves("D7", part="bad values")
def test_damaged_values_are_rejected_as_by_fastavro() -> None:
    """10,000 damaged values: each has a value or a reason, and the same ones have a value as with fastavro."""
    chance, values = random.Random(7), []
    for _ in range(10_000):
        value = bytearray(chance.choice(ALL))
        for _ in range(chance.randrange(1, 4)):
            value[chance.randrange(len(value))] = chance.randrange(256)
        values.append(bytes(value[: chance.randrange(len(value)) if chance.random() < 0.3 else len(value)]))
    found = decoder(Schemas(ORDERS), ORDERS[5]).decode(pa.array(values, pa.binary()))
    assert found.values.null_count == len(found.bad)
    read = {number for number, value in enumerate(values) if fastavro_reads(value)}
    mine = set(range(len(values))) - set(found.bad)
    assert mine <= read
    # fastavro counts a negative index of an enum's symbol from the end.
    assert all(values[number][-1] in (1, 3) for number in read - mine)
    assert len(read) > 900


def fastavro_reads(value: bytes) -> bool:
    schema_id = int.from_bytes(value[1:5], "big")
    if len(value) < 5 or value[0] or schema_id not in ORDERS:
        return False
    stream = io.BytesIO(value[5:])
    try:
        row: Any = fastavro.schemaless_reader(stream, json.loads(ORDERS[schema_id].text), None)
    except Exception:
        return False
    is_whole = stream.tell() == len(value) - 5
    return is_whole and ("price" not in row or abs(row["price"]) < 10**7)  # nine digits, two of them after the point


@given(some.lists(ROW, min_size=1, max_size=40))
@settings(max_examples=60, deadline=None)
@pytest.mark.proves("D7", part="evolution")
def test_columns_equal_the_records_of_fastavro(rows: list[dict[str, Any]]) -> None:
    writer = avro.parse(json.dumps(FLAT), {})
    streams = [io.BytesIO() for _ in rows]
    for stream, row in zip(streams, rows, strict=True):
        fastavro.schemaless_writer(stream, FLAT, row)
    values = pa.array([None, *(frame(1, each.getvalue()) for each in streams)], pa.binary())
    groups, _ = grouped(values)
    found = AvroValues(writer).decode(groups[1][1])
    assert found.bad == {}
    assert [{**row, "at": row["at"].astimezone(UTC)} for row in found.values.to_pylist()] == rows


def test_schemas_without_a_column_type_are_named() -> None:
    tree = {"type": "record", "name": "Tree", "fields": [{"name": "left", "type": ["null", "Tree"]}]}
    union = {"type": "record", "name": "Any", "fields": [{"name": "one", "type": ["int", "string"]}]}
    for schema, words in ((tree, "Tree contains itself"), (union, "a union of several types")):
        parsed = avro.parse(json.dumps(schema), {})
        with pytest.raises(InvalidSchema, match=words):
            AvroTypes(parsed.names).arrow(parsed.root)
    with pytest.raises(InvalidSchema, match="only objects with properties"):
        column_decoder(RegisteredSchema(1, JSON, '{"type": "string"}'))


@pytest.mark.proves("D7", part="formats")
def test_protobuf_and_json_schema_become_structs() -> None:
    proto, schema = RegisteredSchema(1, PROTOBUF, PROTO), RegisteredSchema(2, JSON, json.dumps(JSON_SCHEMA))
    order = {
        "id": 7,
        "tags": ["a"],
        "counts": {"b": 2},
        "at": datetime(2026, 1, 1, tzinfo=UTC),
        "lines": [{"page": "/x"}],
        "first": {"page": "/y"},
        "kind": "BOOK",
    }
    registry = Schemas({1: proto, 2: schema})
    found = read(
        registry, proto, [frame(1, JsonRows(proto).encode(order)), frame(1, b"\x00"), frame(1, b"\x04\x00\x02")]
    )
    assert found.values.to_pylist()[:2] == [
        {
            **order,
            "note": None,
            "counts": [("b", 2)],
            "lines": [{"page": "/x", "raw": b""}],
            "first": {"page": "/y", "raw": b""},
        },
        {"id": 0, "note": None, "tags": [], "counts": [], "at": None, "lines": [], "first": None, "kind": "NONE"},
    ]
    assert list(found.bad) == [2]
    document = {"id": 1, "note": None, "lines": [{"price": 1.5}]}
    documents = read(
        registry, schema, [frame(2, JsonRows(schema).encode(document)), frame(2, b'{"id": "x"}'), frame(2, b"\xff")]
    )
    assert documents.values.to_pylist() == [document, None, None]
    assert sorted(documents.bad) == [1, 2]


def read(registry: Schemas, schema: RegisteredSchema, values: list[bytes]) -> Decoded:
    return decoder(registry, schema).decode(pa.array(values, pa.binary()))


@pytest.mark.proves("D7", part="formats")
def test_rows_are_encoded_with_their_own_types() -> None:
    row = {"id": 1.0, "price": Decimal("12.50")}
    value = frame(4, AvroRows(ORDERS[4]).encode(row))
    assert read(Schemas(ORDERS), ORDERS[4], [value]).values.to_pylist() == [row]
