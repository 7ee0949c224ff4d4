"""JoinGroup: join a classic group; the response comes with the next generation."""

from typing import Final

from moldau.broker.access import Operation
from moldau.broker.handlers.contexts import GroupContext
from moldau.machines.groups.draft import Caller
from moldau.model.errors import KafkaError
from moldau.model.ids import UUID_BYTES
from moldau.wire.messages import JoinGroupRequest, JoinGroupResponse

NULL_PROTOCOL_FROM: Final = 7


async def handle(request: JoinGroupRequest, context: GroupContext) -> JoinGroupResponse:
    """Wait for the other members; a member that disconnects is waited for until its session expires."""
    context.authorize_group(Operation.READ, request.group_id)
    shard = context.broker.groups.shard_of(request.group_id)
    caller = Caller(context.client_id or "", context.client_host, context.api_version)
    ticket, randomness = shard.new_ticket(), context.broker.random.randbytes(UUID_BYTES)
    response = await shard.commit(
        lambda machine: machine.decide_join(request, caller, ticket=ticket, now=shard.now, randomness=randomness),
        ticket,
    )
    return _in_version(response, context.api_version)


def _in_version(response: JoinGroupResponse, version: int) -> JoinGroupResponse:
    """A missing protocol name is null, and an empty string in versions without null."""
    if response.protocol_name is None and version < NULL_PROTOCOL_FROM:
        response.protocol_name = ""
    return response


def error_response(request: JoinGroupRequest, error: KafkaError, version: int) -> JoinGroupResponse:
    """Keep the member id of the request."""
    return _in_version(JoinGroupResponse(error_code=int(error.code), member_id=request.member_id), version)
