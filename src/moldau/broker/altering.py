"""What AlterConfigs and IncrementalAlterConfigs share: who may alter what."""

from collections.abc import Iterable
from typing import Any

from moldau.broker.access import CLUSTER, Operation, ResourceKind
from moldau.broker.access import Resource as Protected
from moldau.broker.context import RequestContext
from moldau.machines.metadata.image import Resource, ResourceType
from moldau.model.errors import InvalidRequest, KafkaError


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
    own_name = str(context.broker.node_id)
    if resource.type == ResourceType.BROKER and resource.name not in ("", own_name):
        return InvalidRequest(f"This is broker {own_name}: it does not alter the configs of '{resource.name}'.")
    if resource.type == ResourceType.GROUP and not resource.name:
        return InvalidRequest("A group's name may not be empty.")
    if resource.type == ResourceType.BROKER_LOGGER:
        return InvalidRequest("This broker's log levels are set with moldau.log.level.")
    return None


def note_refusals(answers: Iterable[Any], context: RequestContext) -> None:
    for answer in answers:
        if answer.error_code:
            context.note_refusal("a change of configs", answer.resource_name, answer.error_message)
