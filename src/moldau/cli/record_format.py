"""Records as text: templates for `moldau consume`, and JSON that `moldau produce` reads back."""

import base64
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from moldau.cli.errors import usage_error
from moldau.records.record import Headers, Record

Formatter = Callable[[str, int, Record], bytes]
NO_ENCODERS: Final[Mapping[str, Callable[[Any], bytes]]] = {}

_ESCAPES: Final = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_HEX: Final = re.compile("[0-9a-fA-F]{2}")

_FIELDS: Final[dict[str, Formatter]] = {
    "t": lambda topic, _, __: topic.encode(),
    "p": lambda _, partition, __: b"%d" % partition,
    "o": lambda _, __, record: b"%d" % record.offset,
    "k": lambda _, __, record: b"" if record.key is None else record.key,
    "v": lambda _, __, record: b"" if record.value is None else record.value,
    "s": lambda _, __, record: b"" if record.value is None else record.value,
    "K": lambda _, __, record: b"%d" % (-1 if record.key is None else len(record.key)),
    "V": lambda _, __, record: b"%d" % (-1 if record.value is None else len(record.value)),
    "S": lambda _, __, record: b"%d" % (-1 if record.value is None else len(record.value)),
    "T": lambda _, __, record: b"%d" % record.timestamp,
    "h": lambda _, __, record: _headers_line(record.headers),
}


def compile_template(template: str) -> Formatter:
    """Compile a template into a function that returns a record's line, newline included."""
    if template == "json":
        return json_line
    parts = _parts(template)

    def line(topic: str, partition: int, record: Record) -> bytes:
        return b"".join([part if isinstance(part, bytes) else part(topic, partition, record) for part in parts])

    return line


def _parts(template: str) -> list[bytes | Formatter]:
    parts: list[bytes | Formatter] = []
    position = 0
    while position < len(template):
        character, following = template[position], template[position + 1 : position + 2]
        if character == "%":
            parts.append(b"%" if following == "%" else _field(following, template))
            position += 2
        elif character == "\\" and following == "x" and _HEX.match(template, position + 2):
            parts.append(bytes.fromhex(template[position + 2 : position + 4]))
            position += 4
        elif character == "\\" and following in _ESCAPES:
            parts.append(_ESCAPES[following])
            position += 2
        else:
            parts.append(character.encode())
            position += 1
    return parts if parts and parts[-1] == b"\n" else [*parts, b"\n"]


def _field(letter: str, template: str) -> Formatter:
    if letter not in _FIELDS:
        known = " ".join(f"%{each}" for each in _FIELDS)
        raise usage_error(f"--format {template}: %{letter} is unknown; use {known} %%, or json")
    return _FIELDS[letter]


def _headers_line(headers: Headers) -> bytes:
    return b",".join(
        name.encode("utf-8", "surrogateescape") + b"=" + (b"NULL" if value is None else value)
        for name, value in headers
    )


def json_line(topic: str, partition: int, record: Record) -> bytes:
    return json.dumps(to_json(topic, partition, record), ensure_ascii=False).encode("utf-8", "replace") + b"\n"


def to_json(topic: str, partition: int, record: Record) -> dict[str, Any]:
    """Return the JSON form of a record; bytes that are not UTF-8 are base64 under another name."""
    return {
        "topic": topic,
        "partition": partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        **_text_or_base64("key", record.key),
        **_text_or_base64("value", record.value),
        "headers": [{"name": name, **_text_or_base64("value", value)} for name, value in record.headers],
    }


def _text_or_base64(name: str, value: bytes | None) -> dict[str, str | None]:
    if value is None:
        return {name: None}
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}


def from_json(
    line: bytes, encode: Mapping[str, Callable[[Any], bytes]] = NO_ENCODERS
) -> tuple[int | None, int | None, bytes | None, bytes | None, Headers]:
    """Parse partition, timestamp, key, value and headers of a line written by `json_line` or by hand.

    `encode` has functions that turn the JSON of a key or a value into bytes.
    """
    fields = json.loads(line)
    if not isinstance(fields, dict):
        raise ValueError("not an object")
    headers = fields.get("headers") or []
    named = headers.items() if isinstance(headers, dict) else ((each["name"], each) for each in headers)
    return (
        _whole_number(fields, "partition"),
        _whole_number(fields, "timestamp"),
        _bytes_of(fields, "key", encode.get("key", _encode)),
        _bytes_of(fields, "value", encode.get("value", _encode)),
        tuple((str(name), _header_value(value)) for name, value in named),
    )


def _header_value(value: Any) -> bytes | None:
    return _bytes_of(value if isinstance(value, dict) else {"value": value}, "value")


def _whole_number(fields: dict[str, Any], name: str) -> int | None:
    value = fields.get(name)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise ValueError(f"{name} is not a whole number")
    if value is not None and not -(2**63) <= value < 2**63:
        raise ValueError(f"{name} does not fit in 64 bits")
    return value


def _bytes_of(fields: dict[str, Any], name: str, encode: Callable[[Any], bytes] | None = None) -> bytes | None:
    if f"{name}_base64" in fields:
        return base64.b64decode(fields[f"{name}_base64"], validate=True)
    value = fields.get(name)
    return None if value is None else (encode or _encode)(value)


def _encode(value: Any) -> bytes:
    """Encode text as it is, anything else as JSON."""
    return value.encode() if isinstance(value, str) else json.dumps(value, ensure_ascii=False).encode()
