"""Avro: schemas parsed by fastavro, and the rules of schema resolution in the Avro specification."""

import json
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import fastavro
from fastavro.schema import SchemaParseException, UnknownType

from moldau.schemas.types import Dependencies, InvalidSchema

PRIMITIVES: Final = frozenset("null boolean int long float double bytes string".split())
# Types of a writer that a reader accepts besides its own.
PROMOTIONS: Final = {
    "long": {"int"},
    "float": {"int", "long"},
    "double": {"int", "long", "float"},
    "bytes": {"string"},
    "string": {"bytes"},
}
NAMED: Final = ("record", "error", "enum", "fixed")
NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")
REQUIRED: Final = {"record": ("fields",), "error": ("fields",), "enum": ("symbols",), "fixed": ("size",)}
# The attributes that the canonical form writes first, in this order; others follow, and aliases are last.
ORDER: Final = ("doc", "fields", "symbols", "default", "items", "values", "size")
FIELD_ORDER: Final = ("name", "type", "doc", "default", "order", "aliases")


class Difference(NamedTuple):
    """One reason why a reader cannot read the data of a writer."""

    error: str
    description: str
    path: str

    def __str__(self) -> str:
        return f"{{errorType:'{self.error}', description:'{self.description}', path:'{self.path or '/'}'}}"


class AvroSchema:
    """A parsed Avro schema with the named types that it uses."""

    def __init__(self, source: Any, dependencies: Dependencies) -> None:
        self.names: dict[str, Any] = {}
        try:
            for text in dependencies.values():
                fastavro.parse_schema(json.loads(text), named_schemas=self.names, _write_hint=False)
            canonical = _canonical(source, "")
            self.root = fastavro.parse_schema(canonical, named_schemas=self.names, _write_hint=False)
            self.canonical = json.dumps(canonical, separators=(",", ":"), ensure_ascii=False)
        except UnknownType as error:
            raise InvalidSchema(f"undefined name: {error.name}") from error
        except (SchemaParseException, KeyError, TypeError, ValueError, AttributeError) as error:
            raise InvalidSchema(str(error) or type(error).__name__) from error
        except RecursionError as error:
            raise InvalidSchema("nested too deeply") from error

    @property
    def normalized(self) -> str:
        """The canonical form already has one order of attributes."""
        return self.canonical

    def incompatibilities(self, earlier: Any) -> list[str]:
        if not isinstance(earlier, AvroSchema):
            return ["the earlier schema is not Avro"]
        try:
            return [str(each) for each in _Resolution(self, earlier).differences()]
        except RecursionError as error:
            raise InvalidSchema("nested too deeply") from error


def parse(text: str, dependencies: Dependencies) -> AvroSchema:
    """Parse a schema; a text that is the bare name of a type is accepted as well."""
    try:
        source = json.loads(text)
    except ValueError as error:
        if text.strip() not in PRIMITIVES:
            raise InvalidSchema(f"not JSON: {error}") from error
        source = text.strip()
    except RecursionError as error:
        raise InvalidSchema("nested too deeply") from error
    return AvroSchema(source, dependencies)


def _canonical(schema: Any, namespace: str) -> Any:
    """Rewrite a schema with one order of attributes and the shortest form of names, as the Java library prints it."""
    if isinstance(schema, str):
        return schema if schema in PRIMITIVES else _relative(_full_name(schema, namespace), namespace)
    if isinstance(schema, list):
        return [_canonical(each, namespace) for each in schema]
    if not isinstance(schema, dict) or "type" not in schema:
        raise InvalidSchema(f"not a type: {json.dumps(schema)[:80]}")
    kind = schema["type"]
    if kind in NAMED:
        return _canonical_named(schema, namespace)
    rest = {name: value for name, value in schema.items() if name != "type"}
    if kind not in (*PRIMITIVES, "array", "map"):  # {"type": {"type": …}}, or a name
        return _canonical(kind, namespace)
    if kind in PRIMITIVES and not rest:
        return kind
    for inner in ("items", "values"):
        if inner in rest:
            rest[inner] = _canonical(rest[inner], namespace)
    return {"type": kind, **_ordered(rest, ORDER)}


def _canonical_named(schema: dict[str, Any], namespace: str) -> Any:
    if missing := [each for each in ("name", *REQUIRED.get(schema["type"], ())) if each not in schema]:
        raise InvalidSchema(f"the {schema['type']} {schema.get('name', '')} has no {missing[0]}")
    names = [schema["name"], *(each["name"] for each in schema.get("fields", ())), *schema.get("symbols", ())]
    if invalid := [each for each in names if not NAME.fullmatch(each)]:
        raise InvalidSchema(f"{invalid[0][:80]!r} is not a valid name")
    full_name = _full_name(schema["name"], schema.get("namespace", namespace))
    own, _, name = full_name.rpartition(".")
    written: dict[str, Any] = {"type": schema["type"], "name": name}
    if own != namespace:
        written["namespace"] = own
    rest = {key: value for key, value in schema.items() if key not in ("type", "name", "namespace", "aliases")}
    if "fields" in rest:
        rest["fields"] = [_canonical_field(each, own) for each in rest["fields"]]
    written |= _ordered(rest, ORDER)
    if schema.get("aliases"):
        written["aliases"] = schema["aliases"]
    return written


def _canonical_field(field: dict[str, Any], namespace: str) -> dict[str, Any]:
    written = {**field, "type": _canonical(field["type"], namespace)}
    if written.get("order") == "ascending":
        del written["order"]
    return _ordered(written, FIELD_ORDER)


def _ordered(fields: dict[str, Any], order: tuple[str, ...]) -> dict[str, Any]:
    first = {name: fields[name] for name in order if name in fields}
    return first | {name: value for name, value in fields.items() if name not in first}


def _full_name(name: str, namespace: str | None) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _relative(full_name: str, namespace: str) -> str:
    own, _, name = full_name.rpartition(".")
    return name if own == namespace else full_name


class _Resolution:
    """Compares a reader's schema with a writer's, as the Avro specification resolves them."""

    def __init__(self, reader: AvroSchema, writer: AvroSchema) -> None:
        self._reader, self._writer = reader, writer
        self._known: dict[tuple[str, str], list[Difference]] = {}  # results for pairs of named types

    def differences(self) -> list[Difference]:
        return self._compare(self._reader.root, self._writer.root, "")

    def _compare(self, reader: Any, writer: Any, path: str) -> list[Difference]:
        reader, writer = _definition(reader, self._reader), _definition(writer, self._writer)
        kind, written = _kind(reader), _kind(writer)
        if written == "union":
            return self._compare_with_union(reader, writer, path)
        if kind == "union":
            if any(not self._compare(branch, writer, path) for branch in reader):
                return []
            name = _name(writer)
            return [Difference("MISSING_UNION_BRANCH", f"the reader's union lacks a branch for {name}", path)]
        if kind != written:
            if written in PROMOTIONS.get(kind, ()):
                return []
            text = f"type {kind} of the reader does not read {written} of the writer"
            return [Difference("TYPE_MISMATCH", text, path)]
        if kind in NAMED:
            return self._compare_named(kind, reader, writer, path)
        if kind == "array":
            return self._compare(reader["items"], writer["items"], f"{path}/items")
        if kind == "map":
            return self._compare(reader["values"], writer["values"], f"{path}/values")
        return []

    def _compare_with_union(self, reader: Any, writer: list[Any], path: str) -> list[Difference]:
        """Every branch of the writer must be readable."""
        found: list[Difference] = []
        for index, branch in enumerate(writer):
            if differences := self._compare(reader, branch, f"{path}/{index}"):
                found += differences
        return found

    def _compare_named(self, kind: str, reader: Any, writer: Any, path: str) -> list[Difference]:
        pair = (reader["name"], writer["name"])
        if pair in self._known:
            return self._known[pair]
        self._known[pair] = []  # assumed while the pair is compared, which ends recursion
        self._known[pair] = found = list(self._named_differences(kind, reader, writer, path))
        return found

    def _named_differences(self, kind: str, reader: Any, writer: Any, path: str) -> Iterator[Difference]:
        if not _has_same_name(reader, writer):
            text = f"expected the name {writer['name']}, found {reader['name']}"
            yield Difference("NAME_MISMATCH", text, f"{path}/name")
        if kind == "fixed" and reader["size"] != writer["size"]:
            text = f"the writer has {writer['size']} bytes, the reader {reader['size']}"
            yield Difference("FIXED_SIZE_MISMATCH", text, f"{path}/size")
        if kind == "enum":
            missing = [each for each in writer["symbols"] if each not in reader["symbols"]]
            if missing and reader.get("default") is None:
                text = f"the reader lacks the symbols {', '.join(missing)} and has no default"
                yield Difference("MISSING_ENUM_SYMBOLS", text, f"{path}/symbols")
        if kind in ("record", "error"):
            yield from self._field_differences(reader, writer, path)

    def _field_differences(self, reader: Any, writer: Any, path: str) -> Iterator[Difference]:
        written = {field["name"]: field for field in writer["fields"]}
        for index, field in enumerate(reader["fields"]):
            place = f"{path}/fields/{index}"
            names = [field["name"], *(field.get("aliases") or ())]
            match = next((written[name] for name in names if name in written), None)
            if match is not None:
                yield from self._compare(field["type"], match["type"], f"{place}/type")
            elif "default" not in field:
                text = f"the field {field['name']} is missing in the writer and has no default"
                yield Difference("READER_FIELD_MISSING_DEFAULT_VALUE", text, place)


def _definition(schema: Any, owner: AvroSchema) -> Any:
    """Replace names by definitions, and {"type": {…}} by what is inside."""
    while True:
        if isinstance(schema, str) and schema in owner.names:
            schema = owner.names[schema]
        elif isinstance(schema, dict) and (not isinstance(schema["type"], str) or schema["type"] in owner.names):
            schema = schema["type"]
        else:
            return schema


def _kind(schema: Any) -> str:
    if isinstance(schema, list):
        return "union"
    kind: str = schema if isinstance(schema, str) else schema["type"]
    return "record" if kind == "error" else kind


def _name(schema: Any) -> str:
    return schema["name"] if isinstance(schema, dict) and "name" in schema else _kind(schema)


def _has_same_name(reader: Any, writer: Any) -> bool:
    """Namespaces may differ, as in the Java library; the reader may have the writer's name as an alias."""
    simple = [each["name"].rpartition(".")[2] for each in (reader, writer)]
    namespace = reader["name"].rpartition(".")[0]
    aliases = {_full_name(each, namespace) for each in reader.get("aliases") or ()}
    return simple[0] == simple[1] or writer["name"] in aliases
