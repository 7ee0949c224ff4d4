"""IncrementalAlterConfigs: configs are set, deleted, appended to or subtracted from, one by one."""

from moldau.broker.altering import note_refusals, refusal
from moldau.broker.context import RequestContext
from moldau.machines.metadata.configs import Alteration, ConfigChange
from moldau.machines.metadata.image import Resource
from moldau.model.errors import KafkaError
from moldau.wire.messages import IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse

Asked = IncrementalAlterConfigsRequest.AlterConfigsResource
Answer = IncrementalAlterConfigsResponse.AlterConfigsResourceResponse


async def handle(request: IncrementalAlterConfigsRequest, context: RequestContext) -> IncrementalAlterConfigsResponse:
    """Each resource is altered or refused by itself."""
    answers = []
    wanted = []
    for asked in request.resources:
        resource = Resource(asked.resource_type, asked.resource_name)
        error = refusal(resource, context)
        if error is not None:
            answers.append(_refused(asked, error))
        else:
            changes = [ConfigChange(each.name, each.config_operation, each.value) for each in asked.configs]
            wanted.append(Alteration(resource, changes))
    if wanted:
        altered = await context.broker.metadata.write(
            lambda machine: machine.decide_incremental_alter_configs(wanted, validate_only=request.validate_only)
        )
        await context.broker.caught_up()
        answers.extend(
            Answer(
                resource_type=each.resource.type,
                resource_name=each.resource.name,
                error_code=int(each.error),
                error_message=each.message,
            )
            for each in altered
        )
    note_refusals(answers, context)
    return IncrementalAlterConfigsResponse(responses=answers)


def _refused(asked: Asked, error: KafkaError) -> Answer:
    return Answer(
        resource_type=asked.resource_type,
        resource_name=asked.resource_name,
        error_code=int(error.code),
        error_message=error.message,
    )


def refuse(request: IncrementalAlterConfigsRequest, error: KafkaError, version: int) -> IncrementalAlterConfigsResponse:  # noqa: ARG001
    """The same error for every resource."""
    return IncrementalAlterConfigsResponse(responses=[_refused(asked, error) for asked in request.resources])
