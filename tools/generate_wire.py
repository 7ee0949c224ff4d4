"""Writes the schema tables of `moldau.wire` from kio's dataclasses, and from all tables the index and `messages.pyi`.

Run it with `python tools/generate_wire.py` after a new kio, or after a change to a table written by hand.
"""

import dataclasses
import datetime
import enum
import json
import keyword
import sys
import types
import typing
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kio.index import load_entity_schema
from kio.schema.index import api_key_map, schema_name_map
from kio.static.constants import EntityType

from moldau.wire.schema import FIXED, Field, Schema, Struct, parse_schemas

WIRE = Path(__file__).parents[1] / "src" / "moldau" / "wire"
TABLES_BY_HAND = ("group_records", "metadata_records", "transaction_records")
TABLE_NOTE = "# Written by tools/generate_wire.py from Apache Kafka's definitions as kio holds them; not by hand.\n"
INDEX_NOTE = (
    "# Written by tools/generate_wire.py; not by hand. table, role, message, key, versions, flexible versions\n"
)
DATA_TABLES = {
    "control_records": (
        "end_txn_marker",
        "k_raft_version_record",
        "leader_change_message",
        "snapshot_footer_record",
        "snapshot_header_record",
        "voters_record",
    ),
    "consumer_protocol": ("consumer_protocol_assignment", "consumer_protocol_subscription"),
    "principal": ("default_principal_data",),
}
# kio turns these into richer Python types, and cuts `_ms` off the name; the wire has plain numbers.
PLAIN_KINDS = {
    "error_code": "int16",
    "timedelta_i32": "int32",
    "timedelta_i64": "int64",
    "datetime_i64": "int64",
}
MISSING = dataclasses.MISSING


@dataclass
class MergedField:
    """A field as it is gathered over the versions of its message."""

    name: str
    kind: str
    is_array: bool
    default: Any
    struct: "MergedStruct | None" = None
    tag: int = -1
    versions: set[int] = field(default_factory=set)
    nullable: set[int] = field(default_factory=set)
    tagged: set[int] = field(default_factory=set)


@dataclass
class MergedStruct:
    """A struct as it is gathered over the versions of its message."""

    name: str
    fields: list[MergedField] = field(default_factory=list)


@dataclass
class MergedMessage:
    """A message over all its versions."""

    role: str
    key: int
    root: MergedStruct
    versions: set[int] = field(default_factory=set)
    flexible: set[int] = field(default_factory=set)


def merge(role: str, key: int, by_version: dict[int, type[Any]]) -> MergedMessage:
    """One message from kio's one class per version."""
    name = next(iter(by_version.values())).__name__
    structs: dict[str, MergedStruct] = {}
    message = MergedMessage(role, key, structs.setdefault(name, MergedStruct(name)))
    for version, source in sorted(by_version.items()):
        message.versions.add(version)
        if source.__flexible__:
            message.flexible.add(version)
        merge_struct(structs, source, version)
    return message


def merge_struct(structs: dict[str, MergedStruct], source: Any, version: int) -> MergedStruct:
    struct = structs.setdefault(source.__name__, MergedStruct(source.__name__))
    place = 0
    for each in dataclasses.fields(source):
        place = merge_field(structs, struct, each, version, place)
    return struct


def merge_field(
    structs: dict[str, MergedStruct], struct: MergedStruct, each: "dataclasses.Field[Any]", version: int, place: int
) -> int:
    """Add a field where it stands in this version; the place where the next one of this version may stand."""
    read, is_nullable = read_field(each)
    at = next((i for i, known in enumerate(struct.fields) if known.name == read.name), None)
    if at is None:
        at = place
        struct.fields.insert(at, read)
    assert at >= place, f"{struct.name}.{read.name} changes its place"
    known = struct.fields[at]
    assert (known.kind, known.is_array) == (read.kind, read.is_array), f"{struct.name}.{read.name} changes its type"
    assert known.default == read.default, f"{struct.name}.{read.name} changes its default"
    known.versions.add(version)
    if is_nullable:
        known.nullable.add(version)
    if read.tag >= 0:
        assert known.tag in (-1, read.tag), f"{struct.name}.{read.name} changes its tag"
        known.tag = read.tag
        known.tagged.add(version)
    kind, _, _ = unwrap(each.type)
    if dataclasses.is_dataclass(kind):
        known.struct = merge_struct(structs, kind, version)
    return at + 1


def read_field(each: "dataclasses.Field[Any]") -> tuple[MergedField, bool]:
    """A kio field in our words, and whether it may be null."""
    kind, is_array, is_nullable = unwrap(each.type)
    name, default = each.name, plain_default(each.default)
    if dataclasses.is_dataclass(kind):
        word = kind.__name__  # type: ignore[union-attr]
        default = MISSING
    else:
        kio_kind = each.metadata["kafka_type"]
        word = PLAIN_KINDS.get(kio_kind, kio_kind)
        if "time" in kio_kind:
            name += "_ms"
        if default is None and word == "int64":
            default = -1
        if word in FIXED and not is_array:
            is_nullable = False
            default = MISSING if default is None else default
    assert not keyword.iskeyword(name), name
    read = MergedField(name, word, is_array, default, tag=each.metadata.get("tag", -1))
    return read, is_nullable


def unwrap(annotation: Any) -> tuple[Any, bool, bool]:
    """The type inside `tuple[X, ...] | None`, whether it is an array, whether it may be None."""
    is_nullable = False
    if typing.get_origin(annotation) in (types.UnionType, typing.Union):
        parts = typing.get_args(annotation)
        is_nullable = types.NoneType in parts
        (annotation,) = (part for part in parts if part is not types.NoneType)
    is_array = typing.get_origin(annotation) is tuple
    return (typing.get_args(annotation)[0] if is_array else annotation), is_array, is_nullable


def plain_default(value: Any) -> Any:
    match value:
        case datetime.timedelta():
            return value // datetime.timedelta(milliseconds=1)
        case enum.Enum():
            return int(value.value)
        case uuid.UUID():
            assert value.int == 0, value
            return MISSING
        case () | b"":
            return MISSING
        case bool() | None:
            return value
        case int():
            return int(value)
        case str():
            return str(value)
    assert value is MISSING or isinstance(value, float) or dataclasses.is_dataclass(value), value
    return value


def version_words(versions: set[int], newest: int) -> str:
    """`3-12`, `9+` when it reaches the newest, `4` for one, `none`."""
    if not versions:
        return "none"
    first, last = min(versions), max(versions)
    assert versions == set(range(first, last + 1)), versions
    if last == newest:
        return f"{first}+"
    return str(first) if first == last else f"{first}-{last}"


def table_lines(message: MergedMessage) -> Iterator[str]:
    """The text of one message."""
    newest = max(message.versions)
    key = f" key={message.key}" if message.key >= 0 else ""
    versions, flexible = f"{min(message.versions)}-{newest}", version_words(message.flexible, newest)
    yield f"{message.role} {message.root.name}{key} versions={versions} flexible={flexible}"
    yield from struct_lines(message.root, newest, 1, {message.root.name})


def struct_lines(struct: MergedStruct, newest: int, depth: int, shown: set[str]) -> Iterator[str]:
    for each in struct.fields:
        yield "  " * depth + " ".join(field_words(each, newest))
        if each.struct and each.struct.name not in shown:
            shown.add(each.struct.name)
            yield from struct_lines(each.struct, newest, depth + 1, shown)


def field_words(each: MergedField, newest: int) -> Iterator[str]:
    yield each.name
    yield ("[]" if each.is_array else "") + each.kind
    yield version_words(each.versions, newest)
    if each.nullable:
        yield f"null={version_words(each.nullable, newest)}"
    if each.tag >= 0:
        yield f"tag={each.tag}"
        if each.tagged != each.versions:
            yield f"tagged={version_words(each.tagged, newest)}"
    if each.default is not MISSING and each.default not in (0, "", False):
        yield f"default={json.dumps(each.default)}"
    elif each.default == "" and each.nullable:
        yield 'default=""'


def kio_tables() -> dict[str, str]:
    """The text of every table that comes from kio, by table name."""
    tables = {}
    for key, name in sorted(api_key_map.items()):
        both = (EntityType.request, EntityType.response)
        tables[name] = table_text(merge(role.name, key, kio_classes(name, role)) for role in both)
    for table, names in DATA_TABLES.items():
        tables[table] = table_text(merge("data", -1, kio_classes(name, EntityType.data)) for name in names)
    return tables


def table_text(messages: Iterable[MergedMessage]) -> str:
    return TABLE_NOTE + "".join(f"{line}\n" for message in messages for line in table_lines(message))


def kio_classes(name: str, role: Any) -> dict[int, type[Any]]:
    """kio's class of a message for each of its versions."""
    return {version: load_entity_schema(name, version, role) for version in sorted(schema_name_map[name])}


def index_text(tables: dict[str, str]) -> str:
    lines = []
    for table, text in tables.items():
        for line in text.splitlines():
            if line and line[0] not in "# ":
                role, name, *words = line.split()
                given = dict(word.split("=") for word in words)
                key = given.get("key", "-1")
                lines.append(f"{table} {role} {name} {key} {given['versions']} {given['flexible']}\n")
    return INDEX_NOTE + "".join(lines)


STUB_START = '''"""Every message of the protocol, for type checkers. Written by tools/generate_wire.py; not by hand."""

from collections.abc import Sequence
from typing import Any, ClassVar

class Message:
    API_KEY: ClassVar[int]
    def __eq__(self, other: object) -> bool: ...

'''
STUB_KINDS = {"bool": "bool", "float64": "float", "string": "str", "bytes": "bytes", "uuid": "bytes", "records": "Any"}


def stub_text(tables: dict[str, str]) -> str:
    schemas = [schema for text in tables.values() for schema in parse_schemas(text).values()]
    return STUB_START + "\n".join("".join(stub_lines(each)) for each in sorted(schemas, key=lambda each: each.name))


def stub_lines(schema: Schema) -> Iterator[str]:
    yield f"class {schema.name}(Message):\n"
    for struct in schema.nested.values():
        yield f"    class {struct.name}(Message):\n"
        yield from stub_fields(schema, struct, "        ")
        yield "\n"
    yield from stub_fields(schema, schema.root, "    ")


def stub_fields(schema: Schema, struct: Struct, indent: str) -> Iterator[str]:
    for each in struct.fields:
        yield f"{indent}{each.name}: {stub_type(schema, each)}\n"
    yield (
        f"{indent}def __init__(\n{indent}    self,\n" if struct.fields else f"{indent}def __init__(self) -> None: ...\n"
    )
    if struct.fields:
        yield f"{indent}    *,\n"
        for each in struct.fields:
            yield f"{indent}    {each.name}: {stub_type(schema, each)} = ...,\n"
        yield f"{indent}) -> None: ...\n"


def stub_type(schema: Schema, each: Field) -> str:
    word = f"{schema.name}.{each.kind}" if each.struct else STUB_KINDS.get(each.kind, "int")
    if each.is_array:
        word = f"Sequence[{word}]"
    is_optional = each.nullable.last >= each.nullable.first or each.is_optional_struct
    return f"{word} | None" if is_optional and word != "Any" else word


def generate() -> dict[Path, str]:
    """Every generated file and its text."""
    tables = kio_tables()
    files = {WIRE / "schemas" / f"{name}.txt": text for name, text in tables.items()}
    for name in TABLES_BY_HAND:
        tables[name] = (WIRE / "schemas" / f"{name}.txt").read_text()
    files[WIRE / "schemas" / "index.txt"] = index_text(tables)
    files[WIRE / "messages.pyi"] = stub_text(tables)
    return files


def main() -> int:
    for path, text in generate().items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
