"""TCP: opens and closes connections that carry frames, see `socket_connection.py`, and serves pages."""

import asyncio
import errno
import os
import resource
import socket
import sys
from collections.abc import Awaitable, Callable
from typing import Final

from moldau.model.errors import InvalidConfig
from moldau.model.ids import Address
from moldau.model.ports import Connection, Endpoint, Listener, Page
from moldau.model.tls import TlsSettings
from moldau.model.units import MiB
from moldau.node.ports.capabilities import Capabilities
from moldau.node.ports.deferred_reader import DeferredReader
from moldau.node.ports.pages import PageServer
from moldau.node.ports.receive_buffer import ReceiveBudget
from moldau.node.ports.resolver import hosts_to_listen_on, unify_errors
from moldau.node.ports.socket_connection import SocketConnection, address_of

BACKLOG: Final = 1024
ACCEPTS_PER_TURN_MAX: Final = 8  # a burst of new connections must not stall established ones
DESCRIPTORS_KEPT_FOR_FILES: Final = 4  # one in this many


def _descriptors_for_connections() -> int:
    """Return the limit of connection descriptors; the rest are reserved for log files."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit - limit // DESCRIPTORS_KEPT_FOR_FILES


class SocketListener:
    """An open port and the server behind it."""

    def __init__(self, server: asyncio.Server) -> None:
        self._server = server
        self.address = address_of(server.sockets[0].getsockname())

    async def close(self) -> None:
        self._server.close()


class SocketNetwork:
    """TCP on this machine's interfaces. All its connections share one budget for received bytes."""

    def __init__(self, *, request_bytes_max: int = 1024 * MiB, capabilities: Capabilities | None = None) -> None:
        self._budget = ReceiveBudget(request_bytes_max)
        self._capabilities = capabilities or Capabilities.detect()
        self._deferred_reader = DeferredReader() if self._capabilities.has_epoll else None

    async def listen(
        self,
        address: Address,
        accept: Callable[[], Endpoint],
        frame_bytes_max: int,
        tls: Callable[[], TlsSettings] | None = None,
    ) -> Listener:
        if tls is not None:
            raise InvalidConfig("TLS is not supported yet.")
        loop = asyncio.get_running_loop()
        descriptor_max = _descriptors_for_connections()

        def protocol() -> SocketConnection:
            return SocketConnection(
                accept(), frame_bytes_max, self._budget, self._capabilities, descriptor_max, self._deferred_reader
            )

        hosts = await hosts_to_listen_on(address)
        server = await loop.create_server(protocol, hosts, address.port, backlog=ACCEPTS_PER_TURN_MAX)
        for each in server.sockets:
            with socket.socket(fileno=os.dup(each.fileno())) as same:
                same.listen(BACKLOG)  # asyncio uses one number for the backlog and for the accepts per turn
        return SocketListener(server)

    async def connect(
        self, address: Address, endpoint: Endpoint, frame_bytes_max: int, tls: TlsSettings | None = None
    ) -> Connection:
        if tls is not None:
            raise OSError("TLS is not supported yet")
        loop = asyncio.get_running_loop()

        def protocol() -> SocketConnection:
            return SocketConnection(endpoint, frame_bytes_max, self._budget, self._capabilities)

        try:
            _, connection = await loop.create_connection(protocol, address.host, address.port)
        except OSError as error:
            raise unify_errors(error) from None
        if connection._is_lost:
            raise OSError(errno.EMFILE, "no file descriptor is left for a connection")
        return connection

    async def serve_pages(self, address: Address, page: Callable[[str], Awaitable[Page]]) -> Listener:
        loop = asyncio.get_running_loop()
        connections: set[PageServer] = set()
        hosts = await hosts_to_listen_on(address)
        server = await loop.create_server(lambda: PageServer(page, connections), hosts, address.port)
        return SocketListener(server)
