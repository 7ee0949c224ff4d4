"""Lag of consumer groups, and plans to reset their offsets."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from moldau.client.groups import DescribedGroup, Groups
from moldau.client.positions import AtEnd, AtOffset, AtStart, AtTime, BeforeEnd, Position
from moldau.client.types import LATEST
from moldau.console.offset_lookup import look_up_extents, look_up_offsets
from moldau.console.sessions import Session
from moldau.model.ids import TopicPartition


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """One partition of a group; None: unknown."""

    place: TopicPartition
    committed: int | None
    end: int | None
    member_id: str | None
    client_id: str | None

    @property
    def lag(self) -> int | None:
        return None if self.committed is None or self.end is None else max(self.end - self.committed, 0)

    def to_json(self) -> dict[str, Any]:
        return {
            "topic": self.place.topic,
            "partition": self.place.partition,
            "committed": self.committed,
            "end": self.end,
            "lag": self.lag,
            "member_id": self.member_id,
            "client_id": self.client_id,
        }


async def group_progress(session: Session, group: DescribedGroup) -> list[GroupProgress]:
    """Return every partition that has a committed offset or is assigned."""
    committed = await Groups(session.client).offsets(group.group)
    owners = {place: member for member in group.members for place in member.partitions}
    places = sorted(owners.keys() | committed.keys())
    ends = await look_up_offsets(session.client, await session.topics.all(), dict.fromkeys(places, LATEST))
    return [
        GroupProgress(
            place,
            committed.get(place),
            ends.get(place),
            owners[place].member_id if place in owners else None,
            owners[place].client_id if place in owners else None,
        )
        for place in places
    ]


@dataclass(frozen=True, slots=True)
class PlannedOffset:
    """The committed offset of a partition, and the one that a reset would commit."""

    place: TopicPartition
    committed: int | None
    target: int


async def plan_reset(
    session: Session,
    committed: Mapping[TopicPartition, int],
    places: Iterable[TopicPartition],
    *,
    position: Position | None,
    shift: int | None,
) -> list[PlannedOffset]:
    """Plan new offsets, within the extents of the partitions; those without a leader are left out."""
    topics = await session.topics.all()
    extents = await look_up_extents(session.client, topics, places)
    targets: dict[TopicPartition, int] = {}
    if position is None:
        targets = {place: committed[place] + (shift or 0) for place in extents if place in committed}
    elif isinstance(position, AtTime):
        found = await look_up_offsets(session.client, topics, dict.fromkeys(extents, position.timestamp_ms))
        targets = {
            place: found[place] if found[place] >= 0 else extents[place][1] for place in extents if place in found
        }
    else:
        targets = {place: _target(position, start, end) for place, (start, end) in extents.items()}
    return [
        PlannedOffset(place, committed.get(place), min(max(targets[place], extents[place][0]), extents[place][1]))
        for place in sorted(targets)
    ]


def _target(position: AtStart | AtEnd | BeforeEnd | AtOffset, start: int, end: int) -> int:
    match position:
        case AtStart():
            return start
        case AtEnd():
            return end
        case BeforeEnd(count):
            return end - count
        case AtOffset(offset):
            return offset
