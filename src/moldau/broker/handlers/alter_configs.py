"""AlterConfigs, the old way: each resource is given all its configs anew."""

from moldau.broker.handlers.config_alteration import alter, refused
from moldau.broker.requests.context import RequestContext
from moldau.machines.metadata.configs import Replacement
from moldau.machines.metadata.image import Resource
from moldau.model.errors import KafkaError
from moldau.wire.messages import AlterConfigsRequest, AlterConfigsResponse

Asked = AlterConfigsRequest.AlterConfigsResource
Answer = AlterConfigsResponse.AlterConfigsResourceResponse


async def handle(request: AlterConfigsRequest, context: RequestContext) -> AlterConfigsResponse:
    """Each resource is altered or refused by itself."""
    answers = await alter(
        request,
        context,
        Answer,
        _change,
        lambda machine, wanted: machine.decide_alter_configs(wanted, validate_only=request.validate_only),
    )
    return AlterConfigsResponse(responses=answers)


def _change(resource: Resource, asked: Asked) -> Replacement:
    return Replacement(resource, [(config.name, config.value) for config in asked.configs])


def refuse(request: AlterConfigsRequest, error: KafkaError, version: int) -> AlterConfigsResponse:  # noqa: ARG001
    """The same error for every resource."""
    return AlterConfigsResponse(responses=[refused(asked, error, Answer) for asked in request.resources])
