"""IncrementalAlterConfigs: set, delete, append to or subtract from single configs."""

from moldau.broker.handlers.config_alteration import alter, rejected
from moldau.broker.handlers.contexts import QuorumContext
from moldau.machines.metadata.configs import Alteration, ConfigChange
from moldau.machines.metadata.image import Resource
from moldau.model.errors import KafkaError
from moldau.wire.messages import IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse

Requested = IncrementalAlterConfigsRequest.AlterConfigsResource
Result = IncrementalAlterConfigsResponse.AlterConfigsResourceResponse


async def handle(request: IncrementalAlterConfigsRequest, context: QuorumContext) -> IncrementalAlterConfigsResponse:
    """Alter or reject each resource on its own."""
    results = await alter(
        request,
        context,
        Result,
        _change,
        lambda machine, wanted: machine.decide_incremental_alter_configs(wanted, validate_only=request.validate_only),
    )
    return IncrementalAlterConfigsResponse(responses=results)


def _change(resource: Resource, requested: Requested) -> Alteration:
    return Alteration(
        resource, [ConfigChange(each.name, each.config_operation, each.value) for each in requested.configs]
    )


def error_response(
    request: IncrementalAlterConfigsRequest,
    error: KafkaError,
    version: int,  # noqa: ARG001
) -> IncrementalAlterConfigsResponse:
    """Return the same error for every resource."""
    return IncrementalAlterConfigsResponse(
        responses=[rejected(requested, error, Result) for requested in request.resources]
    )
