"""Avro values as JSON, in the JSON encoding of the Avro specification: `{"string": "x"}` for a value of a union.

A schema is compiled into functions, one per type. They read untrusted bytes, so that length, nesting and number of
values are bounded; fastavro ends the process on deeply nested values, and reads arrays of nulls without bound. Values
of logical types are those of the underlying type. Encoding also accepts a value of a union without its type, if a
branch accepts it, and leaves out fields that have a default.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from moldau.schemas.avro import AvroSchema
from moldau.schemas.types import UndecodableValue, UnencodableValue

ZERO_SIZE_VALUES_MAX: Final = 100_000  # arrays of nulls take no bytes
FLOAT: Final = struct.Struct("<f")
DOUBLE: Final = struct.Struct("<d")
LONG_BITS: Final = 64
RANGES: Final = {"int": (-(2**31), 2**31 - 1), "long": (-(2**63), 2**63 - 1)}
NOT_FINITE: Final = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
NAMES_NOT_FINITE: Final = {repr(number): name for name, number in NOT_FINITE.items()}
SHOWN_CHARS: Final = 60


class _Reader:
    """Bytes and the position in them; `values_left` bounds the items of arrays and maps."""

    __slots__ = ("data", "position", "values_left")

    def __init__(self, data: bytes) -> None:
        self.data, self.position = data, 0
        self.values_left = len(data) + ZERO_SIZE_VALUES_MAX

    def take(self, size: int) -> bytes:
        start, end = self.position, self.position + size
        if size < 0 or end > len(self.data):
            raise UndecodableValue(f"{size} bytes are missing at byte {start}")
        self.position = end
        return self.data[start:end]

    def long(self) -> int:
        data, position = self.data, self.position
        value = shift = 0
        try:
            while shift < LONG_BITS + 6:
                byte = data[position]
                position += 1
                value |= (byte & 0x7F) << shift
                if byte < 0x80:
                    self.position = position
                    return (value >> 1) ^ -(value & 1)
                shift += 7
        except IndexError:
            raise UndecodableValue(f"the value is cut off at byte {position}") from None
        raise UndecodableValue(f"the number at byte {self.position} is too long")

    def count(self) -> int:
        """Read the number of items in a block; one that is negative is followed by the size of the block."""
        count = self.long()
        if count < 0:
            count = -count
            self.long()
        self.values_left -= count
        if self.values_left < 0:
            raise UndecodableValue(f"{count} items at byte {self.position} are too many")
        return count


Read = Callable[[_Reader], Any]
Write = Callable[[Any, bytearray], None]


class AvroCodec:
    """Reads and writes values of one schema."""

    def __init__(self, schema: AvroSchema) -> None:
        self._read = _Readers(schema.names).of(schema.root)
        self._write = _Writers(schema.names).of(schema.root)

    def decode(self, payload: bytes) -> Any:
        reader = _Reader(payload)
        try:
            value = self._read(reader)
        except UnicodeDecodeError:
            raise UndecodableValue(f"the text before byte {reader.position} is not UTF-8") from None
        except RecursionError:
            raise UndecodableValue("the value is nested too deeply") from None
        if reader.position < len(payload):
            raise UndecodableValue(f"{len(payload) - reader.position} bytes follow the value")
        return value

    def encode(self, value: Any) -> bytes:
        out = bytearray()
        try:
            self._write(value, out)
        except RecursionError:
            raise UnencodableValue("the value is nested too deeply") from None
        return bytes(out)


class _Types:
    """Finds the definition of a type, and remembers the functions of named types, which may be recursive."""

    def __init__(self, names: Mapping[str, Any]) -> None:
        self._names = names
        self._compiled: dict[str, Any] = {}

    def of(self, schema: Any) -> Any:
        """Return the function of a type."""
        if isinstance(schema, list):
            return self._union(schema)
        if isinstance(schema, str):
            return self._named(schema) if schema in self._names else self._primitive(schema)
        kind = schema["type"]
        if not isinstance(kind, str) or kind in self._names:
            return self.of(kind)
        if "name" in schema:
            return self._named(schema["name"])
        if kind in ("array", "map"):
            return self._array(schema) if kind == "array" else self._map(schema)
        return self._primitive(kind)

    def _named(self, name: str) -> Any:
        if name not in self._compiled:
            self._compiled[name] = lambda *given: self._compiled[name](*given)  # while its own fields are compiled
            schema = self._names[name]
            kind = "record" if schema["type"] == "error" else schema["type"]
            self._compiled[name] = {"record": self._record, "enum": self._enum, "fixed": self._fixed}[kind](schema)
        return self._compiled[name]

    def _primitive(self, kind: str) -> Any:
        raise NotImplementedError

    def _union(self, schema: Sequence[Any]) -> Any:
        raise NotImplementedError

    def _array(self, schema: Mapping[str, Any]) -> Any:
        raise NotImplementedError

    def _map(self, schema: Mapping[str, Any]) -> Any:
        raise NotImplementedError

    def _record(self, schema: Mapping[str, Any]) -> Any:
        raise NotImplementedError

    def _enum(self, schema: Mapping[str, Any]) -> Any:
        raise NotImplementedError

    def _fixed(self, schema: Mapping[str, Any]) -> Any:
        raise NotImplementedError

    def _branch_name(self, schema: Any) -> str:
        """The name of a branch in the JSON encoding."""
        if isinstance(schema, str):
            return schema
        name: str = schema["name"] if "name" in schema else schema["type"]
        return name


class _Readers(_Types):
    """Compiles the functions that read."""

    def _primitive(self, kind: str) -> Read:
        return _PRIMITIVE_READERS[kind]

    def _union(self, schema: Sequence[Any]) -> Read:
        branches = [(None if each == "null" else self._branch_name(each), self.of(each)) for each in schema]

        def read(reader: _Reader) -> Any:
            index = reader.long()
            if not 0 <= index < len(branches):
                raise UndecodableValue(f"the union at byte {reader.position} has no branch {index}")
            name, read_branch = branches[index]
            return None if name is None else {name: read_branch(reader)}

        return read

    def _array(self, schema: Mapping[str, Any]) -> Read:
        read_item = self.of(schema["items"])

        def read(reader: _Reader) -> list[Any]:
            found: list[Any] = []
            while count := reader.count():
                found.extend(read_item(reader) for _ in range(count))
            return found

        return read

    def _map(self, schema: Mapping[str, Any]) -> Read:
        read_value = self.of(schema["values"])

        def read(reader: _Reader) -> dict[str, Any]:
            found: dict[str, Any] = {}
            while count := reader.count():
                for _ in range(count):
                    key = _read_string(reader)
                    found[key] = read_value(reader)
            return found

        return read

    def _record(self, schema: Mapping[str, Any]) -> Read:
        fields = [(field["name"], self.of(field["type"])) for field in schema["fields"]]
        return lambda reader: {name: read(reader) for name, read in fields}

    def _enum(self, schema: Mapping[str, Any]) -> Read:
        symbols = schema["symbols"]

        def read(reader: _Reader) -> str:
            index = reader.long()
            if not 0 <= index < len(symbols):
                raise UndecodableValue(f"the enum {schema['name']} has no symbol {index}")
            symbol: str = symbols[index]
            return symbol

        return read

    def _fixed(self, schema: Mapping[str, Any]) -> Read:
        size = schema["size"]
        return lambda reader: reader.take(size).decode("latin-1")


def _read_string(reader: _Reader) -> str:
    return reader.take(reader.long()).decode()


def _read_boolean(reader: _Reader) -> bool:
    byte = reader.take(1)
    if byte > b"\1":
        raise UndecodableValue(f"{byte[0]} at byte {reader.position - 1} is no boolean")
    return byte == b"\1"


def _read_number(form: struct.Struct) -> Read:
    def read(reader: _Reader) -> Any:
        (number,) = form.unpack(reader.take(form.size))
        return NAMES_NOT_FINITE.get(repr(number), number)

    return read


_PRIMITIVE_READERS: Final[dict[str, Read]] = {
    "null": lambda _: None,
    "boolean": _read_boolean,
    "int": _Reader.long,
    "long": _Reader.long,
    "float": _read_number(FLOAT),
    "double": _read_number(DOUBLE),
    "bytes": lambda reader: reader.take(reader.long()).decode("latin-1"),
    "string": _read_string,
}


class _Writers(_Types):
    """Compiles the functions that write."""

    def _primitive(self, kind: str) -> Write:
        return _PRIMITIVE_WRITERS[kind]

    def _union(self, schema: Sequence[Any]) -> Write:
        named = {self._branch_name(each): (index, self.of(each)) for index, each in enumerate(schema)}

        def write(value: Any, out: bytearray) -> None:
            reason = _unexpected(value, f"one of {', '.join(named)}")
            if isinstance(value, dict) and len(value) == 1 and (name := next(iter(value))) in named:
                failure = _try_write(named[name], value[name], out)
                if failure is None:
                    return
                reason = UnencodableValue(f".{name}{failure}")
            if all(_try_write(branch, value, out) for branch in named.values()):
                raise reason

        return write

    def _array(self, schema: Mapping[str, Any]) -> Write:
        write_item = self.of(schema["items"])

        def write(value: Any, out: bytearray) -> None:
            if not isinstance(value, list):
                raise _unexpected(value, "an array")
            if value:
                _write_long(len(value), out)
            for index, each in enumerate(value):
                _write_part(f"[{index}]", write_item, each, out)
            out.append(0)

        return write

    def _map(self, schema: Mapping[str, Any]) -> Write:
        write_value = self.of(schema["values"])

        def write(value: Any, out: bytearray) -> None:
            if not isinstance(value, dict):
                raise _unexpected(value, "a map")
            if value:
                _write_long(len(value), out)
            for key, each in value.items():
                _write_string(key, out)
                _write_part(f".{key}", write_value, each, out)
            out.append(0)

        return write

    def _record(self, schema: Mapping[str, Any]) -> Write:
        fields = {field["name"]: (self.of(field["type"]), self._default(field)) for field in schema["fields"]}

        def write(value: Any, out: bytearray) -> None:
            if not isinstance(value, dict):
                raise _unexpected(value, f"the record {schema['name']}")
            if unknown := [each for each in value if each not in fields]:
                raise UnencodableValue(f": {schema['name']} has no field {str(unknown[0])[:SHOWN_CHARS]}")
            for name, (write_field, default) in fields.items():
                if name in value:
                    _write_part(f".{name}", write_field, value[name], out)
                elif default is not None:
                    default(out)
                else:
                    raise UnencodableValue(f": the field {name} is missing and has no default")

        return write

    def _default(self, field: Mapping[str, Any]) -> Callable[[bytearray], None] | None:
        if "default" not in field:
            return None
        kind, value = field["type"], field["default"]
        # The default of a union is one of its first branch, without the name.
        index, write = (0, self.of(kind[0])) if isinstance(kind, list) else (None, self.of(kind))

        def write_default(out: bytearray) -> None:
            if index is not None:
                _write_long(index, out)
            write(value, out)

        return write_default

    def _enum(self, schema: Mapping[str, Any]) -> Write:
        indexes = {symbol: index for index, symbol in enumerate(schema["symbols"])}

        def write(value: Any, out: bytearray) -> None:
            if not isinstance(value, str) or value not in indexes:
                raise _unexpected(value, f"a symbol of {schema['name']}: {', '.join(list(indexes)[:10])}")
            _write_long(indexes[value], out)

        return write

    def _fixed(self, schema: Mapping[str, Any]) -> Write:
        size = schema["size"]

        def write(value: Any, out: bytearray) -> None:
            encoded = _latin(value)
            if len(encoded) != size:
                raise _unexpected(value, f"{size} bytes")
            out += encoded

        return write


def _try_write(branch: tuple[int, Write], value: Any, out: bytearray) -> UnencodableValue | None:
    """Write a branch of a union; leave nothing, and return why, if the branch does not accept the value."""
    index, write = branch
    before = len(out)
    try:
        _write_long(index, out)
        write(value, out)
    except UnencodableValue as error:
        del out[before:]
        return error
    return None


def _write_part(name: str, write: Write, value: Any, out: bytearray) -> None:
    try:
        write(value, out)
    except UnencodableValue as error:
        raise UnencodableValue(f"{name}{error}") from None


def _unexpected(value: Any, expected: str) -> UnencodableValue:
    shown = repr(value)
    shown = shown if len(shown) <= SHOWN_CHARS else f"{shown[:SHOWN_CHARS]}…"
    return UnencodableValue(f": expected {expected}, found {shown}")


def _write_long(value: int, out: bytearray) -> None:
    rest = (value << 1) ^ (value >> 63)
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)


def _write_null(value: Any, _: bytearray) -> None:
    if value is not None:
        raise _unexpected(value, "null")


def _write_boolean(value: Any, out: bytearray) -> None:
    if not isinstance(value, bool):
        raise _unexpected(value, "true or false")
    out.append(value)


def _write_integer(kind: str) -> Write:
    low, high = RANGES[kind]

    def write(value: Any, out: bytearray) -> None:
        if type(value) is not int or not low <= value <= high:
            raise _unexpected(value, kind)
        _write_long(value, out)

    return write


def _write_number(kind: str, form: struct.Struct) -> Write:
    def write(value: Any, out: bytearray) -> None:
        number = NOT_FINITE.get(value, value) if isinstance(value, str) else value
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise _unexpected(value, kind)
        try:
            out += form.pack(number)
        except (OverflowError, struct.error):
            raise _unexpected(value, kind) from None

    return write


def _latin(value: Any) -> bytes:
    try:
        return str.encode(value, "latin-1")
    except (TypeError, UnicodeEncodeError):
        raise _unexpected(value, "bytes, as text of the characters U+0000 to U+00FF") from None


def _write_bytes(value: Any, out: bytearray) -> None:
    encoded = _latin(value)
    _write_long(len(encoded), out)
    out += encoded


def _write_string(value: Any, out: bytearray) -> None:
    try:
        encoded = str.encode(value)
    except (TypeError, UnicodeEncodeError):
        raise _unexpected(value, "string") from None
    _write_long(len(encoded), out)
    out += encoded


_PRIMITIVE_WRITERS: Final[dict[str, Write]] = {
    "null": _write_null,
    "boolean": _write_boolean,
    "int": _write_integer("int"),
    "long": _write_integer("long"),
    "float": _write_number("float", FLOAT),
    "double": _write_number("double", DOUBLE),
    "bytes": _write_bytes,
    "string": _write_string,
}
