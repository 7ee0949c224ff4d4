"""DescribeCluster: the cluster's id, its brokers, who controls it."""

from typing import Final

from moldau.broker.access import CLUSTER, CLUSTER_OPERATIONS, Operation
from moldau.broker.context import RequestContext
from moldau.model.errors import ErrorCode, KafkaError
from moldau.wire.messages import DescribeClusterRequest, DescribeClusterResponse

BROKERS: Final = 1
CONTROLLERS: Final = 2


class _EndpointError(KafkaError):
    """Controllers are asked on their own listener."""

    code = ErrorCode.MISMATCHED_ENDPOINT_TYPE


class _UnknownEndpoint(KafkaError):
    code = ErrorCode.UNSUPPORTED_ENDPOINT_TYPE


async def handle(request: DescribeClusterRequest, context: RequestContext) -> DescribeClusterResponse:
    """As Metadata names the brokers, without topics."""
    if request.endpoint_type == CONTROLLERS:
        raise _EndpointError("This listener is for clients of brokers, not of controllers.")
    if request.endpoint_type != BROKERS:
        raise _UnknownEndpoint(f"There is no endpoint type {request.endpoint_type}.")
    context.authorize(Operation.DESCRIBE, CLUSTER)
    broker = context.broker
    response = DescribeClusterResponse(
        cluster_id=broker.cluster_id,
        controller_id=broker.controller_id,
        brokers=[
            DescribeClusterResponse.DescribeClusterBroker(
                broker_id=each.broker_id, host=where.host, port=where.port, rack=each.rack, is_fenced=each.is_fenced
            )
            for each, where in broker.reachable_brokers(context.listener, fenced_too=request.include_fenced_brokers)
        ],
    )
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = context.operations(CLUSTER, CLUSTER_OPERATIONS)
    return response
