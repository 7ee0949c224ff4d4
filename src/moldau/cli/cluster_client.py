"""Connect to a cluster, for the commands that talk to one."""

from collections.abc import Coroutine, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from moldau.cli.client_options import client_settings
from moldau.cli.errors import usage_error
from moldau.cli.interrupts import INTERRUPTS
from moldau.client.addresses import parse_bootstrap
from moldau.client.async_client import AsyncClient
from moldau.client.blocking_client import BlockingClient
from moldau.client.security_settings import parse_security
from moldau.client.settings import ClientSettings
from moldau.model.errors import InvalidConfig
from moldau.model.ids import Address
from moldau.node.ports.clock import SystemClock
from moldau.node.ports.randomness import system_random
from moldau.node.ports.sockets import SocketNetwork

Result = TypeVar("Result")


class InterruptibleClient(BlockingClient):
    """A blocking client whose requests are cancelled by Ctrl-C."""

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return INTERRUPTS.run(self._loop, work)


def connect(bootstrap: str, settings: ClientSettings | None = None) -> BlockingClient:
    return InterruptibleClient(
        SocketNetwork(), SystemClock(), system_random(), _addresses(bootstrap), settings=_secured(settings)
    )


def connect_async(bootstrap: str, settings: ClientSettings | None = None) -> AsyncClient:
    return AsyncClient(
        SocketNetwork(), SystemClock(), system_random(), _addresses(bootstrap), settings=_secured(settings)
    )


def connect_as(bootstrap: str, credentials: Mapping[str, str]) -> AsyncClient:
    """Connect with other SASL credentials than the command's; `InvalidConfig` if they cannot be used."""
    security = parse_security({**client_settings(), **credentials}, system_random().randbytes)
    settings = ClientSettings(security=security)
    return AsyncClient(SocketNetwork(), SystemClock(), system_random(), _addresses(bootstrap), settings=settings)


def _secured(settings: ClientSettings | None) -> ClientSettings:
    """Add the security of the command's client settings."""
    try:
        security = parse_security(client_settings(), system_random().randbytes)
    except InvalidConfig as error:
        raise usage_error(str(error)) from error
    return replace(settings or ClientSettings(), security=security)


def _addresses(bootstrap: str) -> list[Address]:
    try:
        return parse_bootstrap(bootstrap)
    except ValueError as error:
        raise usage_error(str(error)) from error
