"""Topics: list, create, describe, delete, and their settings."""

from typing import Any

from fastapi import APIRouter

from moldau.console.list_page import Page, PageSize, Search
from moldau.console.routes import configs as config_pages
from moldau.console.routes import topics as topic_pages
from moldau.console.routes.configs import Change
from moldau.console.routes.topics import Confirmation, NewTopic
from moldau.gateway.access import Reader, Writer

router = APIRouter(tags=["topics"])


@router.get("/topics")
async def list_topics(
    caller: Reader, search: Search = "", page: Page = 1, size: PageSize = 50, internal: bool = False
) -> dict[str, Any]:
    """List topics by name, with partitions, records and health."""
    return await topic_pages.list_topics(caller.session, search, page, size, "name", internal)


@router.post("/topics", status_code=201)
async def create_topic(topic: NewTopic, caller: Writer) -> dict[str, Any]:
    """Create a topic; without partitions or replication factor, with the cluster's defaults."""
    return await topic_pages.create(topic, caller.session)


@router.get("/topics/{topic}")
async def describe_topic(topic: str, caller: Reader, page: Page = 1, size: PageSize = 100) -> dict[str, Any]:
    """Describe a topic and a page of its partitions: leader, replicas, ISR, first and end offset."""
    return await topic_pages.describe(topic, caller.session, page, size)


@router.delete("/topics/{topic}")
async def delete_topic(topic: str, caller: Writer) -> dict[str, Any]:
    """Delete a topic and its records."""
    return await topic_pages.delete(topic, Confirmation(confirm=topic), caller.session)


@router.get("/topics/{topic}/configs")
async def describe_configs(topic: str, caller: Reader) -> dict[str, Any]:
    """Return the settings of a topic with their sources."""
    return await config_pages.describe("topic", topic, caller.session)


@router.patch("/topics/{topic}/configs")
async def alter_configs(topic: str, change: Change, caller: Writer) -> dict[str, Any]:
    """Set settings of a topic, or return them to their defaults; the others stay."""
    return await config_pages.alter("topic", topic, change, caller.session)
