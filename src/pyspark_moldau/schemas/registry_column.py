"""The reader's schema, decoders and encoders of a column of registered values, on the driver and in workers."""

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Protocol

import pyarrow as pa

from moldau.schemas.codecs import RegisteredSchema, compile_codec
from moldau.schemas.registry_client import RegistryClient, RequestRejected
from moldau.schemas.types import AVRO, InvalidSchema, UnencodableValue
from moldau.schemas.wire_format import frame
from pyspark_moldau.options.offset_limits import OptionError
from pyspark_moldau.schemas.registry_values import RegistryValues, SchemaLookup, column_decoder

_WORKERS_MAX: Final = 32


@dataclass(frozen=True, slots=True)
class RegistryColumn:
    """A registry, its settings, and the schema that a column is read or written with. Passed to workers."""

    registry: str
    settings: tuple[tuple[str, str], ...]
    schema: RegisteredSchema

    def __hash__(self) -> int:
        return hash((self.registry, self.settings, self.schema.schema_id))


def registry_column(
    registry: str, settings: Mapping[str, str], subject: str, version: str = "latest"
) -> RegistryColumn:
    """Look up the reader's schema, on the driver."""
    try:
        schema = RegistryClient(registry, settings).version(subject, version)
    except RequestRejected as error:
        raise OptionError(f"subject {subject}: {error}") from error
    except ValueError as error:
        raise OptionError(str(error)) from error
    return RegistryColumn(registry, tuple(sorted(settings.items())), schema)


def registered(registry: str, settings: Mapping[str, str], subject: str, kind: str, text: str) -> RegistryColumn:
    """Register a schema, unless the subject has it, on the driver."""
    try:
        schema = RegistryClient(registry, settings).register(subject, kind, text)
    except (RequestRejected, ValueError) as error:
        raise OptionError(f"subject {subject}: {error}") from error
    return RegistryColumn(registry, tuple(sorted(settings.items())), schema)


def column_type(schema: RegisteredSchema) -> pa.DataType:
    """Return the struct of a schema's values."""
    try:
        return column_decoder(schema).type
    except InvalidSchema as error:
        raise OptionError(f"schema {schema.schema_id}: {error}") from error


@lru_cache(maxsize=_WORKERS_MAX)
def values_of(column: RegistryColumn) -> RegistryValues:
    """Return the decoder of a column, one per worker process."""
    client = RegistryClient(column.registry, dict(column.settings))
    return RegistryValues(SchemaLookup(client, column.schema), column_type(column.schema))


class RowEncoder(Protocol):
    """Encodes one row, without the header."""

    def encode(self, value: Any) -> bytes: ...


class AvroRows:
    """Rows with Python's own types, such as datetime and Decimal."""

    def __init__(self, schema: RegisteredSchema) -> None:
        from moldau.schemas import avro

        self._schema = avro.parse(schema.text, schema.dependencies).root

    def encode(self, value: Any) -> bytes:
        import fastavro

        stream = io.BytesIO()
        try:
            fastavro.schemaless_writer(stream, self._schema, value, strict_allow_default=True)
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, IndexError) as error:
            raise UnencodableValue(f": {error}") from None
        return stream.getvalue()


class JsonRows:
    """Rows for Protobuf and JSON Schema: null fields are left out, times are ISO 8601."""

    def __init__(self, schema: RegisteredSchema) -> None:
        self._codec = compile_codec(schema)

    def encode(self, value: Any) -> bytes:
        return self._codec.encode(json.loads(json.dumps(_without_nulls(value), default=_json_text)))


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nulls(each) for name, each in value.items() if each is not None}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value


def _json_text(value: Any) -> Any:
    if isinstance(value, bytes):
        import base64

        return base64.b64encode(value).decode()
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


@lru_cache(maxsize=_WORKERS_MAX)
def encoder_of(column: RegistryColumn) -> RowEncoder:
    return AvroRows(column.schema) if column.schema.kind == AVRO else JsonRows(column.schema)


def encoded(column: RegistryColumn, rows: pa.Array) -> pa.Array:
    """Return structs in the wire format; null stays null. Raises UnencodableValue."""
    encoder, schema_id = encoder_of(column), column.schema.schema_id
    found = [None if row is None else frame(schema_id, encoder.encode(row)) for row in rows.to_pylist()]
    return pa.array(found, pa.binary())
