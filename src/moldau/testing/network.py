"""An in-memory network: named hosts, connections with latency, cuts, resets and crashes, all from one seed.

network = SimulatedNetwork(loop, random.Random(7), trace)
port = network.host("broker-1")             # the Network port of one process on that host
network.cut("broker-1", "client-1")         # no packet passes from the first to the second until `heal`
"""

import asyncio
import contextvars
import errno
import random
from collections import Counter
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass
from typing import Final

from moldau.model.ids import Address
from moldau.model.ports import Endpoint, Page, PageHandler, PageRequest
from moldau.model.tls import TlsSettings
from moldau.testing.connection import FIRST_FREE_PORT, RESET, Line, SimulatedConnection
from moldau.testing.trace import Trace

CONNECT_S_MAX: Final = 30.0
REQUEST_BYTES_MIN: Final = 8  # length, API key and version
LOCAL_NAMES: Final = ("", "0.0.0.0", "::", "localhost", "127.0.0.1", "::1")


@dataclass(slots=True)
class NetworkFaults:
    """The probability of each fault per packet, from 0 to 1, and the delays."""

    reset: float = 0.0
    delay: float = 0.0
    stall: float = 0.02  # the sender's socket buffer is full for a moment, so output is queued
    latency_ms_min: float = 0.05
    latency_ms_max: float = 0.5
    delay_ms_max: float = 1000.0


@dataclass(slots=True)
class _Host:
    is_up: bool = True
    next_port: int = FIRST_FREE_PORT


class SimulatedListener:
    """A listening port of one process."""

    def __init__(self, network: "SimulatedNetwork", address: Address, context: Context) -> None:
        self.address = address
        self.context = context
        self._network = network

    async def close(self) -> None:
        self._network.close_port(self)


class _FrameListener(SimulatedListener):
    accept: Callable[[], Endpoint]
    frame_bytes_max: int
    has_tls: bool


class _PageListener(SimulatedListener):
    page: PageHandler


class SimulatedNetwork:
    """All hosts and the connections between them."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, chance: random.Random | int = 0, trace: Trace | None = None
    ) -> None:
        self.loop = loop
        self.chance = chance if isinstance(chance, random.Random) else random.Random(chance)
        self.trace = trace if trace is not None else Trace()
        self.faults = NetworkFaults()
        self.fired: Counter[str] = Counter()
        self._hosts: dict[str, _Host] = {}
        self._listeners: dict[Address, SimulatedListener] = {}
        self._connections: dict[SimulatedConnection, None] = {}  # both sides of each
        self._cuts: dict[tuple[str, str], None] = {}
        self._blocks: dict[tuple[str, str], None] = {}
        self._request_delays_s: dict[int, float] = {}
        self._held: dict[Line, None] = {}

    # For the test

    def host(self, name: str) -> "HostNetwork":
        """Return the `Network` port for a process that starts now on this host, and mark the host as up."""
        self._hosts.setdefault(name, _Host()).is_up = True
        for side in list(self._connections):
            if side.is_half_open and side.local.host == name and side.dropped_bytes:
                self.reset_if_up(side)
        return HostNetwork(self, name)

    def crash(self, name: str, *, silently: bool = False) -> None:
        """Kill the process: close its ports, reset its peers. `silently`: cut the power; peers are not reset."""
        self._hosts.setdefault(name, _Host()).is_up = not silently
        self._listeners = {address: each for address, each in self._listeners.items() if address.host != name}
        for side in list(self._connections):
            if side.local.host == name and not side.is_lost:
                side.die(silently=silently)

    def cut(self, sender: str, receiver: str) -> None:
        """Hold packets from `sender` to `receiver` until `heal`."""
        self._count("cut", f"{sender} to {receiver}")
        self._cuts[sender, receiver] = None

    def cut_both(self, one: str, another: str) -> None:
        self.cut(one, another)
        self.cut(another, one)

    def partition(self, *groups: tuple[str, ...]) -> None:
        """Cut the connections between hosts of different groups."""
        for group in groups:
            for name in group:
                for other in (other for others in groups if others is not group for other in others):
                    self.cut(name, other)

    def isolate(self, *names: str) -> None:
        """Cut a group of hosts off from all others, both ways."""
        self.partition(names, tuple(name for name in self._hosts if name not in names))

    def block(self, client: str, server: str) -> None:
        """Refuse new connections from one host to another, like a firewall; open ones stay."""
        self._count("block", f"{client} to {server}")
        self._blocks[client, server] = None

    def delay_requests(self, api_key: int, seconds: float) -> None:
        """Delay requests of one API, and with them all later packets of the same connection."""
        self._request_delays_s[api_key] = seconds

    def heal(self) -> None:
        """Remove all cuts, blocks and request delays; held packets are delivered."""
        self.trace.record("heal")
        self._cuts.clear()
        self._blocks.clear()
        self._request_delays_s.clear()
        held, self._held = self._held, {}
        for line in held:
            line.schedule()

    def reset(self, one: str, another: str) -> int:
        """Reset every connection between two hosts and return their number."""
        sides = [side for side in self._connections if (side.local.host, side.peer.host) == (one, another)]
        for side in sides:
            self._count("reset", f"{side.local} and {side.peer}")
            side.reset_both()
        return len(sides)

    async def fetch_page(self, address: Address, path: str, authorization: str = "") -> Page:
        """Fetch a page from a `serve_pages` listener, like an external HTTP client."""
        listener = self._listeners.get(address)
        if not isinstance(listener, _PageListener):
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"no HTTP listener at {address}")
        response: asyncio.Future[Page] = self.loop.create_future()

        async def handle() -> None:
            response.set_result(await listener.page(PageRequest(path, authorization)))

        task = self.loop.create_task(handle(), context=listener.context)
        async with asyncio.timeout(CONNECT_S_MAX):
            await asyncio.wait((task, response), return_when=asyncio.FIRST_COMPLETED)
        task.result()
        return await response

    # For ports, connections and lines

    def arrival_s(self) -> float:
        """Return the arrival time of a packet sent now, not counting the order of packets."""
        latency_ms = self.chance.uniform(self.faults.latency_ms_min, self.faults.latency_ms_max)
        if self._fires("delay", self.faults.delay, ""):
            latency_ms += self.chance.uniform(0.0, self.faults.delay_ms_max)
        return self.loop.time() + latency_ms / 1e3

    def is_cut(self, sender: str, receiver: str) -> bool:
        return (sender, receiver) in self._cuts

    def hold(self, line: Line) -> None:
        """Remember a line with held packets until `heal`."""
        self._held[line] = None

    def request_delay_s(self, data: bytes) -> float:
        """Return the extra delay of these bytes, if they start with a request of a delayed API."""
        if not self._request_delays_s or len(data) < REQUEST_BYTES_MIN:
            return 0.0
        api_key = int.from_bytes(data[4:6], "big")
        if api_key not in self._request_delays_s:
            return 0.0
        self._count("held request", f"of API {api_key}")
        return self._request_delays_s[api_key]

    def resets_packet(self, sender: str, receiver: str) -> bool:
        return self._fires("reset", self.faults.reset, f"{sender} to {receiver}")

    def stalls_sender(self) -> bool:
        return self.faults.stall > 0.0 and self.chance.random() < self.faults.stall

    def stall_s(self) -> float:
        return self.chance.uniform(0.1, 10.0) / 1e3

    def reset_if_up(self, side: SimulatedConnection) -> None:
        """Reset a connection from before a reboot: the host no longer has it."""
        if self._hosts[side.local.host].is_up:
            self.forget(side)
            side.other._soon(side.other.on_reset)

    def forget(self, side: SimulatedConnection) -> None:
        self._connections.pop(side, None)

    def open_port(self, listener: SimulatedListener) -> None:
        if listener.address in self._listeners:
            raise OSError(errno.EADDRINUSE, f"{listener.address} is in use")
        self._listeners[listener.address] = listener

    def close_port(self, listener: SimulatedListener) -> None:
        if self._listeners.get(listener.address) is listener:
            del self._listeners[listener.address]

    def free_port(self, name: str) -> int:
        host = self._hosts[name]
        host.next_port += 1
        return host.next_port

    async def connect(
        self, client_host: str, address: Address, frame_bytes_max: int, *, has_tls: bool = False
    ) -> SimulatedConnection:
        """Connect to a listener: one packet there, one back."""
        await self._pass_packet(client_host, address.host)
        listener = self._listeners.get(address)
        if not isinstance(listener, _FrameListener) or (client_host, address.host) in self._blocks:
            await self._pass_packet(address.host, client_host)
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"no listener at {address}")
        if listener.has_tls != has_tls:
            await self._pass_packet(address.host, client_host)
            raise ConnectionResetError(errno.ECONNRESET, f"{address} expects {'' if listener.has_tls else 'no '}TLS")
        client, server = self._pair(client_host, listener, frame_bytes_max)
        self.loop.call_soon(lambda: server.begin(listener.accept()), context=listener.context)
        try:
            await self._pass_packet(address.host, client_host)
        except BaseException:
            client.reset_both()
            raise
        if client.is_lost:
            raise ConnectionResetError(errno.ECONNRESET, RESET)
        return client

    def _pair(
        self, client_host: str, listener: _FrameListener, frame_bytes_max: int
    ) -> tuple[SimulatedConnection, SimulatedConnection]:
        local = Address(client_host, self.free_port(client_host))
        context = contextvars.copy_context()
        client = SimulatedConnection(self, local, listener.address, context, frame_bytes_max)
        server = SimulatedConnection(self, listener.address, local, listener.context, listener.frame_bytes_max)
        client.other, server.other = server, client
        self._connections[client] = self._connections[server] = None
        self.trace.record("connect", f"{local} to {listener.address}")
        return client, server

    async def _pass_packet(self, sender: str, receiver: str) -> None:
        """Pass one packet of a handshake, with retransmissions until the connect timeout."""
        if receiver not in self._hosts:
            raise OSError(errno.EHOSTUNREACH, f"unknown host {receiver}")
        deadline_s = self.loop.time() + CONNECT_S_MAX
        await asyncio.sleep(self.arrival_s() - self.loop.time())
        while self.is_cut(sender, receiver) or not self._hosts[receiver].is_up:
            if self.loop.time() >= deadline_s:
                raise TimeoutError(errno.ETIMEDOUT, f"connection from {sender} to {receiver} timed out")
            await asyncio.sleep(1.0)

    def _fires(self, fault: str, probability: float, detail: str) -> bool:
        if probability <= 0.0 or self.chance.random() >= probability:
            return False
        self._count(fault, detail)
        return True

    def _count(self, fault: str, detail: str) -> None:
        self.fired[fault] += 1
        self.trace.record(fault, detail)


class HostNetwork:
    """The `Network` port of one host. Other hosts reach every listener under the host name."""

    def __init__(self, network: SimulatedNetwork, name: str) -> None:
        self._network = network
        self._name = name

    async def listen(
        self,
        address: Address,
        accept: Callable[[], Endpoint],
        frame_bytes_max: int,
        tls: Callable[[], TlsSettings] | None = None,
    ) -> SimulatedListener:
        """Listen; nothing is encrypted here, but only clients with TLS can connect where `tls` is given."""
        listener = _FrameListener(self._network, self._own(address), contextvars.copy_context())
        listener.accept, listener.frame_bytes_max = accept, frame_bytes_max
        listener.has_tls = tls is not None
        self._network.open_port(listener)
        return listener

    async def connect(
        self, address: Address, endpoint: Endpoint, frame_bytes_max: int, tls: TlsSettings | None = None
    ) -> SimulatedConnection:
        host = self._name if address.host in LOCAL_NAMES else address.host
        connection = await self._network.connect(
            self._name, Address(host, address.port), frame_bytes_max, has_tls=tls is not None
        )
        connection.begin(endpoint)
        return connection

    async def serve_pages(
        self,
        address: Address,
        page: PageHandler,
        tls: Callable[[], TlsSettings] | None = None,  # noqa: ARG002 - pages are not encrypted here
    ) -> SimulatedListener:
        listener = _PageListener(self._network, self._own(address), contextvars.copy_context())
        listener.page = page
        self._network.open_port(listener)
        return listener

    def _own(self, address: Address) -> Address:
        if address.host not in (*LOCAL_NAMES, self._name):
            raise OSError(errno.EADDRNOTAVAIL, f"{address.host} is not an address of {self._name}")
        return Address(self._name, address.port or self._network.free_port(self._name))
