"""Authorization, validation and responses shared by AlterConfigs and IncrementalAlterConfigs."""

from collections.abc import Callable
from typing import Any, TypeVar

from moldau.broker.access import CLUSTER, Operation, ResourceKind
from moldau.broker.access import Resource as Protected
from moldau.broker.handlers.contexts import QuorumContext
from moldau.machines.decision import Decision
from moldau.machines.metadata.configs import ConfigsAltered
from moldau.machines.metadata.image import Resource, ResourceType
from moldau.machines.metadata.machine import MetadataMachine
from moldau.machines.metadata.records import Record
from moldau.machines.metadata.settings import RESOURCES_PER_REQUEST_MAX
from moldau.machines.schedules.definition import PREFIX as SCHEDULE_PREFIX
from moldau.machines.schedules.definition import TOPIC as SCHEDULE_TOPIC
from moldau.model.errors import InvalidRequest, KafkaError, PolicyViolation

Change = TypeVar("Change")


def rejection(resource: Resource, context: QuorumContext) -> KafkaError | None:
    """Return why this client may not alter the resource's configs, or None."""
    if resource.type == ResourceType.TOPIC:
        protected = Protected(ResourceKind.TOPIC, resource.name)
    elif resource.type == ResourceType.BROKER_LOGGER:
        return InvalidRequest("Broker loggers are altered with IncrementalAlterConfigs, on the broker itself.")
    elif resource.type in (ResourceType.BROKER, ResourceType.CLIENT_METRICS):
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
        return InvalidRequest(f"Broker '{resource.name}' does not exist.")
    if resource.type == ResourceType.GROUP and not resource.name:
        return InvalidRequest("The group id must not be empty.")
    return None


def _schedule_rejection(resource: Resource, requested: Any, context: QuorumContext) -> KafkaError | None:
    """A schedule publishes with the rights of the brokers: changing one needs the right to write to its topic."""
    changes = {each.name: each.value for each in requested.configs if each.name.startswith(SCHEDULE_PREFIX)}
    if resource.type != ResourceType.GROUP or not changes:
        return None
    stored = context.broker.image.configs.get(resource, {})
    try:
        for topic in {changes.get(SCHEDULE_TOPIC), stored.get(SCHEDULE_TOPIC)} - {None, ""}:
            context.authorize(Operation.WRITE, Protected(ResourceKind.TOPIC, str(topic)))
    except KafkaError as error:
        return error
    return None


def _is_broker(name: str, context: QuorumContext) -> bool:
    """Whether this names a broker of the cluster, or is the cluster-wide default."""
    image = context.broker.image
    return not name or name in map(str, image.brokers) or name in map(str, image.controllers)


async def alter(
    request: Any,
    context: QuorumContext,
    result: Callable[..., Any],
    change: Callable[[Resource, Any], Change],
    decide: Callable[[MetadataMachine, list[Change]], Decision[Record, list[ConfigsAltered]]],
) -> list[Any]:
    """Alter or reject each resource on its own; `response` is the class of the per-resource response."""
    if len(request.resources) > RESOURCES_PER_REQUEST_MAX:
        raise PolicyViolation(f"A request may alter at most {RESOURCES_PER_REQUEST_MAX} resources.")
    results = []
    wanted = []
    for requested in request.resources:
        resource = Resource(requested.resource_type, requested.resource_name)
        error = rejection(resource, context) or _schedule_rejection(resource, requested, context)
        if error is not None:
            results.append(rejected(requested, error, result))
        else:
            wanted.append(change(resource, requested))
    if wanted:
        altered = await context.broker.metadata.write(lambda machine: decide(machine, wanted))
        await context.broker.catch_up_with_metadata()
        results.extend(_mapped_error(each, result) for each in altered)
    for each in results:
        if each.error_code:
            context.log_rejection("a change of configs", each.resource_name, each.error_message)
    return results


def _mapped_error(altered: ConfigsAltered, result: Callable[..., Any]) -> Any:
    return result(
        resource_type=altered.resource.type,
        resource_name=altered.resource.name,
        error_code=int(altered.error),
        error_message=altered.message,
    )


def rejected(requested: Any, error: KafkaError, result: Callable[..., Any]) -> Any:
    return result(
        resource_type=requested.resource_type,
        resource_name=requested.resource_name,
        error_code=int(error.code),
        error_message=error.message,
    )
