"""Random messages for codec tests: any message and version, values at the edges of their types."""

import random
from collections.abc import Iterator
from typing import Any

from moldau.wire import messages
from moldau.wire.catalogue import APIS, ENTRIES, schema_of
from moldau.wire.schema import Field, Schema, Struct

BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
UNSIGNED_BITS = {"uint16": 16, "uint32": 32}


def every_api_message() -> Iterator[tuple[str, int]]:
    """Yield every request and response in every version."""
    for api in APIS.values():
        for version in range(api.versions.first, api.versions.last + 1):
            yield f"{api.name}Request", version
            yield f"{api.name}Response", version


def every_data_message() -> Iterator[tuple[str, int]]:
    """Yield every message that is no API, in every version."""
    for entry in ENTRIES.values():
        if entry.role == "data":
            for version in range(entry.versions.first, entry.versions.last + 1):
                yield entry.name, version


class Samples:
    """Makes messages from one seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def message(self, name: str, version: int) -> Any:
        schema = schema_of(name)
        top = getattr(messages, name)
        return self._struct(schema, version, schema.root, top, top)

    def _struct(self, schema: Schema, version: int, struct: Struct, made: Any, top: Any) -> Any:
        fields = {}
        for each in struct.at(version):
            if each.tagged.has(version) and self.random.random() < 0.4:
                continue  # left at its default, so not on the wire
            fields[each.name] = self._value(schema, version, each, top)
        return made(**fields)

    def _value(self, schema: Schema, version: int, each: Field, top: Any) -> Any:
        if each.nullable.has(version) and self.random.random() < 0.25:
            return None
        if each.is_array:
            length = (
                self.random.choice((0, 1, 1, 2, 3, 40)) if each.struct is None else self.random.choice((0, 1, 1, 2))
            )
            return [self._one(schema, version, each, top) for _ in range(length)]
        return self._one(schema, version, each, top)

    def _one(self, schema: Schema, version: int, each: Field, top: Any) -> Any:
        if each.struct is not None:
            return self._struct(schema, version, each.struct, getattr(top, each.kind), top)
        return self._primitive(each.kind)

    def _primitive(self, kind: str) -> Any:
        if kind in BITS:
            bound = 1 << (BITS[kind] - 1)
            return self.random.choice((0, 1, -1, bound - 1, -bound, self.random.randrange(-bound, bound)))
        if kind in UNSIGNED_BITS:
            bound = 1 << UNSIGNED_BITS[kind]
            return self.random.choice((0, bound - 1, self.random.randrange(bound)))
        match kind:
            case "bool":
                return self.random.random() < 0.5
            case "float64":
                return self.random.choice((0.0, -1.5, self.random.random() * 1e9))
            case "uuid":
                return self.random.randbytes(16)
            case "string":
                return self.random.choice(("", "orders", "žluťoučký kůň", "x" * self.random.choice((126, 127, 200))))
            case _:
                return self.random.randbytes(self.random.choice((0, 1, 61, 130, 300)))
