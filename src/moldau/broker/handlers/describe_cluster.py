"""DescribeCluster: the cluster id, the brokers and the controller."""

from typing import Final

from moldau.broker.access import CLUSTER, Operation
from moldau.broker.handlers.contexts import ClusterContext
from moldau.model.errors import ErrorCode, KafkaError
from moldau.wire.messages import DescribeClusterRequest, DescribeClusterResponse

Described = DescribeClusterResponse.DescribeClusterBroker

BROKERS: Final = 1
CONTROLLERS: Final = 2


class _EndpointError(KafkaError):
    """The endpoint type does not match the listener: controllers and brokers have listeners of their own."""

    code = ErrorCode.MISMATCHED_ENDPOINT_TYPE


class _UnknownEndpoint(KafkaError):
    code = ErrorCode.UNSUPPORTED_ENDPOINT_TYPE


async def handle(request: DescribeClusterRequest, context: ClusterContext) -> DescribeClusterResponse:
    """List the brokers as Metadata does, without topics; on a controller listener, list the controllers."""
    if context.is_from_controllers:  # clients of brokers know all this from Metadata
        context.authorize(Operation.ALTER, CLUSTER)
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
        response.cluster_authorized_operations = context.cluster_operations()
    return response


def _check_endpoint(requested: int, context: ClusterContext) -> None:
    if requested not in (BROKERS, CONTROLLERS):
        raise _UnknownEndpoint(f"Unknown endpoint type {requested}.")
    if requested == CONTROLLERS and not context.is_from_controllers:
        raise _EndpointError("This is a broker listener; use a controller listener instead.")
    if requested == BROKERS and context.is_from_controllers:
        raise _EndpointError("This is a controller listener; use a broker listener instead.")


def _brokers(request: DescribeClusterRequest, context: ClusterContext) -> list[Described]:
    reachable = context.broker.reachable_brokers(context.listener, fenced_too=request.include_fenced_brokers)
    return [
        Described(broker_id=each.broker_id, host=where.host, port=where.port, rack=each.rack, is_fenced=each.is_fenced)
        for each, where in reachable
    ]


def _controllers(context: ClusterContext) -> list[Described]:
    """The registered controllers, with their addresses on the listener of this request."""
    return [
        Described(broker_id=each.controller_id, host=listener.address.host, port=listener.address.port)
        for each in context.broker.image.controllers.values()
        for listener in each.listeners
        if listener.name == context.listener
    ]
