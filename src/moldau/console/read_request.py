"""A request for records: where to start, in which direction, and which records to show."""

import time
from collections.abc import Mapping
from typing import Annotated, Final, Literal

from pydantic import BaseModel, Field

from moldau.client.metadata import TopicView
from moldau.client.positions import AtEnd, AtOffset, AtStart, AtTime, BeforeEnd, Position, parse_position
from moldau.client.types import Isolation
from moldau.console.errors import ConsoleError
from moldau.console.offset_lookup import look_up_extents, look_up_offsets
from moldau.console.record_filter import InvalidExpression, expression_filter, key_filter, text_filter
from moldau.console.record_search import Matches, RecordSearch
from moldau.console.record_views import Decode, FoundRecord
from moldau.console.routes.topics import find_topic
from moldau.console.sessions import Session
from moldau.model.ids import TopicPartition
from moldau.model.ports import Clock

PARTITIONS_MAX: Final = 2_000
LIMIT_MAX: Final = 500

Offset = Annotated[int, Field(ge=0, lt=2**63)]
Partition = Annotated[int, Field(ge=0, lt=2**31)]


class RecordFilter(BaseModel):
    """Conditions, all of which a record must meet."""

    text: Annotated[str, Field(max_length=1_000)] = ""
    key: Annotated[str | None, Field(max_length=10_000)] = None
    expression: Annotated[str, Field(max_length=1_000)] = ""

    def compile(self, decode: Decode) -> Matches | None:
        """Return one function, or None if every record matches. `decode` knows schemas of values."""
        conditions: list[Matches] = []
        if self.key is not None:
            conditions.append(key_filter(self.key))
        if self.text:
            conditions.append(text_filter(self.text))
        if self.expression.strip():
            try:
                conditions.append(expression_filter(self.expression, decode))
            except InvalidExpression as error:
                raise ConsoleError(400, "invalid_expression", str(error)) from None
        if not conditions:
            return None

        def matches(found: FoundRecord) -> bool:
            return all(condition(found) for condition in conditions)

        return matches


class ReadRequest(RecordFilter):
    """A page of records. `positions`, of the page before, take precedence over `start`."""

    start: Annotated[str, Field(max_length=100)] = "end"
    direction: Literal["newest", "oldest"] = "newest"
    partitions: Annotated[list[Partition] | None, Field(max_length=PARTITIONS_MAX)] = None
    positions: Annotated[dict[Partition, Offset] | None, Field(max_length=PARTITIONS_MAX)] = None
    limit: Annotated[int, Field(ge=1, le=LIMIT_MAX)] = 50
    with_uncommitted: bool = False

    @property
    def isolation(self) -> Isolation:
        return Isolation.READ_UNCOMMITTED if self.with_uncommitted else Isolation.READ_COMMITTED


async def search_of(session: Session, clock: Clock, topic: str, wanted: ReadRequest) -> RecordSearch:
    """Return the search of a request, with the extents of its partitions."""
    view = await find_topic(session, topic)
    chosen = wanted.partitions if wanted.positions is None else list(wanted.positions)
    known = [each.index for each in view.partitions]
    unknown = sorted(set(chosen or ()).difference(known))
    if unknown:
        raise ConsoleError(404, "unknown_topic_or_partition", f"{topic} has no partition {unknown[0]}.")
    places = [TopicPartition(topic, each) for each in (known if chosen is None else chosen)][:PARTITIONS_MAX]
    topics = {topic: view}
    extents = await look_up_extents(session.client, topics, places, wanted.isolation)
    if wanted.positions is not None:
        positions = {TopicPartition(topic, each): offset for each, offset in wanted.positions.items()}
        positions = {place: offset for place, offset in positions.items() if place in extents}
    else:
        positions = await resolve_position(session, topics, extents, parsed_position(wanted.start))
    return RecordSearch(
        session.client,
        clock,
        extents,
        positions,
        wanted.direction == "newest",
        wanted.limit,
        wanted.isolation,
        wanted.compile(session.values.decode),
        session.values.prepare_records,
    )


def parsed_position(start: str) -> Position:
    """Parse a position of a request."""
    try:
        return parse_position(start, int(time.time() * 1000))
    except ValueError as error:
        raise ConsoleError(400, "invalid_position", str(error)) from None


async def resolve_position(
    session: Session,
    topics: Mapping[str, TopicView],
    extents: Mapping[TopicPartition, tuple[int, int]],
    start: Position,
) -> dict[TopicPartition, int]:
    """Return a position as offsets, which may be outside the extents."""
    match start:
        case AtStart():
            return {place: first for place, (first, _) in extents.items()}
        case AtEnd():
            return {place: end for place, (_, end) in extents.items()}
        case BeforeEnd(count):
            return {place: end - count for place, (_, end) in extents.items()}
        case AtOffset(offset):
            return dict.fromkeys(extents, offset)
        case AtTime(timestamp_ms):
            found = await look_up_offsets(session.client, topics, dict.fromkeys(extents, timestamp_ms))
            return {place: found[place] if found.get(place, -1) >= 0 else extents[place][1] for place in extents}
