"""Records as lines: templates, JSON, and JSON read back."""

import json

import pytest

from moldau.cli.errors import CommandError
from moldau.cli.record_format import compile_template, from_json, json_line
from moldau.records.record import Record

RECORD = Record(7, 1_700_000_000_000, b"key", b"value", (("a", b"1"), ("b", None)))
EMPTY = Record(8, -1, None, None, ())


@pytest.mark.parametrize(
    ("template", "line"),
    [
        ("%v", b"value\n"),
        ("%s", b"value\n"),
        ("%t[%p]@%o", b"orders[3]@7\n"),
        ("%k=%v", b"key=value\n"),
        ("%T %h", b"1700000000000 a=1,b=NULL\n"),
        ("%K %V %S", b"3 5 5\n"),
        ("100%% %v", b"100% value\n"),
        (r"%k\t%v\n", b"key\tvalue\n"),
        (r"%v\x00\0", b"value\0\0\n"),
        ("ä %v", "ä value\n".encode()),
        ("", b"\n"),
    ],
)
def test_template_formats_a_line(template: str, line: bytes) -> None:
    assert compile_template(template)("orders", 3, RECORD) == line


def test_missing_values_are_empty_in_text_and_null_in_json() -> None:
    assert compile_template("%k|%v|%K|%V")("t", 0, EMPTY) == b"||-1|-1\n"
    shown = json.loads(json_line("t", 0, EMPTY))
    assert shown["key"] is None
    assert shown["value"] is None


@pytest.mark.parametrize("template", ["%x", "%", "%v %"])
def test_unknown_template_field_is_rejected_with_known_fields(template: str) -> None:
    with pytest.raises(CommandError, match="is unknown; use %t") as rejected:
        compile_template(template)
    assert rejected.value.exit_code == 2


@pytest.mark.parametrize(
    "record",
    [
        RECORD,
        EMPTY,
        Record(1, 5, b"", b"", ()),
        Record(1, 5, b"\xff\xfe", b"\x80", (("h", b"\xff"), ("h", b"twice"))),
        Record(1, 5, "ключ".encode(), b'quote " and \n newline', ()),
    ],
)
def test_json_round_trips(record: Record) -> None:
    partition, timestamp, key, value, headers = from_json(compile_template("json")("t", 2, record))
    assert (partition, timestamp, key, value, headers) == (
        2,
        record.timestamp,
        record.key,
        record.value,
        record.headers,
    )


def test_json_fields_are_optional() -> None:
    line = b'{"value": {"a": [1, "\xc3\xa4"]}, "key": 5, "headers": {"source": "x", "none": null}}'
    assert from_json(line) == (
        None,
        None,
        b"5",
        '{"a": [1, "ä"]}'.encode(),
        (("source", b"x"), ("none", None)),
    )


@pytest.mark.parametrize("line", [b"[]", b"1", b"{", b'{"partition": "x"}', b'{"value_base64": "%"}'])
def test_invalid_json_record_is_rejected(line: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        from_json(line)
