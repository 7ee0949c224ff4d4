"""Topics: the list, one topic with its partitions, and what can be done with it."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from moldau.client.async_client import AsyncClient
from moldau.client.brokers import REQUEST_FAILURES
from moldau.client.metadata import TopicView
from moldau.client.types import ResourceKind
from moldau.console.access import Editor, Viewer, confirm
from moldau.console.errors import ConsoleError
from moldau.console.list_page import Page, PageSize, Search, Sort, cut, matching, ordered
from moldau.console.offset_lookup import look_up_extents, places_of
from moldau.console.sessions import Session
from moldau.model.errors import UnknownTopicOrPartition
from moldau.wire import messages

router = APIRouter()

SHOWN_CONFIGS: Final = ("cleanup.policy", "retention.ms", "retention.bytes")
COUNTED_PARTITIONS_MAX: Final = 20_000
Name = Annotated[str, Field(min_length=1, max_length=249)]


class NewTopic(BaseModel):
    """A topic to create; -1 selects the default of the cluster."""

    name: Name
    partitions: Annotated[int, Field(ge=-1, le=100_000)] = -1
    replication_factor: Annotated[int, Field(ge=-1, le=1_000)] = -1
    configs: Annotated[dict[str, str], Field(max_length=100)] = {}


class Confirmation(BaseModel):
    """The name of the object, repeated to confirm a destructive change."""

    confirm: Annotated[str, Field(max_length=500)]


class PartitionCount(BaseModel):
    """A larger number of partitions."""

    partitions: Annotated[int, Field(ge=1, le=100_000)]


@router.get("/topics")
async def list_topics(
    session: Viewer,
    search: Search = "",
    page: Page = 1,
    size: PageSize = 50,
    sort: Sort = "name",
    internal: Annotated[bool, Query()] = False,
) -> dict[str, Any]:
    """Return a page of topics; record counts and settings are looked up for the topics of this page only."""
    topics = await session.topics.all()
    visible = [each for each in topics.values() if internal or not each.is_internal]
    found = ordered(matching(visible, search, lambda each: each.name), sort, _SORT_KEYS)
    shown = cut(found, page, size)
    records = await _record_counts(session, topics, shown)
    configs = await _shown_configs(session.client, [each.name for each in shown])
    rows = [{**_row(each), "records": records.get(each.name), "configs": configs.get(each.name)} for each in shown]
    return {"topics": rows, "total": len(found), "page": page, "size": size}


@router.post("/topics", status_code=201)
async def create(topic: NewTopic, session: Editor) -> dict[str, Any]:
    outcome = await session.client.create_topic(
        topic.name,
        partitions=topic.partitions,
        replication_factor=topic.replication_factor,
        configs=topic.configs,
    )
    session.topics.invalidate()
    return {"name": outcome.name, "partitions": outcome.partitions, "replication_factor": outcome.replication_factor}


@router.get("/topics/{name}")
async def describe(name: str, session: Viewer, page: Page = 1, size: PageSize = 100) -> dict[str, Any]:
    """Return a topic with a page of its partitions, and how evenly its records are spread."""
    topics = await session.topics.all()
    view = await find_topic(session, name)
    counted = places_of([view])[:COUNTED_PARTITIONS_MAX]
    extents = await look_up_extents(session.client, {**topics, name: view}, counted)
    counts = {place.partition: end - start for place, (start, end) in extents.items()}
    shown = cut(view.partitions, page, size)
    bounds = {place.partition: extent for place, extent in extents.items()}
    return {
        **_row(view),
        "topic_id": view.topic_id.hex(),
        "records": sum(counts.values()) if counts else None,
        "skew": _skew(list(counts.values())),
        "page": page,
        "size": size,
        "total": len(view.partitions),
        "partition_list": [
            {
                "partition": each.index,
                "leader": each.leader,
                "leader_epoch": each.leader_epoch,
                "replicas": each.replicas,
                "isr": each.isr,
                "start": bounds.get(each.index, (None, None))[0],
                "end": bounds.get(each.index, (None, None))[1],
            }
            for each in shown
        ],
    }


@router.delete("/topics/{name}")
async def delete(name: str, wanted: Confirmation, session: Editor) -> dict[str, Any]:
    confirm(wanted.confirm, name)
    await session.client.delete_topic(name)
    session.topics.invalidate()
    return {"deleted": name}


@router.put("/topics/{name}/partitions")
async def add_partitions(name: str, wanted: PartitionCount, session: Editor) -> dict[str, Any]:
    (outcome,) = await session.client.create_partitions({name: wanted.partitions})
    if outcome.error is not None:
        raise outcome.error
    session.topics.invalidate()
    return {"name": name, "partitions": outcome.partitions}


@router.post("/topics/{name}/empty")
async def empty(name: str, wanted: Confirmation, session: Editor) -> dict[str, Any]:
    """Delete the records of all partitions up to their present end."""
    confirm(wanted.confirm, name)
    view = await find_topic(session, name)
    for each in view.partitions:
        await session.client.delete_records(name, each.index, -1)
    return {"emptied": name, "partitions": len(view.partitions)}


async def find_topic(session: Session, name: str) -> TopicView:
    """Return a topic as the cluster knows it now, if the listing of a moment ago lacks it."""
    if len(name) > 249:
        raise ConsoleError(404, "unknown_topic_or_partition", "A topic name has at most 249 characters.")
    view = (await session.topics.all()).get(name)
    if view is None:
        (view,) = await session.client.describe_topics([name])
        if view.error is not None:
            raise UnknownTopicOrPartition(f"topic {name} does not exist, or you may not see it")
        session.topics.invalidate()
    return view


_SORT_KEYS: Final[dict[str, Any]] = {
    "name": lambda topic: topic.name,
    "partitions": lambda topic: (len(topic.partitions), topic.name),
    "replication": lambda topic: (_replication(topic), topic.name),
    "under_replicated": lambda topic: (_under_replicated(topic), topic.name),
}


def _row(topic: TopicView) -> dict[str, Any]:
    return {
        "name": topic.name,
        "is_internal": topic.is_internal,
        "partitions": len(topic.partitions),
        "replication_factor": _replication(topic),
        "under_replicated": _under_replicated(topic),
        "offline": sum(each.leader < 0 for each in topic.partitions),
    }


def _replication(topic: TopicView) -> int:
    return max((len(each.replicas) for each in topic.partitions), default=0)


def _under_replicated(topic: TopicView) -> int:
    return sum(len(each.isr) < len(each.replicas) for each in topic.partitions)


def _skew(counts: Sequence[int]) -> float | None:
    """Return the largest partition relative to the mean: 1 if all are equal."""
    total = sum(counts)
    return max(counts) * len(counts) / total if total > 0 else None


async def _record_counts(
    session: Session, topics: Mapping[str, TopicView], shown: Sequence[TopicView]
) -> dict[str, int]:
    places = places_of(shown)
    if len(places) > COUNTED_PARTITIONS_MAX:
        return {}
    counts: dict[str, int] = {}
    for place, (start, end) in (await look_up_extents(session.client, topics, places)).items():
        counts[place.topic] = counts.get(place.topic, 0) + end - start
    return counts


async def _shown_configs(client: AsyncClient, names: Sequence[str]) -> dict[str, dict[str, str | None]]:
    """Return the settings of the list; none where the user may not read them."""
    request = messages.DescribeConfigsRequest
    resources = [
        request.DescribeConfigsResource(
            resource_type=ResourceKind.TOPIC, resource_name=name, configuration_keys=list(SHOWN_CONFIGS)
        )
        for name in names
    ]
    try:
        response = await client.send(request(resources=resources))
    except REQUEST_FAILURES:
        return {}
    return {
        result.resource_name: {each.name: each.value for each in result.configs}
        for result in response.results
        if result.error_code == 0
    }
