"""FindCoordinator: which broker looks after a group or a transactional id. Share groups have nobody here yet."""

from typing import Final

from moldau.broker.access import Operation, Resource, ResourceKind
from moldau.broker.requests.context import RequestContext
from moldau.broker.runtime.time_slice import TimeSlice
from moldau.model.errors import CoordinatorNotAvailable, InvalidRequest, KafkaError
from moldau.model.ids import NO_NODE, Address
from moldau.wire.messages import FindCoordinatorRequest, FindCoordinatorResponse

BATCHED_FROM: Final = 4
GROUP: Final = 0
TRANSACTION: Final = 1

Answer = FindCoordinatorResponse.Coordinator


async def handle(request: FindCoordinatorRequest, context: RequestContext) -> FindCoordinatorResponse:
    """Each key is answered for itself; before version 4 there is just one."""
    if context.api_version < BATCHED_FROM:
        node_id, address = await _find(request.key, request.key_type, context)
        return FindCoordinatorResponse(node_id=node_id, host=address.host, port=address.port)
    turn = TimeSlice(context)
    answers = []
    for key in request.coordinator_keys:
        answers.append(await _answer(key, request.key_type, context))
        if turn.is_over():
            await turn.next()
    return FindCoordinatorResponse(coordinators=answers)


async def _answer(key: str, key_type: int, context: RequestContext) -> Answer:
    try:
        node_id, address = await _find(key, key_type, context)
    except KafkaError as error:
        return _refused(key, error)
    return Answer(key=key, node_id=node_id, host=address.host, port=address.port)


async def _find(key: str, key_type: int, context: RequestContext) -> tuple[int, Address]:
    if key_type == TRANSACTION:
        context.authorize(Operation.DESCRIBE, Resource(ResourceKind.TRANSACTIONAL_ID, key))
        node_id = await context.broker.transactions.coordinator_of(key)
    elif key_type == GROUP:
        context.authorize(Operation.DESCRIBE, Resource(ResourceKind.GROUP, key))
        node_id = await context.broker.groups.coordinator_of(key)
    else:
        raise InvalidRequest(f"There are no coordinators of type {key_type} here.")
    broker = context.broker.image.brokers.get(node_id)
    address = broker.address(context.listener) if broker is not None else None
    if address is None:
        raise CoordinatorNotAvailable("The coordinator cannot be reached through this listener.")
    return node_id, address


def _refused(key: str, error: KafkaError) -> Answer:
    return Answer(key=key, node_id=NO_NODE, host="", port=-1, error_code=int(error.code), error_message=error.message)


def refuse(request: FindCoordinatorRequest, error: KafkaError, version: int) -> FindCoordinatorResponse:
    """The same error for every key."""
    if version >= BATCHED_FROM:
        return FindCoordinatorResponse(coordinators=[_refused(key, error) for key in request.coordinator_keys])
    return FindCoordinatorResponse(
        error_code=int(error.code), error_message=error.message, node_id=NO_NODE, host="", port=-1
    )
