"""DescribeCluster: the cluster's id, its brokers, who controls it."""

from typing import Final

from moldau.broker.access import CLUSTER, CLUSTER_OPERATIONS, Operation
from moldau.broker.requests.context import RequestContext
from moldau.model.errors import ErrorCode, KafkaError
from moldau.wire.messages import DescribeClusterRequest, DescribeClusterResponse

Described = DescribeClusterResponse.DescribeClusterBroker

BROKERS: Final = 1
CONTROLLERS: Final = 2


class _EndpointError(KafkaError):
    """Controllers are asked on their own listener, and brokers on theirs."""

    code = ErrorCode.MISMATCHED_ENDPOINT_TYPE


class _UnknownEndpoint(KafkaError):
    code = ErrorCode.UNSUPPORTED_ENDPOINT_TYPE


async def handle(request: DescribeClusterRequest, context: RequestContext) -> DescribeClusterResponse:
    """As Metadata names the brokers, without topics; on a controllers' listener, the controllers."""
    context.authorize(Operation.DESCRIBE, CLUSTER)
    _check_endpoint(request.endpoint_type, context)
    is_about_controllers = request.endpoint_type == CONTROLLERS
    broker = context.broker
    response = DescribeClusterResponse(
        endpoint_type=request.endpoint_type,
        cluster_id=broker.cluster_id,
        controller_id=broker.metadata.leader_id if is_about_controllers else broker.controller_id,
        brokers=_controllers(context) if is_about_controllers else _brokers(request, context),
    )
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = context.operations(CLUSTER, CLUSTER_OPERATIONS)
    return response


def _check_endpoint(asked: int, context: RequestContext) -> None:
    if asked not in (BROKERS, CONTROLLERS):
        raise _UnknownEndpoint(f"There is no endpoint type {asked}.")
    if asked == CONTROLLERS and not context.is_from_controllers:
        raise _EndpointError("This listener is for clients of brokers, not of controllers.")
    if asked == BROKERS and context.is_from_controllers:
        raise _EndpointError("This listener is for clients of controllers, not of brokers.")


def _brokers(request: DescribeClusterRequest, context: RequestContext) -> list[Described]:
    reachable = context.broker.reachable_brokers(context.listener, fenced_too=request.include_fenced_brokers)
    return [
        Described(broker_id=each.broker_id, host=where.host, port=where.port, rack=each.rack, is_fenced=each.is_fenced)
        for each, where in reachable
    ]


def _controllers(context: RequestContext) -> list[Described]:
    """Those that have registered, where they are reached on the listener that was asked."""
    return [
        Described(broker_id=each.controller_id, host=listener.address.host, port=listener.address.port)
        for each in context.broker.image.controllers.values()
        for listener in each.listeners
        if listener.name == context.listener
    ]
