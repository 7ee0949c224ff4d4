"""Settings of the console, given by the command that serves it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from moldau.client.async_client import AsyncClient

# Opens a client. The settings are SASL credentials of a user (`sasl.username` …); empty for those of the command.
Connect: TypeAlias = Callable[[Mapping[str, str]], AsyncClient]


@dataclass(frozen=True, kw_only=True, slots=True)
class ConsoleSettings:
    """The permissions of the console's users, and its address."""

    bootstrap_servers: str
    is_read_only: bool = False
    needs_login: bool = False  # users log in with their SASL credentials of the cluster
    allowed_hosts: tuple[str, ...] = ()  # host names that browsers may use, besides localhost and IP addresses
