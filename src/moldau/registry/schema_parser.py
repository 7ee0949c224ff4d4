"""Parses schemas of all types outside the event loop, and keeps the most recent ones."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from moldau.registry.errors import INVALID_SCHEMA, RegistryError, invalid_schema
from moldau.schemas import avro, json_schema, protobuf
from moldau.schemas.types import AVRO, JSON, PROTOBUF, Dependencies, InvalidSchema, ParsedSchema

TYPES: Final[dict[str, Callable[[str, Dependencies], ParsedSchema]]] = {
    JSON: json_schema.parse,
    PROTOBUF: protobuf.parse,
    AVRO: avro.parse,
}
CACHED_CHARS_MAX: Final = 8_000_000  # of schemas and their dependencies; parsed ones are some times larger
PARALLEL_MAX: Final = 4

_Key = tuple[str, str, tuple[tuple[str, str], ...]]


class SchemaParser:
    """A bounded cache in front of the parsers."""

    def __init__(self) -> None:
        self._cache: OrderedDict[_Key, ParsedSchema] = OrderedDict()
        self._cached_chars = 0
        self._permits = asyncio.Semaphore(PARALLEL_MAX)

    async def parse(self, kind: str, text: str, dependencies: Dependencies) -> ParsedSchema:
        """Return the parsed schema. Raises the error for the client if it is not valid."""
        if kind not in TYPES:
            raise RegistryError(INVALID_SCHEMA, f"Invalid schema type {kind}; the types are {', '.join(TYPES)}")
        key = (kind, text, tuple(dependencies.items()))
        if key in self._cache:
            self._cache.move_to_end(key)
            return self._cache[key]
        try:
            async with self._permits:
                parsed = await asyncio.to_thread(TYPES[kind], text, dependencies)
        except InvalidSchema as error:
            raise invalid_schema(str(error)) from error
        self._keep(key, parsed)
        return parsed

    async def incompatibilities(self, later: ParsedSchema, earlier: ParsedSchema) -> list[str]:
        """Say why data of the earlier schema cannot be read with the later one."""
        try:
            async with self._permits:
                return await asyncio.to_thread(later.incompatibilities, earlier)
        except InvalidSchema as error:
            raise invalid_schema(str(error)) from error

    def _keep(self, key: _Key, parsed: ParsedSchema) -> None:
        if key not in self._cache:
            self._cached_chars += _chars(key)
        self._cache[key] = parsed
        while self._cached_chars > CACHED_CHARS_MAX and len(self._cache) > 1:
            oldest, _ = self._cache.popitem(last=False)
            self._cached_chars -= _chars(oldest)


def _chars(key: _Key) -> int:
    return len(key[1]) + sum(len(name) + len(text) for name, text in key[2])
