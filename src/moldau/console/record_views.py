"""Records as the pages show them: text that is safe to put into JSON, with its encoding and its full size.

Bytes are shown as JSON or text if they are UTF-8 without control characters, and as hexadecimal otherwise. A value in
the format of a schema registry (a zero byte and a schema id) is decoded, or says why it cannot be.
"""

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from moldau.model.ids import TopicPartition
from moldau.records.record import Record

PREVIEW_BYTES_MAX: Final = 4_096
HEADERS_MAX: Final = 50


@dataclass(frozen=True, slots=True)
class FoundRecord:
    """A record of a partition."""

    place: TopicPartition
    record: Record


class Decoded(NamedTuple):
    """A value with its schema, or the reason why it cannot be decoded."""

    schema_id: int
    kind: str | None
    value: Any
    error: str | None = None


Decode = Callable[[bytes | None], Decoded | None]


def record_view(found: FoundRecord, decode: Decode, bytes_max: int = PREVIEW_BYTES_MAX) -> dict[str, Any]:
    """Return the JSON form of a record; fields longer than `bytes_max` are cut. `decode` knows schemas of values."""
    record = found.record
    headers = record.headers[:HEADERS_MAX]
    return {
        "partition": found.place.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": _field_view(record.key, decode, bytes_max),
        "value": _field_view(record.value, decode, bytes_max),
        "headers": [{"name": printable(name), "value": bytes_view(value, bytes_max)} for name, value in headers],
        "headers_count": len(record.headers),
    }


def _field_view(data: bytes | None, decode: Decode, bytes_max: int) -> dict[str, Any]:
    """Return a key or value; one whose schema is known as JSON."""
    decoded = decode(data)
    if decoded is None or data is None:
        return bytes_view(data, bytes_max)
    if decoded.error is not None:
        return {**bytes_view(data, bytes_max), "schema_id": decoded.schema_id, "schema_error": decoded.error}
    text = json.dumps(decoded.value, ensure_ascii=False).encode("utf-8", "replace").decode()
    view = {"encoding": "json", "text": text[:bytes_max], "size": len(data), "schema_id": decoded.schema_id}
    return {**view, "schema_type": decoded.kind, **({"is_cut": True} if len(text) > bytes_max else {})}


def bytes_view(data: bytes | None, bytes_max: int = PREVIEW_BYTES_MAX) -> dict[str, Any]:
    """Return bytes as text with its encoding: null, empty, json, text or hex."""
    if data is None:
        return {"encoding": "null", "text": None, "size": 0}
    if not data:
        return {"encoding": "empty", "text": "", "size": 0}
    view: dict[str, Any] = {"size": len(data)}
    shown = data[:bytes_max]
    if len(shown) < len(data):
        view["is_cut"] = True
    text = _text(shown, is_cut=len(shown) < len(data))
    if text is None:
        return {**view, "encoding": "hex", "text": shown.hex()}
    return {**view, "encoding": "json" if _is_json(data, len(shown) == len(data)) else "text", "text": text}


def printable(name: str) -> str:
    """Return a header name without the surrogates that stand for invalid UTF-8."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def exported(found: FoundRecord) -> dict[str, Any]:
    """Return a record in the form that `moldau produce` reads back: text, or base64 under another name."""
    record = found.record
    return {
        "topic": found.place.topic,
        "partition": found.place.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        **_text_or_base64("key", record.key),
        **_text_or_base64("value", record.value),
        "headers": [{"name": printable(name), **_text_or_base64("value", value)} for name, value in record.headers],
    }


def _text_or_base64(name: str, data: bytes | None) -> dict[str, str | None]:
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def _text(data: bytes, *, is_cut: bool) -> str | None:
    """Decode UTF-8 text, whose last character may be cut; None for anything else."""
    for dropped in range(4 if is_cut else 1):
        try:
            text = data[: len(data) - dropped].decode()
        except UnicodeDecodeError:
            continue
        is_text = all(each.isprintable() or each in "\n\r\t" or each > "\x7f" for each in text)
        return text if is_text else None
    return None


def _is_json(data: bytes, is_whole: bool) -> bool:
    if data.lstrip()[:1] not in (b"{", b"["):
        return False
    if not is_whole:
        return True
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        return False
    return True
