"""Values in the wire format of registries: Avro, Protobuf and JSON, beside other libraries, and hostile bytes."""

import io
import json
import random
from typing import Any

import fastavro
import pytest
from fastavro.utils import generate_one

from moldau.schemas import avro
from moldau.schemas.avro_codec import AvroCodec
from moldau.schemas.codecs import Codecs, RegisteredSchema, compile_codec
from moldau.schemas.types import AVRO, JSON, PROTOBUF, InvalidSchema, UndecodableValue, UnencodableValue
from moldau.schemas.wire_format import frame, indexes_as_bytes, schema_id_of, split_indexes

PRIMITIVES = "null boolean int long float double bytes string".split()
PROTO = """syntax = "proto3";
package shop;
message Order {
  int64 id = 1;
  repeated string tags = 2;
  message Line { string sku = 1; Kind kind = 2; }
  repeated Line lines = 3;
  map<string, double> prices = 4;
}
message Parcel { Order order = 1; bytes label = 2; }
enum Kind { PLAIN = 0; GIFT = 1; }
"""


def avro_codec(schema: Any) -> AvroCodec:
    return AvroCodec(avro.parse(json.dumps(schema), {}))


def record(*fields: Any, name: str = "R") -> Any:
    return {"type": "record", "name": name, "fields": [{"name": each, "type": kind} for each, kind in fields]}


class Schemas:
    """Random schemas, whose names are unique."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._count = 0

    def make(self, depth: int = 3) -> Any:
        kinds = [*PRIMITIVES, "enum", "fixed", *(["record", "record", "array", "map", "union"] if depth else [])]
        kind = self._random.choice(kinds)
        self._count += 1
        name = f"ns{self._count % 2}.N{self._count}"
        match kind:
            case "record":
                return record(*((f"f{each}", self.make(depth - 1)) for each in range(3)), name=name)
            case "enum":
                return {"type": "enum", "name": name, "symbols": ["A", "B", "C"]}
            case "fixed":
                return {"type": "fixed", "name": name, "size": self._random.randrange(1, 9)}
            case "array":
                return {"type": "array", "items": self.make(depth - 1)}
            case "map":
                return {"type": "map", "values": self.make(depth - 1)}
            case "union":
                branch = self.make(0)
                return ["null", branch] if branch != "null" else ["null", "long", "string"]
        return kind


def as_json(schema: Any, value: Any) -> Any:
    """The JSON encoding by fastavro, of one value."""
    out = io.StringIO()
    fastavro.json_writer(out, fastavro.parse_schema(schema), [value])
    return json.loads(out.getvalue()) if out.getvalue() else None


@pytest.mark.proves("A6", part="values")
def test_avro_values_are_those_of_fastavro() -> None:
    schemas = Schemas(7)
    for _ in range(300):
        schema = record(("value", schemas.make()))
        value = generate_one(schema)
        out = io.BytesIO()
        fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
        read = fastavro.schemaless_reader(io.BytesIO(out.getvalue()), fastavro.parse_schema(schema), None)
        codec = avro_codec(schema)
        decoded = codec.decode(out.getvalue())
        assert json.dumps(decoded) == json.dumps(as_json(schema, read)), schema
        assert codec.encode(decoded) == out.getvalue(), schema


@pytest.mark.proves("A6", part="values")
def test_avro_encoding_takes_unions_without_type_and_defaults() -> None:
    schema = record(("id", "long"), ("note", ["null", "string", "double"]))
    schema["fields"].append({"name": "kind", "type": ["string", "null"], "default": "plain"})
    codec = avro_codec(schema)
    for note, shown in (("x", {"string": "x"}), (1.5, {"double": 1.5}), (None, None), ({"double": 2}, {"double": 2})):
        assert codec.decode(codec.encode({"id": 1, "note": note})) == {
            "id": 1,
            "note": shown,
            "kind": {"string": "plain"},
        }


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"id": "7"}, ".id: expected long, found '7'"),
        ({"id": True}, ".id: expected long, found True"),
        ({"id": 2**63}, ".id: expected long"),
        ({}, "the field id is missing"),
        ({"id": 1, "nam": 2}, "R has no field nam"),
        ({"id": 1, "list": [1, {"string": 5}]}, ".list[1].string: expected string, found 5"),
        (5, ": expected the record R, found 5"),
    ],
)
def test_avro_value_is_rejected_with_its_place(value: Any, reason: str) -> None:
    schema = record(("id", "long"))
    schema["fields"].append({"name": "list", "type": {"type": "array", "items": ["int", "string"]}, "default": []})
    with pytest.raises(UnencodableValue, match=r".") as caught:
        avro_codec(schema).encode(value)
    assert reason in str(caught.value)


@pytest.mark.proves("A6", part="values")
@pytest.mark.parametrize(
    ("schema", "payload"),
    [
        (record(("next", ["null", "R"])), b"\2" * 1_000_000 + b"\0"),  # fastavro ends the process
        ({"type": "array", "items": "null"}, b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f"),
        ({"type": "array", "items": "null"}, b"\x80\x80\x01" * 100_000 + b"\0"),
        ({"type": "map", "values": "int"}, b"\2"),
        ("string", b"\x80\x80\x80\x80\x01abc"),
        ("string", b"\1"),
        ("string", b"\4\xff\xff"),
        ("long", b"\x80" * 20),
        ("long", b"\2\2"),
        (["null", "int"], b"\4"),
        ("boolean", b"\2"),
        ("double", b"\0\0"),
    ],
)
def test_hostile_avro_is_rejected(schema: Any, payload: bytes) -> None:
    with pytest.raises(UndecodableValue):
        avro_codec(schema).decode(payload)


@pytest.mark.proves("A6", part="values")
def test_protobuf_messages_have_their_place_and_json() -> None:
    schema = RegisteredSchema(1, PROTOBUF, PROTO)
    order = {"id": "7", "tags": ["a"], "lines": [{"sku": "x", "kind": "GIFT"}], "prices": {"a": 1.5}}
    first = compile_codec(schema)
    assert first.encode(order)[:1] == b"\0"
    assert first.decode(first.encode(order)) == order
    line = compile_codec(schema, "shop.Order.Line")
    assert split_indexes(line.encode({"sku": "y"}))[0] == (0, 0)
    assert first.decode(line.encode({"sku": "y"})) == {"sku": "y", "kind": "PLAIN"}
    parcel = compile_codec(schema, "Parcel")
    assert parcel.decode(parcel.encode({"label": "AAE="}))["label"] == "AAE="
    for invalid in ({"id": "x"}, {"nam": 1}, [1], "x"):
        with pytest.raises(UnencodableValue):
            first.encode(invalid)
    for payload in (b"", b"\0\xff", b"\2\x09", b"\x80" * 9):
        with pytest.raises(UndecodableValue):
            first.decode(payload)
    with pytest.raises(InvalidSchema, match="no message"):
        compile_codec(schema, "Order.Missing")


@pytest.mark.proves("A6", part="values")
def test_json_value_is_validated_when_it_is_written() -> None:
    text = '{"type":"object","properties":{"id":{"type":"integer"},"sku":{"pattern":"^(a+)+$"}},"required":["id"]}'
    codec = compile_codec(RegisteredSchema(1, JSON, text))
    assert codec.decode(codec.encode({"id": 1, "sku": "aa"})) == {"id": 1, "sku": "aa"}
    for value, reason in (({"id": "x"}, ".id:"), ({}, "required"), ({"id": 1, "sku": "a" * 40 + "b"}, ".sku:")):
        with pytest.raises(UnencodableValue, match=reason):
            codec.encode(value)
    for payload in (b"{", b"NaN", b"1e999", b"[" * 100_000):
        with pytest.raises(UndecodableValue):
            codec.decode(payload)


def test_header_and_message_indexes_are_those_of_confluents_serializers() -> None:
    assert schema_id_of(frame(70_000, b"x")) == 70_000
    assert [schema_id_of(each) for each in (None, b"", b"\0\0\0\0", b"\1\0\0\0\1", b'{"a":1}')] == [None] * 5
    for indexes in ((0,), (1,), (2, 0, 300)):
        assert split_indexes(indexes_as_bytes(indexes) + b"rest") == (indexes, b"rest")
    assert indexes_as_bytes((1, 0)) == b"\4\2\0"


def test_codecs_know_what_was_added() -> None:
    codecs = Codecs()
    codecs.add(RegisteredSchema(3, AVRO, '"long"'))
    codecs.add(RegisteredSchema(4, AVRO, '"lng"'))
    assert codecs.decode(codecs.encode(3, 5)) == (AVRO, 5)
    for data, reason in ((frame(4, b""), "not valid"), (frame(5, b""), "not known"), (b"text", "no schema id")):
        with pytest.raises(UndecodableValue, match=reason):
            codecs.decode(data)
