"""Keys and values of a session whose schemas are in the registry, as JSON.

`prepare` looks up the schemas of some records as the user of the session, at most a few that are not known yet; then
`decode` never waits. An id that the registry does not have, or that the user may not see, is not looked up again soon.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from moldau.client.async_client import AsyncClient
from moldau.console.record_views import Decoded, FoundRecord
from moldau.model.ports import Clock
from moldau.model.units import SECOND_MS
from moldau.schemas.codecs import Codecs, compile_codec
from moldau.schemas.types import Codec, UndecodableValue
from moldau.schemas.wire_format import schema_id_of
from moldau.web.schema_service import SchemaRequestFailed, SchemaService

LOOKUPS_MAX: Final = 20  # of unknown ids, for one page of records
WRITERS_MAX: Final = 100
FAILED_MAX: Final = 1_000
FAILED_MS: Final = 10 * SECOND_MS


@dataclass(slots=True)
class SchemaValues:
    """The codecs of one session."""

    service: SchemaService
    client: AsyncClient
    user: str | None
    clock: Clock
    codecs: Codecs = field(default_factory=Codecs)
    _writers: dict[tuple[int, str | None], Codec] = field(default_factory=dict)
    _failed: dict[int, tuple[float, str]] = field(default_factory=dict)

    async def prepare_records(self, records: Iterable[FoundRecord]) -> None:
        await self.prepare(data for each in records for data in (each.record.key, each.record.value))

    async def prepare(self, data: Iterable[bytes | None]) -> None:
        """Look up the schemas of these bytes."""
        ids = {schema_id for each in data if (schema_id := schema_id_of(each)) is not None}
        now_ms = self.clock.monotonic_ms()
        unknown = [each for each in ids if each not in self.codecs and not self._has_failed(each, now_ms)]
        for schema_id in sorted(unknown)[:LOOKUPS_MAX]:
            await self._look_up(schema_id, now_ms)

    def decode(self, data: bytes | None) -> Decoded | None:
        """Return the value of bytes that begin with the id of a schema; None for others."""
        schema_id = schema_id_of(data)
        if schema_id is None or data is None:
            return None
        if schema_id not in self.codecs:
            _, reason = self._failed.get(schema_id, (0.0, "its schema was not looked up"))
            return Decoded(schema_id, None, None, reason)
        try:
            return Decoded(schema_id, *self.codecs.decode(data))
        except UndecodableValue as error:
            return Decoded(schema_id, None, None, str(error))

    async def codec(self, schema_id: int, message: str | None = None) -> Codec:
        """Return the codec of a schema that the user may see; `message` selects the Protobuf message to write."""
        key = (schema_id, message)
        if key not in self._writers:
            schema = await self.service.schema(self.client, self.user, schema_id)
            self._writers[key] = await asyncio.to_thread(compile_codec, schema, message)
            while len(self._writers) > WRITERS_MAX:
                del self._writers[next(iter(self._writers))]
        return self._writers[key]

    def _has_failed(self, schema_id: int, now_ms: float) -> bool:
        return schema_id in self._failed and now_ms - self._failed[schema_id][0] < FAILED_MS

    async def _look_up(self, schema_id: int, now_ms: float) -> None:
        try:
            schema = await self.service.schema(self.client, self.user, schema_id)
        except SchemaRequestFailed as error:
            self._failed.pop(schema_id, None)
            self._failed[schema_id] = (now_ms, error.message)
            while len(self._failed) > FAILED_MAX:
                del self._failed[next(iter(self._failed))]
            return
        await asyncio.to_thread(self.codecs.add, schema)
