"""The proxy forwards frames both ways, holds selected ones, and delivers them after the client has left."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from moldau_dev.chaos.proxy import HoldingProxy

PRODUCE, FETCH = 0, 1
WAIT_S = 10.0


def frame(api_key: int, body: bytes) -> bytes:
    content = api_key.to_bytes(2, "big") + b"\0\1" + body
    return len(content).to_bytes(4, "big") + content


class Echo:
    """A server that sends everything back and remembers it."""

    def __init__(self) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.received = b""
        self.changed = threading.Condition()
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            while data := connection.recv(65_536):
                with self.changed:
                    self.received += data
                    self.changed.notify_all()
                connection.sendall(data)

    def wait_for(self, data: bytes) -> bool:
        with self.changed:
            return self.changed.wait_for(lambda: data in self.received, WAIT_S)


@pytest.fixture
def echo() -> Iterator[Echo]:
    server = Echo()
    yield server
    server.socket.close()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[HoldingProxy]:
    with HoldingProxy(*echo.socket.getsockname()) as proxy:
        yield proxy


def connect(proxy: HoldingProxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), WAIT_S)


def read(connection: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length and (part := connection.recv(65_536)):
        data += part
    return data


def test_requests_pass_in_order_unless_held(proxy: HoldingProxy) -> None:
    frames = b"".join(frame(number % 3, b"x" * number) for number in range(50))
    with connect(proxy) as connection:
        connection.sendall(frames)
        assert read(connection, len(frames)) == frames
    assert proxy.held == 0


def test_held_request_is_delayed_and_others_are_not(proxy: HoldingProxy) -> None:
    proxy.hold([PRODUCE], 0.3)
    with connect(proxy) as slow, connect(proxy) as quick:
        started = time.monotonic()
        slow.sendall(frame(PRODUCE, b"held"))
        quick.sendall(frame(FETCH, b"quick"))
        assert read(quick, len(frame(FETCH, b"quick"))) == frame(FETCH, b"quick")
        assert time.monotonic() - started < 0.3
        assert read(slow, len(frame(PRODUCE, b"held"))) == frame(PRODUCE, b"held")
        assert time.monotonic() - started >= 0.3
    assert proxy.held == 1


def test_held_request_is_delivered_after_its_client_has_left(proxy: HoldingProxy, echo: Echo) -> None:
    proxy.hold([PRODUCE], 0.2)
    with connect(proxy) as connection:
        connection.sendall(frame(PRODUCE, b"late"))
    assert echo.wait_for(b"late")
    assert proxy.delivered_late == 1


def test_next_request_is_held_until_delivered(proxy: HoldingProxy, echo: Echo) -> None:
    proxy.hold_next(PRODUCE)
    with connect(proxy) as slow, connect(proxy) as quick:
        slow.sendall(frame(PRODUCE, b"kept"))
        until(lambda: proxy.held == 1)
        quick.sendall(frame(PRODUCE, b"quick"))
        assert read(quick, len(frame(PRODUCE, b"quick"))) == frame(PRODUCE, b"quick")
        assert b"kept" not in echo.received
        proxy.deliver_held()
        assert read(slow, len(frame(PRODUCE, b"kept"))) == frame(PRODUCE, b"kept")


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.005)  # between two looks


def test_released_requests_pass(proxy: HoldingProxy) -> None:
    proxy.hold([PRODUCE], 60)
    proxy.release()
    with connect(proxy) as connection:
        connection.sendall(frame(PRODUCE, b"now"))
        assert read(connection, len(frame(PRODUCE, b"now"))) == frame(PRODUCE, b"now")


def test_proxy_closes_connections_when_the_broker_is_down() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        address = unused.getsockname()
    with HoldingProxy(*address) as proxy, connect(proxy) as connection:
        assert read(connection, 1) == b""
