"""ListGroups: the groups that this broker coordinates; clients send it to every broker."""

from moldau.broker.access import CLUSTER, Operation, Resource, ResourceKind
from moldau.broker.coordinators.shards import read_all
from moldau.broker.handlers.contexts import GroupContext
from moldau.wire.messages import ListGroupsRequest, ListGroupsResponse

Listed = ListGroupsResponse.ListedGroup


async def handle(request: ListGroupsRequest, context: GroupContext) -> ListGroupsResponse:
    """Omit groups that the client may not describe. With an error the list is incomplete but still returned."""
    groups, error = await read_all(
        context.broker.groups.shards(),
        lambda machine, _: machine.list_groups(states=request.states_filter, types=request.types_filter),
    )
    return ListGroupsResponse(error_code=int(error), groups=_visible(groups, context))


def _visible(groups: list[Listed], context: GroupContext) -> list[Listed]:
    if context.is_allowed(Operation.DESCRIBE, CLUSTER, is_audited=False):
        return groups
    return [
        each
        for each in groups
        if context.is_allowed(Operation.DESCRIBE, Resource(ResourceKind.GROUP, each.group_id), is_audited=False)
    ]
