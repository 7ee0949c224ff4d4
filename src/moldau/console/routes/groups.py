"""Consumer groups: the list with lag, one group with its members, offset resets, deletion."""

import asyncio
import time
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from moldau.client.brokers import REQUEST_FAILURES
from moldau.client.groups import DescribedGroup, Groups, ListedGroup
from moldau.client.positions import Position, parse_position
from moldau.console.access import Editor, Viewer, confirm
from moldau.console.errors import ConsoleError, error_json
from moldau.console.group_offsets import group_progress, plan_reset
from moldau.console.list_page import Page, PageSize, Search, Sort, cut, matching, ordered
from moldau.console.routes.topics import Confirmation
from moldau.console.sessions import Session
from moldau.model.ids import TopicPartition

router = APIRouter()

RESPONSE_MS_MAX: Final = 3_000
DESCRIBED_AT_ONCE: Final = 8
PARTITIONS_MAX: Final = 10_000
MEMBERS_SHOWN_MAX: Final = 1_000
PARTITIONS_SHOWN_MAX: Final = 5_000
SHARE: Final = "share"


class Reset(BaseModel):
    """New offsets: a position as every command takes it, or a shift. With `dry_run`, only the plan is returned."""

    to: Annotated[str | None, Field(max_length=100)] = None
    shift: Annotated[int | None, Field(gt=-(2**63), lt=2**63)] = None
    topics: Annotated[dict[str, list[int] | None], Field(min_length=1, max_length=1_000)]
    dry_run: bool = True
    confirm: Annotated[str | None, Field(max_length=500)] = None


@router.get("/groups")
async def list_groups(
    session: Viewer, search: Search = "", page: Page = 1, size: PageSize = 50, sort: Sort = "group"
) -> dict[str, Any]:
    """Return a page of groups; members and lag are looked up for the groups of this page only."""
    groups, failures = await Groups(session.client).list_reachable(RESPONSE_MS_MAX)
    found = ordered(matching(groups, search, lambda each: each.group), sort, _SORT_KEYS)
    limit = asyncio.Semaphore(DESCRIBED_AT_ONCE)
    rows = await asyncio.gather(*(_row(session, each, limit) for each in cut(found, page, size)))
    return {
        "groups": rows,
        "total": len(found),
        "page": page,
        "size": size,
        "failures": [{"broker": node, **error_json(error)} for node, error in sorted(failures.items())],
    }


@router.get("/groups/{group}")
async def describe(group: str, session: Viewer) -> dict[str, Any]:
    described = await Groups(session.client).describe(group)
    progress = await group_progress(session, described)
    lags = [each.lag for each in progress if each.lag is not None]
    return {
        **_described(described),
        "lag": sum(lags) if lags else None,
        "members": [
            {
                "member_id": each.member_id,
                "instance_id": each.instance_id,
                "client_id": each.client_id,
                "host": each.host,
                "partitions": len(each.partitions),
            }
            for each in described.members[:MEMBERS_SHOWN_MAX]
        ],
        "members_total": len(described.members),
        "partitions": [each.to_json() for each in progress[:PARTITIONS_SHOWN_MAX]],
        "partitions_total": len(progress),
    }


@router.post("/groups/{group}/offsets")
async def reset_offsets(group: str, wanted: Reset, session: Editor) -> dict[str, Any]:
    """Plan new offsets, and commit them if this is no dry run; the group must have no members."""
    position = _position(wanted)
    groups = Groups(session.client)
    committed = await groups.offsets(group)
    plan = await plan_reset(session, committed, await _places(session, wanted), position=position, shift=wanted.shift)
    if not plan:
        raise ConsoleError(400, "nothing_to_reset", "The group has no offsets there; choose a position instead.")
    if not wanted.dry_run:
        confirm(wanted.confirm, group)
        await groups.commit(group, {each.place: each.target for each in plan})
    rows = [
        {
            "topic": each.place.topic,
            "partition": each.place.partition,
            "committed": each.committed,
            "target": each.target,
        }
        for each in plan
    ]
    return {"plan": rows, "is_committed": not wanted.dry_run}


@router.delete("/groups/{group}")
async def delete(group: str, wanted: Confirmation, session: Editor) -> dict[str, Any]:
    confirm(wanted.confirm, group)
    await Groups(session.client).delete(group)
    return {"deleted": group}


@router.get("/topics/{topic}/groups")
async def list_consumers(
    topic: str, session: Viewer, groups_max: Annotated[int, Query(ge=1, le=200)] = 100
) -> dict[str, Any]:
    """Return the groups that have committed offsets of a topic; the first ones of the cluster are searched."""
    groups, _ = await Groups(session.client).list_reachable(RESPONSE_MS_MAX)
    searched = [each for each in groups if each.protocol != SHARE][:groups_max]
    limit = asyncio.Semaphore(DESCRIBED_AT_ONCE)
    rows = await asyncio.gather(*(_consumer(session, each, topic, limit) for each in searched))
    found = [each for each in rows if each is not None]
    return {"groups": found, "searched": len(searched), "total": len(groups)}


_SORT_KEYS: Final[dict[str, Any]] = {
    "group": lambda group: group.group,
    "state": lambda group: (group.state, group.group),
    "protocol": lambda group: (group.protocol, group.group),
}


async def _row(session: Session, group: ListedGroup, limit: asyncio.Semaphore) -> dict[str, Any]:
    row: dict[str, Any] = {"group": group.group, "state": group.state, "protocol": group.protocol}
    if group.protocol == SHARE:
        return row
    async with limit:
        try:
            described = await Groups(session.client).describe(group.group)
            progress = await group_progress(session, described)
        except REQUEST_FAILURES as error:
            return {**row, **error_json(error)}
    lags = [each.lag for each in progress if each.lag is not None]
    topics = sorted({each.place.topic for each in progress})
    return {
        **row,
        "members": len(described.members),
        "topics": topics[:10],
        "topics_total": len(topics),
        "lag": sum(lags) if lags else None,
    }


async def _consumer(
    session: Session, group: ListedGroup, topic: str, limit: asyncio.Semaphore
) -> dict[str, Any] | None:
    async with limit:
        try:
            described = await Groups(session.client).describe(group.group)
            progress = await group_progress(session, described)
        except REQUEST_FAILURES:
            return None
    mine = [each for each in progress if each.place.topic == topic]
    if not mine:
        return None
    lags = [each.lag for each in mine if each.lag is not None]
    return {
        "group": group.group,
        "state": group.state,
        "members": len({each.member_id for each in mine if each.member_id}),
        "partitions": len(mine),
        "lag": sum(lags) if lags else None,
    }


def _described(group: DescribedGroup) -> dict[str, Any]:
    return {
        "group": group.group,
        "state": group.state,
        "protocol": group.protocol,
        "assignor": group.assignor,
        "coordinator": group.coordinator,
    }


def _position(wanted: Reset) -> Position | None:
    if (wanted.to is None) == (wanted.shift is None):
        raise ConsoleError(400, "invalid_position", "Give either a position or a shift.")
    try:
        return None if wanted.to is None else parse_position(wanted.to, int(time.time() * 1000))
    except ValueError as error:
        raise ConsoleError(400, "invalid_position", str(error)) from None


async def _places(session: Session, wanted: Reset) -> list[TopicPartition]:
    topics = await session.topics.all()
    places: list[TopicPartition] = []
    for name, partitions in wanted.topics.items():
        view = topics.get(name)
        if view is None:
            raise ConsoleError(404, "unknown_topic_or_partition", f"Topic {name} does not exist.")
        known = {each.index for each in view.partitions}
        unknown = sorted(set(partitions or ()) - known)
        if unknown:
            raise ConsoleError(404, "unknown_topic_or_partition", f"{name} has no partition {unknown[0]}.")
        places += [TopicPartition(name, each) for each in sorted(known if partitions is None else partitions)]
    if len(places) > PARTITIONS_MAX:
        raise ConsoleError(400, "too_many_partitions", f"At most {PARTITIONS_MAX} partitions are reset at a time.")
    return places
