"""InitProducerId: allocate a producer id for idempotence, and fence earlier producers of a transactional id."""

from typing import Final

from moldau.broker.access import CLUSTER, Operation, Resource, ResourceKind
from moldau.broker.handlers.contexts import TxnContext
from moldau.broker.transactions.error_mapping import error_for_version
from moldau.machines.transactions import ProducerIdentity
from moldau.model.errors import ClusterAuthorizationFailed, InvalidRequest, KafkaError
from moldau.model.ids import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, ProducerId
from moldau.wire.messages import InitProducerIdRequest, InitProducerIdResponse

FIRST_EPOCH: Final = 0
FENCING_FROM: Final = 4


async def handle(request: InitProducerIdRequest, context: TxnContext) -> InitProducerIdResponse:
    """Ids come from a block that the controller allocated to this broker, so no two producers share one."""
    if request.transactional_id is not None:
        return await _begin_transactions(request, request.transactional_id, context)
    _check_permission(context)
    _expected(request)
    producer_id = await context.broker.producer_ids.next()
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=FIRST_EPOCH)


async def _begin_transactions(
    request: InitProducerIdRequest, transactional_id: str, context: TxnContext
) -> InitProducerIdResponse:
    """Fence the previous producer of the transactional id and abort its open transaction."""
    context.authorize(Operation.WRITE, Resource(ResourceKind.TRANSACTIONAL_ID, transactional_id))
    if not transactional_id:
        raise InvalidRequest("A transactional id must not be empty.")
    expected = _expected(request)
    try:
        producer = await context.broker.transactions.init_producer(
            transactional_id, request.transaction_timeout_ms, expected
        )
    except KafkaError as rejection:
        raise error_for_version(rejection, knows_fencing=context.api_version >= FENCING_FROM) from None
    return InitProducerIdResponse(producer_id=producer.producer_id, producer_epoch=producer.epoch)


def _expected(request: InitProducerIdRequest) -> ProducerIdentity | None:
    """The producer's current id and epoch, if it has them already."""
    if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_PRODUCER_EPOCH):
        raise InvalidRequest("The producer id and epoch must be given together or not at all.")
    if request.producer_id == NO_PRODUCER_ID:
        return None
    return ProducerIdentity(ProducerId(request.producer_id), request.producer_epoch)


def error_response(request: InitProducerIdRequest, error: KafkaError, version: int) -> InitProducerIdResponse:  # noqa: ARG001
    return InitProducerIdResponse(
        error_code=int(error.code), producer_id=NO_PRODUCER_ID, producer_epoch=NO_PRODUCER_EPOCH
    )


def _check_permission(context: TxnContext) -> None:
    """Permission to write to any topic includes idempotence."""
    if not (
        context.is_allowed(Operation.IDEMPOTENT_WRITE, CLUSTER, is_audited=False)
        or context.may_some(Operation.WRITE, ResourceKind.TOPIC)
    ):
        raise ClusterAuthorizationFailed("Not authorized to write to any topic.")
