"""EndTxn: commit or abort a producer's transaction. Responds once the decision is committed."""

from typing import Final

from moldau.broker.access import Operation, Resource, ResourceKind
from moldau.broker.handlers.contexts import TxnContext
from moldau.broker.transactions.error_mapping import EPOCH_PER_TRANSACTION, FIRST_VERSION, error_for_version
from moldau.machines.transactions import ProducerIdentity
from moldau.model.errors import KafkaError
from moldau.model.ids import ProducerId
from moldau.wire.messages import EndTxnRequest, EndTxnResponse

FENCING_FROM: Final = 2
NEW_EPOCH_FROM: Final = 5


async def handle(request: EndTxnRequest, context: TxnContext) -> EndTxnResponse:
    """From version 5 on the response carries a new producer epoch, which fences everything sent earlier."""
    context.authorize(Operation.WRITE, Resource(ResourceKind.TRANSACTIONAL_ID, request.transactional_id))
    has_new_epoch = context.api_version >= NEW_EPOCH_FROM
    try:
        producer = await context.broker.transactions.end(
            request.transactional_id,
            ProducerIdentity(ProducerId(request.producer_id), request.producer_epoch),
            is_commit=request.committed,
            client_version=EPOCH_PER_TRANSACTION if has_new_epoch else FIRST_VERSION,
        )
    except KafkaError as rejection:
        raise error_for_version(rejection, knows_fencing=context.api_version >= FENCING_FROM) from None
    if not has_new_epoch:
        return EndTxnResponse()
    return EndTxnResponse(producer_id=producer.producer_id, producer_epoch=producer.epoch)
