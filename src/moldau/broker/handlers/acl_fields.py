"""Shared by the three ACL APIs: the fields of a filter, and the error without an authorizer."""

from moldau.broker.requests.context import ContextHost, RequestContext
from moldau.machines.access.acls import AclFilter, Operation, PatternType, Permission, ResourceKind, known
from moldau.model.errors import SecurityDisabled


def check_security(context: RequestContext[ContextHost]) -> None:
    """Raise unless ACLs have an effect on this node."""
    if context.broker.allows_all:
        raise SecurityDisabled("No Authorizer is configured: set authorizer.class.name on every node.")


def filter_of(
    kind: int,
    name: str | None,
    pattern: int,
    principal: str | None,
    host: str | None,
    operation: int,
    permission: int,
) -> AclFilter:
    """Build a filter from the fields of a request."""
    return AclFilter(
        known(ResourceKind, kind),
        name,
        known(PatternType, pattern),
        principal,
        host,
        known(Operation, operation),
        known(Permission, permission),
    )
