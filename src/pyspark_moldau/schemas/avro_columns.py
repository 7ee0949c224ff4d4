"""Decodes Avro by columns: all records advance one field at a time, with numpy over all rows.

`positions` holds where each row is in the bytes of the whole column. A row that ends too early or has a wrong length is
marked bad and stays where it is; its values are garbage and dropped at the end. Records, primitives, enums, fixed and
unions with null are decoded so; a schema with arrays or maps is left to fastavro.
"""

from decimal import Decimal
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from moldau.schemas.types import InvalidSchema
from pyspark_moldau.schemas.avro_types import AvroTypes

Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_VARINT_BYTES_MAX: Final = 10
_PADDING: Final = 16
_MILLIS: Final = ("timestamp-millis", "local-timestamp-millis")


class NotByColumns(Exception):
    """The schema has a type that is not decoded by columns."""


class AvroColumns:
    """Decodes the values of one writer's schema."""

    def __init__(self, schema: Any, types: AvroTypes) -> None:
        self._types = types
        self._schema = types.resolved(schema)
        if not isinstance(self._schema, dict) or self._schema["type"] not in ("record", "error"):
            raise NotByColumns
        self._check(self._schema)
        self.type = types.arrow(self._schema)

    def _check(self, schema: Any) -> None:
        found = self._types.resolved(schema)
        if isinstance(found, list):
            self._check(self._types.branch(found))
        elif found["type"] in ("array", "map"):
            raise NotByColumns
        elif found["type"] in ("record", "error"):
            for each in found["fields"]:
                self._check(each["type"])

    def decode(self, octets: npt.NDArray[np.uint8], starts: Numbers, ends: Numbers) -> tuple[pa.StructArray, Flags]:
        """Return the records between these positions, and which of them are valid."""
        rows = _Rows(octets, starts, ends)
        everything = np.arange(len(starts))
        found = self._struct(self._schema, rows, everything)
        return found, rows.is_valid & (rows.positions == ends)

    def _struct(self, schema: Any, rows: "_Rows", some: Numbers) -> pa.StructArray:
        columns = [self._column(each["type"], rows, some) for each in schema["fields"]]
        fields = [pa.field(each["name"], self._types.arrow(each["type"])) for each in schema["fields"]]
        if not fields:
            return pa.array([{}] * len(some), pa.struct([]))
        return pa.StructArray.from_arrays(columns, fields=fields)

    def _column(self, schema: Any, rows: "_Rows", some: Numbers) -> pa.Array:
        found = self._types.resolved(schema)
        if isinstance(found, list):
            return self._union(found, rows, some)
        if found["type"] in ("record", "error"):
            return self._struct(found, rows, some)
        values, kind = _read(found, rows, some), self._types.arrow(found)
        if pa.types.is_decimal(kind):
            return _decimals(values, kind, rows, some)
        if values.type == kind:
            return values
        return (pc.multiply(values, 1000) if found.get("logicalType") in _MILLIS else values).cast(kind)

    def _union(self, branches: list[Any], rows: "_Rows", some: Numbers) -> pa.Array:
        chosen = rows.longs(some)
        rows.reject(some, (chosen < 0) | (chosen >= len(branches)))
        is_value = np.zeros(len(some), np.bool_)
        for number, each in enumerate(branches):
            if self._types.resolved(each) != {"type": "null"}:
                is_value |= chosen == number
        present = np.flatnonzero(is_value)
        values = self._column(self._types.branch(branches), rows, some[present])
        if len(present) == len(some):
            return values
        places = np.cumsum(is_value) - 1
        return values.take(pa.array(places, pa.int64(), mask=~is_value))


def _decimals(values: pa.Array, kind: pa.DataType, rows: "_Rows", some: Numbers) -> pa.Array:
    """Return big-endian numbers as decimals; a row with more digits than the schema allows is bad."""
    unscaled = [int.from_bytes(each, "big", signed=True) for each in values.to_pylist()]
    is_fitting = np.array([abs(each) < 10**kind.precision for each in unscaled], np.bool_)
    rows.reject(some, ~is_fitting)
    pairs = zip(unscaled, is_fitting, strict=True)
    return pa.array([Decimal(each).scaleb(-kind.scale) if fits else None for each, fits in pairs], kind)


def _read(schema: Any, rows: "_Rows", some: Numbers) -> pa.Array:
    match schema["type"]:
        case "null":
            return pa.nulls(len(some))
        case "boolean":
            return pa.array(rows.fixed(some, 1)[:, 0] != 0)
        case "int" | "long":
            numbers = rows.longs(some)
            if schema["type"] == "int":
                rows.reject(some, (numbers < -(2**31)) | (numbers >= 2**31))
                return pa.array(numbers.astype(np.int32))
            return pa.array(numbers)
        case "float":
            return pa.array(rows.fixed(some, 4).view("<f4")[:, 0])
        case "double":
            return pa.array(rows.fixed(some, 8).view("<f8")[:, 0])
        case "enum":
            return _symbols(schema["symbols"], rows, some)
        case "fixed":
            return rows.slices(some, np.full(len(some), schema["size"], np.int64))
        case "bytes":
            return rows.slices(some, rows.longs(some))
        case "string":
            return rows.texts(some, rows.longs(some))
    raise InvalidSchema(f"{schema['type']} is not a type")


def _symbols(symbols: list[str], rows: "_Rows", some: Numbers) -> pa.Array:
    chosen = rows.longs(some)
    is_wrong = (chosen < 0) | (chosen >= len(symbols))
    rows.reject(some, is_wrong)
    return pa.array(symbols, pa.string()).take(pa.array(np.where(is_wrong, 0, chosen)))


class _Rows:
    """The rows of a column and how far each is read."""

    def __init__(self, octets: npt.NDArray[np.uint8], starts: Numbers, ends: Numbers) -> None:
        self._octets = np.concatenate([octets, np.zeros(_PADDING, np.uint8)])
        self._ends = ends
        self.positions = starts.copy()
        self.is_valid = np.ones(len(starts), np.bool_)

    def reject(self, some: Numbers, is_wrong: Flags) -> None:
        """Mark rows as bad and move them to their ends."""
        if is_wrong.any():
            wrong = some[is_wrong]
            self.is_valid[wrong] = False
            self.positions[wrong] = self._ends[wrong]

    def longs(self, some: Numbers) -> Numbers:
        """Read a zigzag varint of each row."""
        at = self.positions[some]
        first = self._octets[at]
        encoded = (first & 0x7F).astype(np.uint64)
        taken = np.ones(len(some), np.int64)
        longer = np.flatnonzero(first >= 0x80)
        for index in range(1, _VARINT_BYTES_MAX):
            if not len(longer):
                break
            octet = self._octets[np.minimum(at[longer] + index, len(self._octets) - 1)]
            encoded[longer] |= (octet & 0x7F).astype(np.uint64) << np.uint64(7 * index)
            taken[longer] += 1
            longer = longer[octet >= 0x80]
        self._advance(some, taken)
        return (encoded >> np.uint64(1)).astype(np.int64) ^ -(encoded & np.uint64(1)).astype(np.int64)

    def fixed(self, some: Numbers, size: int) -> npt.NDArray[np.uint8]:
        """Read a number of bytes of each row, as a matrix."""
        at = self.positions[some]
        self._advance(some, np.full(len(some), size, np.int64))
        found: npt.NDArray[np.uint8] = self._octets[np.minimum(at[:, None] + np.arange(size), len(self._octets) - 1)]
        return found

    def slices(self, some: Numbers, sizes: Numbers) -> pa.Array:
        """Read a piece of each row; Arrow copies the pieces from between the gaps."""
        at = self.positions[some]
        self._advance(some, sizes)
        ends = np.where(self.is_valid[some], at + np.maximum(sizes, 0), at)
        bounds = np.empty(2 * len(some) + 1, np.int32)
        bounds[0:-1:2], bounds[1::2], bounds[-1] = at, ends, ends[-1] if len(some) else 0
        bounds = np.maximum.accumulate(bounds)
        pieces = pa.Array.from_buffers(
            pa.binary(), 2 * len(some), [None, pa.py_buffer(bounds), pa.py_buffer(self._octets)]
        )
        return pieces.take(pa.array(np.arange(0, 2 * len(some), 2)))

    def texts(self, some: Numbers, sizes: Numbers) -> pa.Array:
        found = self.slices(some, sizes)
        try:
            return found.cast(pa.string())
        except pa.ArrowInvalid:
            texts = [_text(each) for each in found.to_pylist()]
            self.reject(some, np.array([each is None for each in texts], np.bool_))
            return pa.array([each or "" for each in texts], pa.string())

    def _advance(self, some: Numbers, sizes: Numbers) -> None:
        after = self.positions[some] + sizes
        is_wrong = (sizes < 0) | (after > self._ends[some])
        self.positions[some] = np.where(is_wrong, self._ends[some], after)
        if is_wrong.any():
            self.is_valid[some[is_wrong]] = False


def _text(octets: bytes) -> str | None:
    try:
        return octets.decode()
    except UnicodeDecodeError:
        return None
