"""Clients that ask, wait for the answer and ask again, any number of them at once in one process.

A conversation is a generator: it yields what it asks, and is sent the answer. One request of each is under way.
"""

import select
import socket
import time
from collections.abc import Generator, Iterable
from typing import Any, Final, NamedTuple

from moldau.cli.bench.requests import ANSWER_BYTES_MAX, frame_of
from moldau.cli.bench.streams import SILENCE_S_MAX, Address, NoAnswer, connected
from moldau.model.units import MiB
from moldau.wire.codec import decode_response
from moldau.wire.framing import parse_response_header
from moldau.wire.messages import Message

RECEIVE_BYTES: Final = 4 * MiB
LENGTH_BYTES: Final = 4

_scratch = memoryview(bytearray(RECEIVE_BYTES))


class Asked(NamedTuple):
    """A request on its way; of the answer, its bytes or only their number."""

    address: Address
    frame: bytes
    is_kept: bool = True


class Reply(NamedTuple):
    """What came, without the length before it."""

    size: int
    kept: memoryview


Conversation = Generator[Asked, Reply, None]


def ask(address: Address, request: Message, version: int) -> Generator[Asked, Reply, Any]:
    """One question inside a conversation: `answer = yield from ask(...)`."""
    reply = yield Asked(address, frame_of(version, request))
    _, position = parse_response_header(request.API_KEY, version, reply.kept)
    return decode_response(request.API_KEY, version, reply.kept[position:])


class Talk:
    """A client's connections, one to each broker that it asks, and the conversation that it has."""

    def __init__(self) -> None:
        self._conversation: Conversation | None = None
        self._lines: dict[Address, socket.socket] = {}
        self._is_kept = True
        self._received_bytes = 0
        self._buffer = bytearray()

    def line(self, address: Address) -> socket.socket:
        if address not in self._lines:
            self._lines[address] = connected(address)
        return self._lines[address]

    def begin(self, conversation: Conversation) -> socket.socket | None:
        """The connection on which the first answer will come."""
        self._conversation = conversation
        return self._go_on(next(conversation, None))

    def receive(self, line: socket.socket) -> socket.socket | None:
        """Take what has come: where the next answer, or the rest of this one, will come; None at the end of all."""
        assert self._conversation is not None, "it has begun"
        count = line.recv_into(_scratch)
        if not count:
            raise NoAnswer("the server closed the connection instead of an answer; does its log say why?")
        if self._is_kept or self._received_bytes < LENGTH_BYTES:
            self._buffer += _scratch[:count]
        self._received_bytes += count
        if self._received_bytes < LENGTH_BYTES or self._received_bytes < LENGTH_BYTES + self._size():
            return line
        reply = Reply(self._size(), memoryview(bytes(self._buffer))[LENGTH_BYTES:])
        try:
            return self._go_on(self._conversation.send(reply))
        except StopIteration:
            return None

    def _size(self) -> int:
        size = int.from_bytes(self._buffer[:LENGTH_BYTES], "big")
        if size > ANSWER_BYTES_MAX:
            raise NoAnswer(f"an answer of {size} bytes; is this a Kafka port?")
        return size

    def _go_on(self, asked: Asked | None) -> socket.socket | None:
        if asked is None:
            return None
        self._is_kept, self._received_bytes = asked.is_kept, 0
        self._buffer.clear()
        line = self.line(asked.address)
        line.sendall(asked.frame)
        return line

    def close(self) -> None:
        for line in self._lines.values():
            line.close()


def converse(conversations: Iterable[tuple[Talk, Conversation]]) -> float:
    """Until all have come to their end; how many seconds that took."""
    started = time.perf_counter()
    waiting: dict[int, tuple[Talk, socket.socket]] = {}
    poller = select.poll()

    def listen(talk: Talk, line: socket.socket | None) -> None:
        if line is not None:
            waiting[line.fileno()] = talk, line
            poller.register(line.fileno(), select.POLLIN)

    for talk, conversation in conversations:
        listen(talk, talk.begin(conversation))
    while waiting:
        events = poller.poll(SILENCE_S_MAX * 1000)
        if not events:
            raise NoAnswer(f"the server has not answered for {SILENCE_S_MAX:g} s; does its log say why?")
        for descriptor, _ in events:
            talk, line = waiting[descriptor]
            following = talk.receive(line)
            if following is not line:
                poller.unregister(descriptor)
                del waiting[descriptor]
                listen(talk, following)
    return time.perf_counter() - started
