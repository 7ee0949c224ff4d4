"""HTTP servers of one process: they share an event loop, start together and stop together.

A signal stops all of them. Each server then accepts no new connection, gives running requests a few seconds, and runs
the shutdown part of its application's lifespan. When one server fails, the others stop too.
"""

import asyncio
import os
import signal
import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from moldau.model.ids import Address

SHUTDOWN_S_MAX: Final = 5  # for requests that run when the process is stopped
CONNECTIONS_MAX: Final = 1_000  # per server; more get 503
BACKLOG: Final = 256
KEEP_ALIVE_S: Final = 75  # browsers and clients reuse connections; most proxies close theirs after 60 s
HEADER_BYTES_MAX: Final = 64 * 1024
CHUNK_OVERHEAD_MAX: Final = 8  # bytes of framing for each byte of a chunked body

Stop = Callable[[], None]


@dataclass(frozen=True, slots=True)
class HttpServer:
    """An ASGI application and the address it serves on. Port 0 means any free port."""

    name: str
    app: Any
    address: Address
    tls: ssl.SSLContext | None = None  # None: without TLS


class CannotListen(Exception):
    """An address cannot be bound; the message names it."""


class BoundedHttpProtocol(HttpToolsProtocol):
    """Limits what a request may have besides its body: its head, the framing of chunks, and trailers.

    httptools is several times faster than h11, and has no limits.
    """

    _surplus_bytes = 0

    def on_message_begin(self) -> None:
        self._surplus_bytes = 0
        super().on_message_begin()

    def on_body(self, body: bytes) -> None:
        self._surplus_bytes -= (1 + CHUNK_OVERHEAD_MAX) * len(body)
        super().on_body(body)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._surplus_bytes += len(data)
        if self._surplus_bytes > HEADER_BYTES_MAX and not self.transport.is_closing():
            self.send_400_response("The head of the request is too large.")


class _Server(uvicorn.Server):
    """A server that leaves the signals to `serve_until_stopped`."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve_until_stopped(
    servers: Sequence[HttpServer], announce: Callable[[dict[str, str]], None], *, lifeline: int | None = None
) -> None:
    """Serve until SIGTERM, SIGINT, SIGHUP, or end of file on the `lifeline` descriptor.

    `announce` gets the URL of each server by its name, once all of them accept requests.
    """
    with ExitStack() as stack:
        sockets = [stack.enter_context(_bind(each.address)) for each in servers]
        running = [_Server(_config(each)) for each in servers]
        stack.enter_context(_stop_on_signals(running, lifeline))
        tasks = [
            asyncio.create_task(server.serve([listener])) for server, listener in zip(running, sockets, strict=True)
        ]
        starting = asyncio.create_task(_wait_until_started(running))
        await asyncio.wait([starting, *tasks], return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            announce({each.name: _url(each, listener) for each, listener in zip(servers, sockets, strict=True)})
        starting.cancel()
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for server in running:
            server.should_exit = True
        await asyncio.gather(*tasks)


def _bind(address: Address) -> socket.socket:
    """Bind here, since uvicorn exits the process when an address is in use."""
    try:
        family, _, _, _, target = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(target[:2], family=family, backlog=BACKLOG)
    except OSError as error:
        raise CannotListen(f"cannot listen on {address}: {(error.strerror or str(error)).lower()}") from error


def _config(server: HttpServer) -> uvicorn.Config:
    config = uvicorn.Config(
        server.app,
        http=BoundedHttpProtocol,
        lifespan="on",
        log_config=None,
        log_level="warning",
        access_log=False,
        ws="none",
        server_header=False,
        proxy_headers=False,
        limit_concurrency=CONNECTIONS_MAX,
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=SHUTDOWN_S_MAX,
    )
    config.load()
    config.ssl = server.tls  # its settings could only name files
    return config


async def _wait_until_started(servers: Sequence[_Server]) -> None:
    while not all(each.started for each in servers):
        await asyncio.sleep(0.01)


@contextmanager
def _stop_on_signals(servers: Sequence[_Server], lifeline: int | None) -> Iterator[None]:
    loop = asyncio.get_running_loop()

    def stop() -> None:
        for each in servers:
            each.should_exit = True

    numbers = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup ignores it
        numbers.append(signal.SIGHUP)
    for number in numbers:
        loop.add_signal_handler(number, stop)
    if lifeline is not None:
        _watch(lifeline, stop)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
        if lifeline is not None:
            loop.remove_reader(lifeline)


def _watch(lifeline: int, stop: Stop) -> None:
    loop = asyncio.get_running_loop()

    def readable() -> None:
        if not os.read(lifeline, 1):
            loop.remove_reader(lifeline)
            stop()

    os.set_blocking(lifeline, False)
    loop.add_reader(lifeline, readable)


def _url(server: HttpServer, listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"{'https' if server.tls else 'http'}://{Address(host, port)}"
