"""IncrementalAlterConfigs: configs are set, deleted, appended to or subtracted from, one by one."""

from moldau.broker.handlers.config_alteration import alter, refused
from moldau.broker.requests.context import RequestContext
from moldau.machines.metadata.configs import Alteration, ConfigChange
from moldau.machines.metadata.image import Resource
from moldau.model.errors import KafkaError
from moldau.wire.messages import IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse

Asked = IncrementalAlterConfigsRequest.AlterConfigsResource
Answer = IncrementalAlterConfigsResponse.AlterConfigsResourceResponse


async def handle(request: IncrementalAlterConfigsRequest, context: RequestContext) -> IncrementalAlterConfigsResponse:
    """Each resource is altered or refused by itself."""
    answers = await alter(
        request,
        context,
        Answer,
        _change,
        lambda machine, wanted: machine.decide_incremental_alter_configs(wanted, validate_only=request.validate_only),
    )
    return IncrementalAlterConfigsResponse(responses=answers)


def _change(resource: Resource, asked: Asked) -> Alteration:
    return Alteration(resource, [ConfigChange(each.name, each.config_operation, each.value) for each in asked.configs])


def refuse(request: IncrementalAlterConfigsRequest, error: KafkaError, version: int) -> IncrementalAlterConfigsResponse:  # noqa: ARG001
    """The same error for every resource."""
    return IncrementalAlterConfigsResponse(responses=[refused(asked, error, Answer) for asked in request.resources])
