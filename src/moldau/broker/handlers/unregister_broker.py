"""UnregisterBroker: remove the registration of a broker that is gone for good."""

from moldau.broker.access import CLUSTER, Operation
from moldau.broker.handlers.contexts import QuorumContext
from moldau.wire.messages import UnregisterBrokerRequest, UnregisterBrokerResponse


async def handle(request: UnregisterBrokerRequest, context: QuorumContext) -> UnregisterBrokerResponse:
    """A broker that is still running registers again."""
    context.authorize(Operation.ALTER, CLUSTER)
    broker_id = request.broker_id
    await context.broker.metadata.write(lambda machine: machine.decide_unregister_broker(broker_id))
    return UnregisterBrokerResponse()
