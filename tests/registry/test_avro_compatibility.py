"""Avro: the canonical form, and schema resolution compared with what fastavro can read."""

import io
import json
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from served_registry import record

from moldau.schemas import avro
from moldau.schemas.types import InvalidSchema

ENUM = '{"type":"enum","name":"E","symbols":["A","B"]}'
MORE = '{"type":"enum","name":"E","symbols":["A","B","C"]}'
DEFAULTED = '{"type":"enum","name":"E","symbols":["A","B"],"default":"A"}'
FIXED = '{"type":"fixed","name":"F","size":4}'

CASES = [  # reader, writer, the errors of the reader
    (record("A", a="int"), record("A", a="int", b="int"), []),
    (record("A", a="int", b="int"), record("A", a="int"), ["READER_FIELD_MISSING_DEFAULT_VALUE"]),
    (record("A", a="int", b=("int", 0)), record("A", a="int"), []),
    (record("A", a="long"), record("A", a="int"), []),
    (record("A", a="int"), record("A", a="long"), ["TYPE_MISMATCH"]),
    ('"bytes"', '"string"', []),
    ('"string"', '"bytes"', []),
    ('"double"', '"float"', []),
    ('"float"', '"double"', ["TYPE_MISMATCH"]),
    ('"int"', '"boolean"', ["TYPE_MISMATCH"]),
    ('["null","int"]', '"int"', []),
    ('["null","long"]', '"int"', []),
    ('["null","string"]', '"int"', ["MISSING_UNION_BRANCH"]),
    ('"int"', '["int","null"]', ["TYPE_MISMATCH"]),
    ('"long"', '["int","long"]', []),
    ('["int","string"]', '["string","int"]', []),
    ('["int"]', '["string","int"]', ["MISSING_UNION_BRANCH"]),
    (MORE, ENUM, []),
    (ENUM, MORE, ["MISSING_ENUM_SYMBOLS"]),
    (DEFAULTED, MORE, []),
    (FIXED, FIXED, []),
    (FIXED.replace("4", "5"), FIXED, ["FIXED_SIZE_MISMATCH"]),
    (FIXED.replace('"F"', '"G"'), FIXED, ["NAME_MISMATCH"]),
    (FIXED.replace('"F"', '"x.F"'), FIXED, []),
    ('{"type":"array","items":"long"}', '{"type":"array","items":"int"}', []),
    ('{"type":"map","values":"int"}', '{"type":"map","values":"long"}', ["TYPE_MISMATCH"]),
    ('{"type":"map","values":"int"}', '{"type":"array","items":"int"}', ["TYPE_MISMATCH"]),
    ('{"type":"record","name":"B","aliases":["A"],"fields":[]}', record("A", a="int"), []),
    ('{"type":"record","name":"B","fields":[]}', record("A", a="int"), ["NAME_MISMATCH"]),
    ('{"type":"record","name":"A","fields":[{"name":"b","type":"int","aliases":["a"]}]}', record("A", a="int"), []),
]


@pytest.mark.proves("A6", part="Avro")
@pytest.mark.parametrize(("reader", "writer", "expected"), CASES)
def test_reader_is_compared_with_writer(reader: str, writer: str, expected: list[str]) -> None:
    found = avro.parse(reader, {}).incompatibilities(avro.parse(writer, {}))
    assert [each.partition("'")[2].partition("'")[0] for each in found] == expected


def test_recursive_schemas_are_compared() -> None:
    tree = '{"type":"record","name":"T","fields":[{"name":"v","type":"%s"},{"name":"next","type":["null","T"]}]}'
    narrow, wide = avro.parse(tree % "int", {}), avro.parse(tree % "long", {})
    assert wide.incompatibilities(narrow) == []
    assert len(narrow.incompatibilities(wide)) == 1


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ('{"type": "string"}', '"string"'),
        ("string", '"string"'),
        ('{"name":"a.b.C","type":"record","fields":[]}', '{"type":"record","name":"C","namespace":"a.b","fields":[]}'),
        (
            '{"fields":[{"type":"x.B","order":"ascending","name":"f"}],"name":"A","namespace":"x","type":"record"}',
            '{"type":"record","name":"A","namespace":"x","fields":[{"name":"f","type":"B"}]}',
        ),
        ('{"type":"array","items":{"type":"int"}}', '{"type":"array","items":"int"}'),
        ('{"logicalType":"date","type":"int"}', '{"type":"int","logicalType":"date"}'),
    ],
)
def test_canonical_form_has_one_order_and_short_names(text: str, canonical: str) -> None:
    dependencies = {"B": '{"type":"record","name":"x.B","fields":[]}'}
    assert avro.parse(text, dependencies).canonical == canonical
    assert avro.parse(canonical, dependencies).canonical == canonical


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "3",
        "[" * 100_000,
        '{"type":"nope"}',
        '{"type":"record","name":"A"}',
        '{"type":"enum","name":"E"}',
        '{"type":"enum","name":"E","symbols":["A","A"]}',
        '{"type":"record","fields":[]}',
        '{"type":"record","name":"A","fields":[{"name":"a"}]}',
        '{"type":"record","name":"A b","fields":[]}',
    ],
)
def test_invalid_schema_is_rejected(text: str) -> None:
    with pytest.raises(InvalidSchema):
        avro.parse(text, {})


PRIMITIVES = {
    "null": st.none(),
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "string": st.text(max_size=3),
    "bytes": st.text(max_size=3).map(str.encode),  # UTF-8, because Avro lets a reader take bytes for a string
    "double": st.floats(allow_nan=False),
}
DEFAULTS: dict[str, Any] = {
    "null": None,
    "boolean": True,
    "int": 1,
    "long": 1,
    "string": "s",
    "bytes": "b",
    "double": 1.5,
}


@st.composite
def schemas(draw: st.DrawFn, depth: int = 0) -> Any:
    """A small schema; names come from few letters, so that pairs have much in common."""
    kind = draw(st.sampled_from([*PRIMITIVES, *(["record", "array", "map", "union", "enum"] if depth < 2 else [])]))
    if kind == "record":
        fields = []
        for name in draw(st.lists(st.sampled_from("abc"), unique=True, max_size=3)):
            inner = draw(schemas(depth + 1))
            field = {"name": name, "type": inner}
            if isinstance(inner, str) and draw(st.booleans()):
                field["default"] = DEFAULTS[inner]
            fields.append(field)
        return {"type": "record", "name": "R", "fields": fields}
    if kind == "enum":
        symbols = draw(st.lists(st.sampled_from("XYZ"), unique=True, min_size=1))
        return {"type": "enum", "name": "E", "symbols": symbols}
    if kind == "union":
        return draw(st.lists(st.sampled_from(list(PRIMITIVES)), unique=True, min_size=1, max_size=3))
    if kind in ("array", "map"):
        return {"type": kind, "items" if kind == "array" else "values": draw(schemas(depth + 1))}
    return kind


def values_of(schema: Any) -> st.SearchStrategy[Any]:
    if isinstance(schema, str):
        return PRIMITIVES[schema]
    if isinstance(schema, list):
        return st.one_of([values_of(each) for each in schema])
    match schema["type"]:
        case "record":
            return st.fixed_dictionaries({each["name"]: values_of(each["type"]) for each in schema["fields"]})
        case "enum":
            return st.sampled_from(schema["symbols"])
        case "array":
            return st.lists(values_of(schema["items"]), max_size=2)
        case _:
            return st.dictionaries(st.sampled_from("kl"), values_of(schema["values"]), max_size=2)


def is_valid(schema: Any) -> bool:
    """Whether no name is defined twice, which the generator does not prevent."""
    try:
        avro.parse(json.dumps(schema), {})
    except InvalidSchema:
        return False
    return True


VALID = schemas().filter(is_valid)


@settings(max_examples=150, deadline=None)
@given(data=st.data(), writer=VALID, reader=VALID)
def test_data_is_readable_whenever_schemas_are_judged_compatible(data: st.DataObject, writer: Any, reader: Any) -> None:
    later, earlier = avro.parse(json.dumps(reader), {}), avro.parse(json.dumps(writer), {})
    if later.incompatibilities(earlier):
        return
    value = data.draw(values_of(writer))
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(writer), value)
    buffer.seek(0)
    fastavro.schemaless_reader(buffer, fastavro.parse_schema(writer), fastavro.parse_schema(reader))


@settings(max_examples=50, deadline=None)
@given(schema=VALID)
def test_canonical_form_is_stable_and_compatible_with_itself(schema: Any) -> None:
    parsed = avro.parse(json.dumps(schema), {})
    assert avro.parse(parsed.canonical, {}).canonical == parsed.canonical
    assert parsed.incompatibilities(parsed) == []
