"""What AlterConfigs and IncrementalAlterConfigs share: who may alter what, and how it is answered."""

from collections.abc import Callable
from typing import Any, TypeVar

from moldau.broker.access import CLUSTER, Operation, ResourceKind
from moldau.broker.access import Resource as Protected
from moldau.broker.requests.context import RequestContext
from moldau.machines.decision import Decision
from moldau.machines.metadata.configs import ConfigsAltered
from moldau.machines.metadata.image import Resource, ResourceType
from moldau.machines.metadata.machine import MetadataMachine
from moldau.machines.metadata.records import Record
from moldau.machines.metadata.settings import RESOURCES_PER_REQUEST_MAX
from moldau.model.errors import InvalidRequest, KafkaError, PolicyViolation

Change = TypeVar("Change")


def refusal(resource: Resource, context: RequestContext) -> KafkaError | None:
    """Why this client may not alter this resource's configs, if it may not."""
    if resource.type == ResourceType.TOPIC:
        protected = Protected(ResourceKind.TOPIC, resource.name)
    elif resource.type in (ResourceType.BROKER, ResourceType.BROKER_LOGGER):
        protected = CLUSTER
    elif resource.type == ResourceType.GROUP:
        protected = Protected(ResourceKind.GROUP, resource.name)
    else:
        return InvalidRequest(f"Configs of resource type {resource.type} cannot be altered here.")
    try:
        context.authorize(Operation.ALTER_CONFIGS, protected)
    except KafkaError as error:
        return error
    if resource.type == ResourceType.BROKER and not _is_broker(resource.name, context):
        return InvalidRequest(f"There is no broker '{resource.name}' whose configs could be altered.")
    if resource.type == ResourceType.GROUP and not resource.name:
        return InvalidRequest("A group's name may not be empty.")
    if resource.type == ResourceType.BROKER_LOGGER:
        return InvalidRequest("This broker's log levels are set with moldau.log.level.")
    return None


def _is_broker(name: str, context: RequestContext) -> bool:
    """Whether this is a broker of the cluster, or stands for all of them."""
    image = context.broker.image
    return not name or name in map(str, image.brokers) or name in map(str, image.controllers)


async def alter(
    request: Any,
    context: RequestContext,
    answer: Callable[..., Any],
    change: Callable[[Resource, Any], Change],
    decide: Callable[[MetadataMachine, list[Change]], Decision[Record, list[ConfigsAltered]]],
) -> list[Any]:
    """Each resource of the request is altered or refused by itself; `answer` is the class of the answers."""
    if len(request.resources) > RESOURCES_PER_REQUEST_MAX:
        raise PolicyViolation(f"At most {RESOURCES_PER_REQUEST_MAX} resources are altered by one request.")
    answers = []
    wanted = []
    for asked in request.resources:
        resource = Resource(asked.resource_type, asked.resource_name)
        error = refusal(resource, context)
        if error is not None:
            answers.append(refused(asked, error, answer))
        else:
            wanted.append(change(resource, asked))
    if wanted:
        altered = await context.broker.metadata.write(lambda machine: decide(machine, wanted))
        await context.broker.caught_up()
        answers.extend(_told(each, answer) for each in altered)
    for each in answers:
        if each.error_code:
            context.note_refusal("a change of configs", each.resource_name, each.error_message)
    return answers


def _told(altered: ConfigsAltered, answer: Callable[..., Any]) -> Any:
    return answer(
        resource_type=altered.resource.type,
        resource_name=altered.resource.name,
        error_code=int(altered.error),
        error_message=altered.message,
    )


def refused(asked: Any, error: KafkaError, answer: Callable[..., Any]) -> Any:
    return answer(
        resource_type=asked.resource_type,
        resource_name=asked.resource_name,
        error_code=int(error.code),
        error_message=error.message,
    )
