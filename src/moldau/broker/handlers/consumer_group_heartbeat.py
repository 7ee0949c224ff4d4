"""ConsumerGroupHeartbeat: a member joins, stays or leaves; the response carries its assignment."""

from collections.abc import Callable

from moldau.broker.access import Operation
from moldau.broker.handlers.contexts import GroupContext
from moldau.machines.decision import REQUESTER
from moldau.machines.groups.draft import Caller, Now
from moldau.model.errors import TopicAuthorizationFailed
from moldau.model.ids import UUID_BYTES
from moldau.wire.messages import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse


async def handle(request: ConsumerGroupHeartbeatRequest, context: GroupContext) -> ConsumerGroupHeartbeatResponse:
    """Handle a heartbeat; if nothing changed it extends the session and writes no record."""
    context.authorize_group(Operation.READ, request.group_id)
    _check_topics(request, context)
    broker = context.broker
    shard = broker.groups.shard_of(request.group_id)
    caller = _caller(context)
    randomness = b"" if request.member_id else broker.random.randbytes(UUID_BYTES)
    now = Now(context.started_ms, broker.clock.wall_ms())
    if not shard.can_commit:
        return await shard.write(lambda machine: shard.unless_none(machine.decide_keepalive(request, caller, now.ms)))
    return await shard.write(
        lambda machine: machine.decide_consumer_heartbeat(
            request,
            caller,
            now=now,
            randomness=randomness,
            can_describe=lambda topic: context.may(Operation.DESCRIBE, topic, is_audited=False),
        )
    )


def _caller(context: GroupContext) -> Caller:
    return Caller(context.client_id or "", context.client_host, context.api_version)


def _check_topics(request: ConsumerGroupHeartbeatRequest, context: GroupContext) -> None:
    """Reject subscribed topics that the client may not describe; topics matched by a pattern are filtered instead."""
    if not all(context.may(Operation.DESCRIBE, name) for name in request.subscribed_topic_names or ()):
        raise TopicAuthorizationFailed("Not authorized to describe all subscribed topics.")


def make_repeat(
    request: ConsumerGroupHeartbeatRequest, context: GroupContext, response: ConsumerGroupHeartbeatResponse
) -> Callable[[float], bool] | None:
    """For the fast path: heartbeats of a member that owns its assignment are equal, and so are their responses."""
    if response.error_code or response.assignment is not None:
        return None
    groups = context.broker.groups
    caller = _caller(context)
    same: object = None  # the last decision that led to this response

    def repeat(now_ms: float) -> bool:
        nonlocal same
        shard = groups.shard_of(request.group_id)
        decision = shard.decide_now(lambda machine: machine.decide_keepalive(request, caller, now_ms))
        if decision is not same:
            same = decision if decision is not None and decision.responses[REQUESTER] == response else None
        return same is not None

    return repeat
