"""Consumer groups and their lag."""

from typing import Any

from fastapi import APIRouter

from moldau.console.list_page import Page, PageSize, Search
from moldau.console.routes import groups as group_pages
from moldau.gateway.access import Reader

router = APIRouter(tags=["groups"])


@router.get("/groups")
async def list_groups(caller: Reader, search: Search = "", page: Page = 1, size: PageSize = 50) -> dict[str, Any]:
    """List groups by id, with state, members and total lag."""
    return await group_pages.list_groups(caller.session, search, page, size, "group")


@router.get("/groups/{group}")
async def describe_group(group: str, caller: Reader) -> dict[str, Any]:
    """Describe a group: members, and committed offset, end offset and lag of each partition."""
    return await group_pages.describe(group, caller.session)
