"""Free ports for a cluster, which no other cluster of a test takes as long as they are held."""

import random
import socket
from typing import Any, Final

from moldau.testing.broker import BrokerFailed

HOST: Final = "127.0.0.1"
# Below the ports that the system gives to outgoing connections: the port of a node that is down must stay free.
PORTS: Final = range(16_000, 32_000)
PORT_TRIES_MAX: Final = 200


class PortsInARow:
    """Ports of nodes that are still to start, or are down, look free to everybody.

    So whoever draws ports holds the UDP ports of the same numbers, which nodes do not use. The system gives each to one
    process only, and takes it back when that dies.
    """

    def __init__(self) -> None:
        self._held: list[socket.socket] = []

    def draw(self, count: int) -> range:
        """So many free ports in a row, until `release`."""
        chance: Any = random.SystemRandom()
        for _ in range(PORT_TRIES_MAX):
            first = chance.randrange(PORTS.start, PORTS.stop - count)
            ports = range(first, first + count)
            if all(map(_is_free, ports)) and all(map(self._hold, ports)):
                return ports
            self.release()
        raise BrokerFailed(f"There are no {count} free ports in a row.")

    def release(self) -> None:
        while self._held:
            self._held.pop().close()

    def _hold(self, port: int) -> bool:
        held = socket.socket(type=socket.SOCK_DGRAM)
        self._held.append(held)
        return _can_bind(held, port)


def free_ports(count: int) -> range:
    """So many ports in a row that are free just now."""
    drawn = PortsInARow()
    try:
        return drawn.draw(count)
    finally:
        drawn.release()


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
