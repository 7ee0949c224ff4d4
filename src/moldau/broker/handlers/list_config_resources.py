"""ListConfigResources: the resources that have configs, for tools that describe all of them."""

from collections.abc import Iterable
from typing import Final

from moldau.broker.access import CLUSTER, Operation
from moldau.broker.handlers.contexts import ClusterContext
from moldau.broker.runtime.time_slice import TimeSlice
from moldau.machines.metadata.image import ResourceType
from moldau.model.errors import UnsupportedVersion
from moldau.wire.messages import ListConfigResourcesRequest, ListConfigResourcesResponse

Listed = ListConfigResourcesResponse.ConfigResource

ALL_SINCE: Final = 1  # version 0 is ListClientMetricsResources


async def handle(request: ListConfigResourcesRequest, context: ClusterContext) -> ListConfigResourcesResponse:
    """List the requested resource types, or all."""
    context.authorize(Operation.DESCRIBE_CONFIGS, CLUSTER)
    requested = set(request.resource_types) or set(ResourceType)
    unknown = requested - set(ResourceType)
    if unknown:
        raise UnsupportedVersion(f"Unknown resource type {min(unknown)}.")
    if context.api_version < ALL_SINCE:
        requested = {ResourceType.CLIENT_METRICS}
    turn = TimeSlice(context)
    listed = []
    for kind in sorted(requested):
        for name in _names(kind, context):
            listed.append(Listed(resource_name=name, resource_type=int(kind)))
            if turn.is_over():
                await turn.next()
    return ListConfigResourcesResponse(config_resources=listed)


def _names(kind: int, context: ClusterContext) -> Iterable[str]:
    image = context.broker.image
    if kind == ResourceType.TOPIC:
        return sorted(image.topics)
    if kind in (ResourceType.BROKER, ResourceType.BROKER_LOGGER):
        return [str(broker.broker_id) for broker, _ in context.broker.reachable_brokers(context.listener)]
    return sorted(each.name for each in image.configs if each.type == kind)
