"""FindCoordinator: nobody coordinates groups or transactions here yet, and clients are told to ask again later.

It is served all the same: librdkafka sends lz4 uncompressed to a broker that does not know this API.
"""

from typing import Final

from moldau.broker.access import Operation, Resource, ResourceKind
from moldau.broker.context import RequestContext
from moldau.model.errors import CoordinatorNotAvailable, InvalidRequest, KafkaError
from moldau.model.ids import NO_NODE
from moldau.wire.messages import FindCoordinatorRequest, FindCoordinatorResponse

BATCHED_FROM: Final = 4
KINDS: Final = {0: ResourceKind.GROUP, 1: ResourceKind.TRANSACTIONAL_ID}

Answer = FindCoordinatorResponse.Coordinator


async def handle(request: FindCoordinatorRequest, context: RequestContext) -> FindCoordinatorResponse:
    """Each key is answered for itself; before version 4 there is just one."""
    if context.api_version < BATCHED_FROM:
        raise _refusal(request.key, request.key_type, context)
    answers = [_answer(key, _refusal(key, request.key_type, context)) for key in request.coordinator_keys]
    return FindCoordinatorResponse(coordinators=answers)


def _refusal(key: str, key_type: int, context: RequestContext) -> KafkaError:
    kind = KINDS.get(key_type)
    if kind is None:
        return InvalidRequest(f"There are no coordinators of type {key_type}.")
    try:
        context.authorize(Operation.DESCRIBE, Resource(kind, key))
    except KafkaError as error:
        return error
    return CoordinatorNotAvailable("This broker does not coordinate groups or transactions.")


def _answer(key: str, error: KafkaError) -> Answer:
    return Answer(key=key, node_id=NO_NODE, host="", port=-1, error_code=int(error.code), error_message=error.message)


def refuse(request: FindCoordinatorRequest, error: KafkaError, version: int) -> FindCoordinatorResponse:
    """The same error for every key."""
    if version >= BATCHED_FROM:
        return FindCoordinatorResponse(coordinators=[_answer(key, error) for key in request.coordinator_keys])
    return FindCoordinatorResponse(
        error_code=int(error.code), error_message=error.message, node_id=NO_NODE, host="", port=-1
    )
