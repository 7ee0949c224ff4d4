"""FindCoordinator: the coordinator of a group or transactional id, for brokers also of a share partition's state."""

from typing import Final

from moldau.broker.access import CLUSTER, Operation, Resource, ResourceKind
from moldau.broker.handlers.contexts import TxnContext
from moldau.broker.runtime.time_slice import TimeSlice
from moldau.broker.shares.state_topic import parse_coordinator_key
from moldau.machines.metadata.features import SHARE_VERSION_FEATURE
from moldau.model.errors import CoordinatorNotAvailable, InvalidRequest, KafkaError
from moldau.model.ids import NO_NODE, Address
from moldau.wire.messages import FindCoordinatorRequest, FindCoordinatorResponse

BATCHED_FROM: Final = 4
GROUP: Final = 0
TRANSACTION: Final = 1
SHARE: Final = 2

Result = FindCoordinatorResponse.Coordinator


async def handle(request: FindCoordinatorRequest, context: TxnContext) -> FindCoordinatorResponse:
    """Find or reject each key on its own; before version 4 there is just one key."""
    if context.api_version < BATCHED_FROM:
        node_id, address = await _find(request.key, request.key_type, context)
        return FindCoordinatorResponse(node_id=node_id, host=address.host, port=address.port)
    turn = TimeSlice(context)
    results = []
    for key in request.coordinator_keys:
        results.append(await _result(key, request.key_type, context))
        if turn.is_over():
            await turn.next()
    return FindCoordinatorResponse(coordinators=results)


async def _result(key: str, key_type: int, context: TxnContext) -> Result:
    try:
        node_id, address = await _find(key, key_type, context)
    except KafkaError as error:
        return _error_result(key, error)
    return Result(key=key, node_id=node_id, host=address.host, port=address.port)


async def _find(key: str, key_type: int, context: TxnContext) -> tuple[int, Address]:
    if key_type == TRANSACTION:
        context.authorize(Operation.DESCRIBE, Resource(ResourceKind.TRANSACTIONAL_ID, key))
        node_id = await context.broker.transactions.coordinator_of(key)
    elif key_type == GROUP:
        context.authorize(Operation.DESCRIBE, Resource(ResourceKind.GROUP, key))
        node_id = await context.broker.groups.coordinator_of(key)
    elif key_type == SHARE and context.broker.image.features.get(SHARE_VERSION_FEATURE, 0):
        context.authorize(Operation.CLUSTER_ACTION, CLUSTER)
        node_id = await context.broker.share_coordinator.coordinator_of(parse_coordinator_key(key))
    else:
        raise InvalidRequest(f"Coordinator type {key_type} is not supported.")
    broker = context.broker.image.brokers.get(node_id)
    address = broker.address(context.listener) if broker is not None else None
    if address is None:
        raise CoordinatorNotAvailable("The coordinator has no address on this listener.")
    return node_id, address


def _error_result(key: str, error: KafkaError) -> Result:
    return Result(key=key, node_id=NO_NODE, host="", port=-1, error_code=int(error.code), error_message=error.message)


def error_response(request: FindCoordinatorRequest, error: KafkaError, version: int) -> FindCoordinatorResponse:
    """Return the same error for every key."""
    if version >= BATCHED_FROM:
        return FindCoordinatorResponse(coordinators=[_error_result(key, error) for key in request.coordinator_keys])
    return FindCoordinatorResponse(
        error_code=int(error.code), error_message=error.message, node_id=NO_NODE, host="", port=-1
    )
