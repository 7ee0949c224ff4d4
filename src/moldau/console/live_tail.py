"""A live tail: new records of a topic as server-sent events.

Events are bounded in rate and size. When records arrive faster than a page can show them, an event has the newest of
its interval and the number of records that were skipped.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from moldau.client.async_client import AsyncClient
from moldau.client.brokers import REQUEST_FAILURES
from moldau.client.metadata import TopicView
from moldau.client.types import LATEST, Isolation
from moldau.console.errors import error_json
from moldau.console.offset_lookup import look_up_offsets, places_of
from moldau.console.record_search import Matches
from moldau.console.record_views import FoundRecord, record_view
from moldau.console.record_windows import Window, read_windows
from moldau.console.schema_values import SchemaValues
from moldau.model.ids import TopicPartition
from moldau.model.units import KiB, MiB

INTERVAL_S: Final = 0.5
HEARTBEAT_ROUNDS: Final = 20  # intervals without records after which an empty event shows that the tail is alive
RECORDS_PER_EVENT_MAX: Final = 100
RECORDS_PER_ROUND_MAX: Final = 5_000
ROUND_BYTES_MAX: Final = 8 * MiB
PARTITION_BYTES_MAX: Final = 512 * KiB


@dataclass(slots=True)
class LiveTail:
    """The positions of one tail, which begins at the ends of the partitions."""

    client: AsyncClient
    topic: TopicView
    isolation: Isolation
    values: SchemaValues
    matches: Matches | None = None
    partitions: frozenset[int] | None = None
    _positions: dict[TopicPartition, int] = field(default_factory=dict)

    async def events(self) -> AsyncIterator[bytes]:
        """Yield events until the reader closes the connection or an error ends the tail."""
        try:
            self._positions = await self._ends()
            yield event("started", {"partitions": len(self._positions)})
            quiet_rounds = 0
            while True:
                await asyncio.sleep(INTERVAL_S)
                records, skipped = await self._read()
                quiet_rounds = 0 if records or skipped else quiet_rounds + 1
                if records or skipped:
                    shown = [record_view(each, self.values.decode) for each in records]
                    yield event("records", {"records": shown, "skipped": skipped})
                elif quiet_rounds % HEARTBEAT_ROUNDS == 0:
                    yield event("alive", {})
        except REQUEST_FAILURES as error:
            yield event("failed", error_json(error))

    async def _ends(self) -> dict[TopicPartition, int]:
        places = [
            each for each in places_of([self.topic]) if self.partitions is None or each.partition in self.partitions
        ]
        return await look_up_offsets(
            self.client, {self.topic.name: self.topic}, dict.fromkeys(places, LATEST), self.isolation
        )

    async def _read(self) -> tuple[list[FoundRecord], int]:
        """Return the newest matching records since the last round, and the number of records that were skipped."""
        ends = await self._ends()
        share = max(RECORDS_PER_ROUND_MAX // max(len(ends), 1), 10)
        skipped, windows = 0, []
        for place, end in ends.items():
            position = self._positions.get(place, end)
            low = max(position, end - share)
            skipped += low - position
            if low < end:
                windows.append(Window(place, low, end))
        await read_windows(
            self.client,
            windows,
            self.isolation,
            bytes_max=ROUND_BYTES_MAX,
            partition_bytes_max=PARTITION_BYTES_MAX,
        )
        for window in windows:
            await self.values.prepare_records(window.records)
        self._positions = {**ends, **{window.place: window.next_offset for window in windows}}
        found = [each for window in windows for each in window.records if self.matches is None or self.matches(each)]
        found.sort(key=lambda each: (each.record.timestamp, each.place, each.record.offset))
        skipped += max(len(found) - RECORDS_PER_EVENT_MAX, 0)
        return found[-RECORDS_PER_EVENT_MAX:], skipped


def event(name: str, content: Mapping[str, Any]) -> bytes:
    return f"event: {name}\ndata: {json.dumps(content)}\n\n".encode()
