"""IncrementalAlterConfigs for broker loggers: applied by the broker that gets them, before the rest is forwarded."""

from moldau.broker.access import CLUSTER, Operation
from moldau.broker.handlers.contexts import ClusterContext
from moldau.broker.requests.router import Handle
from moldau.broker.runtime.broker_loggers import check_level, set_level
from moldau.machines.metadata.configs import Operation as Change
from moldau.machines.metadata.image import ResourceType
from moldau.model.errors import ErrorCode, InvalidRequest, KafkaError
from moldau.wire.messages import IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse

Requested = IncrementalAlterConfigsRequest.AlterConfigsResource
Result = IncrementalAlterConfigsResponse.AlterConfigsResourceResponse


async def handle(
    request: IncrementalAlterConfigsRequest, context: ClusterContext, forward: Handle
) -> IncrementalAlterConfigsResponse:
    """Levels are no metadata: they change in this process, until it ends."""
    loggers = [each for each in request.resources if each.resource_type == ResourceType.BROKER_LOGGER]
    if not loggers:
        response: IncrementalAlterConfigsResponse = await forward(request, context)
        return response
    results = [_alter(each, context, validate_only=request.validate_only) for each in loggers]
    request.resources = [each for each in request.resources if each.resource_type != ResourceType.BROKER_LOGGER]
    if request.resources:
        response = await forward(request, context)
        response.responses = [*results, *response.responses]
        return response
    return IncrementalAlterConfigsResponse(responses=results)


def _alter(requested: Requested, context: ClusterContext, *, validate_only: bool) -> Result:
    result = Result(resource_type=requested.resource_type, resource_name=requested.resource_name)
    try:
        context.authorize(Operation.ALTER_CONFIGS, CLUSTER)
        if requested.resource_name != str(context.broker.node_id):
            raise InvalidRequest(
                f"Unexpected broker id, expected {context.broker.node_id} but received {requested.resource_name}"
            )
        changes = [_change(each) for each in requested.configs]
        for name, level in changes:
            check_level(name, level)
    except KafkaError as error:
        result.error_code, result.error_message = int(error.code or ErrorCode.UNKNOWN_SERVER_ERROR), error.message
        return result
    if not validate_only:
        for name, level in changes:
            set_level(name, level)
    return result


def _change(config: "IncrementalAlterConfigsRequest.AlterableConfig") -> tuple[str, str | None]:
    match config.config_operation:
        case Change.SET:
            return config.name, config.value or ""
        case Change.DELETE:
            return config.name, None
        case _:
            raise InvalidRequest(f"Operation {config.config_operation} is not allowed for the BROKER_LOGGER resource")
