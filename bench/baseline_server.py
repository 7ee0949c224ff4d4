"""Shared by the baseline servers: listen, print the address, and exit with the parent process.

A baseline is the least that any server must do for the same traffic: the same system calls on the same number of
connections with the same receive buffer, and no look at the bytes. These files stay as they are, so that ratios
against them can be compared over time.
"""

import argparse
import json
import os
import selectors
import socket
from collections.abc import Callable
from typing import Any, Protocol

RECEIVE_BYTES = 1024 * 1024  # as much as the broker's connections have while they are busy


class Served(Protocol):
    """One connection of a baseline server."""

    def readable(self) -> bool:
        """Bytes have come; False when it was the end."""

    def writable(self) -> None:
        """There is room to send again."""

    def close(self) -> None: ...


class Watch:
    """Whether a connection waits for room to send."""

    def __init__(self, selector: selectors.BaseSelector, connection: socket.socket) -> None:
        self._selector = selector
        self._connection = connection
        self.served: Any = None

    def for_writing(self, is_wanted: bool) -> None:
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if is_wanted else 0)
        self._selector.modify(self._connection, events, self.served)

    def also(self, connection: socket.socket, served: Served) -> None:
        """Watch a connection of the server's own as well."""
        self._selector.register(connection, selectors.EVENT_READ, served)

    def no_longer(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)


def arguments(description: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--announce-fd", type=int, required=True, help="gets one line of JSON: where we listen")
    parser.add_argument("--lifeline-fd", type=int, required=True, help="we end when its other end is closed")
    return parser


def serve(options: argparse.Namespace, accept: Callable[[socket.socket, Watch], Served]) -> None:
    selector = selectors.DefaultSelector()
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    selector.register(listener, selectors.EVENT_READ, listener)
    selector.register(options.lifeline_fd, selectors.EVENT_READ, None)
    _announce(options.announce_fd, listener.getsockname()[1])
    while True:
        for key, events in selector.select():
            if key.data is None:
                return
            if key.data is listener:
                _accept(selector, listener, accept)
            elif not events & selectors.EVENT_READ or _goes_on(key.data):
                if events & selectors.EVENT_WRITE:
                    key.data.writable()
            else:
                selector.unregister(key.fileobj)
                key.data.close()


def _goes_on(served: Served) -> bool:
    try:
        return served.readable()
    except ConnectionError:
        return False


def _accept(
    selector: selectors.BaseSelector, listener: socket.socket, accept: Callable[[socket.socket, Watch], Served]
) -> None:
    connection, _ = listener.accept()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    watch = Watch(selector, connection)
    watch.served = accept(connection, watch)
    selector.register(connection, selectors.EVENT_READ, watch.served)


def _announce(descriptor: int, port: int) -> None:
    os.write(descriptor, json.dumps({"bootstrap_servers": f"127.0.0.1:{port}"}).encode() + b"\n")
    os.close(descriptor)
