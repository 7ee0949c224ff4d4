"""The network in memory behaves as TCP does, and fails as it does."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from moldau.model.ids import Address
from moldau.model.ports import Connection, FileSlice, Network
from moldau.testing.connection import WINDOW_BYTES
from moldau.testing.disk import SimulatedDisk
from moldau.testing.network import SimulatedNetwork
from moldau.testing.trace import Trace
from moldau_dev.simulation.lifetime import Life
from moldau_dev.simulation.loop import SimulatedLoop

SERVER = Address("server", 9092)


def frame(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


class Recorder:
    """An endpoint that keeps what it hears."""

    def __init__(self, answer: Callable[[Connection, bytes], None] | None = None) -> None:
        self.frames: list[bytes] = []
        self.views: list[memoryview] = []
        self.drains = 0
        self.ends: list[str] = []
        self.answer = answer
        self.changed = asyncio.Event()

    def connected(self, connection: Connection) -> None:
        self.connection = connection

    def frame_received(self, frame: memoryview) -> None:
        self.frames.append(bytes(frame))
        self.views.append(frame)
        if self.answer:
            self.answer(self.connection, bytes(frame))
        self.changed.set()

    def drained(self) -> None:
        self.drains += 1
        self.changed.set()

    def disconnected(self, reason: str) -> None:
        self.ends.append(reason)
        self.changed.set()

    async def until(self, is_so: Callable[["Recorder"], object]) -> None:
        async with asyncio.timeout(120):
            while not is_so(self):
                self.changed.clear()
                await self.changed.wait()


class World:
    """A server that echoes, a client, and the network between."""

    def __init__(self, seed: int) -> None:
        self.trace = Trace()
        self.loop = SimulatedLoop(trace=self.trace)
        self.network = SimulatedNetwork(self.loop, random.Random(seed), self.trace)
        self.server: Network = self.network.host("server")
        self.client: Network = self.network.host("client")
        self.accepted: list[Recorder] = []

    def accept(self) -> Recorder:
        self.accepted.append(Recorder(lambda connection, body: connection.send([frame(body)])))
        return self.accepted[-1]

    async def serve(self, frame_bytes_max: int = 1 << 30) -> None:
        await self.server.listen(SERVER, self.accept, frame_bytes_max)

    async def connect(self) -> tuple[Connection, Recorder]:
        recorder = Recorder()
        return await self.client.connect(SERVER, recorder, 1 << 30), recorder


def simulate(script: Callable[[World], Coroutine[Any, Any, None]], seed: int = 0) -> World:
    world = World(seed)
    world.loop.run(script(world))
    return world


def test_frames_come_whole_in_order_and_without_their_prefix() -> None:
    bodies = [bytes([number]) * number * 100 for number in range(100)]

    async def script(world: World) -> None:
        await world.serve()
        connection, recorder = await world.connect()
        for body in bodies[:50]:
            connection.send([frame(body)])
        connection.send([piece for body in bodies[50:] for piece in (frame(body)[:3], memoryview(frame(body))[3:])])
        await recorder.until(lambda each: len(each.frames) == 100)
        assert recorder.frames == bodies
        assert world.accepted[0].connection.peer == connection.local
        assert connection.peer == SERVER

    simulate(script)


def test_a_lent_frame_is_rubbish_once_the_call_has_returned() -> None:
    async def script(world: World) -> None:
        await world.serve()
        connection, recorder = await world.connect()
        connection.send([frame(b"lent")])
        await recorder.until(lambda each: each.frames)
        assert recorder.frames == [b"lent"]
        assert bytes(recorder.views[0]) == b"\xdd" * 4

    simulate(script)


def test_file_slices_are_read_when_they_are_sent() -> None:
    async def script(world: World) -> None:
        await world.serve()
        world.network.faults.stall = 1.0
        file = SimulatedDisk().mount().open("/a", create=True)
        file.pwrite(b"..old..", 0)
        connection, recorder = await world.connect()
        connection.send([b"\0\0\0\3", FileSlice(file, 2, 3)])
        assert connection.queued_bytes == 7
        file.pwrite(b"new", 2)
        world.network.faults.stall = 0.0
        await recorder.until(lambda each: each.frames and each.drains)
        assert recorder.frames == [b"new"]
        assert recorder.drains == 1
        connection.send([b"\0\0\0\x09", FileSlice(file, 0, 9)])
        await recorder.until(lambda each: each.ends)
        assert "a file ended" in recorder.ends[0]

    simulate(script)


def test_a_file_that_was_closed_before_its_slice_was_sent_costs_the_connection() -> None:
    async def script(world: World) -> None:
        await world.serve()
        file = SimulatedDisk().mount().open("/a", create=True)
        file.pwrite(b"gone", 0)
        connection, recorder = await world.connect()
        file.close()
        connection.send([b"\0\0\0\4", FileSlice(file, 0, 4)])
        await recorder.until(lambda each: each.ends)
        assert "Bad file descriptor" in recorder.ends[0]
        await world.accepted[0].until(lambda each: each.ends)

    simulate(script)


def test_a_peer_that_does_not_read_fills_the_queue() -> None:
    async def script(world: World) -> None:
        await world.serve()
        connection, recorder = await world.connect()
        connection.send([frame(b"hello")])
        await recorder.until(lambda each: each.frames)
        world.accepted[0].connection.pause_reading()
        for _ in range(10):
            connection.send([frame(bytes(WINDOW_BYTES // 4))])
        await asyncio.sleep(60)
        assert connection.queued_bytes >= 5 * WINDOW_BYTES // 4
        assert len(world.accepted[0].frames) == 1
        world.accepted[0].connection.resume_reading()
        await recorder.until(lambda each: len(each.frames) == 11 and each.drains)
        assert connection.queued_bytes == 0

    simulate(script)


def test_an_ordinary_close_sends_what_is_queued_first() -> None:
    async def script(world: World) -> None:
        await world.serve()
        world.network.faults.stall = 0.5
        connection, recorder = await world.connect()
        for number in range(20):
            connection.send([frame(bytes([number]))])
        connection.close()
        connection.send([frame(b"too late")])
        await recorder.until(lambda each: each.ends)
        await asyncio.sleep(1)
        assert recorder.ends == [""]
        assert world.accepted[0].ends == [""]
        assert world.accepted[0].frames == [bytes([number]) for number in range(20)]

    simulate(script)


def test_an_abort_is_a_reset_for_the_peer() -> None:
    async def script(world: World) -> None:
        await world.serve()
        connection, recorder = await world.connect()
        connection.abort()
        await asyncio.sleep(1)
        assert recorder.ends == [""]
        assert len(world.accepted[0].ends) == 1
        assert "reset" in world.accepted[0].ends[0]

    simulate(script)


def test_an_oversized_frame_closes_the_connection() -> None:
    async def script(world: World) -> None:
        await world.serve(frame_bytes_max=10)
        connection, recorder = await world.connect()
        connection.send([frame(bytes(10)), frame(bytes(11))])
        await recorder.until(lambda each: each.ends)
        assert [len(body) for body in world.accepted[0].frames] == [10]
        await asyncio.sleep(1)
        assert "11 bytes" in world.accepted[0].ends[0]
        assert recorder.frames == [bytes(10)], "what was answered before still comes"

    simulate(script)


def test_connecting_to_nobody_is_refused_and_ports_are_taken_once() -> None:
    async def script(world: World) -> None:
        with pytest.raises(ConnectionRefusedError):
            await world.connect()
        listener = await world.server.listen(Address("0.0.0.0", 0), world.accept, 100)
        assert listener.address.host == "server"
        with pytest.raises(OSError, match="in use"):
            await world.server.listen(listener.address, world.accept, 100)
        await world.client.connect(listener.address, Recorder(), 100)
        await listener.close()
        with pytest.raises(ConnectionRefusedError):
            await world.client.connect(listener.address, Recorder(), 100)
        with pytest.raises(OSError, match="no host"):
            await world.client.connect(Address("nowhere", 1), Recorder(), 100)

    simulate(script)


def test_a_cut_holds_one_direction_until_it_is_healed() -> None:
    async def script(world: World) -> None:
        await world.serve()
        connection, recorder = await world.connect()
        world.network.cut("server", "client")
        connection.send([frame(b"there")])
        await asyncio.sleep(10)
        assert world.accepted[0].frames == [b"there"]
        assert recorder.frames == []
        world.network.heal()
        await recorder.until(lambda each: each.frames == [b"there"])

    simulate(script)


def test_a_partition_stops_both_ways_and_new_connections_time_out() -> None:
    async def script(world: World) -> None:
        await world.serve()
        connection, recorder = await world.connect()
        world.network.partition(("server",), ("client",))
        connection.send([frame(b"there")])
        world.accepted[0].connection.close()
        with pytest.raises(TimeoutError):
            await world.connect()
        assert (recorder.ends, world.accepted[0].frames) == ([], [])
        world.network.heal()
        await recorder.until(lambda each: each.ends == [""])

    simulate(script)


def test_a_crashed_process_resets_its_peers_and_refuses_new_ones() -> None:
    ends = set()

    async def script(world: World) -> None:
        life = Life("server")
        await world.loop.run_as(life, world.serve())
        connection, recorder = await world.connect()
        connection.send([frame(b"a")])
        await recorder.until(lambda each: each.frames)
        world.loop.kill(life)
        world.network.crash("server")
        await recorder.until(lambda each: each.ends)
        ends.add(recorder.ends[0])
        assert world.accepted[0].ends == [], "the dead hear nothing"
        with pytest.raises(ConnectionRefusedError):
            await world.connect()
        world.network.host("server")
        await world.serve()
        await world.connect()

    for seed in range(10):
        simulate(script, seed)
    assert len(ends) == 2


def test_a_host_without_power_says_nothing_until_it_is_back() -> None:
    async def script(world: World) -> None:
        life = Life("server")
        await world.loop.run_as(life, world.serve())
        connection, recorder = await world.connect()
        _, idle = await world.connect()
        world.loop.kill(life)
        world.network.crash("server", silently=True)
        connection.send([frame(b"into the void")])
        with pytest.raises(TimeoutError):
            await world.connect()
        assert recorder.ends == []
        world.network.host("server")
        await recorder.until(lambda each: each.ends)
        assert "reset" in recorder.ends[0]
        await asyncio.sleep(60)
        assert idle.ends == []
        idle.connection.send([frame(b"hello?")])
        await idle.until(lambda each: each.ends)

    simulate(script)


def test_resets_strike_by_likelihood_and_by_hand() -> None:
    async def script(world: World) -> None:
        await world.serve()
        _, recorder = await world.connect()
        assert world.network.reset("client", "server") == 1
        await recorder.until(lambda each: each.ends)
        world.network.faults.reset = 1.0
        connection, recorder = await world.connect()
        connection.send([frame(b"lost")])
        await recorder.until(lambda each: each.ends)
        assert world.network.fired["reset"] == 2

    simulate(script)


def test_a_connection_that_waits_for_its_handshake_can_be_given_up() -> None:
    async def script(world: World) -> None:
        await world.serve()
        world.network.cut("server", "client")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await world.connect()
        await world.accepted[0].until(lambda each: each.ends)

    simulate(script)


def test_pages_can_be_fetched() -> None:
    async def page(path: str) -> tuple[int, str, bytes]:
        await asyncio.sleep(0.1)
        return 200, "text/plain", path.encode()

    async def script(world: World) -> None:
        listener = await world.server.serve_pages(Address("127.0.0.1", 9100), page)
        assert await world.network.fetch_page(listener.address, "/metrics") == (200, "text/plain", b"/metrics")
        await listener.close()
        with pytest.raises(ConnectionRefusedError):
            await world.network.fetch_page(listener.address, "/metrics")

    simulate(script)


def test_two_runs_of_one_seed_are_the_same_run() -> None:
    async def script(world: World) -> None:
        await world.serve()
        world.network.faults.delay = 0.3
        world.network.faults.reset = 0.02
        for _ in range(5):
            connection, recorder = await world.connect()
            for number in range(20):
                connection.send([frame(bytes(number))])
                await asyncio.sleep(0.01)
            await recorder.until(lambda each: len(each.frames) == 20 or each.ends)
            connection.close()

    hashes = [simulate(script, seed).trace.hash() for seed in (1, 1, 2)]
    assert hashes[0] == hashes[1]
    assert hashes[0] != hashes[2]


def test_a_group_of_hosts_that_is_isolated_hears_only_itself() -> None:
    async def script(world: World) -> None:
        await world.serve()
        world.network.host("outside")
        world.network.isolate("server", "client")
        connection, recorder = await world.connect()
        connection.send([frame(b"inside")])
        await recorder.until(lambda each: each.frames)
        outsider = world.network.host("outside").connect(SERVER, Recorder(), 100)
        with pytest.raises(TimeoutError):
            await outsider
        world.network.heal()
        await world.network.host("outside").connect(SERVER, Recorder(), 100)

    assert simulate(script).network.fired == {"cut": 4}


def test_a_block_refuses_new_connections_and_leaves_the_open_ones() -> None:
    async def script(world: World) -> None:
        await world.serve()
        connection, recorder = await world.connect()
        world.network.block("client", "server")
        with pytest.raises(ConnectionRefusedError):
            await world.connect()
        connection.send([frame(b"still here")])
        await recorder.until(lambda each: each.frames)
        world.network.heal()
        await world.connect()

    simulate(script)


def test_a_request_that_is_held_back_holds_what_follows_and_nothing_else() -> None:
    async def script(world: World) -> None:
        await world.serve()
        slow, slow_recorder = await world.connect()
        quick, quick_recorder = await world.connect()
        world.network.slow_requests(26, 5.0)
        start_s = world.loop.time()
        slow.send([frame(b"\0\x1a\0\1 EndTxn")])
        slow.send([frame(b"\0\0\0\1 after it")])
        quick.send([frame(b"\0\0\0\1 beside it")])
        await quick_recorder.until(lambda each: each.frames)
        assert world.loop.time() - start_s < 0.1
        await slow_recorder.until(lambda each: each.frames)
        assert world.loop.time() - start_s >= 5.0
        await slow_recorder.until(lambda each: len(each.frames) == 2)
        assert slow_recorder.frames[1].endswith(b"after it")

    assert simulate(script).network.fired == {"held request": 1}
