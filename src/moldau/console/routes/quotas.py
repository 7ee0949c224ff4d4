"""Client quotas."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel, Field

from moldau.client.client_quotas import ClientQuotas, DescribedQuota
from moldau.console.access import Editor, Viewer
from moldau.console.list_page import Page, PageSize, Search, cut, matching

router = APIRouter()

EntityKind = Literal["user", "client-id", "ip"]
Quota = Literal[
    "producer_byte_rate",
    "consumer_byte_rate",
    "request_percentage",
    "controller_mutation_rate",
    "connection_creation_rate",
]


class QuotaChange(BaseModel):
    """Quotas of one entity; the name null stands for the default entity, the value null removes a quota."""

    entity: Annotated[dict[EntityKind, Annotated[str, Field(max_length=500)] | None], Field(min_length=1)]
    values: Annotated[dict[Quota, Annotated[float, Field(ge=0)] | None], Field(min_length=1)]


@router.get("/quotas")
async def list_quotas(session: Viewer, search: Search = "", page: Page = 1, size: PageSize = 100) -> dict[str, Any]:
    found = matching(await ClientQuotas(session.client).describe(), search, _entity_text)
    rows = [{"entity": dict(each.entity), "values": dict(each.values)} for each in cut(found, page, size)]
    return {"quotas": rows, "total": len(found), "page": page, "size": size}


@router.patch("/quotas")
async def alter(change: QuotaChange, session: Editor) -> dict[str, Any]:
    await ClientQuotas(session.client).alter(
        {str(kind): name for kind, name in change.entity.items()},
        set_to={str(name): value for name, value in change.values.items() if value is not None},
        remove=[str(name) for name, value in change.values.items() if value is None],
    )
    return {"entity": change.entity, "values": change.values}


def _entity_text(quota: DescribedQuota) -> str:
    return " ".join(f"{kind} {'<default>' if name is None else name}" for kind, name in quota.entity.items())
