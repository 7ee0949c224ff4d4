"""A minimal HTTP server for the metrics page: GET and HEAD, one request per connection, with or without TLS.

With TLS, the handshake uses the certificates that are in effect when the connection opens. It counts against the time
and the connections of the port like the request itself.
"""

import asyncio
import ssl
from collections.abc import Callable
from typing import Final

from moldau.model.ports import Page, PageHandler, PageRequest
from moldau.model.units import KiB

REQUEST_BYTES_MAX: Final = 8 * KiB
REQUEST_SECONDS_MAX: Final = 10.0
CONNECTIONS_MAX: Final = 32
_REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    404: "Not Found",
    405: "Method Not Allowed",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


_CHALLENGES: Final = 'WWW-Authenticate: Bearer\r\nWWW-Authenticate: Basic realm="moldau"\r\n'


class PageServer(asyncio.Protocol):
    """One HTTP connection: serves one request, then closes."""

    def __init__(
        self,
        page: PageHandler,
        connections: "dict[PageServer, None]",
        context: Callable[[], ssl.SSLContext] | None = None,
        on_handshake_failed: Callable[[str, str], None] | None = None,
    ) -> None:
        """`connections` holds all open connections of the port, oldest first; slow ones make way for new ones."""
        self._page = page
        self._context = context
        self._on_handshake_failed = on_handshake_failed
        self._connections = connections
        self._received = bytearray()
        self._handling: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        peer = transport.get_extra_info("peername")
        self._peer = str(peer[0]) if peer else ""
        self._deadline = asyncio.get_running_loop().call_later(REQUEST_SECONDS_MAX, self._abort)
        if len(self._connections) >= CONNECTIONS_MAX:
            oldest = next(iter(self._connections))
            del self._connections[oldest]
            oldest._abort()
        self._connections[self] = None
        if self._context is not None:
            transport.pause_reading()
            self._handling = asyncio.get_running_loop().create_task(self._shake_hands(transport, self._context()))

    async def _shake_hands(self, transport: asyncio.Transport, context: ssl.SSLContext) -> None:
        loop = asyncio.get_running_loop()
        try:
            encrypted = await loop.start_tls(transport, self, context, server_side=True)
        except (OSError, ValueError) as error:
            if self._on_handshake_failed is not None:
                self._on_handshake_failed(self._peer, str(error))
            transport.abort()
            self._forget()
            return
        self._handling = None
        if encrypted is None or transport.is_closing():
            self._forget()
            return
        self._transport = encrypted
        if self._received:
            self.data_received(b"")

    def _abort(self) -> None:
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._received += data[: REQUEST_BYTES_MAX + 1 - len(self._received)]
        if self._handling:
            return
        if b"\r\n\r\n" in self._received:
            self._handling = asyncio.get_running_loop().create_task(self._handle())
        elif len(self._received) > REQUEST_BYTES_MAX:
            self._send((400, "text/plain; charset=utf-8", b"The request is too long.\n"))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._forget()

    def _forget(self) -> None:
        self._deadline.cancel()
        self._connections.pop(self, None)

    async def _handle(self) -> None:
        request_line = bytes(self._received.split(b"\r\n", 1)[0]).decode("latin-1").split(" ")
        if len(request_line) != 3:
            self._send((400, "text/plain; charset=utf-8", b"This is not HTTP.\n"))
        elif request_line[0] not in ("GET", "HEAD"):
            self._send((405, "text/plain; charset=utf-8", b"Only GET is served here.\n"))
        else:
            path = request_line[1].split("?", 1)[0]
            request = PageRequest(path, _header(self._received, b"authorization"), self._peer)
            status, content_type, body = await self._page(request)
            self._send((status, content_type, body), has_body=request_line[0] == "GET")

    def _send(self, page: Page, *, has_body: bool = True) -> None:
        status, content_type, body = page
        head = (
            f"HTTP/1.1 {status} {_REASONS.get(status, 'Status')}\r\nContent-Type: {content_type}\r\n"
            f"{_CHALLENGES if status == 401 else ''}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        self._transport.write(head.encode("latin-1") + (body if has_body else b""))
        self._transport.close()


def _header(request: bytes | bytearray, name: bytes) -> str:
    """The value of a header, or nothing if it is missing or repeated."""
    lines = request.split(b"\r\n\r\n", 1)[0].split(b"\r\n")[1:]
    values = [value for key, _, value in (line.partition(b":") for line in lines) if key.strip().lower() == name]
    return values[0].strip().decode("latin-1") if len(values) == 1 else ""
