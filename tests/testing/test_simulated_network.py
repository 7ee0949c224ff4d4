"""The simulated network behaves and fails like TCP."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from moldau.model.ids import Address
from moldau.model.ports import Connection, FileSlice, Network, PageRequest
from moldau.testing.connection import WINDOW_BYTES
from moldau.testing.disk import SimulatedDisk
from moldau.testing.network import SimulatedNetwork
from moldau.testing.trace import Trace
from moldau_dev.simulation.loop import SimulatedLoop
from moldau_dev.simulation.process import SimulatedProcess

SERVER = Address("server", 9092)


def frame(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


class Recorder:
    """An endpoint that records all events."""

    def __init__(self, respond: Callable[[Connection, bytes], None] | None = None) -> None:
        self.frames: list[bytes] = []
        self.views: list[memoryview] = []
        self.drains = 0
        self.ends: list[str] = []
        self.respond = respond
        self.changed = asyncio.Event()

    def connected(self, connection: Connection) -> None:
        self.connection = connection

    def frame_received(self, frame: memoryview) -> None:
        self.frames.append(bytes(frame))
        self.views.append(frame)
        if self.respond:
            self.respond(self.connection, bytes(frame))
        self.changed.set()

    def drained(self) -> None:
        self.drains += 1
        self.changed.set()

    def disconnected(self, reason: str) -> None:
        self.ends.append(reason)
        self.changed.set()

    async def until(self, condition: Callable[["Recorder"], object]) -> None:
        async with asyncio.timeout(120):
            while not condition(self):
                self.changed.clear()
                await self.changed.wait()


class World:
    """An echo server, a client, and the network between them."""

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


def test_frames_arrive_whole_in_order_and_without_prefix() -> None:
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


def test_frame_is_overwritten_after_the_turn() -> None:
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
        assert "file slice is 2 bytes short" in recorder.ends[0]

    simulate(script)


def test_connection_is_lost_when_a_queued_file_was_closed() -> None:
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


def test_queue_fills_when_the_peer_does_not_read() -> None:
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


def test_close_sends_the_queue_first() -> None:
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


def test_abort_resets_the_peer() -> None:
    async def script(world: World) -> None:
        await world.serve()
        connection, recorder = await world.connect()
        connection.abort()
        await asyncio.sleep(1)
        assert recorder.ends == [""]
        assert len(world.accepted[0].ends) == 1
        assert "reset" in world.accepted[0].ends[0]

    simulate(script)


def test_oversized_frame_closes_the_connection() -> None:
    async def script(world: World) -> None:
        await world.serve(frame_bytes_max=10)
        connection, recorder = await world.connect()
        connection.send([frame(bytes(10)), frame(bytes(11))])
        await recorder.until(lambda each: each.ends)
        assert [len(body) for body in world.accepted[0].frames] == [10]
        await asyncio.sleep(1)
        assert "11 bytes" in world.accepted[0].ends[0]
        assert recorder.frames == [bytes(10)], "the response to the first frame is still delivered"

    simulate(script)


def test_connect_fails_without_listener_and_listen_fails_on_a_used_port() -> None:
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
        with pytest.raises(OSError, match="unknown host"):
            await world.client.connect(Address("nowhere", 1), Recorder(), 100)

    simulate(script)


def test_cut_holds_one_direction_until_heal() -> None:
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


def test_partition_stops_both_directions_and_times_out_connects() -> None:
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


def test_crashed_process_resets_peers_and_refuses_connections() -> None:
    ends = set()

    async def script(world: World) -> None:
        process = SimulatedProcess("server")
        await world.loop.run_as(process, world.serve())
        connection, recorder = await world.connect()
        connection.send([frame(b"a")])
        await recorder.until(lambda each: each.frames)
        world.loop.kill(process)
        world.network.crash("server")
        await recorder.until(lambda each: each.ends)
        ends.add(recorder.ends[0])
        assert world.accepted[0].ends == [], "no callback in a dead process"
        with pytest.raises(ConnectionRefusedError):
            await world.connect()
        world.network.host("server")
        await world.serve()
        await world.connect()

    for seed in range(10):
        simulate(script, seed)
    assert len(ends) == 2


def test_power_loss_leaves_peers_unnotified_until_the_host_is_up() -> None:
    async def script(world: World) -> None:
        process = SimulatedProcess("server")
        await world.loop.run_as(process, world.serve())
        connection, recorder = await world.connect()
        _, idle = await world.connect()
        world.loop.kill(process)
        world.network.crash("server", silently=True)
        connection.send([frame(b"lost")])
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


def test_resets_are_random_or_explicit() -> None:
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


def test_connect_can_be_cancelled_during_the_handshake() -> None:
    async def script(world: World) -> None:
        await world.serve()
        world.network.cut("server", "client")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await world.connect()
        await world.accepted[0].until(lambda each: each.ends)

    simulate(script)


def test_pages_can_be_fetched() -> None:
    async def page(request: PageRequest) -> tuple[int, str, bytes]:
        await asyncio.sleep(0.1)
        return 200, "text/plain", request.path.encode()

    async def script(world: World) -> None:
        listener = await world.server.serve_pages(Address("127.0.0.1", 9100), page)
        assert await world.network.fetch_page(listener.address, "/metrics") == (200, "text/plain", b"/metrics")
        await listener.close()
        with pytest.raises(ConnectionRefusedError):
            await world.network.fetch_page(listener.address, "/metrics")

    simulate(script)


def test_two_runs_of_one_seed_have_the_same_trace() -> None:
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


def test_isolated_group_of_hosts_reaches_only_itself() -> None:
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


def test_block_refuses_new_connections_and_keeps_open_ones() -> None:
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


def test_delayed_request_delays_only_its_own_connection() -> None:
    async def script(world: World) -> None:
        await world.serve()
        slow, slow_recorder = await world.connect()
        quick, quick_recorder = await world.connect()
        world.network.delay_requests(26, 5.0)
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
