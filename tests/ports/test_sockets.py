"""The real network: frames over TCP, segmented and combined, with and without Linux features."""

import asyncio
import itertools
import socket
import struct
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from moldau.model.ids import Address
from moldau.model.ports import Connection, FileSlice, Piece
from moldau.model.units import KiB, MiB
from moldau.node.ports.capabilities import Capabilities
from moldau.node.ports.files import SystemDisk
from moldau.node.ports.receive_buffer import IDLE_BYTES, ReceiveBudget, ReceiveBuffer
from moldau.node.ports.socket_connection import FRAMES_PER_TURN_MAX, SocketConnection
from moldau.node.ports.sockets import SocketNetwork

LOOPBACK = Address("127.0.0.1", 0)
FRAME_MAX = 8 * MiB


class Recorder:
    """An endpoint that records frames and sends scripted responses."""

    def __init__(self, response: Callable[[bytes], Sequence[Piece]] = lambda _: ()) -> None:
        self.frames: list[bytes] = []
        self.reason: str | None = None
        self.has_drained = asyncio.Event()
        self.has_ended = asyncio.Event()
        self.news = asyncio.Event()
        self._respond = response
        self.connection: Connection

    def connected(self, connection: Connection) -> None:
        self.connection = connection

    def frame_received(self, frame: memoryview) -> None:
        self.frames.append(bytes(frame))
        self.news.set()
        pieces = self._respond(bytes(frame))
        if pieces:
            self.connection.send(pieces)

    def drained(self) -> None:
        self.has_drained.set()

    def disconnected(self, reason: str) -> None:
        self.reason = reason
        self.has_ended.set()
        self.news.set()

    async def until(self, count: int) -> None:
        async with asyncio.timeout(10):
            while len(self.frames) < count:
                self.news.clear()
                await self.news.wait()


def framed(content: bytes) -> bytes:
    return struct.pack(">i", len(content)) + content


@asynccontextmanager
async def served(
    recorder: Recorder,
    *,
    capabilities: Capabilities | None = None,
    request_bytes_max: int = 64 * MiB,
    network: SocketNetwork | None = None,
) -> AsyncIterator[Address]:
    network = network or SocketNetwork(request_bytes_max=request_bytes_max, capabilities=capabilities)
    listener = await network.listen(LOOPBACK, lambda: recorder, FRAME_MAX)
    try:
        yield listener.address
    finally:
        await listener.close()
        if hasattr(recorder, "connection"):
            recorder.connection.abort()
            await recorder.has_ended.wait()


async def test_frame_received_byte_by_byte_is_delivered_once() -> None:
    recorder = Recorder()
    async with served(recorder) as address:
        reader, writer = await asyncio.open_connection(*address)
        for byte in framed(b"slowly"):
            writer.write(bytes([byte]))
            await writer.drain()
        await recorder.until(1)
        assert recorder.frames == [b"slowly"]
        writer.close()
        del reader


@pytest.mark.proves("A1")
async def test_paused_connection_is_not_read_by_asyncio(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def add_reader(transport: Any, descriptor: int, callback: Callable[[], None]) -> None:
        if not transport._closing:  # the only check of Python 3.11.0 to 3.11.3
            transport._loop._add_reader(descriptor, callback)

    monkeypatch.setattr("asyncio.selector_events._SelectorTransport._add_reader", add_reader)
    requested, asking = Recorder(lambda frame: [framed(frame.upper())]), Recorder()
    async with served(requested) as address:
        connection = await SocketNetwork().connect(address, asking, FRAME_MAX)
        connection.send([framed(b"hello")])
        await asking.until(1)
        assert (requested.frames, asking.frames) == ([b"hello"], [b"HELLO"])
        connection.abort()
        await asking.has_ended.wait()


@pytest.mark.proves("A1")
@pytest.mark.parametrize("capabilities", [Capabilities.detect(), Capabilities.portable()], ids=["linux", "portable"])
async def test_small_frames_after_a_segmented_large_one_are_delivered_at_once(
    capabilities: Capabilities,
) -> None:
    large = bytes(range(256)) * (4 * KiB)
    recorder = Recorder()
    async with served(recorder, capabilities=capabilities) as address:
        _, writer = await asyncio.open_connection(*address)
        for number in range(3):
            for start in range(0, len(large) + 4, 100_000):
                writer.write(framed(large)[start : start + 100_000])
                await writer.drain()
                await asyncio.sleep(0)
            await recorder.until(2 * number + 1)
            writer.write(framed(b"small"))
            await recorder.until(2 * number + 2)
        assert recorder.frames == [large, b"small"] * 3
        writer.close()


@pytest.mark.skipif(not Capabilities.detect().has_low_water_mark, reason="this system wakes for every piece")
async def test_rest_of_a_large_frame_is_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder, large = Recorder(), bytes(MiB - 100)
    reads: list[int] = []
    original = ReceiveBuffer.on_received

    def counted(received: ReceiveBuffer, count: int) -> None:
        reads.append(count)
        original(received, count)

    monkeypatch.setattr(ReceiveBuffer, "on_received", counted)
    async with served(recorder) as address:
        _, writer = await asyncio.open_connection(*address)
        writer.write(framed(large))  # and so this is a busy connection
        await recorder.until(1)
        reads.clear()
        for start in range(0, len(large) + 4, 10_000):
            writer.write(framed(large)[start : start + 10_000])
            await writer.drain()
            await asyncio.sleep(0)
        await recorder.until(2)
        assert len(reads) <= 5
        writer.close()


async def test_incomplete_large_frame_ends_when_the_peer_disconnects() -> None:
    recorder = Recorder()
    async with served(recorder) as address:
        _, writer = await asyncio.open_connection(*address)
        writer.write(framed(bytes(MiB))[: 300 * KiB])
        await writer.drain()
        writer.close()
        async with asyncio.timeout(10):
            await recorder.has_ended.wait()
        assert recorder.frames == []


async def test_many_frames_are_delivered_in_order_over_several_turns() -> None:
    recorder = Recorder()
    contents = [str(number).encode() for number in range(10 * FRAMES_PER_TURN_MAX)]
    async with served(recorder) as address:
        _, writer = await asyncio.open_connection(*address)
        writer.write(b"".join(framed(content) for content in contents))
        await recorder.until(len(contents))
        assert recorder.frames == contents
        writer.close()


async def test_one_connection_does_not_block_the_loop() -> None:
    turns: list[int] = []
    recorder = Recorder()
    async with served(recorder) as address:
        _, writer = await asyncio.open_connection(*address)
        writer.write(framed(b"x") * (8 * FRAMES_PER_TURN_MAX))
        while len(recorder.frames) < 8 * FRAMES_PER_TURN_MAX:
            turns.append(len(recorder.frames))
            await asyncio.sleep(0)
        writer.close()
    assert max(later - earlier for earlier, later in itertools.pairwise(turns)) <= FRAMES_PER_TURN_MAX


@pytest.mark.parametrize("size", [0, 1, IDLE_BYTES - 4, IDLE_BYTES, MiB - 4, MiB, 5 * MiB])
async def test_frame_of_any_size_is_received_and_echoed(size: int) -> None:
    content = bytes(range(256)) * (size // 256 + 1)
    content = content[:size]
    recorder = Recorder(lambda frame: [struct.pack(">i", len(frame)), frame])
    async with served(recorder) as address:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(framed(content) + framed(b"next"))
        assert await reader.readexactly(4 + size) == framed(content)
        assert await reader.readexactly(8) == framed(b"next")
        writer.close()


@pytest.mark.parametrize("length", [-1, FRAME_MAX + 1, 2**31 - 1])
async def test_frame_of_invalid_length_closes_the_connection_with_a_reason(length: int) -> None:
    recorder = Recorder()
    async with served(recorder) as address:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(struct.pack(">i", length))
        assert await reader.read() == b""
        await recorder.has_ended.wait()
        assert f"{length} bytes" in (recorder.reason or "")
        assert recorder.frames == []
        writer.close()


@pytest.mark.proves("P4", part="bounded memory on the broker")
async def test_announced_large_frame_allocates_no_memory() -> None:
    budget = ReceiveBudget(64 * MiB)
    buffer = ReceiveBuffer(budget)
    room = buffer.room()
    room[:4] = struct.pack(">i", 50 * MiB)
    buffer.on_received(4)
    assert buffer.expect(50 * MiB + 4, lambda: None)
    assert budget.bytes_used == 0


async def test_connections_wait_when_the_receive_budget_is_exhausted() -> None:
    recorders: list[Recorder] = []

    def accept() -> Recorder:
        recorders.append(Recorder())
        return recorders[-1]

    network = SocketNetwork(request_bytes_max=2 * MiB)
    listener = await network.listen(LOOPBACK, accept, FRAME_MAX)
    content = b"y" * (3 * MiB)
    writers = []
    for _ in range(4):
        _, writer = await asyncio.open_connection(*listener.address)
        writers.append(writer)
        writer.write(framed(content))
    await asyncio.gather(*(writer.drain() for writer in writers))
    async with asyncio.timeout(20):
        while sum(len(recorder.frames) for recorder in recorders) < 4:
            await asyncio.sleep(0)
    assert all(recorder.frames == [content] for recorder in recorders)
    for writer in writers:
        writer.close()
    await asyncio.gather(*(recorder.has_ended.wait() for recorder in recorders))
    await listener.close()


@pytest.mark.parametrize("capabilities", [Capabilities.detect(), Capabilities.portable()], ids=["linux", "portable"])
@pytest.mark.proves("S7")
async def test_file_slices_are_sent_between_buffers_in_order(tmp_path: Path, capabilities: Capabilities) -> None:
    content = bytes(range(256)) * 20_000
    (tmp_path / "segment").write_bytes(content)
    file = SystemDisk(capabilities).open(str(tmp_path / "segment"), read_only=True)
    sent: list[Piece] = [b"head", FileSlice(file, 100, 3 * MiB), b"middle", FileSlice(file, 0, 10), b"tail"]
    recorder = Recorder(lambda _: sent)
    async with served(recorder, capabilities=capabilities) as address:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(framed(b"go"))
        expected = b"head" + content[100 : 100 + 3 * MiB] + b"middle" + content[:10] + b"tail"
        assert await reader.readexactly(len(expected)) == expected
        writer.close()
    file.close()


@pytest.mark.parametrize("capabilities", [Capabilities.detect(), Capabilities.portable()], ids=["linux", "portable"])
async def test_truncated_file_slice_closes_the_connection(tmp_path: Path, capabilities: Capabilities) -> None:
    (tmp_path / "segment").write_bytes(b"short")
    file = SystemDisk(capabilities).open(str(tmp_path / "segment"), read_only=True)
    recorder = Recorder(lambda _: [b"head", FileSlice(file, 0, 1000)])
    async with served(recorder, capabilities=capabilities) as address:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(framed(b"go"))
        assert len(await reader.read()) <= len(b"headshort")
        await recorder.has_ended.wait()
        assert "file ends" in (recorder.reason or "")
        writer.close()
    file.close()


async def test_unsent_bytes_are_counted_and_sent_when_the_peer_reads() -> None:
    recorder = Recorder(lambda _: [b"z" * (32 * MiB)])
    async with served(recorder) as address:
        client = socket.create_connection(address)
        client.sendall(framed(b"go"))
        await recorder.until(1)
        assert recorder.connection.queued_bytes > 0
        loop = asyncio.get_running_loop()
        client.setblocking(False)
        received = 0
        async with asyncio.timeout(20):
            while received < 32 * MiB:
                received += len(await loop.sock_recv(client, MiB))
            await recorder.has_drained.wait()
        assert recorder.connection.queued_bytes == 0
        client.close()


@pytest.mark.proves("P4", part="bounded memory on the broker")
@pytest.mark.parametrize("changes_its_mind", [False, True], ids=["paused", "paused again before it was resumed"])
async def test_paused_connection_delivers_nothing_until_resumed(changes_its_mind: bool) -> None:
    recorder = Recorder()
    async with served(recorder) as address:
        _, writer = await asyncio.open_connection(*address)
        writer.write(framed(b"first"))
        await recorder.until(1)
        recorder.connection.pause_reading()
        if changes_its_mind:
            recorder.connection.resume_reading()
            recorder.connection.pause_reading()
        writer.write(framed(b"second"))
        await writer.drain()
        for _ in range(20):
            await asyncio.sleep(0)
        assert recorder.frames == [b"first"]
        recorder.connection.resume_reading()
        await recorder.until(2)
        writer.close()


async def test_close_sends_the_queue_first() -> None:
    recorder = Recorder()

    def response(_: bytes) -> Sequence[Piece]:
        recorder.connection.send([b"w" * (8 * MiB)])
        recorder.connection.close()
        return ()

    recorder._respond = response
    async with served(recorder) as address:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(framed(b"go"))
        assert len(await reader.read(-1)) == 8 * MiB
        writer.close()


async def test_connect_to_a_closed_port_is_an_os_error() -> None:
    with socket.socket() as free:
        free.bind(LOOPBACK)
        address = Address(*free.getsockname())
    with pytest.raises(OSError, match=r"refused|Connect"):
        await SocketNetwork().connect(address, Recorder(), FRAME_MAX)


async def test_two_connections_exchange_frames() -> None:
    server = Recorder(lambda frame: [framed(frame.upper())])
    client = Recorder()
    async with served(server) as address:
        connection = await SocketNetwork().connect(address, client, FRAME_MAX)
        connection.send([framed(b"hello")])
        await client.until(1)
        assert client.frames == [b"HELLO"]
        connection.close()
        await client.has_ended.wait()


def test_idle_buffer_holds_no_memory_and_a_busy_one_grows() -> None:
    budget = ReceiveBudget(64 * MiB)
    buffer = ReceiveBuffer(budget)
    assert len(buffer.view) == 0
    room = buffer.room()
    assert len(room) == IDLE_BYTES
    buffer.on_received(IDLE_BYTES)
    buffer.start = buffer.end
    buffer.recycle()
    assert len(buffer.room()) == MiB
    for _ in range(ReceiveBuffer.QUIET_READS_MAX + 2):
        buffer.room()
        buffer.on_received(100)
        buffer.start = buffer.end
        buffer.recycle()
    assert len(buffer.view) == 0
    assert budget.bytes_used == 0
    assert IDLE_BYTES == 16 * KiB


@pytest.mark.proves("F4")
@pytest.mark.parametrize(("option", "size"), [(socket.SO_SNDBUF, 102_400), (socket.SO_RCVBUF, 30_000)])
async def test_accepted_connections_have_the_buffers_of_the_settings(option: int, size: int) -> None:
    network = SocketNetwork(
        **{"send_buffer_bytes" if option == socket.SO_SNDBUF else "receive_buffer_bytes": size}  # type: ignore[arg-type]
    )
    async with served(recorder := Recorder(), network=network) as address:
        client = await SocketNetwork().connect(address, Recorder(), FRAME_MAX)
        client.send([framed(b"a")])
        await recorder.until(1)
        assert isinstance(recorder.connection, SocketConnection)
        buffer_bytes = recorder.connection._socket.getsockopt(socket.SOL_SOCKET, option)
        assert buffer_bytes in (size, 2 * size)  # Linux reports what it also uses for bookkeeping
        client.abort()
