"""JSON Schema: the rules of Confluent's registry, and earlier data checked against the later schema."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft7Validator

from moldau.schemas import json_schema
from moldau.schemas.types import InvalidSchema


def opened(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def closed(**properties: Any) -> dict[str, Any]:
    return {**opened(**properties), "additionalProperties": False}


INT, TEXT, NUMBER = {"type": "integer"}, {"type": "string"}, {"type": "number"}

CASES: list[tuple[Any, Any, list[str]]] = [  # earlier, later, errors
    (INT, NUMBER, []),
    (NUMBER, INT, ["TYPE_NARROWED"]),
    (INT, TEXT, ["TYPE_CHANGED"]),
    (INT, {}, []),
    (INT, True, []),
    (False, INT, []),
    (INT, {"type": ["integer", "null"]}, []),
    ({"type": ["integer", "null"]}, INT, ["TYPE_CHANGED"]),
    (TEXT, {**TEXT, "maxLength": 5}, ["MAX_LENGTH_ADDED"]),
    ({**TEXT, "maxLength": 5}, {**TEXT, "maxLength": 6}, []),
    ({**TEXT, "maxLength": 5}, {**TEXT, "maxLength": 4}, ["MAX_LENGTH_DECREASED"]),
    ({**TEXT, "minLength": 5}, {**TEXT, "minLength": 6}, ["MIN_LENGTH_INCREASED"]),
    ({**TEXT, "pattern": "a"}, {**TEXT, "pattern": "b"}, ["PATTERN_CHANGED"]),
    ({**TEXT, "pattern": "a"}, TEXT, []),
    ({**INT, "minimum": 1}, {**INT, "minimum": 2}, ["MINIMUM_INCREASED"]),
    ({**INT, "multipleOf": 10}, {**INT, "multipleOf": 5}, []),
    ({**INT, "multipleOf": 5}, {**INT, "multipleOf": 10}, ["MULTIPLE_OF_EXPANDED"]),
    ({**INT, "multipleOf": 5}, {**INT, "multipleOf": 7}, ["MULTIPLE_OF_CHANGED"]),
    ({"enum": [1, 2]}, {"enum": [1, 2, 3]}, []),
    ({"enum": [1, 2]}, {"enum": [1]}, ["ENUM_ARRAY_NARROWED"]),
    ({"const": 1}, {"const": 2}, ["CONST_CHANGED"]),
    (opened(a=INT), opened(a=INT, b=TEXT), ["PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL"]),
    (opened(a=INT), opened(a=INT, b={}), []),
    (opened(a=INT, b=TEXT), opened(a=INT), []),
    (closed(a=INT), closed(a=INT, b=TEXT), []),
    (closed(a=INT, b=TEXT), closed(a=INT), ["PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL"]),
    (closed(a=INT), {**closed(a=INT, b=TEXT), "required": ["b"]}, ["REQUIRED_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL"]),
    (closed(a=INT), {**closed(a=INT, b={**TEXT, "default": ""}), "required": ["b"]}, []),
    (opened(a=INT), {**opened(a=INT), "required": ["a"]}, ["REQUIRED_ATTRIBUTE_ADDED"]),
    ({**opened(a=INT), "required": ["a"]}, opened(a=INT), []),
    (opened(a=INT), closed(a=INT), ["ADDITIONAL_PROPERTIES_REMOVED"]),
    (closed(a=INT), opened(a=INT), []),
    ({**opened(), "additionalProperties": INT}, {**opened(a=NUMBER), "additionalProperties": INT}, []),
    (
        {**opened(), "additionalProperties": INT},
        {**opened(a=TEXT), "additionalProperties": INT},
        ["TYPE_CHANGED", "PROPERTY_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL"],
    ),
    ({**closed(), "patternProperties": {"^a": INT}}, {**closed(ab=NUMBER), "patternProperties": {"^a": INT}}, []),
    (opened(), {**opened(), "minProperties": 1}, ["MIN_PROPERTIES_ADDED"]),
    (opened(), {**opened(), "dependencies": {"a": ["b"]}}, ["DEPENDENCY_ARRAY_ADDED"]),
    ({"type": "array", "items": INT}, {"type": "array", "items": NUMBER}, []),
    ({"type": "array", "items": NUMBER}, {"type": "array", "items": INT}, ["TYPE_NARROWED"]),
    ({"type": "array"}, {"type": "array", "items": INT}, ["SCHEMA_ADDED"]),
    ({"type": "array"}, {"type": "array", "uniqueItems": True}, ["UNIQUE_ITEMS_ADDED"]),
    ({"type": "array", "maxItems": 3}, {"type": "array", "maxItems": 2}, ["MAX_ITEMS_DECREASED"]),
    ({"type": "array", "items": [INT]}, {"type": "array", "items": [INT, TEXT]}, ["ITEM_ADDED_TO_OPEN_CONTENT_MODEL"]),
    (
        {"type": "array", "items": [INT], "additionalItems": False},
        {"type": "array", "items": [INT, TEXT], "additionalItems": False},
        [],
    ),
    ({"oneOf": [INT, TEXT]}, {"oneOf": [INT, TEXT, {"type": "null"}]}, []),
    ({"oneOf": [INT, TEXT]}, {"oneOf": [INT]}, ["SUM_TYPE_NARROWED"]),
    ({"oneOf": [INT, TEXT]}, {"anyOf": [TEXT, INT]}, []),
    ({"anyOf": [INT, TEXT]}, {"oneOf": [TEXT, INT]}, ["COMBINED_TYPE_CHANGED"]),
    ({"allOf": [opened(a=INT), opened(b=INT)]}, {"allOf": [opened(a=INT)]}, []),
    ({"allOf": [INT]}, {"allOf": [INT, {"minimum": 3}]}, ["PRODUCT_TYPE_EXTENDED"]),
    ({"oneOf": [INT, TEXT]}, {"oneOf": [INT, {"type": "null"}]}, ["COMBINED_TYPE_SUBSCHEMAS_CHANGED"]),
    ({"not": INT}, {"not": {**INT, "minimum": 3}}, []),
    ({"not": {**INT, "minimum": 3}}, {"not": INT}, ["NOT_TYPE_EXTENDED"]),
]


@pytest.mark.proves("A6", part="JSON Schema")
@pytest.mark.parametrize(("earlier", "later", "expected"), CASES)
def test_later_schema_is_compared_with_the_earlier(earlier: Any, later: Any, expected: list[str]) -> None:
    parsed = [json_schema.parse(json.dumps(each), {}) for each in (earlier, later)]
    found = parsed[1].incompatibilities(parsed[0])
    assert [each.partition("'")[2].partition("'")[0] for each in found] == expected


def test_recursive_schemas_are_compared() -> None:
    tree = {**closed(v=INT, next={"$ref": "#"}), "anyOf": [{"required": ["v"]}, {"required": ["next"]}]}
    wider = {**tree, "properties": {**tree["properties"], "v": NUMBER}}
    before, after = (json_schema.parse(json.dumps(each), {}) for each in (tree, wider))
    assert after.incompatibilities(before) == []
    assert before.incompatibilities(after) != []


def test_references_to_registered_schemas_are_resolved() -> None:
    text = json.dumps(opened(o={"$ref": "other.json#/definitions/x"}))
    before, after = (
        json_schema.parse(text, {"other.json": json.dumps({"definitions": {"x": kind}})}) for kind in (INT, TEXT)
    )
    assert "TYPE_CHANGED" in str(after.incompatibilities(before))


@pytest.mark.parametrize(
    "text",
    ["{", "3", '{"type":"nope"}', '{"$ref":"#/nope"}', '{"$ref":"http://example.com/x"}', "[" * 100_000],
)
def test_invalid_schema_is_rejected(text: str) -> None:
    with pytest.raises(InvalidSchema):
        json_schema.parse(text, {})


@pytest.mark.proves("A6", part="JSON Schema")
def test_comparison_of_nested_alternatives_is_bounded() -> None:
    nested: dict[str, Any] = INT
    for _ in range(6):
        nested = {"oneOf": [{"type": "array", "items": nested, "maxItems": size} for size in (1, 2, 3)]}
    parsed = json_schema.parse(json.dumps(nested), {})
    with pytest.raises(InvalidSchema, match="too complex"):
        parsed.incompatibilities(parsed)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 12) | st.sampled_from(["", "a", "ab", "abc"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)


@st.composite
def schemas(draw: st.DrawFn, depth: int = 0) -> Any:
    kinds = ["integer", "number", "string", "null", "boolean", "enum", "any"]
    kind = draw(st.sampled_from(kinds + (["object", "array", "oneOf", "anyOf"] if depth < 2 else [])))
    some: st.SearchStrategy[Any] = st.booleans()
    match kind:
        case "object":
            names = draw(st.lists(st.sampled_from("abc"), unique=True, max_size=2))
            schema: Any = {"type": "object", "properties": {each: draw(schemas(depth + 1)) for each in names}}
            if draw(some):
                schema["additionalProperties"] = draw(some)
            if names and draw(some):
                schema["required"] = [names[0]]
            return schema
        case "array":
            return {"type": "array", "items": draw(schemas(depth + 1)), **({"maxItems": 2} if draw(some) else {})}
        case "anyOf" | "oneOf":
            return {kind: draw(st.lists(schemas(depth + 1), min_size=1, max_size=2))}
        case "enum":
            return {"enum": draw(st.lists(st.sampled_from([1, 2, "a", None]), min_size=1, unique=True))}
        case "any":
            return {}
        case "integer" | "number":
            return {"type": kind, **({"minimum": draw(st.integers(0, 5))} if draw(some) else {})}
        case "string":
            return {"type": kind, **({"maxLength": draw(st.integers(0, 2))} if draw(some) else {})}
        case _:
            return {"type": kind}


@settings(max_examples=300, deadline=None)
@given(earlier=schemas(), later=schemas(), values=st.lists(VALUES, min_size=3, max_size=8))
def test_earlier_data_stays_valid_whenever_schemas_are_judged_compatible(
    earlier: Any, later: Any, values: list[Any]
) -> None:
    before, after = (json_schema.parse(json.dumps(each), {}) for each in (earlier, later))
    if after.incompatibilities(before) or has_one_of(earlier) or has_one_of(later):
        return  # a value that matches two alternatives of a oneOf is invalid, which the rules do not consider
    for value in values:
        if Draft7Validator(earlier).is_valid(value):
            assert Draft7Validator(later).is_valid(value), (earlier, later, value)


def has_one_of(schema: Any) -> bool:
    return "oneOf" in json.dumps(schema)


@settings(max_examples=100, deadline=None)
@given(schema=schemas())
def test_schema_is_compatible_with_itself(schema: Any) -> None:
    parsed = json_schema.parse(json.dumps(schema), {})
    assert parsed.incompatibilities(parsed) == []
