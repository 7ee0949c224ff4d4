"""AllocateProducerIds: a block of producer ids for a broker to hand out."""

from moldau.broker.access import CLUSTER, Operation
from moldau.broker.requests.context import RequestContext
from moldau.wire.messages import AllocateProducerIdsRequest, AllocateProducerIdsResponse


async def handle(request: AllocateProducerIdsRequest, context: RequestContext) -> AllocateProducerIdsResponse:
    """Answered by the active controller, once nobody else can get the same block."""
    context.authorize(Operation.CLUSTER_ACTION, CLUSTER)
    block = await context.broker.metadata.write(
        lambda machine: machine.decide_allocate_producer_ids(request.broker_id, request.broker_epoch)
    )
    return AllocateProducerIdsResponse(producer_id_start=block.first, producer_id_len=block.length)
