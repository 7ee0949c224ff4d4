"""Requests whose head or trailers have no end."""

import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from moldau.testing import Broker
from moldau_dev.console import serve

START = b"POST /v1/topics/t/produce HTTP/1.1\r\nHost: localhost\r\n"
CHUNKED = START + b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n"
MANY_BYTES = 4 << 20


@pytest.fixture(scope="module")
def address() -> Iterator[tuple[str, int]]:
    with Broker() as broker, serve(broker.bootstrap_servers) as url:
        parts = urlsplit(url)
        yield str(parts.hostname), int(parts.port or 0)


@pytest.mark.proves("A3", part="back-pressure")
@pytest.mark.parametrize(
    "start", [b"GET /", START, START + b"A: ", CHUNKED + b"T: "], ids=["url", "names", "value", "trailer"]
)
def test_head_without_end_is_rejected(address: tuple[str, int], start: bytes) -> None:
    with socket.create_connection(address, timeout=20) as connection:
        connection.sendall(start)
        line = b"name: value\r\n" if start == START else b"x" * 8_192
        sent = 0
        try:
            while sent < MANY_BYTES:
                sent += connection.send(line)
        except (BrokenPipeError, ConnectionResetError):
            pass
        assert sent < MANY_BYTES
