"""A network in memory: hosts by name, connections with latency, cuts, resets and crashes, all from one seed.

network = SimulatedNetwork(loop, random.Random(7), trace)
port = network.host("broker-1")             # the Network port of one process on that host
network.cut("broker-1", "client-1")         # nothing passes from the first to the second until `heal`
"""

import asyncio
import contextvars
import errno
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextvars import Context
from dataclasses import dataclass
from typing import Final

from moldau.model.ids import Address
from moldau.model.ports import Endpoint, Page
from moldau.testing.connection import FIRST_FREE_PORT, RESET, Line, SimulatedConnection
from moldau.testing.trace import Trace

CONNECT_S_MAX: Final = 30.0
REQUEST_BYTES_MIN: Final = 8  # a length, an API key and its version
LOCAL_NAMES: Final = ("", "0.0.0.0", "::", "localhost", "127.0.0.1", "::1")


@dataclass(slots=True)
class NetworkFaults:
    """How likely things go wrong for each packet, from 0 to 1, and how long they take."""

    reset: float = 0.0
    delay: float = 0.0
    stall: float = 0.02  # the sender's socket is full for a moment, so output has to queue
    latency_ms_min: float = 0.05
    latency_ms_max: float = 0.5
    delay_ms_max: float = 1000.0


@dataclass(slots=True)
class _Host:
    is_up: bool = True
    next_port: int = FIRST_FREE_PORT


class SimulatedListener:
    """An open port of one process."""

    def __init__(self, network: "SimulatedNetwork", address: Address, context: Context) -> None:
        self.address = address
        self.context = context
        self._network = network

    async def close(self) -> None:
        self._network.close_port(self)


class _FrameListener(SimulatedListener):
    accept: Callable[[], Endpoint]
    frame_bytes_max: int


class _PageListener(SimulatedListener):
    page: Callable[[str], Awaitable[Page]]


class SimulatedNetwork:
    """All hosts and what lies between them."""

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
        self._slow_requests: dict[int, float] = {}
        self._held: dict[Line, None] = {}

    # For the test

    def host(self, name: str) -> "HostNetwork":
        """The network as a process that starts now on this host sees it; the host is up from here on."""
        self._hosts.setdefault(name, _Host()).is_up = True
        for side in list(self._connections):
            if side.is_in_void and side.local.host == name and side.swallowed_bytes:
                self.reset_if_up(side)
        return HostNetwork(self, name)

    def crash(self, name: str, *, silently: bool = False) -> None:
        """The process is gone: its ports are closed, its peers reset. `silently`: the power is, and nobody is told."""
        self._hosts.setdefault(name, _Host()).is_up = not silently
        self._listeners = {address: each for address, each in self._listeners.items() if address.host != name}
        for side in list(self._connections):
            if side.local.host == name and not side.is_lost:
                side.die(silently=silently)

    def cut(self, sender: str, receiver: str) -> None:
        """One way: what `sender` sends to `receiver` waits until the cut is healed."""
        self._fire("cut", f"{sender} to {receiver}")
        self._cuts[sender, receiver] = None

    def cut_both(self, one: str, another: str) -> None:
        self.cut(one, another)
        self.cut(another, one)

    def partition(self, *groups: tuple[str, ...]) -> None:
        """Hosts reach those of their own group only."""
        for group in groups:
            for name in group:
                for other in (other for others in groups if others is not group for other in others):
                    self.cut(name, other)

    def isolate(self, *names: str) -> None:
        """Cut a group of hosts off from all others, both ways."""
        self.partition(names, tuple(name for name in self._hosts if name not in names))

    def block(self, client: str, server: str) -> None:
        """New connections from one host to another are refused, as by a firewall; those that are open go on."""
        self._fire("block", f"{client} to {server}")
        self._blocks[client, server] = None

    def slow_requests(self, api_key: int, seconds: float) -> None:
        """Requests of one kind are held back on their way, and with them what follows on the same connection."""
        self._slow_requests[api_key] = seconds

    def heal(self) -> None:
        """Mend all cuts and blocks; what waited goes on its way."""
        self.trace.record("heal")
        self._cuts.clear()
        self._blocks.clear()
        self._slow_requests.clear()
        held, self._held = self._held, {}
        for line in held:
            line.move()

    def reset(self, one: str, another: str) -> int:
        """Reset every connection between two hosts; says how many there were."""
        sides = [side for side in self._connections if (side.local.host, side.peer.host) == (one, another)]
        for side in sides:
            self._fire("reset", f"{side.local} and {side.peer}")
            side.reset_both()
        return len(sides)

    async def fetch_page(self, address: Address, path: str) -> Page:
        """As a browser would from outside: what is served at an address by `serve_pages`."""
        listener = self._listeners.get(address)
        if not isinstance(listener, _PageListener):
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"nobody serves pages at {address}")
        answer: asyncio.Future[Page] = self.loop.create_future()

        async def ask() -> None:
            answer.set_result(await listener.page(path))

        task = self.loop.create_task(ask(), context=listener.context)
        async with asyncio.timeout(CONNECT_S_MAX):
            await asyncio.wait((task, answer), return_when=asyncio.FIRST_COMPLETED)
        task.result()
        return await answer

    # For ports, connections and lines

    def arrival_s(self) -> float:
        """When a packet sent now comes out at the other end, order aside."""
        latency_ms = self.chance.uniform(self.faults.latency_ms_min, self.faults.latency_ms_max)
        if self._happens("delay", self.faults.delay, ""):
            latency_ms += self.chance.uniform(0.0, self.faults.delay_ms_max)
        return self.loop.time() + latency_ms / 1e3

    def is_cut(self, sender: str, receiver: str) -> bool:
        return (sender, receiver) in self._cuts

    def hold(self, line: Line) -> None:
        """Keep a line with packets on it until the cut is healed."""
        self._held[line] = None

    def held_back_s(self, data: bytes) -> float:
        """How much longer these bytes take if they are a request that is held back."""
        if not self._slow_requests or len(data) < REQUEST_BYTES_MIN:
            return 0.0
        api_key = int.from_bytes(data[4:6], "big")
        if api_key not in self._slow_requests:
            return 0.0
        self._fire("held request", f"of API {api_key}")
        return self._slow_requests[api_key]

    def resets_packet(self, sender: str, receiver: str) -> bool:
        return self._happens("reset", self.faults.reset, f"{sender} to {receiver}")

    def stalls_sender(self) -> bool:
        return self.faults.stall > 0.0 and self.chance.random() < self.faults.stall

    def stall_s(self) -> float:
        return self.chance.uniform(0.1, 10.0) / 1e3

    def reset_if_up(self, side: SimulatedConnection) -> None:
        """A host that came back knows nothing of old connections, and says so to whoever uses one."""
        if self._hosts[side.local.host].is_up:
            self.forget(side)
            side.other._soon(side.other.be_reset)

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

    async def connect(self, client_host: str, address: Address, frame_bytes_max: int) -> SimulatedConnection:
        """The handshake: there, a listener or none, and back."""
        await self._pass(client_host, address.host)
        listener = self._listeners.get(address)
        if not isinstance(listener, _FrameListener) or (client_host, address.host) in self._blocks:
            await self._pass(address.host, client_host)
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"nobody listens at {address}")
        client, server = self._pair(client_host, listener, frame_bytes_max)
        self.loop.call_soon(lambda: server.begin(listener.accept()), context=listener.context)
        try:
            await self._pass(address.host, client_host)
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

    async def _pass(self, sender: str, receiver: str) -> None:
        """One packet of a handshake, sent again until it passes or patience ends."""
        if receiver not in self._hosts:
            raise OSError(errno.EHOSTUNREACH, f"there is no host {receiver}")
        deadline_s = self.loop.time() + CONNECT_S_MAX
        await asyncio.sleep(self.arrival_s() - self.loop.time())
        while self.is_cut(sender, receiver) or not self._hosts[receiver].is_up:
            if self.loop.time() >= deadline_s:
                raise TimeoutError(errno.ETIMEDOUT, f"{receiver} does not answer {sender}")
            await asyncio.sleep(1.0)

    def _happens(self, fault: str, likelihood: float, detail: str) -> bool:
        if likelihood <= 0.0 or self.chance.random() >= likelihood:
            return False
        self._fire(fault, detail)
        return True

    def _fire(self, fault: str, detail: str) -> None:
        self.fired[fault] += 1
        self.trace.record(fault, detail)


class HostNetwork:
    """The `Network` port of one host. Whatever address it listens on, others reach it by the host's name."""

    def __init__(self, network: SimulatedNetwork, name: str) -> None:
        self._network = network
        self._name = name

    async def listen(self, address: Address, accept: Callable[[], Endpoint], frame_bytes_max: int) -> SimulatedListener:
        listener = _FrameListener(self._network, self._own(address), contextvars.copy_context())
        listener.accept, listener.frame_bytes_max = accept, frame_bytes_max
        self._network.open_port(listener)
        return listener

    async def connect(self, address: Address, endpoint: Endpoint, frame_bytes_max: int) -> SimulatedConnection:
        host = self._name if address.host in LOCAL_NAMES else address.host
        connection = await self._network.connect(self._name, Address(host, address.port), frame_bytes_max)
        connection.begin(endpoint)
        return connection

    async def serve_pages(self, address: Address, page: Callable[[str], Awaitable[Page]]) -> SimulatedListener:
        listener = _PageListener(self._network, self._own(address), contextvars.copy_context())
        listener.page = page
        self._network.open_port(listener)
        return listener

    def _own(self, address: Address) -> Address:
        if address.host not in (*LOCAL_NAMES, self._name):
            raise OSError(errno.EADDRNOTAVAIL, f"{address.host} is not an address of {self._name}")
        return Address(self._name, address.port or self._network.free_port(self._name))
