"""AlterConfigs: replace all configs of each resource; IncrementalAlterConfigs is its successor."""

from moldau.broker.handlers.config_alteration import alter, rejected
from moldau.broker.handlers.contexts import QuorumContext
from moldau.machines.metadata.configs import Replacement
from moldau.machines.metadata.image import Resource
from moldau.model.errors import KafkaError
from moldau.wire.messages import AlterConfigsRequest, AlterConfigsResponse

Requested = AlterConfigsRequest.AlterConfigsResource
Result = AlterConfigsResponse.AlterConfigsResourceResponse


async def handle(request: AlterConfigsRequest, context: QuorumContext) -> AlterConfigsResponse:
    """Alter or reject each resource on its own."""
    results = await alter(
        request,
        context,
        Result,
        _change,
        lambda machine, wanted: machine.decide_alter_configs(wanted, validate_only=request.validate_only),
    )
    return AlterConfigsResponse(responses=results)


def _change(resource: Resource, requested: Requested) -> Replacement:
    return Replacement(resource, [(config.name, config.value) for config in requested.configs])


def error_response(request: AlterConfigsRequest, error: KafkaError, version: int) -> AlterConfigsResponse:  # noqa: ARG001
    """Return the same error for every resource."""
    return AlterConfigsResponse(responses=[rejected(requested, error, Result) for requested in request.resources])
