"""InitProducerId: a new producer id, so that a producer's retries can be told from its records."""

from typing import Final

from moldau.broker.access import CLUSTER, Operation, Resource, ResourceKind
from moldau.broker.context import RequestContext
from moldau.model.errors import ClusterAuthorizationFailed, InvalidRequest, KafkaError, UnsupportedVersion
from moldau.model.ids import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from moldau.wire.messages import InitProducerIdRequest, InitProducerIdResponse

FIRST_EPOCH: Final = 0


async def handle(request: InitProducerIdRequest, context: RequestContext) -> InitProducerIdResponse:
    """Ids come from a block that the metadata log gave to this broker, so no two producers ever share one."""
    if request.transactional_id is not None:
        context.authorize(Operation.WRITE, Resource(ResourceKind.TRANSACTIONAL_ID, request.transactional_id))
        raise UnsupportedVersion("This broker does not serve transactions.")
    _check_permission(context)
    if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_PRODUCER_EPOCH):
        raise InvalidRequest("A producer id and its epoch are given together or not at all.")
    producer_id = await context.broker.producer_ids.next()
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=FIRST_EPOCH)


def refuse(request: InitProducerIdRequest, error: KafkaError, version: int) -> InitProducerIdResponse:  # noqa: ARG001
    return InitProducerIdResponse(
        error_code=int(error.code), producer_id=NO_PRODUCER_ID, producer_epoch=NO_PRODUCER_EPOCH
    )


def _check_permission(context: RequestContext) -> None:
    """Idempotence comes with the right to write to anything at all."""
    if not (
        context.is_allowed(Operation.IDEMPOTENT_WRITE, CLUSTER)
        or any(
            context.is_allowed(Operation.WRITE, Resource(ResourceKind.TOPIC, name))
            for name in context.broker.image.topics
        )
    ):
        raise ClusterAuthorizationFailed("Not authorized to write to any topic.")
