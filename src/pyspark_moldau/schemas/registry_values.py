"""Decodes a column of values that carry schema ids, whatever number of schemas it has.

Rows are grouped by the schema id in their header, each group is decoded with its writer's schema, and the fields become
those of the reader: missing ones are null or have the reader's default, others are dropped. A value that cannot be
decoded has a reason instead; only a registry that does not respond is an error.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from moldau.schemas.codecs import RegisteredSchema
from moldau.schemas.registry_client import RegistryClient, RequestRejected
from moldau.schemas.types import AVRO, JSON, PROTOBUF, InvalidSchema
from moldau.schemas.wire_format import HEADER, MAGIC

Numbers = npt.NDArray[np.int64]

_REJECTED_S: Final = 10.0  # an unknown id may be registered later
_SCHEMAS_MAX: Final = 500
_REASON_CHARS: Final = 300


@dataclass(frozen=True, slots=True)
class Payloads:
    """Values of one schema, without their headers, in the bytes of a column."""

    octets: npt.NDArray[np.uint8]
    starts: Numbers
    ends: Numbers

    def __len__(self) -> int:
        return len(self.starts)

    def each(self) -> list[bytes]:
        whole = self.octets.tobytes()
        return [whole[start:end] for start, end in zip(self.starts.tolist(), self.ends.tolist(), strict=True)]


@dataclass(frozen=True, slots=True)
class Decoded:
    """Values as structs, and the reasons for those that are bad, by their number."""

    values: pa.Array
    bad: Mapping[int, str] = field(default_factory=dict)


class ColumnDecoder(Protocol):
    """Decodes the values of one schema. `type` is their struct type."""

    @property
    def type(self) -> pa.DataType: ...

    def decode(self, payloads: Payloads) -> Decoded: ...


def column_decoder(schema: RegisteredSchema, reader: RegisteredSchema | None = None) -> ColumnDecoder:
    """Return the decoder of a writer's schema. With a reader's schema of Avro, its defaults fill missing fields."""
    if schema.kind == AVRO:
        return _avro(schema, None if reader is None or reader.kind != AVRO else reader)
    if schema.kind == PROTOBUF:
        from moldau.schemas import protobuf
        from pyspark_moldau.schemas.protobuf_values import ProtobufValues

        return ProtobufValues(protobuf.parse(schema.text, schema.dependencies))
    if schema.kind == JSON:
        from moldau.schemas import json_schema
        from pyspark_moldau.schemas.json_documents import JsonDocuments

        return JsonDocuments(json_schema.parse(schema.text, schema.dependencies))
    raise InvalidSchema(f"{schema.kind} is not a type of schema: AVRO, JSON or PROTOBUF")


def _avro(schema: RegisteredSchema, reader: RegisteredSchema | None) -> ColumnDecoder:
    from moldau.schemas import avro
    from pyspark_moldau.schemas.avro_values import AvroValues

    parsed = None if reader is None else avro.parse(reader.text, reader.dependencies)
    return AvroValues(avro.parse(schema.text, schema.dependencies), parsed)


class SchemaLookup:
    """Decoders by schema id, kept for the life of a worker process."""

    def __init__(
        self,
        registry: RegistryClient,
        reader: RegisteredSchema | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._registry, self._reader, self._clock = registry, reader, clock
        self._decoders: dict[int, ColumnDecoder] = {}
        self._rejected: dict[int, tuple[float, str]] = {}

    def find(self, schema_id: int) -> ColumnDecoder | str:
        """Return the decoder of a schema, or the reason why there is none."""
        if schema_id in self._decoders:
            return self._decoders[schema_id]
        until_s, reason = self._rejected.get(schema_id, (0.0, ""))
        if self._clock() < until_s:
            return reason
        try:
            found = column_decoder(self._registry.schema(schema_id), self._reader)
        except (RequestRejected, InvalidSchema) as error:
            reason = f"schema {schema_id}: {error}"[:_REASON_CHARS]
            _make_room(self._rejected)
            self._rejected[schema_id] = (self._clock() + _REJECTED_S, reason)
            return reason
        _make_room(self._decoders)
        self._decoders[schema_id] = found
        return found


def _make_room(cache: dict[int, Any]) -> None:
    if len(cache) >= _SCHEMAS_MAX:
        del cache[next(iter(cache))]


class RegistryValues:
    """Decodes columns into one struct type, the reader's; None: into the types of the writers, merged."""

    def __init__(self, lookup: SchemaLookup, kind: pa.DataType) -> None:
        self._lookup, self._type = lookup, kind

    def decode(self, values: pa.Array) -> Decoded:
        """Return one struct per value, null for null values and bad ones."""
        column = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
        column = column.cast(pa.binary())
        groups, bad = grouped(column)
        found: list[pa.Array] = []
        places: list[Numbers] = []
        for schema_id, (rows, payloads) in groups.items():
            decoder = self._lookup.find(schema_id)
            if isinstance(decoder, str):
                bad.update(dict.fromkeys(rows.tolist(), decoder))
                continue
            try:
                decoded = decoder.decode(payloads)
            except InvalidSchema as error:  # of the reader, with this writer
                bad.update(dict.fromkeys(rows.tolist(), str(error)[:_REASON_CHARS]))
                continue
            converted, wrong = conformed(decoded.values, self._type)
            bad.update({int(rows[number]): reason for number, reason in {**wrong, **decoded.bad}.items()})
            found.append(converted)
            places.append(rows)
        return Decoded(_scattered(found, places, len(column), set(bad), self._type), bad)


def grouped(column: pa.Array) -> tuple[dict[int, tuple[Numbers, Payloads]], dict[int, str]]:
    """Return the rows and payloads of each schema id, and the reasons for values without an id."""
    octets, bounds = _buffers(column)
    starts, ends = bounds[:-1], bounds[1:]
    is_null = np.asarray(pc.is_null(column).to_numpy(zero_copy_only=False), np.bool_)
    has_header = (ends - starts >= HEADER.size) & ~is_null
    rows = np.flatnonzero(has_header)
    heads = (
        octets[starts[rows][:, None] + np.arange(HEADER.size)] if len(rows) else np.zeros((0, HEADER.size), np.uint8)
    )
    ids = heads[:, 1:].copy().view(">i4")[:, 0].astype(np.int64)
    is_framed = (heads[:, 0] == MAGIC) & (ids > 0)
    groups: dict[int, tuple[Numbers, Payloads]] = {}
    for schema_id in np.unique(ids[is_framed]).tolist():
        some = rows[is_framed & (ids == schema_id)]
        groups[schema_id] = (some, Payloads(octets, starts[some] + HEADER.size, ends[some]))
    unframed = np.flatnonzero(~is_null & ~np.isin(np.arange(len(column)), rows[is_framed]))
    return groups, dict.fromkeys(unframed.tolist(), "the value does not begin with a schema id")


def _buffers(column: pa.Array) -> tuple[npt.NDArray[np.uint8], Numbers]:
    _, offsets, content = column.buffers()
    bounds = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1].astype(np.int64)
    octets = np.frombuffer(content, np.uint8) if content is not None and content.size else np.zeros(1, np.uint8)
    return octets, bounds


def _scattered(
    found: Sequence[pa.Array], places: Sequence[Numbers], count: int, bad: set[int], kind: pa.DataType
) -> pa.Array:
    """Return decoded values in the order of their rows, null for all other rows."""
    origin = np.full(count, -1, np.int64)
    begun = 0
    for rows in places:
        origin[rows] = np.arange(begun, begun + len(rows))
        begun += len(rows)
    origin[list(bad)] = -1
    if not found:
        return pa.nulls(count, kind)
    return pa.concat_arrays(found).take(pa.array(origin, pa.int64(), mask=origin < 0))


def conformed(values: pa.Array, kind: pa.DataType) -> tuple[pa.Array, dict[int, str]]:
    """Return structs with exactly the fields of a type; rows whose values cannot be converted are bad."""
    if values.type == kind:
        return values, {}
    try:
        return _converted(values, kind), {}
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
        rows, bad = [], {}
        for number in range(len(values)):
            try:
                rows.append(_converted(values.slice(number, 1), kind))
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
                rows.append(pa.nulls(1, kind))
                bad[number] = f"the value does not fit the reader's schema: {error}"[:_REASON_CHARS]
        return pa.concat_arrays(rows), bad


def _converted(values: pa.Array, kind: pa.DataType) -> pa.Array:
    if values.type == kind:
        return values
    if pa.types.is_struct(kind) and pa.types.is_struct(values.type):
        names = [each.name for each in values.type]
        columns = [
            _converted(pc.struct_field(values, each.name), each.type)
            if each.name in names
            else pa.nulls(len(values), each.type)
            for each in kind
        ]
        mask = pc.is_null(values)
        return pa.StructArray.from_arrays(columns, fields=list(kind), mask=mask) if len(columns) else values
    if pa.types.is_list(kind) and pa.types.is_list(values.type):
        return pc.cast(values, kind)
    return values.cast(kind)
