"""SyncGroup: the group leader submits the assignment, and every member gets its part."""

from typing import Final

from moldau.broker.access import Operation
from moldau.broker.handlers.contexts import GroupContext
from moldau.model.errors import InconsistentGroupProtocol
from moldau.wire.messages import SyncGroupRequest, SyncGroupResponse

PROTOCOL_FROM: Final = 5


async def handle(request: SyncGroupRequest, context: GroupContext) -> SyncGroupResponse:
    """Wait for the leader's assignment."""
    if context.api_version >= PROTOCOL_FROM and None in (request.protocol_type, request.protocol_name):
        raise InconsistentGroupProtocol("The protocol type and the protocol name are missing.")
    context.authorize_group(Operation.READ, request.group_id)
    shard = context.broker.groups.shard_of(request.group_id)
    ticket = shard.new_ticket()
    return await shard.commit(lambda machine: machine.decide_sync(request, ticket=ticket, now=shard.now), ticket)
