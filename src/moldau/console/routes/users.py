"""SCRAM users of the cluster."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from moldau.client.users import DescribedUser, Users
from moldau.console.access import Editor, Viewer, confirm
from moldau.console.errors import ConsoleError
from moldau.console.list_page import Page, PageSize, Search, cut, matching
from moldau.console.routes.topics import Confirmation

router = APIRouter()


class Password(BaseModel):
    """A new password. The cluster receives a salted hash of it."""

    password: Annotated[str, Field(min_length=1, max_length=1_000)]
    mechanism: Literal["SCRAM-SHA-256", "SCRAM-SHA-512"] = "SCRAM-SHA-512"


@router.get("/users")
async def list_users(session: Viewer, search: Search = "", page: Page = 1, size: PageSize = 100) -> dict[str, Any]:
    found = matching(await Users(session.client).all(), search, lambda each: each.name)
    return {"users": [_row(each) for each in cut(found, page, size)], "total": len(found), "page": page, "size": size}


@router.put("/users/{name}")
async def set_password(name: str, wanted: Password, request: Request, session: Editor) -> dict[str, Any]:
    await Users(session.client).set_password(name, wanted.mechanism, wanted.password, request.app.state.random)
    return {"name": name, "mechanism": wanted.mechanism}


@router.delete("/users/{name}")
async def delete(name: str, wanted: Confirmation, session: Editor) -> dict[str, Any]:
    """Delete the credentials of all mechanisms."""
    confirm(wanted.confirm, name)
    users = Users(session.client)
    user = await users.find(name)
    if user is None:
        raise ConsoleError(404, "resource_not_found", f"User {name} has no SCRAM credentials.")
    for mechanism in user.mechanisms:
        await users.delete(name, mechanism)
    return {"name": name, "deleted": list(user.mechanisms)}


def _row(user: DescribedUser) -> dict[str, Any]:
    return {"name": user.name, "mechanisms": dict(user.mechanisms)}
