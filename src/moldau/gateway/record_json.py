"""Records as JSON, in requests and responses.

`value` is JSON; `value_text` and `value_base64` are for anything else. A key is text, or `key_base64`. A null value is
a tombstone; the JSON text `null` appears as `value_text`, so that the two differ.
"""

import base64
import binascii
import json
import math
from collections.abc import Callable
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, model_validator

from moldau.console.errors import ConsoleError
from moldau.console.record_views import Decode, Decoded, FoundRecord, printable
from moldau.records.builder import NewRecord

RECORDS_MAX: Final = 10_000
HEADERS_MAX: Final = 100
TIMESTAMP_MAX: Final = 2**63


Encode = Callable[[Any], bytes]
SchemaId = Annotated[int | None, Field(ge=1, lt=2**31, description="Of the schema that encodes it, as JSON.")]


class RecordHeader(BaseModel):
    """A record header: text, base64, or null."""

    model_config = ConfigDict(extra="forbid")

    name: Annotated[str, Field(max_length=10_000)]
    value: str | None = None
    value_base64: str | None = None

    @model_validator(mode="after")
    def _has_one_value(self) -> "RecordHeader":
        _require_at_most_one(self, "value", "value_base64")
        return self

    def to_pair(self) -> tuple[str, bytes | None]:
        return self.name, _to_bytes(self.value, self.value_base64, "header")


class ProducedRecord(BaseModel):
    """A record to produce. Without a partition, its key selects one as Kafka's producers do."""

    model_config = ConfigDict(extra="forbid")

    key: Any = Field(default=None, description="Text, or any JSON with a schema.")
    key_base64: str | None = None
    value: Any = Field(default=None, description="Any JSON; null is a tombstone.")
    value_text: str | None = None
    value_base64: str | None = None
    key_schema_id: SchemaId = None
    value_schema_id: SchemaId = None
    headers: Annotated[list[RecordHeader], Field(max_length=HEADERS_MAX)] = []
    partition: Annotated[int | None, Field(ge=0, lt=2**31)] = None
    timestamp: Annotated[int | None, Field(ge=0, lt=TIMESTAMP_MAX, description="Milliseconds since 1970.")] = None

    @model_validator(mode="after")
    def _has_one_key_and_value(self) -> "ProducedRecord":
        if not self.model_fields_set & {"value", "value_text", "value_base64"}:
            raise ValueError("a record needs value, value_text or value_base64; value may be null")
        _require_at_most_one(self, "value", "value_text", "value_base64")
        _require_at_most_one(self, "key", "key_base64")
        return self

    def key_bytes(self, encode: Encode | None = None) -> bytes | None:
        """Return the key; `encode` is of its schema."""
        if encode is not None and self.key is not None:
            return encode(self.key)
        if not (self.key is None or isinstance(self.key, str)):
            raise ConsoleError(422, "invalid_key", "A key is text, or key_base64; any JSON needs a schema.")
        return _to_bytes(self.key, self.key_base64, "key")

    def to_record(self, key: bytes | None, now_ms: int, encode: Encode | None = None) -> NewRecord:
        """Return the record; `encode` is of the schema of its value."""
        timestamp = now_ms if self.timestamp is None else self.timestamp
        with_schema = encode is not None and self.value_text is None and self.value_base64 is None
        value = encode(self.value) if encode and with_schema and self.value is not None else self._value_bytes()
        return timestamp, key, value, tuple(each.to_pair() for each in self.headers)

    def _value_bytes(self) -> bytes | None:
        if self.value is not None:
            try:
                return json_bytes(self.value)
            except (ValueError, RecursionError):
                message = "A value has a number that JSON does not have, or is nested too deeply."
                raise ConsoleError(400, "invalid_value", message) from None
        return _to_bytes(self.value_text, self.value_base64, "value")


def json_bytes(content: Any) -> bytes:
    """Return compact JSON in UTF-8; `ValueError` for a number that is not finite."""
    try:
        return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:  # an unpaired surrogate, which JSON can escape
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()


def record_json(found: FoundRecord, decode: Decode) -> dict[str, Any]:
    """Return a record of a response; its key, value and headers are as `ProducedRecord` takes them."""
    record = found.record
    return {
        "partition": found.place.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        **(_decoded_json("key", decode(record.key)) or _text_or_base64("key", record.key)),
        **(_decoded_json("value", decode(record.value)) or _value_json(record.value)),
        "headers": [{"name": printable(name), **_text_or_base64("value", value)} for name, value in record.headers],
    }


def _decoded_json(name: str, decoded: Decoded | None) -> dict[str, Any] | None:
    """Return a key or value with its schema; without the value if it cannot be decoded."""
    if decoded is None or decoded.error is not None:
        return None
    return {name: decoded.value, f"{name}_schema_id": decoded.schema_id}


def _value_json(data: bytes | None) -> dict[str, Any]:
    if data is None:
        return {"value": None}
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return {"value_base64": base64.b64encode(data).decode()}
    try:
        value = json.loads(text, parse_constant=_reject, parse_float=_finite)
    except (ValueError, RecursionError):
        value = None
    return {"value_text": text} if value is None else {"value": value}


def _text_or_base64(name: str, data: bytes | None) -> dict[str, str | None]:
    try:
        return {name: None if data is None else data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data or b"").decode()}


def _to_bytes(text: str | None, encoded: str | None, what: str) -> bytes | None:
    try:
        if encoded is not None:
            return base64.b64decode(encoded, validate=True)
        return None if text is None else text.encode()
    except (binascii.Error, UnicodeEncodeError, ValueError):
        raise ConsoleError(400, f"invalid_{what}", f"A {what} is not valid base64 or Unicode text.") from None


def _require_at_most_one(model: BaseModel, *names: str) -> None:
    if sum(getattr(model, each) is not None for each in names) > 1:
        raise ValueError(f"give only one of {', '.join(names)}")


def _reject(constant: str) -> float:
    raise ValueError(constant)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number
