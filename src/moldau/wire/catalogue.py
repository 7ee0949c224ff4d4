"""The index of all messages, loaded without parsing any schema."""

import pkgutil
from typing import Final, NamedTuple

from moldau.wire.schema import Schema, Versions, parse_schemas


class Entry(NamedTuple):
    """One line of the index: a message and the table that describes it."""

    table: str
    role: str
    name: str
    key: int
    versions: Versions
    flexible: Versions


class Api(NamedTuple):
    """A request and its response, which share versions and flexible versions."""

    name: str
    key: int
    versions: Versions
    flexible: Versions


def read_table(name: str) -> str:
    """Return the text of a schema table of the package."""
    content = pkgutil.get_data("moldau.wire", f"schemas/{name}.txt")
    assert content is not None, name
    return content.decode()


def _read_entries() -> dict[str, Entry]:
    entries = {}
    for line in read_table("index").splitlines():
        if line and line[0] != "#":
            table, role, name, key, versions, flexible = line.split()
            entries[name] = Entry(table, role, name, int(key), Versions.parse(versions), Versions.parse(flexible))
    return entries


ENTRIES: Final = _read_entries()
APIS: Final = {
    each.key: Api(each.name.removesuffix("Request"), each.key, each.versions, each.flexible)
    for each in ENTRIES.values()
    if each.role == "request"
}

_schemas: dict[str, Schema] = {}


def schema_of(name: str) -> Schema:
    """Return the schema of a message, parsed on first use."""
    if name not in _schemas:
        _schemas.update(parse_schemas(read_table(ENTRIES[name].table)))
    return _schemas[name]
