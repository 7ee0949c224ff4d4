"""The body of a produce request: records with a text key and a JSON value take a short way, all others the full one."""

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, NamedTuple

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json, to_json

from moldau.gateway.record_json import RECORDS_MAX, ProducedRecord
from moldau.gateway.schema_choice import SchemaChoice

ACKS: Final = {"all": -1, "1": 1, "0": 0}
CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
PLAIN_FIELDS: Final = frozenset({"records", "acks", "compression"})
INFINITE: Final = b"Infinity"


class ProduceBody(BaseModel):
    """Records, produced in order within each partition."""

    model_config = ConfigDict(extra="forbid")

    records: Annotated[list[ProducedRecord], Field(min_length=1, max_length=RECORDS_MAX)]
    acks: Literal["all", "1", "0"] = "all"
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = "none"
    key_schema: SchemaChoice | None = None
    value_schema: SchemaChoice | None = None


class PlainBody(NamedTuple):
    """Records that have nothing but a text key, or none, and a JSON value."""

    records: Sequence[tuple[bytes | None, bytes | None]]
    acks: Any
    compression: Any


def read_plain(content: bytes) -> PlainBody | None:
    """Return the records of a body without anything special; None leaves it to `read_body`, and its errors too."""
    try:
        body = from_json(content, allow_inf_nan=False)
    except ValueError:
        return None
    if not isinstance(body, dict) or not body.keys() <= PLAIN_FIELDS:
        return None
    records, acks, compression = body.get("records"), body.get("acks", "all"), body.get("compression", "none")
    is_valid = isinstance(acks, str) and acks in ACKS and compression in CODECS
    if not is_valid or not isinstance(records, list) or not 1 <= len(records) <= RECORDS_MAX:
        return None
    plain = [_plain(each) for each in records]
    return None if None in plain else PlainBody(plain, acks, compression)  # type: ignore[arg-type] # checked for None


def _plain(record: Any) -> tuple[bytes | None, bytes | None] | None:
    if not isinstance(record, dict) or "value" not in record or len(record) > 2:
        return None
    key, value = record.get("key"), record["value"]
    if len(record) == 2 and (key is None or not isinstance(key, str)):
        return None
    encoded = None if value is None else to_json(value)
    if encoded is not None and INFINITE in encoded:  # perhaps a number that is too large
        return None
    return None if key is None else key.encode(), encoded


def read_body(content: bytes) -> ProduceBody:
    try:
        return ProduceBody.model_validate_json(content)
    except ValidationError as error:
        details = error.errors(include_url=False, include_context=False, include_input=False)
        raise RequestValidationError([{**each, "loc": ("body", *each["loc"])} for each in details]) from None
