"""Schedules of a cluster: configs of groups, by which it publishes records at the times of cron expressions."""

from collections.abc import Mapping
from typing import Final

from moldau.client.blocking_client import BlockingClient
from moldau.client.types import Resource, ResourceKind
from moldau.machines.schedules import Schedule, schedule_of
from moldau.machines.schedules.definition import PREFIX
from moldau.wire import messages

GROUP_RESOURCES: Final = 32


def list_schedules(client: BlockingClient) -> list[Schedule]:
    """All schedules, by name."""
    response = client.send(messages.ListConfigResourcesRequest(resource_types=[GROUP_RESOURCES]))
    found = [find_schedule(client, each.resource_name) for each in response.config_resources]
    return sorted(each for each in found if each is not None)


def find_schedule(client: BlockingClient, name: str) -> Schedule | None:
    return schedule_of(name, _configs(client, name))


def set_schedule(client: BlockingClient, name: str, configs: Mapping[str, str]) -> None:
    """Set configs of a schedule, given without their prefix, and keep the others."""
    values = {f"{PREFIX}{key}": value for key, value in configs.items()}
    client.alter_configs(Resource(ResourceKind.GROUP, name), values)


def remove_schedule(client: BlockingClient, name: str) -> None:
    client.alter_configs(Resource(ResourceKind.GROUP, name), removed=sorted(_configs(client, name)))


def _configs(client: BlockingClient, name: str) -> dict[str, str]:
    """The configs that were set."""
    entries = client.describe_configs(Resource(ResourceKind.GROUP, name))
    return {
        each.name: each.value
        for each in entries
        if each.name.startswith(PREFIX) and not each.is_default and each.value is not None
    }
