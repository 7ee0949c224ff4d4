"""The client behind `Broker.client` and `Cluster.client`; it also blocks in a thread whose event loop is running."""

import asyncio
from collections.abc import Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeVar

from moldau.client.blocking_client import BlockingClient
from moldau.client.security_settings import parse_security
from moldau.client.settings import ClientSettings
from moldau.node.ports.clock import SystemClock
from moldau.node.ports.randomness import system_random
from moldau.node.ports.sockets import SocketNetwork

Result = TypeVar("Result")


class SocketClient(BlockingClient):
    """A blocking client on the real network."""

    def __init__(
        self,
        bootstrap_servers: str,
        settings: ClientSettings | None = None,
        *,
        security: Mapping[str, str] | None = None,
    ) -> None:
        """`security` has settings of Kafka's Java clients, such as `security.protocol` and `ssl.…`."""
        settings = settings or ClientSettings()
        if security:
            settings = replace(settings, security=parse_security(security, system_random().randbytes))
        super().__init__(SocketNetwork(), SystemClock(), system_random(), bootstrap_servers, settings=settings)

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        if not _is_loop_running():
            return super().run(work)
        # In an async test: a thread cannot run two event loops.
        with ThreadPoolExecutor(max_workers=1) as pool:
            return pool.submit(super().run, work).result()


def _is_loop_running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
