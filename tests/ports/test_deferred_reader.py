"""Deferred reads: at once after a quiet period, batched under load, none lost."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from test_sockets import Recorder, framed, served

from moldau.node.ports import deferred_reader as deferred_reader_module
from moldau.node.ports.deferred_reader import PAUSE_S, READS_PER_TURN_MAX, DeferredReader


class SocketPairs:
    """Pairs of sockets: one end is in the deferred reader, the other sends."""

    def __init__(self, count: int) -> None:
        self.deferred_reader = DeferredReader()
        self.reads: list[tuple[int, float]] = []  # descriptor, time
        self._news = asyncio.Event()
        self._ends = [socket.socketpair() for _ in range(count)]
        for number, (ours, _) in enumerate(self._ends):
            ours.setblocking(False)
            self.deferred_reader.add(ours.fileno(), lambda number=number: self._read(number))  # type: ignore[misc]

    def _read(self, number: int) -> None:
        self._ends[number][0].recv(4096)
        self.reads.append((number, asyncio.get_running_loop().time()))
        self._news.set()

    def send(self, *numbers: int) -> None:
        for number in numbers:
            self._ends[number][1].send(b"!")

    def close_peer(self, number: int) -> None:
        self.deferred_reader.remove(self._ends[number][0].fileno())

    async def until(self, count: int) -> None:
        async with asyncio.timeout(10):
            while len(self.reads) < count:
                self._news.clear()
                await self._news.wait()

    def close(self) -> None:
        for pair in self._ends:
            for each in pair:
                each.close()


@contextmanager
def socket_pairs(count: int) -> Iterator[SocketPairs]:
    scene = SocketPairs(count)
    try:
        yield scene
    finally:
        scene.close()


async def test_first_socket_after_a_quiet_period_is_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deferred_reader_module, "PAUSE_S", 60.0)  # a deferred read would miss the end of the test
    with socket_pairs(2) as scene:
        scene.deferred_reader._polled_s = -1000.0
        scene.send(1)
        await scene.until(1)
        assert [number for number, _ in scene.reads] == [1]


@pytest.mark.proves("C5", part="a silent member is evicted")
async def test_polls_are_spaced_under_load() -> None:
    with socket_pairs(3) as scene:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        while loop.time() < began_s + 12 * PAUSE_S:
            scene.send(0, 1, 2)
            await asyncio.sleep(PAUSE_S / 8)
        polls_max = (loop.time() - began_s) / PAUSE_S + 3  # the first two polls come without one
        assert 3 <= len(scene.reads) <= 3 * polls_max


async def test_removed_socket_is_not_read() -> None:
    with socket_pairs(2) as scene:
        original = scene._read

        def read(number: int) -> None:
            original(number)
            scene.close_peer(1 - number)

        scene._read = read  # type: ignore[method-assign]
        scene.send(0, 1)
        await scene.until(1)
        await asyncio.sleep(2 * PAUSE_S)
        assert len(scene.reads) == 1


async def test_loop_watches_nothing_when_all_sockets_are_removed() -> None:
    with socket_pairs(2) as scene:
        descriptor = scene.deferred_reader._sockets.fileno()
        scene.send(0, 1)
        await scene.until(2)
        scene.close_peer(0)
        scene.close_peer(1)
        assert not asyncio.get_running_loop().remove_reader(descriptor)
        assert scene.deferred_reader._next is None


@pytest.mark.proves("C5", part="a silent member is evicted")
async def test_other_callbacks_run_between_many_reads() -> None:
    with socket_pairs(3 * READS_PER_TURN_MAX) as scene:
        turns: list[int] = []

        def turn() -> None:
            turns.append(len(scene.reads))
            if len(scene.reads) < 3 * READS_PER_TURN_MAX:
                asyncio.get_running_loop().call_soon(turn)

        scene.send(*range(3 * READS_PER_TURN_MAX))
        turn()
        await scene.until(3 * READS_PER_TURN_MAX)
        assert {READS_PER_TURN_MAX, 2 * READS_PER_TURN_MAX} <= set(turns)
        assert sorted(number for number, _ in scene.reads) == list(range(3 * READS_PER_TURN_MAX))


async def test_deferred_reads_can_be_switched_between_frames() -> None:
    recorder = Recorder(lambda frame: [framed(frame)])
    async with served(recorder) as address:
        reader, writer = await asyncio.open_connection(address.host, address.port)
        for number in range(40):
            writer.write(framed(b"%d" % number))
            await recorder.until(number + 1)
            recorder.connection.may_defer_reads = number % 3 != 0
        assert await reader.readexactly(40 * 4 + 70) == b"".join(framed(b"%d" % number) for number in range(40))
        writer.close()
        await recorder.has_ended.wait()
    assert recorder.frames == [b"%d" % number for number in range(40)]


async def test_deferred_connection_is_not_read_while_paused_and_closes_normally() -> None:
    recorder = Recorder()
    async with served(recorder) as address:
        _, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(framed(b"first"))
        await recorder.until(1)
        recorder.connection.may_defer_reads = True
        recorder.connection.pause_reading()
        writer.write(framed(b"second"))
        await writer.drain()
        await asyncio.sleep(2 * PAUSE_S)
        assert recorder.frames == [b"first"]
        recorder.connection.resume_reading()
        await recorder.until(2)
        writer.close()
        await recorder.has_ended.wait()
    assert recorder.reason == ""
