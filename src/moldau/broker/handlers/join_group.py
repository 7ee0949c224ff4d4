"""JoinGroup: somebody wants to be a member; the answer comes when the next generation of the group begins."""

from typing import Final

from moldau.broker.access import Operation
from moldau.broker.context import RequestContext
from moldau.machines.groups.draft import Asker
from moldau.model.errors import KafkaError
from moldau.wire.messages import JoinGroupRequest, JoinGroupResponse

ID_BYTES: Final = 16


async def handle(request: JoinGroupRequest, context: RequestContext) -> JoinGroupResponse:
    """Waits for the other members; whoever disconnects meanwhile is waited for until its session ends."""
    context.authorize_group(Operation.READ, request.group_id)
    shard = context.broker.groups.shard_of(request.group_id)
    asker = Asker(context.client_id or "", context.client_host, context.api_version)
    ticket, randomness = shard.new_ticket(), context.broker.random.randbytes(ID_BYTES)
    return await shard.write(
        lambda machine: machine.decide_join(request, asker, ticket=ticket, now=shard.now, randomness=randomness),
        ticket,
    )


def refuse(request: JoinGroupRequest, error: KafkaError, version: int) -> JoinGroupResponse:  # noqa: ARG001
    """The member keeps the id that it came with."""
    return JoinGroupResponse(error_code=int(error.code), member_id=request.member_id)
