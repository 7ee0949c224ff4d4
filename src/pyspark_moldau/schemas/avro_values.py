"""Avro values to structs: by columns where the schema allows it, else record by record with fastavro."""

import io
from decimal import Decimal
from typing import Any, Final

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from fastavro.schema import SchemaParseException

from moldau.schemas.avro import AvroSchema
from moldau.schemas.types import InvalidSchema
from pyspark_moldau.schemas.avro_columns import AvroColumns, NotByColumns
from pyspark_moldau.schemas.avro_types import AvroTypes
from pyspark_moldau.schemas.registry_values import Decoded, Payloads

_REASON_CHARS: Final = 300
# Exceptions of fastavro for wrong bytes.
_RAISED: Final = (
    ArithmeticError,
    EOFError,
    LookupError,
    MemoryError,
    RecursionError,
    StopIteration,
    TypeError,
    ValueError,
    SchemaParseException,
)
_WRONG: Final = "the bytes are not a value of the schema"


class AvroValues:
    """Decodes the values of one writer's schema."""

    def __init__(self, writer: AvroSchema, reader: AvroSchema | None = None) -> None:
        self._types = AvroTypes(writer.names)
        self._root = self._types.resolved(writer.root)
        if not isinstance(self._root, dict) or self._root["type"] not in ("record", "error"):
            raise InvalidSchema("only records have columns")
        self.type = self._types.arrow(self._root)
        self._writer, self._reader = writer, reader
        try:
            self._columns: AvroColumns | None = AvroColumns(self._root, self._types)
        except NotByColumns:
            self._columns = None

    def decode(self, payloads: Payloads) -> Decoded:
        if self._columns is None:
            return self._by_records(payloads)
        values, is_valid = self._columns.decode(payloads.octets, payloads.starts, payloads.ends)
        bad = dict.fromkeys(np.flatnonzero(~is_valid).tolist(), _WRONG)
        return Decoded(values if self._reader is None else self._as_read(values, self._reader), bad)

    def _as_read(self, values: pa.StructArray, reader: AvroSchema) -> pa.Array:
        """Name fields as the reader does, and add its defaults for fields that the writer lacks."""
        types = AvroTypes(reader.names)
        written = {each.name: number for number, each in enumerate(values.type)}
        columns, fields = [], []
        for each in types.resolved(reader.root)["fields"]:
            name = next((name for name in (each["name"], *each.get("aliases", ())) if name in written), None)
            kind = types.arrow(each["type"])
            column = _default(each, kind, len(values)) if name is None else values.field(written[name])
            columns.append(column)
            fields.append(pa.field(each["name"], column.type))
        return pa.StructArray.from_arrays(columns, fields=fields, mask=pc.is_null(values))

    def _by_records(self, payloads: Payloads) -> Decoded:
        rows: list[Any] = []
        bad: dict[int, str] = {}
        for number, payload in enumerate(payloads.each()):
            try:
                rows.append(_read(payload, self._writer.root))
            except _RAISED as error:
                bad[number] = f"{_WRONG}: {error}"[:_REASON_CHARS].removesuffix(": ")
                rows.append(None)
        values, bad = _array(rows, self.type, bad)
        return Decoded(values if self._reader is None else self._as_read(values, self._reader), bad)


def _read(payload: bytes, writer: Any) -> Any:
    stream = io.BytesIO(payload)
    found = fastavro.schemaless_reader(stream, writer, None)
    if stream.tell() != len(payload):
        raise ValueError("bytes follow the value")
    return found


def _array(rows: list[Any], kind: pa.DataType, bad: dict[int, str]) -> tuple[pa.Array, dict[int, str]]:
    try:
        return pa.array(rows, kind), bad
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        columns = []
        for number, row in enumerate(rows):
            try:
                columns.append(pa.array([row], kind))
            except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
                columns.append(pa.nulls(1, kind))
                bad[number] = f"{_WRONG}: {error}"[:_REASON_CHARS]
        return pa.concat_arrays(columns), bad


def _default(field: dict[str, Any], kind: pa.DataType, count: int) -> pa.Array:
    """Return the reader's default as a column."""
    default = field.get("default")
    if isinstance(default, str) and not pa.types.is_string(kind):
        default = default.encode("latin-1")  # as bytes are written in schemas
    if isinstance(default, bytes) and pa.types.is_decimal(kind):
        default = Decimal(int.from_bytes(default, "big", signed=True)).scaleb(-kind.scale)
    try:
        return pa.nulls(count, kind) if default is None else pa.array([default], kind).take(pa.array([0] * count))
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise InvalidSchema(f"the default of field {field['name']}: {error}") from error
