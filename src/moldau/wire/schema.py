"""The schema tables in memory, and the parser of their text form (described in `schemas/README.md`)."""

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from moldau.wire.limits import REQUEST_ELEMENTS_MAX, RESPONSE_ELEMENTS_MAX

# Fixed-size types, with their letter in `struct`.
FIXED: Final = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "float64": "d",
    "uuid": "16s",
}
FIXED_BYTES: Final = {
    "bool": 1,
    "int8": 1,
    "int16": 2,
    "uint16": 2,
    "int32": 4,
    "uint32": 4,
    "int64": 8,
    "float64": 8,
    "uuid": 16,
}
SIZED: Final = frozenset({"string", "bytes", "records"})

Default = int | float | str | bytes | tuple[()] | None

_ZERO: Final[dict[str, Default]] = {
    "bool": False,
    "string": "",
    "bytes": b"",
    "records": None,
    "uuid": bytes(16),
    "float64": 0.0,
}


class Versions(NamedTuple):
    """A range of versions, both ends included."""

    first: int
    last: int

    def has(self, version: int) -> bool:
        return self.first <= version <= self.last

    @classmethod
    def parse(cls, text: str) -> "Versions":
        if text == "none":
            return NEVER
        if text.endswith("+"):
            return cls(int(text[:-1]), _NEWEST)
        first, _, last = text.partition("-")
        return cls(int(first), int(last or first))


_NEWEST: Final = 0x7FFF
NEVER: Final = Versions(0, -1)


@dataclass(slots=True)
class Field:
    """One field over all versions of its message."""

    name: str
    kind: str  # a primitive, or the name of a struct
    is_array: bool
    versions: Versions
    nullable: Versions = NEVER
    tag: int = -1
    tagged: Versions = NEVER
    default: Default = None
    struct: "Struct | None" = None

    @property
    def is_optional_struct(self) -> bool:
        """A single struct that may be None: nullable, or tagged and therefore optional."""
        return self.struct is not None and not self.is_array and (self.nullable != NEVER or self.tag >= 0)


@dataclass(slots=True)
class Struct:
    """A group of fields: a message itself or a nested struct."""

    name: str
    fields: list[Field] = field(default_factory=list)

    def at(self, version: int) -> list[Field]:
        """Return the fields of `version`, tagged ones last, by tag number."""
        present = [each for each in self.fields if each.versions.has(version)]
        plain = [each for each in present if not each.tagged.has(version)]
        return plain + sorted((each for each in present if each.tagged.has(version)), key=lambda each: each.tag)


@dataclass(slots=True)
class Schema:
    """A message: its root struct, its nested structs by name, and its versions."""

    role: str  # request, response or data
    key: int  # the API key; for a metadata record its type; -1 if it has none
    versions: Versions
    flexible: Versions
    root: Struct
    nested: dict[str, Struct] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.root.name

    @property
    def elements_max(self) -> int:
        return RESPONSE_ELEMENTS_MAX if self.role == "response" else REQUEST_ELEMENTS_MAX

    def has_records(self, version: int) -> bool:
        structs = (self.root, *self.nested.values())
        return any(each.kind == "records" for struct in structs for each in struct.at(version))


def parse_schemas(text: str) -> dict[str, Schema]:
    """Parse every message of one table, by name."""
    schemas: dict[str, Schema] = {}
    schema: Schema | None = None
    depths: list[Struct] = []  # the struct that a line of this indentation belongs to
    for line in text.splitlines():
        if not line or line[0] == "#":
            continue
        tokens = line.split()
        if line[0] != " ":
            schema = _parse_message(tokens)
            schemas[schema.name] = schema
            depths = [schema.root]
            continue
        assert schema is not None, line
        depth = (len(line) - len(line.lstrip())) // 2
        del depths[depth:]
        each = _parse_field(tokens, schema)
        depths[-1].fields.append(each)
        if each.struct is not None:
            depths.append(each.struct)
    return schemas


def _parse_message(tokens: list[str]) -> Schema:
    role, name = tokens[:2]
    given = dict(token.split("=") for token in tokens[2:])
    versions, flexible = Versions.parse(given["versions"]), Versions.parse(given["flexible"])
    return Schema(role, int(given.get("key", -1)), versions, flexible, Struct(name))


def _parse_field(tokens: list[str], schema: Schema) -> Field:
    name, kind = tokens[:2]
    given = dict(token.split("=", 1) for token in tokens[3:])
    versions = Versions.parse(tokens[2])
    is_array = kind.startswith("[]")
    kind = kind.removeprefix("[]")
    each = Field(name, kind, is_array, versions)
    if "null" in given:
        each.nullable = Versions.parse(given["null"])
    if "tag" in given:
        each.tag = int(given["tag"])
        each.tagged = Versions.parse(given["tagged"]) if "tagged" in given else versions
    if kind not in FIXED and kind not in SIZED:
        each.struct = schema.nested.setdefault(kind, Struct(kind))
    each.default = _parse_default(given["default"]) if "default" in given else _implicit_default(each)
    return each


def _parse_default(text: str) -> Default:
    if text in _LITERALS:
        return _LITERALS[text]
    if text[0] == '"':
        return text[1:-1]
    return float(text) if "." in text else int(text)


_LITERALS: Final[dict[str, Default]] = {"null": None, "true": True, "false": False}


def _implicit_default(each: Field) -> Default:
    if each.nullable != NEVER and each.tag < 0:
        return None  # friendlier than Kafka's empty string, and never sent by default
    if each.is_array:
        return ()
    return _ZERO.get(each.kind, None if each.struct else 0)
