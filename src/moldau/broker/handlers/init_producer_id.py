"""InitProducerId: a producer id, so that retries can be told from records, and zombies from their successors."""

from typing import Final

from moldau.broker.access import CLUSTER, Operation, Resource, ResourceKind
from moldau.broker.requests.context import RequestContext
from moldau.broker.transactions.error_mapping import told
from moldau.machines.transactions import ProducerIdentity
from moldau.model.errors import ClusterAuthorizationFailed, InvalidRequest, KafkaError
from moldau.model.ids import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, ProducerId
from moldau.wire.messages import InitProducerIdRequest, InitProducerIdResponse

FIRST_EPOCH: Final = 0
FENCING_FROM: Final = 4


async def handle(request: InitProducerIdRequest, context: RequestContext) -> InitProducerIdResponse:
    """Ids come from a block that the metadata log gave to this broker, so no two producers ever share one."""
    if request.transactional_id is not None:
        return await _begin_transactions(request, request.transactional_id, context)
    _check_permission(context)
    _expected(request)
    producer_id = await context.broker.producer_ids.next()
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=FIRST_EPOCH)


async def _begin_transactions(
    request: InitProducerIdRequest, transactional_id: str, context: RequestContext
) -> InitProducerIdResponse:
    """Whoever had the transactional id before is fenced, and what it left open is aborted."""
    context.authorize(Operation.WRITE, Resource(ResourceKind.TRANSACTIONAL_ID, transactional_id))
    if not transactional_id:
        raise InvalidRequest("A transactional id must not be empty.")
    expected = _expected(request)
    try:
        producer = await context.broker.transactions.init_producer(
            transactional_id, request.transaction_timeout_ms, expected
        )
    except KafkaError as refusal:
        raise told(refusal, knows_fencing=context.api_version >= FENCING_FROM) from None
    return InitProducerIdResponse(producer_id=producer.producer_id, producer_epoch=producer.epoch)


def _expected(request: InitProducerIdRequest) -> ProducerIdentity | None:
    """Who the producer is by its own account, if it has been somebody before."""
    if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_PRODUCER_EPOCH):
        raise InvalidRequest("A producer id and its epoch are given together or not at all.")
    if request.producer_id == NO_PRODUCER_ID:
        return None
    return ProducerIdentity(ProducerId(request.producer_id), request.producer_epoch)


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
