"""TCP: opens and closes connections that carry frames, see `socket_connection.py`, and serves pages."""

import asyncio
import errno
import logging
import os
import resource
import socket
import ssl
import sys
from collections.abc import Callable
from typing import Final, TypeVar

from moldau.broker.runtime.rate_limited_logger import RateLimitedLogger
from moldau.model.errors import InvalidConfig
from moldau.model.ids import Address
from moldau.model.ports import SYSTEM_BUFFER, Connection, Endpoint, Listener, PageHandler
from moldau.model.tls import TlsSettings
from moldau.model.units import MiB
from moldau.node.ports.capabilities import Capabilities
from moldau.node.ports.clock import SystemClock
from moldau.node.ports.deferred_reader import DeferredReader
from moldau.node.ports.pages import PageServer
from moldau.node.ports.receive_buffer import ReceiveBudget
from moldau.node.ports.resolver import hosts_to_listen_on, unify_errors
from moldau.node.ports.socket_connection import SocketConnection, address_of
from moldau.node.ports.tls_connection import TlsConnection, TlsShare, outcome_of_handshake
from moldau.node.ports.tls_context import ListenerContext, TlsContexts

logger = logging.getLogger(__name__)

BACKLOG: Final = 1024
ACCEPTS_PER_TURN_MAX: Final = 8  # a burst of new connections must not stall established ones
DESCRIPTORS_KEPT_FOR_FILES: Final = 4  # one in this many


def _descriptors_for_connections() -> int:
    """Return the limit of connection descriptors; the rest are reserved for log files."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit - limit // DESCRIPTORS_KEPT_FOR_FILES


Opened = TypeVar("Opened", bound=SocketConnection)


async def _open(address: Address, protocol: Callable[[], Opened]) -> Opened:
    loop = asyncio.get_running_loop()
    try:
        _, connection = await loop.create_connection(protocol, address.host, address.port)
    except OSError as error:
        raise unify_errors(error) from None
    if connection._is_lost:
        raise OSError(errno.EMFILE, "no file descriptor is left for a connection")
    return connection


class SocketListener:
    """An open port and the server behind it."""

    def __init__(self, server: asyncio.Server) -> None:
        self._server = server
        self.address = address_of(server.sockets[0].getsockname())

    async def close(self) -> None:
        self._server.close()


class SocketNetwork:
    """TCP on this machine's interfaces. All its connections share one budget for received bytes."""

    def __init__(
        self,
        *,
        request_bytes_max: int = 1024 * MiB,
        capabilities: Capabilities | None = None,
        send_buffer_bytes: int = SYSTEM_BUFFER,
        receive_buffer_bytes: int = SYSTEM_BUFFER,
    ) -> None:
        """The buffer sizes are those of accepted connections."""
        self._buffer_bytes = {socket.SO_SNDBUF: send_buffer_bytes, socket.SO_RCVBUF: receive_buffer_bytes}
        self._budget = ReceiveBudget(request_bytes_max)
        self._capabilities = capabilities or Capabilities.detect()
        self._deferred_reader = DeferredReader() if self._capabilities.has_epoll else None
        self._contexts = TlsContexts()
        self._tls = TlsShare()
        self._log = RateLimitedLogger(SystemClock(), logger)

    async def listen(
        self,
        address: Address,
        accept: Callable[[], Endpoint],
        frame_bytes_max: int,
        tls: Callable[[], TlsSettings] | None = None,
    ) -> Listener:
        loop = asyncio.get_running_loop()
        descriptor_max = _descriptors_for_connections()
        context = None if tls is None else ListenerContext(self._contexts, tls)

        def protocol() -> SocketConnection:
            if context is not None:
                return self._accept_tls(context.current(), accept, frame_bytes_max, descriptor_max)
            return SocketConnection(
                accept(), frame_bytes_max, self._budget, self._capabilities, descriptor_max, self._deferred_reader
            )

        hosts = await hosts_to_listen_on(address)
        server = await loop.create_server(protocol, hosts, address.port, backlog=ACCEPTS_PER_TURN_MAX)
        for each in server.sockets:
            with socket.socket(fileno=os.dup(each.fileno())) as same:
                self._set_buffers(same)
                same.listen(BACKLOG)  # asyncio uses one number for the backlog and for the accepts per turn
        return SocketListener(server)

    def _set_buffers(self, listening: socket.socket) -> None:
        """Set the buffer sizes on the listening socket, from which accepted ones inherit them."""
        for option, size in self._buffer_bytes.items():
            if size != SYSTEM_BUFFER:
                listening.setsockopt(socket.SOL_SOCKET, option, size)

    async def connect(
        self, address: Address, endpoint: Endpoint, frame_bytes_max: int, tls: TlsSettings | None = None
    ) -> Connection:
        if tls is not None:
            return await self._connect_tls(address, endpoint, frame_bytes_max, tls)

        def protocol() -> SocketConnection:
            return SocketConnection(endpoint, frame_bytes_max, self._budget, self._capabilities)

        return await _open(address, protocol)

    def _accept_tls(
        self, context: ssl.SSLContext, accept: Callable[[], Endpoint], frame_bytes_max: int, descriptor_max: int
    ) -> SocketConnection:
        return TlsConnection(
            accept,
            context,
            None,
            self._tls,
            self._log_failed_handshake,
            frame_bytes_max,
            self._budget,
            self._capabilities,
            descriptor_max,
            self._deferred_reader,
        )

    async def _connect_tls(
        self, address: Address, endpoint: Endpoint, frame_bytes_max: int, tls: TlsSettings
    ) -> Connection:
        try:
            context = self._contexts.client(tls)
        except InvalidConfig as error:
            raise OSError(str(error)) from None
        outcome, accept, fail = outcome_of_handshake(endpoint)

        def protocol() -> TlsConnection:
            return TlsConnection(
                accept,
                context,
                address.host,
                self._tls,
                fail,
                frame_bytes_max,
                self._budget,
                self._capabilities,
                sys.maxsize,
            )

        try:
            connection = await _open(address, protocol)
        except ValueError as error:  # TLS needs a host name that may stand in a certificate
            raise OSError(f"{address.host} cannot be verified: {error}") from error
        try:
            await outcome
        except BaseException:
            connection.abort()
            raise
        return connection

    def _log_failed_handshake(self, peer: str, reason: str) -> None:
        if reason:  # a port scan or health check closes without a word
            self._log.write("handshake", f"TLS handshake with {peer} failed: {reason}")

    async def serve_pages(
        self, address: Address, page: PageHandler, tls: Callable[[], TlsSettings] | None = None
    ) -> Listener:
        loop = asyncio.get_running_loop()
        connections: dict[PageServer, None] = {}
        context = None if tls is None else ListenerContext(self._contexts, tls).current
        hosts = await hosts_to_listen_on(address)
        server = await loop.create_server(
            lambda: PageServer(page, connections, context, self._log_failed_handshake), hosts, address.port
        )
        return SocketListener(server)
