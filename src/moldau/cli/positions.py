"""Where to begin and end reading: `start`, `end`, `-10`, `@2026-01-01T00:00:00`, an offset."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Protocol

from moldau.cli.errors import usage_error
from moldau.client.types import EARLIEST, LATEST, Isolation, OffsetResult
from moldau.model.ids import TopicPartition

TIME_MS_MAX: Final = 2**63 - 1
FORMS: Final = "start, end, -10 (that many before the end), @2026-01-01T00:00:00 (a time), or an offset"


@dataclass(frozen=True, slots=True)
class AtStart:
    """The first record there is."""


@dataclass(frozen=True, slots=True)
class AtEnd:
    """After the last record there is now."""


@dataclass(frozen=True, slots=True)
class BeforeEnd:
    """So many records before the end of each partition."""

    count: int


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first record that is not older."""

    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class AtOffset:
    """This offset, in each partition."""

    offset: int


Position = AtStart | AtEnd | BeforeEnd | AtTime | AtOffset


def parse_position(text: str, option: str) -> Position:
    word = text.strip()
    if word in ("start", "beginning", "earliest"):
        return AtStart()
    if word in ("end", "latest"):
        return AtEnd()
    if word.startswith("@"):
        return AtTime(_parse_time(word[1:], option))
    if word.startswith("-") and word[1:].isdecimal():
        return BeforeEnd(int(word[1:]))
    if word.isdecimal():
        return AtOffset(int(word))
    raise usage_error(f"{option} {text} is not a place in a log; there are {FORMS}")


def _parse_time(text: str, option: str) -> int:
    """Milliseconds as a number, or ISO 8601; local time where no zone is named. Nothing is older than 1970.

    Below 0, the protocol has numbers that mean something else: the start, the end.
    """
    try:
        time_ms = int(text) if text.isdecimal() else int(datetime.fromisoformat(text).timestamp() * 1000)
        if time_ms > TIME_MS_MAX:
            raise ValueError
        return max(time_ms, 0)
    except ValueError:
        raise usage_error(
            f"{option} @{text} is not a time; write @2026-01-01, @2026-01-01T12:30:00, …Z or +02:00, or milliseconds"
        ) from None


class ListsOffsets(Protocol):
    """A client, as far as it is needed here."""

    async def list_offsets(
        self, times: Mapping[TopicPartition, int], *, isolation: Isolation = ...
    ) -> Mapping[TopicPartition, OffsetResult]: ...


@dataclass(frozen=True, slots=True)
class Extent:
    """The first offset of a partition and the one after its last, when we looked."""

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
    """The position as an offset of each partition, within what the partition holds."""
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


async def resolve_end(
    client: ListsOffsets, position: Position, known: Mapping[TopicPartition, Extent], isolation: Isolation
) -> dict[TopicPartition, int]:
    """Where to stop: like `resolve`, but an offset that is still to come is waited for."""
    if isinstance(position, AtStart):
        raise usage_error("--until start: nothing comes before the start")
    if isinstance(position, AtOffset):
        return dict.fromkeys(known, position.offset)
    return await resolve(client, position, known, isolation)


def _offset(answer: OffsetResult) -> int:
    if answer.error is not None:
        raise answer.error
    return answer.offset
