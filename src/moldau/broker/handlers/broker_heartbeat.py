"""BrokerHeartbeat: keep a broker alive; the response tells it whether it is fenced and whether it may shut down."""

from moldau.broker.access import CLUSTER, Operation
from moldau.broker.handlers.contexts import QuorumContext
from moldau.machines.metadata.heartbeats import BrokerHeartbeat
from moldau.wire.messages import BrokerHeartbeatRequest, BrokerHeartbeatResponse


async def handle(request: BrokerHeartbeatRequest, context: QuorumContext) -> BrokerHeartbeatResponse:
    """On the active controller; most heartbeats write no record."""
    context.authorize(Operation.CLUSTER_ACTION, CLUSTER)
    heartbeat = BrokerHeartbeat(
        request.broker_id,
        request.broker_epoch,
        request.current_metadata_offset,
        wants_fence=request.want_fence,
        wants_shut_down=request.want_shut_down,
        offline_directories=tuple(request.offline_log_dirs),
    )
    now_ms = context.broker.clock.monotonic_ms()
    response = await context.broker.metadata.write(lambda machine: machine.decide_broker_heartbeat(heartbeat, now_ms))
    context.broker.failure_detector.heartbeat_received(request.broker_id, request.broker_epoch, context.connection)
    return BrokerHeartbeatResponse(
        is_caught_up=response.is_caught_up, is_fenced=response.is_fenced, should_shut_down=response.should_shut_down
    )
