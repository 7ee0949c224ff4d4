"""Shell completion of topic and group names: asks the cluster, and gives up quickly and silently."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

import typer

if TYPE_CHECKING:
    from moldau.client.async_client import AsyncClient

TIMEOUT_S: Final = 1.0  # a shell that waits longer seems to hang
TIMEOUT_VARIABLE: Final = "MOLDAU_COMPLETION_TIMEOUT_S"  # for slow machines and remote clusters


def complete_topics(context: typer.Context, incomplete: str) -> list[str]:
    async def names(client: "AsyncClient") -> list[str]:
        return [each.name for each in await client.describe_topics() if not each.is_internal or incomplete[:1] == "_"]

    return _complete(context, incomplete, names)


def complete_groups(context: typer.Context, incomplete: str) -> list[str]:
    async def names(client: "AsyncClient") -> list[str]:
        from moldau.client.groups import Groups

        return [each.group for each in await Groups(client).all()]

    return _complete(context, incomplete, names)


def complete_schedules(context: typer.Context, incomplete: str) -> list[str]:
    async def names(client: "AsyncClient") -> list[str]:
        from moldau.client.schedules import GROUP_RESOURCES
        from moldau.wire import messages

        response = await client.send(messages.ListConfigResourcesRequest(resource_types=[GROUP_RESOURCES]))
        return [each.resource_name for each in response.config_resources]

    return _complete(context, incomplete, names)


def _complete(
    context: typer.Context, incomplete: str, names: "Callable[[AsyncClient], Awaitable[list[str]]]"
) -> list[str]:
    """Return the names that start with `incomplete`; none if the cluster cannot be reached in time."""
    try:
        timeout_s = float(os.environ.get(TIMEOUT_VARIABLE, TIMEOUT_S))
        found = asyncio.run(asyncio.wait_for(_ask(context.params, names), timeout_s))
    except Exception:  # a message would end up in the middle of the command line
        return []
    return sorted(name for name in found if name.startswith(incomplete))


async def _ask(parameters: dict[str, Any], names: "Callable[[AsyncClient], Awaitable[list[str]]]") -> list[str]:
    from moldau.cli.client_options import ADDRESS, read_client_settings, use_client_settings
    from moldau.cli.cluster_client import connect_async
    from moldau.cli.options import BOOTSTRAP_DEFAULT, pairs

    uses_current = parameters.get("bootstrap_servers") is None
    settings = read_client_settings(
        parameters.get("command_config"), parameters.get("profile"), uses_current=uses_current
    )
    settings |= pairs(parameters.get("client_setting"), "-X")
    use_client_settings(settings)
    address = parameters.get("bootstrap_servers") or settings.get(ADDRESS, BOOTSTRAP_DEFAULT)
    async with connect_async(address) as client:
        return await names(client)
