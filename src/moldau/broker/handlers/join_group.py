"""JoinGroup: somebody wants to be a member; the answer comes when the next generation of the group begins."""

from typing import Final

from moldau.broker.access import Operation
from moldau.broker.requests.context import RequestContext
from moldau.machines.groups.draft import Asker
from moldau.model.errors import KafkaError
from moldau.wire.messages import JoinGroupRequest, JoinGroupResponse

ID_BYTES: Final = 16
NULL_PROTOCOL_FROM: Final = 7


async def handle(request: JoinGroupRequest, context: RequestContext) -> JoinGroupResponse:
    """Waits for the other members; whoever disconnects meanwhile is waited for until its session ends."""
    context.authorize_group(Operation.READ, request.group_id)
    shard = context.broker.groups.shard_of(request.group_id)
    asker = Asker(context.client_id or "", context.client_host, context.api_version)
    ticket, randomness = shard.new_ticket(), context.broker.random.randbytes(ID_BYTES)
    response = await shard.commit(
        lambda machine: machine.decide_join(request, asker, ticket=ticket, now=shard.now, randomness=randomness),
        ticket,
    )
    return _in_version(response, context.api_version)


def _in_version(response: JoinGroupResponse, version: int) -> JoinGroupResponse:
    """No protocol is null, and was empty before there were nulls."""
    if response.protocol_name is None and version < NULL_PROTOCOL_FROM:
        response.protocol_name = ""
    return response


def refuse(request: JoinGroupRequest, error: KafkaError, version: int) -> JoinGroupResponse:
    """The member keeps the id that it came with."""
    return _in_version(JoinGroupResponse(error_code=int(error.code), member_id=request.member_id), version)
