"""Schemas: subjects, versions and their differences, compatibility, registration; with the ACLs of the user."""

import json
from difflib import unified_diff
from typing import Annotated, Any, Final, Literal
from urllib.parse import quote

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from moldau.console.access import Editor, TokenHolder, Viewer, confirm
from moldau.console.list_page import Page, PageSize, Search, cut, matching
from moldau.console.routes.topics import Confirmation
from moldau.console.sessions import Session
from moldau.web.schema_service import SchemaRequestFailed

router = APIRouter(prefix="/schemas")

TEXT_MAX: Final = 1_000_000
Name = Annotated[str, Field(min_length=1, max_length=600)]
Number = Annotated[int, Field(ge=1, lt=2**31)]


class NewSchema(BaseModel):
    """A schema to check or to register."""

    kind: Literal["AVRO", "JSON", "PROTOBUF"] = "AVRO"
    text: Annotated[str, Field(min_length=1, max_length=TEXT_MAX)]
    references: Annotated[list[dict[str, Any]], Field(max_length=200)] = []

    def as_body(self) -> dict[str, Any]:
        return {"schema": self.text, "schemaType": self.kind, "references": self.references}


class Level(BaseModel):
    """A compatibility level."""

    compatibility: Annotated[str, Field(max_length=40)]


@router.get("/subjects")
async def list_subjects(
    session: Viewer, search: Search = "", page: Page = 1, size: PageSize = 50, deleted: bool = False
) -> dict[str, Any]:
    """Return a page of subjects with their latest version."""
    subjects = await _call(session, "GET", "/subjects", query={"deletedOnly": str(deleted).lower()})
    found = matching(subjects, search, str)
    rows = [await _latest(session, each, deleted=deleted) for each in cut(found, page, size)]
    level = await _call(session, "GET", "/config")
    return {
        "subjects": rows,
        "total": len(found),
        "page": page,
        "size": size,
        "compatibility": level["compatibilityLevel"],
    }


@router.put("/compatibility")
async def set_default_level(level: Level, session: Editor) -> Any:
    return await _call(session, "PUT", "/config", body={"compatibility": level.compatibility})


@router.get("/ids/{schema_id}")
async def find_id(schema_id: Number, session: Viewer) -> dict[str, Any]:
    """Return the subjects and versions that have a schema."""
    versions = await _call(session, "GET", f"/schemas/ids/{schema_id}/versions", query={"deleted": "true"})
    return {"schema_id": schema_id, "versions": versions}


@router.get("/subjects/{subject:path}/versions/{version}")
async def show_version(subject: str, version: Number, session: Viewer) -> dict[str, Any]:
    """Return one version, pretty-printed, with the schemas that refer to it."""
    found = await _version(session, subject, version)
    try:
        users = await _call(session, "GET", f"/subjects/{quote(subject, '')}/versions/{version}/referencedby")
    except SchemaRequestFailed:  # a deleted version
        users = []
    return {**_shown(found), "referenced_by": users}


@router.get("/subjects/{subject:path}/diff")
async def show_difference(
    subject: str, session: Viewer, before: Annotated[Number, Query()], after: Annotated[Number, Query()]
) -> dict[str, Any]:
    """Return the lines of a unified difference between two versions."""
    old, new = [_shown(await _version(session, subject, each))["text"].splitlines() for each in (before, after)]
    lines = unified_diff(old, new, f"version {before}", f"version {after}", lineterm="", n=1_000)
    return {"before": before, "after": after, "lines": list(lines)[2:]}


@router.post("/subjects/{subject:path}/check")
async def check(subject: str, schema: NewSchema, session: TokenHolder) -> dict[str, Any]:
    """Say whether a schema is compatible with the versions that the level of its subject compares."""
    path = f"/compatibility/subjects/{quote(subject, '')}/versions"
    found = await _call(session, "POST", path, query={"verbose": "true"}, body=schema.as_body())
    return {"is_compatible": found["is_compatible"], "messages": found.get("messages", [])}


@router.post("/subjects/{subject:path}/versions", status_code=201)
async def register(subject: str, schema: NewSchema, session: Editor) -> dict[str, Any]:
    path = f"/subjects/{quote(subject, '')}"
    registered = await _call(session, "POST", f"{path}/versions", body=schema.as_body())
    found = await _call(session, "POST", path, body=schema.as_body())
    return {"schema_id": registered["id"], "version": found["version"]}


@router.put("/subjects/{subject:path}/compatibility")
async def set_level(subject: str, level: Level, session: Editor) -> Any:
    return await _call(session, "PUT", f"/config/{quote(subject, '')}", body={"compatibility": level.compatibility})


@router.delete("/subjects/{subject:path}/versions/{version}")
async def delete_version(
    subject: str, version: Number, confirmation: Confirmation, session: Editor, permanent: bool = False
) -> Any:
    confirm(confirmation.confirm, f"{subject} {version}")
    path = f"/subjects/{quote(subject, '')}/versions/{version}"
    return await _call(session, "DELETE", path, query={"permanent": str(permanent).lower()})


@router.get("/subjects/{subject:path}")
async def describe(subject: str, session: Viewer) -> dict[str, Any]:
    """Return the versions of a subject, its compatibility level and its mode."""
    path = quote(subject, "")
    query = {"deleted": "true"}
    numbers = await _call(session, "GET", f"/subjects/{path}/versions", query=query)
    live = set(await _live_versions(session, subject))
    level = await _call(session, "GET", f"/config/{path}", query={"defaultToGlobal": "true"})
    mode = await _call(session, "GET", f"/mode/{path}", query={"defaultToGlobal": "true"})
    return {
        "subject": subject,
        "versions": [{"version": each, "is_deleted": each not in live} for each in numbers],
        "compatibility": level["compatibilityLevel"],
        "mode": mode["mode"],
    }


@router.delete("/subjects/{subject:path}")
async def delete_subject(subject: str, confirmation: Confirmation, session: Editor, permanent: bool = False) -> Any:
    """Delete all versions; permanently if they were deleted before."""
    confirm(confirmation.confirm, subject)
    path = f"/subjects/{quote(subject, '')}"
    return await _call(session, "DELETE", path, query={"permanent": str(permanent).lower()})


async def _live_versions(session: Session, subject: str) -> list[int]:
    try:
        found: list[int] = await _call(session, "GET", f"/subjects/{quote(subject, '')}/versions")
    except SchemaRequestFailed as error:
        if error.status != 404:
            raise
        return []
    return found


async def _latest(session: Session, subject: str, *, deleted: bool) -> dict[str, Any]:
    query = {"deleted": str(deleted).lower()}
    numbers = await _call(session, "GET", f"/subjects/{quote(subject, '')}/versions", query=query)
    found = await _version(session, subject, max(numbers))
    return {
        "subject": subject,
        "versions": len(numbers),
        "version": found["version"],
        "schema_id": found["id"],
        "kind": found.get("schemaType", "AVRO"),
    }


async def _version(session: Session, subject: str, version: int) -> Any:
    path = f"/subjects/{quote(subject, '')}/versions/{version}"
    return await _call(session, "GET", path, query={"deleted": "true"})


def _shown(found: dict[str, Any]) -> dict[str, Any]:
    kind, text = found.get("schemaType", "AVRO"), found["schema"]
    if kind != "PROTOBUF":
        text = json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    return {
        "subject": found["subject"],
        "version": found["version"],
        "schema_id": found["id"],
        "kind": kind,
        "text": text,
        "references": found.get("references", []),
        "is_deleted": found.get("deleted", False),
    }


async def _call(session: Session, method: str, path: str, **given: Any) -> Any:
    return await session.values.service.call(session.client, session.user, method, path, **given)
