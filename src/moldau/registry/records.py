"""Records of the topic `_schemas`, in the format of Confluent's registry, which Karapace uses too.

Keys and values are JSON. The key names the type of a record:

    {"keytype":"SCHEMA","subject":"orders-value","version":1,"magic":1}     a version; null value: deleted for good
    {"keytype":"CONFIG","subject":null,"magic":0}                           a compatibility level; null subject: global
    {"keytype":"MODE","subject":null,"magic":0}
    {"keytype":"DELETE_SUBJECT","subject":"orders-value","magic":0}         soft deletion up to the version in the value
    {"keytype":"CLEAR_SUBJECT","subject":"orders-value","magic":0}          deletion of the soft-deleted versions
    {"keytype":"CONTEXT","tenant":"default","context":".staging","magic":0}
    {"keytype":"NOOP","magic":0}
"""

import json
from typing import Any, Final, NamedTuple

from moldau.registry.model import Compatibility, Mode, Reference, Schema
from moldau.schemas.types import AVRO

SCHEMA: Final = "SCHEMA"
CONFIG: Final = "CONFIG"
MODE: Final = "MODE"
DELETE_SUBJECT: Final = "DELETE_SUBJECT"
CLEAR_SUBJECT: Final = "CLEAR_SUBJECT"
MAGIC: Final = {SCHEMA: 1}  # 0 for the others


class StoredRecord(NamedTuple):
    """Key and value of a record to write."""

    key: bytes
    value: bytes | None


class SchemaVersion(NamedTuple):
    """The value of a SCHEMA record."""

    subject: str
    version: int
    schema_id: int
    schema: Schema
    is_deleted: bool


class InvalidRecord(ValueError):
    """A record that is not in the format."""


def schema_record(stored: SchemaVersion) -> StoredRecord:
    value = {"subject": stored.subject, "version": stored.version, "id": stored.schema_id, **stored.schema.as_json()}
    return _record(
        SCHEMA,
        {"subject": stored.subject, "version": stored.version},
        {**value, "schema": stored.schema.text, "deleted": stored.is_deleted},
    )


def schema_tombstone(subject: str, version: int) -> StoredRecord:
    return _record(SCHEMA, {"subject": subject, "version": version}, None)


def config_record(subject: str | None, config: dict[str, Any] | None) -> StoredRecord:
    return _record(CONFIG, {"subject": subject}, config)


def mode_record(subject: str | None, mode: Mode | None) -> StoredRecord:
    return _record(MODE, {"subject": subject}, None if mode is None else {"mode": mode.value})


def delete_subject_record(subject: str, last_version: int) -> StoredRecord:
    return _record(DELETE_SUBJECT, {"subject": subject}, {"subject": subject, "version": last_version})


def read_key(key: bytes | None) -> dict[str, Any]:
    """Parse a key; its type is under `keytype`."""
    fields = _object(key or b"")
    if not isinstance(fields.get("keytype"), str):
        raise InvalidRecord("the key has no keytype")
    return fields


def read_object(value: bytes) -> dict[str, Any]:
    return _object(value)


def read_schema(value: bytes) -> SchemaVersion:
    """Parse the value of a SCHEMA record."""
    fields = _object(value)
    try:
        references = tuple(
            Reference(str(each["name"]), str(each["subject"]), int(each["version"]))
            for each in fields.get("references") or ()
        )
        schema = Schema(
            str(fields.get("schemaType") or AVRO),
            str(fields["schema"]),
            references,
            compact_json(fields.get("metadata")),
            compact_json(fields.get("ruleSet")),
        )
        return SchemaVersion(
            str(fields["subject"]),
            int(fields["version"]),
            int(fields["id"]),
            schema,
            bool(fields.get("deleted", False)),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidRecord(f"the value lacks a field or has a wrong type: {error}") from error


def read_compatibility(value: bytes) -> Compatibility | None:
    """Parse the value of a CONFIG record; None if it sets no level."""
    level = _object(value).get("compatibilityLevel")
    try:
        return None if level is None else Compatibility(level)
    except ValueError as error:
        raise InvalidRecord(str(error)) from error


def read_mode(value: bytes) -> Mode:
    try:
        return Mode(str(_object(value).get("mode")))
    except ValueError as error:
        raise InvalidRecord(str(error)) from error


def compact_json(value: Any) -> str | None:
    """Write an optional JSON value in one form."""
    return None if value is None else json.dumps(value, separators=(",", ":"), sort_keys=True, ensure_ascii=False)


def _record(kind: str, names: dict[str, Any], value: dict[str, Any] | None) -> StoredRecord:
    key = {"keytype": kind, **names, "magic": MAGIC.get(kind, 0)}
    return StoredRecord(_bytes(key), None if value is None else _bytes(value))


def _bytes(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def _object(data: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InvalidRecord(f"not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise InvalidRecord("not a JSON object")
    return fields
