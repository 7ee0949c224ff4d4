"""A minimal HTTP server for the metrics page: GET and HEAD, one request per connection."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from moldau.model.ports import Page
from moldau.model.units import KiB

REQUEST_BYTES_MAX: Final = 8 * KiB
REQUEST_SECONDS_MAX: Final = 10.0
CONNECTIONS_MAX: Final = 32
_REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


class PageServer(asyncio.Protocol):
    """One HTTP connection: serves one request, then closes."""

    def __init__(self, page: Callable[[str], Awaitable[Page]], connections: "dict[PageServer, None]") -> None:
        """`connections` holds all open connections of the port, oldest first; slow ones make way for new ones."""
        self._page = page
        self._connections = connections
        self._received = bytearray()
        self._handling: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._deadline = asyncio.get_running_loop().call_later(REQUEST_SECONDS_MAX, transport.abort)
        if len(self._connections) >= CONNECTIONS_MAX:
            oldest = next(iter(self._connections))
            del self._connections[oldest]
            oldest._transport.abort()
        self._connections[self] = None

    def data_received(self, data: bytes) -> None:
        if self._handling:
            return
        self._received += data
        if b"\r\n\r\n" in self._received:
            self._handling = asyncio.get_running_loop().create_task(self._handle())
        elif len(self._received) > REQUEST_BYTES_MAX:
            self._send((400, "text/plain; charset=utf-8", b"The request is too long.\n"))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._deadline.cancel()
        self._connections.pop(self, None)

    async def _handle(self) -> None:
        request_line = bytes(self._received.split(b"\r\n", 1)[0]).decode("latin-1").split(" ")
        if len(request_line) != 3:
            self._send((400, "text/plain; charset=utf-8", b"This is not HTTP.\n"))
        elif request_line[0] not in ("GET", "HEAD"):
            self._send((405, "text/plain; charset=utf-8", b"Only GET is served here.\n"))
        else:
            status, content_type, body = await self._page(request_line[1].split("?", 1)[0])
            self._send((status, content_type, body), has_body=request_line[0] == "GET")

    def _send(self, page: Page, *, has_body: bool = True) -> None:
        status, content_type, body = page
        head = (
            f"HTTP/1.1 {status} {_REASONS.get(status, 'Status')}\r\nContent-Type: {content_type}\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        self._transport.write(head.encode("latin-1") + (body if has_body else b""))
        self._transport.close()
