"""Reads of a topic: a page, a stream up to an end, and a live tail.

A page and a stream read forwards between two positions, with the search of the console. A live tail has a client of its
own, because a fetch that waits for records would block later requests on the same connection.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from moldau.client.async_client import AsyncClient
from moldau.client.brokers import REQUEST_FAILURES
from moldau.client.metadata import TopicView
from moldau.client.types import Isolation
from moldau.console.errors import ConsoleError, error_json
from moldau.console.offset_lookup import look_up_extents, places_of
from moldau.console.read_request import PARTITIONS_MAX, parsed_position, resolve_position
from moldau.console.record_filter import key_filter
from moldau.console.record_search import Matches, RecordSearch
from moldau.console.record_views import FoundRecord
from moldau.console.record_windows import Window, read_once
from moldau.console.routes.topics import find_topic
from moldau.console.schema_values import SchemaValues
from moldau.console.sessions import Session
from moldau.gateway.record_json import json_bytes, record_json
from moldau.model.ids import TopicPartition
from moldau.model.ports import Clock
from moldau.model.units import KiB, MiB

STREAM_BYTES_MAX: Final = 256 * MiB
TAIL_WAIT_MS: Final = 250  # of a fetch; records of one broker wait for the fetch from another one
TAIL_PARTITION_BYTES: Final = 256 * KiB
PAUSE_S: Final = 0.05  # after a fetch without records, which may have failed at once
QUIET_S_MAX: Final = 10.0  # then a comment shows that the tail is alive, and finds out whether its reader is
ENDLESS: Final = 2**62

Offsets = Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Wanted:
    """The records of a request."""

    start: str
    until: str
    limit: int
    partitions: Sequence[int] | None
    key: str | None
    isolation: Isolation

    @property
    def matches(self) -> Matches | None:
        return None if self.key is None else key_filter(self.key)


def positions_text(positions: Offsets) -> str:
    """Write positions as `partition:offset,…`, which requests take as `from`."""
    return ",".join(f"{place.partition}:{offset}" for place, offset in sorted(positions.items()))


async def forward_search(session: Session, clock: Clock, topic: str, wanted: Wanted) -> RecordSearch:
    """Return the search for the records between two positions."""
    view = await find_topic(session, topic)
    extents = await look_up_extents(session.client, {topic: view}, _chosen(view, wanted.partitions), wanted.isolation)
    positions = await _offsets(session, view, extents, wanted.start)
    ends = await _offsets(session, view, extents, wanted.until)
    bounded = {place: (start, _between(start, ends.get(place, end), end)) for place, (start, end) in extents.items()}
    positions = {place: offset for place, offset in positions.items() if place in bounded}
    return RecordSearch(
        session.client, clock, bounded, positions, False, wanted.limit, wanted.isolation, wanted.matches
    )


async def read_page(search: RecordSearch, values: SchemaValues) -> dict[str, Any]:
    """Return the JSON form of a page; `next` is where the rest begins, if there is any."""
    page = await search.run()
    await values.prepare_records(page.records)
    return {
        "records": [record_json(each, values.decode) for each in page.records],
        "next": positions_text(page.positions) or None,
        "left": page.left,
    }


async def stream_lines(search: RecordSearch, values: SchemaValues, limit: int) -> AsyncIterator[bytes]:
    """Yield the records as lines of JSON; an error after the first line is the last line."""
    count = read_bytes = 0
    try:
        while True:
            page = await search.run()
            records = page.records[: limit - count]
            await values.prepare_records(records)
            yield b"".join(json_bytes(record_json(each, values.decode)) + b"\n" for each in records)
            count, read_bytes = count + len(records), read_bytes + page.read_bytes
            if not page.positions or count >= limit or read_bytes >= STREAM_BYTES_MAX:
                return
            search = replace(search.next_page(page), limit=min(search.limit, limit - count))
    except REQUEST_FAILURES as error:
        yield json_bytes(error_json(error)) + b"\n"


@dataclass(slots=True)
class Tail:
    """A live tail. Its events carry positions, from which a reader that reconnects resumes."""

    client: AsyncClient
    clock: Clock
    positions: dict[TopicPartition, int]
    isolation: Isolation
    matches: Matches | None
    values: SchemaValues
    _last_event_ms: float = field(default=0.0)

    async def events(self) -> AsyncIterator[bytes]:
        """Yield server-sent events until the reader closes the connection or an error ends the tail."""
        try:
            self._last_event_ms = self.clock.monotonic_ms()
            yield _event("started", {"partitions": len(self.positions)}, self.positions)
            while True:
                found = await self._read()
                now_ms = self.clock.monotonic_ms()
                if found:
                    await self.values.prepare_records(found)
                    self._last_event_ms = now_ms
                    for event in self._record_events(found):
                        yield event
                elif now_ms - self._last_event_ms >= QUIET_S_MAX * 1000:
                    self._last_event_ms = now_ms
                    yield b": alive\n\n"
        except REQUEST_FAILURES as error:
            yield _event("failed", error_json(error), None)

    def _record_events(self, found: Sequence[FoundRecord]) -> Iterator[bytes]:
        """The last event of a round has its positions: the earlier ones would skip records of other partitions."""
        for each in found[:-1]:
            yield _event("record", record_json(each, self.values.decode), None)
        yield _event("record", record_json(found[-1], self.values.decode), self.positions)

    async def _read(self) -> list[FoundRecord]:
        windows = [Window(place, offset, ENDLESS) for place, offset in self.positions.items()]
        await read_once(
            self.client, windows, self.isolation, partition_bytes_max=TAIL_PARTITION_BYTES, wait_ms=TAIL_WAIT_MS
        )
        await self._advance(windows)
        found = [each for window in windows for each in window.records if self.matches is None or self.matches(each)]
        if not any(window.read_bytes for window in windows):
            await asyncio.sleep(PAUSE_S)
        return sorted(found, key=lambda each: (each.record.timestamp, each.place, each.record.offset))

    async def _advance(self, windows: Sequence[Window]) -> None:
        self.positions.update((each.place, each.next_offset) for each in windows if not each.is_read)
        outside = [each.place for each in windows if each.is_read]  # the log was deleted or truncated there
        if outside:
            topic = await self.client.topic(outside[0].topic)
            extents = await look_up_extents(self.client, {topic.name: topic}, outside, self.isolation)
            for place, (start, end) in extents.items():
                self.positions[place] = _between(start, self.positions[place], end)


async def tail_positions(session: Session, topic: str, wanted: Wanted) -> dict[TopicPartition, int]:
    """Return where a tail begins; every chosen partition must have a leader."""
    view = await find_topic(session, topic)
    places = _chosen(view, wanted.partitions)
    extents = await look_up_extents(session.client, {topic: view}, places, wanted.isolation)
    if len(extents) < len(places):
        missing = next(each for each in places if each not in extents)
        raise ConsoleError(503, "leader_not_available", f"{missing} has no leader at the moment; try again.")
    found = await _offsets(session, view, extents, wanted.start)
    # Partitions that the positions do not name are new: a tail that resumes reads them from their start.
    return {place: _between(start, found.get(place, start), end) for place, (start, end) in extents.items()}


async def _offsets(
    session: Session, view: TopicView, extents: Mapping[TopicPartition, tuple[int, int]], text: str
) -> dict[TopicPartition, int]:
    if ":" in text and not text.startswith("@"):
        return _parsed_positions(view.name, text)
    return await resolve_position(session, {view.name: view}, extents, parsed_position(text))


def _parsed_positions(topic: str, text: str) -> dict[TopicPartition, int]:
    pairs = [each.partition(":") for each in text.split(",")]
    if not all(part.isdecimal() and offset.isdecimal() and len(part + offset) < 30 for part, _, offset in pairs):
        raise ConsoleError(400, "invalid_position", "Positions are written as PARTITION:OFFSET, with commas between.")
    return {TopicPartition(topic, int(part)): int(offset) for part, _, offset in pairs}


def _chosen(view: TopicView, partitions: Sequence[int] | None) -> list[TopicPartition]:
    known = places_of([view])
    unknown = sorted(set(partitions or ()) - {each.partition for each in known})
    if unknown:
        raise ConsoleError(404, "unknown_topic_or_partition", f"{view.name} has no partition {unknown[0]}.")
    chosen = [each for each in known if partitions is None or each.partition in partitions]
    if len(chosen) > PARTITIONS_MAX:
        message = f"At most {PARTITIONS_MAX} partitions are read at a time; choose some with partition=."
        raise ConsoleError(400, "too_many_partitions", message)
    return chosen


def _between(low: int, offset: int, high: int) -> int:
    return min(max(offset, low), high)


def _event(name: str, content: Mapping[str, Any], positions: Offsets | None) -> bytes:
    identity = b"" if positions is None else f"id: {positions_text(positions)}\n".encode()
    return b"event: " + name.encode() + b"\n" + identity + b"data: " + json_bytes(content) + b"\n\n"
