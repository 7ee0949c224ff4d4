"""ACLs of the cluster."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel, Field

from moldau.client.acls import AclBinding, AclFilter, Acls, Operation, PatternType, Permission, ResourceKind
from moldau.console.access import Editor, Viewer
from moldau.console.list_page import Page, PageSize, Search, cut, matching

router = APIRouter()

Text = Annotated[str, Field(min_length=1, max_length=500)]


class Acl(BaseModel):
    """An ACL with Kafka's names of kinds and operations."""

    kind: Literal["topic", "group", "cluster", "transactional_id", "delegation_token"]
    name: Text
    pattern: Literal["literal", "prefixed"] = "literal"
    principal: Text
    host: Text = "*"
    operation: Literal[
        "all",
        "read",
        "write",
        "create",
        "delete",
        "alter",
        "describe",
        "cluster_action",
        "describe_configs",
        "alter_configs",
        "idempotent_write",
        "create_tokens",
        "describe_tokens",
        "two_phase_commit",
    ]
    permission: Literal["allow", "deny"] = "allow"

    def binding(self) -> AclBinding:
        return AclBinding(
            ResourceKind[self.kind.upper()],
            self.name,
            PatternType[self.pattern.upper()],
            self.principal,
            self.host,
            Operation[self.operation.upper()],
            Permission[self.permission.upper()],
        )


@router.get("/acls")
async def list_acls(session: Viewer, search: Search = "", page: Page = 1, size: PageSize = 100) -> dict[str, Any]:
    """Return a page of ACLs whose principal or resource name contains the text."""
    everything = await Acls(session.client).list(AclFilter())
    found = matching(everything, search, lambda each: f"{each.principal} {each.kind.name} {each.name}")
    return {"acls": [_row(each) for each in cut(found, page, size)], "total": len(found), "page": page, "size": size}


@router.post("/acls", status_code=201)
async def create(acl: Acl, session: Editor) -> dict[str, Any]:
    (error,) = await Acls(session.client).create([acl.binding()])
    if error is not None:
        raise error
    return _row(acl.binding())


@router.post("/acls/delete")
async def delete(acl: Acl, session: Editor) -> dict[str, Any]:
    """Delete exactly this ACL."""
    deleted = await Acls(session.client).delete([AclFilter(*acl.binding())])
    return {"deleted": [_row(each) for each in deleted]}


def _row(acl: AclBinding) -> dict[str, Any]:
    return {
        "kind": acl.kind.name.lower(),
        "name": acl.name,
        "pattern": acl.pattern.name.lower(),
        "principal": acl.principal,
        "host": acl.host,
        "operation": acl.operation.name.lower(),
        "permission": acl.permission.name.lower(),
    }
