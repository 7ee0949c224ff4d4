"""Any number of concurrent clients in one process, each with one request in flight.

A conversation is a generator that yields requests and is sent their responses, one at a time.
"""

import heapq
import math
import select
import socket
import time
from collections.abc import Generator, Iterable
from typing import Any, Final, NamedTuple

from moldau.cli.bench.requests import RESPONSE_BYTES_MAX, frame_of
from moldau.cli.bench.streams import SILENCE_S_MAX, Address, NoResponse, connected
from moldau.model.units import MiB
from moldau.wire.codec import decode_response
from moldau.wire.framing import parse_response_header
from moldau.wire.messages import Message

RECEIVE_BYTES: Final = 4 * MiB
LENGTH_BYTES: Final = 4

_scratch = memoryview(bytearray(RECEIVE_BYTES))


class Requested(NamedTuple):
    """A request to send, at once or after a delay; of the response, its bytes are kept or only counted."""

    address: Address
    frame: bytes
    is_kept: bool = True
    after_s: float = 0.0


class Reply(NamedTuple):
    """A response without its length prefix, and its latency."""

    size: int
    kept: memoryview
    elapsed_s: float


Conversation = Generator[Requested, Reply, None]


def ask(address: Address, request: Message, version: int, *, after_s: float = 0.0) -> Generator[Requested, Reply, Any]:
    """Send one request from a conversation: `response = yield from ask(...)`."""
    reply = yield Requested(address, frame_of(version, request), after_s=after_s)
    _, position = parse_response_header(request.API_KEY, version, reply.kept)
    return decode_response(request.API_KEY, version, reply.kept[position:])


class Talk:
    """A client's conversation, and its connections, one per broker."""

    def __init__(self) -> None:
        self._conversation: Conversation | None = None
        self._lines: dict[Address, socket.socket] = {}
        self._is_kept = True
        self._received_bytes = 0
        self._requested_s = 0.0
        self._buffer = bytearray()

    def line(self, address: Address) -> socket.socket:
        if address not in self._lines:
            self._lines[address] = connected(address)
        return self._lines[address]

    def begin(self, conversation: Conversation) -> Requested | None:
        """Send the first request."""
        self._conversation = conversation
        return next(conversation, None)

    def ask(self, requested: Requested) -> socket.socket:
        """Send a request; return the connection of its response."""
        self._is_kept, self._received_bytes = requested.is_kept, 0
        self._buffer.clear()
        line = self.line(requested.address)
        self._requested_s = time.perf_counter()
        line.sendall(requested.frame)
        return line

    def receive(self, line: socket.socket) -> "socket.socket | Requested | None":
        """Receive bytes: return the connection of the rest or the next request; None at the end of the conversation."""
        assert self._conversation is not None, "it has begun"
        count = line.recv_into(_scratch)
        if not count:
            raise NoResponse("the server closed the connection instead of sending a response; see its log")
        if self._is_kept or self._received_bytes < LENGTH_BYTES:
            self._buffer += _scratch[:count]
        self._received_bytes += count
        if self._received_bytes < LENGTH_BYTES or self._received_bytes < LENGTH_BYTES + self._size():
            return line
        kept = memoryview(bytes(self._buffer))[LENGTH_BYTES:]
        try:
            return self._conversation.send(Reply(self._size(), kept, time.perf_counter() - self._requested_s))
        except StopIteration:
            return None

    def _size(self) -> int:
        size = int.from_bytes(self._buffer[:LENGTH_BYTES], "big")
        if size > RESPONSE_BYTES_MAX:
            raise NoResponse(f"a response of {size} bytes; is this a Kafka port?")
        return size

    def close(self) -> None:
        for line in self._lines.values():
            line.close()


def converse(conversations: Iterable[tuple[Talk, Conversation]]) -> float:
    """Run all conversations to their end; return the duration in seconds."""
    started = time.perf_counter()
    room = _Room()
    for talk, conversation in conversations:
        room.go_on(talk, talk.begin(conversation))
    while not room.is_empty:
        room.turn()
    return time.perf_counter() - started


class _Room:
    """All running conversations: those waiting for a response, and those with a delayed request."""

    def __init__(self) -> None:
        self._poller = select.poll()
        self._waiting: dict[int, tuple[Talk, socket.socket]] = {}
        self._later: list[tuple[float, int, Talk, Requested]] = []
        self._count = 0  # so that no two of them are alike

    @property
    def is_empty(self) -> bool:
        return not self._waiting and not self._later

    def go_on(self, talk: Talk, requested: Requested | None) -> None:
        if requested is None:
            return
        if requested.after_s > 0:
            self._count += 1
            heapq.heappush(self._later, (time.perf_counter() + requested.after_s, self._count, talk, requested))
            return
        line = talk.ask(requested)
        self._waiting[line.fileno()] = talk, line
        self._poller.register(line.fileno(), select.POLLIN)

    def turn(self) -> None:
        now = time.perf_counter()
        while self._later and self._later[0][0] <= now:
            _, _, talk, requested = heapq.heappop(self._later)
            self.go_on(talk, requested._replace(after_s=0.0))
        wait_s = self._later[0][0] - now if self._later else SILENCE_S_MAX
        events = self._poller.poll(max(math.ceil(wait_s * 1000), 0))
        if not events and not self._later:
            raise NoResponse(f"no response from the server for {SILENCE_S_MAX:g} s; see its log")
        for descriptor, _ in events:
            self._receive(descriptor)

    def _receive(self, descriptor: int) -> None:
        talk, line = self._waiting[descriptor]
        following = talk.receive(line)
        if following is not line:
            self._poller.unregister(descriptor)
            del self._waiting[descriptor]
            assert not isinstance(following, socket.socket), "one request of each is under way"
            self.go_on(talk, following)
