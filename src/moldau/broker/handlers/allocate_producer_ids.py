"""AllocateProducerIds: allocate a block of producer ids to a broker."""

from moldau.broker.access import CLUSTER, Operation
from moldau.broker.handlers.contexts import QuorumContext
from moldau.wire.messages import AllocateProducerIdsRequest, AllocateProducerIdsResponse


async def handle(request: AllocateProducerIdsRequest, context: QuorumContext) -> AllocateProducerIdsResponse:
    """Respond once the block is committed, so that no two brokers ever get the same one."""
    context.authorize(Operation.CLUSTER_ACTION, CLUSTER)
    block = await context.broker.metadata.write(
        lambda machine: machine.decide_allocate_producer_ids(request.broker_id, request.broker_epoch)
    )
    return AllocateProducerIdsResponse(producer_id_start=block.first, producer_id_len=block.length)
