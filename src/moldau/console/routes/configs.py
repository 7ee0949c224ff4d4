"""Settings of topics and brokers: shown with their sources, changed after validation by the cluster."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel, Field

from moldau.client.types import ConfigEntry, Resource, ResourceKind
from moldau.console.access import Editor, Viewer
from moldau.console.errors import ConsoleError

router = APIRouter()

Kind = Literal["topic", "broker"]
Value = Annotated[str, Field(max_length=10_000)]


class Change(BaseModel):
    """Settings to set, and settings to return to their defaults. With `validate_only` nothing changes."""

    values: Annotated[dict[str, Value], Field(max_length=100)] = {}
    removed: Annotated[list[Value], Field(max_length=100)] = []
    validate_only: bool = False


@router.get("/configs/{kind}/{name}")
async def describe(kind: Kind, name: str, session: Viewer) -> dict[str, Any]:
    entries = await session.client.describe_configs(_resource(kind, name), with_documentation=True)
    return {"configs": [_entry(each) for each in entries]}


@router.patch("/configs/{kind}/{name}")
async def alter(kind: Kind, name: str, change: Change, session: Editor) -> dict[str, Any]:
    await session.client.alter_configs(
        _resource(kind, name), change.values, removed=change.removed, validate_only=change.validate_only
    )
    return {"is_valid": True, "is_changed": not change.validate_only}


def _resource(kind: Kind, name: str) -> Resource:
    if kind == "broker" and not (name.isascii() and name.isdigit()):
        raise ConsoleError(404, "broker_not_available", "A broker is named by its number.")
    return Resource(ResourceKind.TOPIC if kind == "topic" else ResourceKind.BROKER, name)


def _entry(entry: ConfigEntry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "value": None if entry.is_sensitive else entry.value,
        "source": entry.source_name,
        "is_default": entry.is_default,
        "is_sensitive": entry.is_sensitive,
        "is_read_only": entry.is_read_only,
        "documentation": entry.documentation,
    }
