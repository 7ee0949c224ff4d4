"""Free port ranges for test clusters, reserved against other test clusters on the machine."""

import random
import socket
from typing import Any, Final

from moldau.testing.broker import BrokerFailed

HOST: Final = "127.0.0.1"
# Below the ephemeral range: the port of a stopped node must not be taken by an outgoing connection.
PORTS: Final = range(16_000, 32_000)
PORT_TRIES_MAX: Final = 200


class PortRange:
    """A reserved range of consecutive ports.

    The TCP ports of nodes that are not running look free to other processes. The reservation therefore binds the UDP
    ports of the same numbers, which nodes do not use: the kernel gives each to one process and releases it when that
    process dies.
    """

    def __init__(self) -> None:
        self._held: list[socket.socket] = []

    def draw(self, count: int) -> range:
        """Reserve `count` consecutive free ports until `release`."""
        rng: Any = random.SystemRandom()
        for _ in range(PORT_TRIES_MAX):
            first = rng.randrange(PORTS.start, PORTS.stop - count)
            ports = range(first, first + count)
            if all(map(_is_free, ports)) and all(map(self._hold, ports)):
                return ports
            self.release()
        raise BrokerFailed(f"Found no {count} consecutive free ports.")

    def release(self) -> None:
        while self._held:
            self._held.pop().close()

    def _hold(self, port: int) -> bool:
        held = socket.socket(type=socket.SOCK_DGRAM)
        self._held.append(held)
        return _can_bind(held, port)


def free_ports(count: int) -> range:
    """Return `count` consecutive ports that are free now, without reserving them."""
    ports = PortRange()
    try:
        return ports.draw(count)
    finally:
        ports.release()


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return _can_bind(probe, port)


def _can_bind(probe: socket.socket, port: int) -> bool:
    try:
        probe.bind((HOST, port))
    except OSError:
        return False
    return True
