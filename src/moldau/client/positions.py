"""Positions in a log, as users write them: `start`, `end`, `-10`, `@2026-01-01T00:00:00`, `@-1h`, `42`."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Protocol

from moldau.client.types import EARLIEST, LATEST, Isolation, OffsetResult
from moldau.model.ids import TopicPartition
from moldau.model.settings import shorten
from moldau.model.units import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS

TIME_MS_MAX: Final = 2**63 - 1
FORMS: Final = "start, end, -10 (ten before the end), @2026-01-01T00:00:00 (a time), @-1h (an hour ago), or an offset"
AGO: Final = re.compile(r"-([0-9]{1,12})([smhd])")
UNITS_MS: Final = {"s": SECOND_MS, "m": MINUTE_MS, "h": HOUR_MS, "d": DAY_MS}


@dataclass(frozen=True, slots=True)
class AtStart:
    """The log start offset."""


@dataclass(frozen=True, slots=True)
class AtEnd:
    """The log end offset as of now."""


@dataclass(frozen=True, slots=True)
class BeforeEnd:
    """`count` records before the end of each partition."""

    count: int


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first record at or after this time."""

    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class AtOffset:
    """This offset, in each partition."""

    offset: int


Position = AtStart | AtEnd | BeforeEnd | AtTime | AtOffset


def parse_position(text: str, now_ms: int) -> Position:
    """Parse a position; `now_ms` is for times that are relative to it.

    Raises `ValueError` with a message for people if it is none.
    """
    name = text.strip()
    if name in ("start", "beginning", "earliest"):
        return AtStart()
    if name in ("end", "latest"):
        return AtEnd()
    if name.startswith("@"):
        return AtTime(_parse_time(name[1:], now_ms))
    if name.startswith("-") and name[1:].isdecimal():
        return BeforeEnd(int(name[1:]))
    if name.isdecimal():
        return AtOffset(int(name))
    raise ValueError(f"{shorten(text)} is not a position; use {FORMS}")


def _parse_time(text: str, now_ms: int) -> int:
    """Parse `-90m`, milliseconds or ISO 8601, in local time if no zone is given.

    Times before 1970 become 0: negative numbers have other meanings in the protocol (earliest, latest).
    """
    if (ago := AGO.fullmatch(text)) is not None:
        return max(now_ms - int(ago[1]) * UNITS_MS[ago[2]], 0)
    try:
        time_ms = int(text) if text.isdecimal() else int(datetime.fromisoformat(text).timestamp() * 1000)
        if time_ms > TIME_MS_MAX:
            raise ValueError
        return max(time_ms, 0)
    except ValueError:
        raise ValueError(
            f"@{shorten(text)} is not a time; write @2026-01-01, @2026-01-01T12:30:00Z or +02:00, @-90m or milliseconds"
        ) from None


class ListsOffsets(Protocol):
    """The part of a client that is used here."""

    async def list_offsets(
        self, times: Mapping[TopicPartition, int], *, isolation: Isolation = ...
    ) -> Mapping[TopicPartition, OffsetResult]: ...


@dataclass(frozen=True, slots=True)
class Extent:
    """Log start and end offset of a partition."""

    start: int
    end: int


async def extents(
    client: ListsOffsets, places: list[TopicPartition], isolation: Isolation
) -> dict[TopicPartition, Extent]:
    starts = await client.list_offsets(dict.fromkeys(places, EARLIEST), isolation=isolation)
    ends = await client.list_offsets(dict.fromkeys(places, LATEST), isolation=isolation)
    return {place: Extent(_offset(starts[place]), _offset(ends[place])) for place in places}


async def resolve(
    client: ListsOffsets, position: Position, known: Mapping[TopicPartition, Extent], isolation: Isolation
) -> dict[TopicPartition, int]:
    """Return the position as an offset of each partition, within its extent."""
    match position:
        case AtTime(timestamp_ms):
            found = await client.list_offsets(dict.fromkeys(known, timestamp_ms), isolation=isolation)
            offsets = {place: _offset(found[place]) for place in known}
            return {place: offset if offset >= 0 else known[place].end for place, offset in offsets.items()}
        case AtStart():
            return {place: each.start for place, each in known.items()}
        case AtEnd():
            return {place: each.end for place, each in known.items()}
        case BeforeEnd(count):
            return {place: max(each.start, each.end - count) for place, each in known.items()}
        case AtOffset(offset):
            return {place: min(max(each.start, offset), each.end) for place, each in known.items()}


def _offset(response: OffsetResult) -> int:
    if response.error is not None:
        raise response.error
    return response.offset
