"""Protobuf: compiled schemas, their printed form, and the rules of compatibility."""

import pytest
from google.protobuf import descriptor_pb2

from moldau.schemas import protobuf
from moldau.schemas.protobuf import ProtobufSchema
from moldau.schemas.types import InvalidSchema

HEAD = 'syntax = "proto3"; package shop; '
OTHER = """
syntax = "proto2"; package o;
message O {
  required int32 a = 1 [default = 7]; optional string b = 2 [default = "x\\"y"];
  optional bytes c = 3 [default = "\\001z"];
  repeated int32 d = 4 [packed = true]; extensions 100 to 199;
}
"""
LARGE = """
// A comment.
syntax = "proto3"; package a.b;
import "google/protobuf/timestamp.proto"; import public "x/o.proto";
option java_package = "c.d"; option optimize_for = SPEED;
message M {
  reserved 5, 7 to 9, 100 to max; reserved "q";
  oneof k { string s = 1; int32 i = 2; }
  optional string t = 3; map<string, o.O> m = 4; google.protobuf.Timestamp ts = 6 [deprecated = true];
  message In { int32 z = 1; enum E { A = 0; B = 1; } E e = 2; }
  repeated In ins = 10 [json_name = "foo"];
}
enum Top { option allow_alias = true; X = 0; Y = 0; reserved 3 to max; }
service S { rpc Do (M) returns (stream o.O) { option deprecated = true; } }
"""


@pytest.mark.parametrize(("text", "dependencies"), [(LARGE, {"x/o.proto": OTHER}), (OTHER, {})])
def test_printed_schema_compiles_to_the_same_descriptor(text: str, dependencies: dict[str, str]) -> None:
    parsed = protobuf.parse(text, dependencies)
    assert "// A comment." not in parsed.canonical
    again = protobuf.parse(parsed.canonical, dependencies)
    assert again.file == parsed.file
    assert again.canonical == parsed.canonical
    from_descriptor = protobuf.parse(parsed.serialized, dependencies)
    assert from_descriptor.canonical == parsed.canonical


def test_schema_with_custom_options_keeps_its_text() -> None:
    text = (
        'syntax = "proto2"; import "google/protobuf/descriptor.proto"; '
        "extend google.protobuf.FieldOptions { optional string unit = 50000; } "
        'message A { optional int32 x = 1 [(unit) = "ms"]; }\n'
    )
    assert protobuf.parse(text, {}).canonical == text


@pytest.mark.parametrize(
    ("text", "dependencies", "reason"),
    [
        ("message", {}, "Expected message name"),
        (HEAD + "message A { int32 a = 1; int32 b = 1; }", {}, "has already been used"),
        (HEAD + 'import "none.proto";', {}, "not found"),
        ("aGVsbG8=", {}, "not a descriptor"),
        (HEAD, {"../x.proto": HEAD}, "cannot be imported"),
        (HEAD, {"/x.proto": HEAD}, "cannot be imported"),
        (HEAD, {"default.proto": HEAD}, "the schema's own"),
    ],
)
def test_invalid_schema_is_rejected_with_the_reason(text: str, dependencies: dict[str, str], reason: str) -> None:
    with pytest.raises(InvalidSchema, match=reason) as caught:
        protobuf.parse(text, dependencies)
    assert "/tmp" not in str(caught.value)


CASES = [  # messages before and after, the errors
    ("message A { int32 x = 1; }", "message A { int32 y = 1; }", []),
    ("message A { int32 x = 1; }", "message A { int64 x = 1; bool z = 2; }", []),
    ("message A { int32 x = 1; }", "message A { sint32 x = 1; }", ["FIELD_SCALAR_KIND_CHANGED"]),
    ("message A { int32 x = 1; }", "message A { string x = 1; }", ["FIELD_SCALAR_KIND_CHANGED"]),
    ("message A { string x = 1; }", "message A { bytes x = 1; }", []),
    ("message A { string x = 1; }", "message A { repeated string x = 1; }", []),
    ("message A { int32 x = 1; }", "message A { repeated int32 x = 1; }", ["FIELD_NUMERIC_LABEL_CHANGED"]),
    ("message A { int32 x = 1; }", "message A { }", []),
    ("message A { } message B { }", "message A { }", ["MESSAGE_REMOVED"]),
    ("message A { }", "message B { } message A { }", []),
    (
        "message A { message I { int32 x = 1; } }",
        "message A { message I { string x = 1; } }",
        ["FIELD_SCALAR_KIND_CHANGED"],
    ),
    (
        "message A { B b = 1; } message B { }",
        "message A { C b = 1; } message B { } message C { }",
        ["FIELD_NAMED_TYPE_CHANGED"],
    ),
    ("message A { B b = 1; } message B { }", "message A { int32 b = 1; } message B { }", ["FIELD_KIND_CHANGED"]),
    ("message A { E e = 1; } enum E { Z = 0; }", "message A { int32 e = 1; }", []),
    ("message A { map<string, int32> m = 1; }", "message A { map<string, int64> m = 1; }", []),
    (
        "message A { map<string, int32> m = 1; }",
        "message A { map<string, string> m = 1; }",
        ["FIELD_SCALAR_KIND_CHANGED"],
    ),
    ("message A { map<string, int32> m = 1; }", "message A { string m = 1; }", ["FIELD_KIND_CHANGED"]),
    (
        "message A { oneof o { int32 x = 1; int32 y = 2; } }",
        "message A { oneof o { int32 x = 1; } }",
        ["ONEOF_FIELD_REMOVED"],
    ),
    ("message A { oneof o { int32 x = 1; } }", "message A { oneof o { int32 x = 1; int32 y = 2; } }", []),
    ("message A { oneof o { int32 x = 1; } }", "message A { int32 x = 1; }", []),
    ("message A { int32 x = 1; }", "message A { oneof o { int32 x = 1; } }", []),
    (
        "message A { int32 x = 1; int32 y = 2; }",
        "message A { oneof o { int32 x = 1; int32 y = 2; } }",
        ["MULTIPLE_FIELDS_MOVED_TO_ONEOF"],
    ),
    (
        "message A { int32 x = 1; oneof o { int32 y = 2; } }",
        "message A { oneof o { int32 y = 2; int32 x = 1; } }",
        ["FIELD_MOVED_TO_EXISTING_ONEOF"],
    ),
    ("message A { optional int32 x = 1; }", "message A { int32 x = 1; }", []),
]


@pytest.fixture(scope="module")
def parsed() -> dict[str, ProtobufSchema]:
    """All cases, compiled in one process: protoc takes some ten milliseconds to start."""
    texts = list(dict.fromkeys(text for before, after, _ in CASES for text in (before, after)))
    packages = "".join(f'import "{number}.proto"; ' for number in range(len(texts)))
    files = {
        f"{number}.proto": HEAD.replace("package shop;", f"package p{number}.shop;") + text
        for number, text in enumerate(texts)
    }
    whole = protobuf.parse('syntax = "proto3"; ' + packages, files)
    return {text: one_file(whole.files[f"{number}.proto"], f"p{number}.shop") for number, text in enumerate(texts)}


def one_file(file: descriptor_pb2.FileDescriptorProto, package: str) -> ProtobufSchema:
    """The file as if it were in the package `shop`."""
    data = file.SerializeToString()
    copy = descriptor_pb2.FileDescriptorProto.FromString(data)
    for message in copy.message_type:
        rename(message, f".{package}.", ".shop.")
    copy.package, copy.name = "shop", protobuf.MAIN
    return ProtobufSchema("", {protobuf.MAIN: copy})


def rename(message: descriptor_pb2.DescriptorProto, before: str, after: str) -> None:
    for field in message.field:
        field.type_name = field.type_name.replace(before, after)
    for nested in message.nested_type:
        rename(nested, before, after)


@pytest.mark.proves("A6", part="Protobuf")
@pytest.mark.parametrize(("before", "after", "expected"), CASES)
def test_later_schema_is_compared_with_the_earlier(
    parsed: dict[str, ProtobufSchema], before: str, after: str, expected: list[str]
) -> None:
    found = parsed[after].incompatibilities(parsed[before])
    assert [each.partition("'")[2].partition("'")[0] for each in found] == expected


def test_required_fields_and_packages_are_compared() -> None:
    texts = [
        'syntax = "proto2"; package a; message M { required int32 x = 1; }',
        'syntax = "proto2"; package a; message M { required int32 y = 2; }',
        'syntax = "proto2"; package b; message M { required int32 x = 1; }',
    ]
    first, second, third = (protobuf.parse(text, {}) for text in texts)
    assert "REQUIRED_FIELD_REMOVED" in str(second.incompatibilities(first))
    assert "REQUIRED_FIELD_ADDED" in str(second.incompatibilities(first))
    assert [each for each in third.incompatibilities(first) if "PACKAGE_CHANGED" in each]


def test_imported_messages_are_compared() -> None:
    text = HEAD + 'import "o.proto"; message A { o.O o = 1; }'
    before, after = (
        protobuf.parse(text, {"o.proto": f'syntax = "proto3"; package o; message O {{ {field} x = 1; }}'})
        for field in ("int32", "string")
    )
    found = after.incompatibilities(before)
    assert "FIELD_SCALAR_KIND_CHANGED" in str(found)
    assert "FIELD_NAMED_TYPE_CHANGED" in str(found)
