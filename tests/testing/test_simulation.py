"""The simulation, tested with a small log server: it must find planted bugs."""

import asyncio
import logging
import struct
import zlib
from collections.abc import Callable

import pytest

from moldau.model.ids import Address
from moldau.model.ports import Connection, Ports
from moldau.testing.disk import Crashed, When
from moldau_dev.simulation.faults import MACHINE_FAULTS, PROCESS_FAULTS, Chaos, Fault
from moldau_dev.simulation.loop import SimulationFailed
from moldau_dev.simulation.simulation import Host, Inconclusive, Outcome, Program, Script, Simulation, replay

SERVER = Address("server", 9092)
NUMBER = struct.Struct(">q")
NUMBER_FRAME = struct.Struct(">iq")
RECORD = struct.Struct(">8sI")
PATH = "/data/log"


def read_log(content: bytes) -> list[int]:
    """The numbers before the first torn record."""
    kept = []
    for data, checksum in RECORD.iter_unpack(content[: len(content) // RECORD.size * RECORD.size]):
        if zlib.crc32(data) != checksum:
            break
        kept.append(NUMBER.unpack(data)[0])
    return kept


class Keeper:
    """Appends each received number to a file and responds with it; a known number is not appended again."""

    def __init__(self, ports: Ports, *, syncs: bool, responds_early: bool) -> None:
        self.ports, self.syncs, self.responds_early = ports, syncs, responds_early
        self.file = ports.disk.open(PATH, create=True)
        ports.disk.sync_directory("/data")
        self.kept = read_log(self.file.pread(self.file.size(), 0))
        self.file.truncate(len(self.kept) * RECORD.size)
        if syncs:
            self.file.fsync()  # a response from the file must be as durable as one after a write
        self.tasks: list[asyncio.Task[None]] = []

    def connected(self, connection: Connection) -> None:
        self.connection = connection

    def frame_received(self, frame: memoryview) -> None:
        (number,) = NUMBER.unpack(frame)
        self.tasks.append(asyncio.get_running_loop().create_task(self.keep(number, self.connection)))

    def drained(self) -> None: ...

    def disconnected(self, reason: str) -> None: ...

    async def keep(self, number: int, connection: Connection) -> None:
        if self.responds_early:
            connection.send([NUMBER_FRAME.pack(8, number)])
            await asyncio.sleep(0.001)
        if not self.file.is_cached(NUMBER.size, 0):
            await self.ports.executor.run(self.file.pread, NUMBER.size, 0)
        if number not in self.kept:
            data = NUMBER.pack(number)
            self.append(data + zlib.crc32(data).to_bytes(4, "big"), len(self.kept) * RECORD.size)
            self.kept.append(number)
        if self.syncs:
            await self.ports.executor.run(self.file.fsync)
        connection.send([NUMBER_FRAME.pack(8, number)])

    async def stop(self) -> None:
        self.file.fsync()

    def append(self, data: bytes, position: int) -> None:
        while data:
            written = self.file.pwrite(data, position)
            data, position = data[written:], position + written


def keeper(*, syncs: bool = False, responds_early: bool = False) -> Program:
    async def program(ports: Ports) -> Keeper:
        keeps = Keeper(ports, syncs=syncs, responds_early=responds_early)
        await ports.network.listen(SERVER, lambda: keeps, 100)
        return keeps

    return program


class Asker:
    """Sends numbers one at a time, each until it gets a response."""

    def __init__(self, ports: Ports, acknowledge: Callable[[int], None]) -> None:
        self.ports, self.acknowledge = ports, acknowledge

    async def run(self, end_s: float) -> None:
        number = 0
        while self.ports.clock.monotonic_ms() < end_s * 1e3:
            await self.ask(number)
            self.acknowledge(number)
            number += 1

    async def ask(self, number: int) -> None:
        while True:
            try:
                async with asyncio.timeout(2):
                    return await self.ask_once(number)
            except OSError:  # a time-out is one
                await asyncio.sleep(0.1)

    async def ask_once(self, number: int) -> None:
        response = Response()
        connection = await self.ports.network.connect(SERVER, response, 100)
        try:
            connection.send([NUMBER_FRAME.pack(8, number)])
            if await response.number != number:
                raise AssertionError("the response to another request")
            await asyncio.sleep(0.05)
        finally:
            connection.close()


class Response:
    """Waits for one number."""

    def __init__(self) -> None:
        self.number: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def connected(self, connection: Connection) -> None: ...

    def frame_received(self, frame: memoryview) -> None:
        if not self.number.done():
            self.number.set_result(NUMBER.unpack(frame)[0])

    def drained(self) -> None: ...

    def disconnected(self, reason: str) -> None:
        if not self.number.done():
            self.number.set_exception(ConnectionResetError(reason))
            self.number.exception()


def keeping(program: Program, faults: tuple[Fault, ...]) -> Script:
    async def script(simulation: Simulation) -> None:
        server, client = simulation.host("server"), simulation.host("client")
        server.disk.prepare_folder("/data")
        acknowledged: list[int] = []

        def acknowledge(number: int) -> None:
            acknowledged.append(number)
            simulation.acknowledged += 1

        async def ask(ports: Ports) -> None:
            await Asker(ports, acknowledge).run(1000 + 70)

        await server.start(program)
        asking = asyncio.ensure_future(client.start(ask))
        await Chaos(simulation, [server], faults).run(60)
        await asking
        check_kept(server, acknowledged)

    return script


def check_kept(server: Host, acknowledged: list[int]) -> None:
    server.exit()
    kept = read_log(server.disk.contents()[PATH])
    assert kept[: len(acknowledged)] == acknowledged, "acknowledged numbers were lost"


@pytest.mark.parametrize("seed", range(3))
def test_process_crashes_lose_no_written_number(seed: int) -> None:
    outcome = replay(keeping(keeper(), PROCESS_FAULTS), seed)
    outcome.check(faults_min=1)


@pytest.mark.parametrize("seed", range(3))
def test_no_fault_loses_a_synced_number(seed: int) -> None:
    outcome = replay(keeping(keeper(syncs=True), MACHINE_FAULTS), seed)
    outcome.check(faults_min=1)


def fails(script: Script, seed: int) -> bool:
    try:
        Simulation(seed).run(script)
    except AssertionError as error:
        return "were lost" in str(error)
    return False


def test_simulation_finds_a_server_that_does_not_sync() -> None:
    assert any(fails(keeping(keeper(), (Fault.POWER_LOSS, Fault.POWER_LOSS_IN_IO)), seed) for seed in range(20))


def test_simulation_finds_a_server_that_responds_before_writing() -> None:
    assert any(fails(keeping(keeper(responds_early=True), (Fault.CRASH_IN_IO,)), seed) for seed in range(20))


def test_every_kind_of_fault_fires() -> None:
    fired: set[str] = set()
    for fault in MACHINE_FAULTS:
        outcomes = (Simulation(seed).run(keeping(keeper(syncs=True), (fault,))) for seed in range(5))
        fired.update(next((outcome.faults for outcome in outcomes if outcome.faults), {}))
    assert fired == {
        "clean restart", "crash", "crash in I/O", "power loss", "power loss in I/O", "reset", "cut", "slow network",
        "delay", "short write", "cold read", "clock jump",
    }  # fmt: skip


def test_planned_crash_kills_the_whole_process() -> None:
    async def script(simulation: Simulation) -> None:
        server = simulation.host("server")
        server.disk.prepare_folder("/data")
        server.disk.crash_at(server.disk.points + 1, When.AFTER)
        with pytest.raises(Crashed):
            await server.start(keeper())
        assert not server.is_up
        await server.restart()
        assert (server.is_up, server.starts) == (True, 2)
        with pytest.raises(RuntimeError, match="already"):
            await server.restart()
        server.exit()
        assert not server.is_up

    outcome = Simulation(0).run(script)
    assert outcome.faults == {"crash in I/O": 1}


@pytest.mark.parametrize(("virtual_s", "acknowledged", "faults"), [(59, 200, 3), (60, 199, 3), (60, 200, 2)], ids=str)
def test_run_that_could_not_fail_is_inconclusive(virtual_s: float, acknowledged: int, faults: int) -> None:
    with pytest.raises(Inconclusive, match="is inconclusive"):
        Outcome(7, "", virtual_s, 1, acknowledged, {"crash": faults}).check()
    Outcome(7, "", 60, 1, 200, {"crash": 1, "reset": 2}).check()


def test_nondeterministic_run_is_reported_at_its_first_difference() -> None:
    outside: list[int] = []

    async def script(simulation: Simulation) -> None:
        outside.append(1)
        await asyncio.sleep(1)
        simulation.trace.record("outside", str(len(outside)))

    with pytest.raises(SimulationFailed, match=r"(?s)seed 3 is not deterministic.*outside 3.*or.*outside 4"):
        replay(script, 3)


def test_failure_contains_the_seed_and_the_last_events() -> None:
    async def script(simulation: Simulation) -> None:
        simulation.count("crash", "somewhere")
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken") as caught:
        Simulation(42).run(script)
    notes = "\n".join(caught.value.__notes__)
    assert "seed 42" in notes
    assert "crash somewhere" in notes


def test_error_logged_by_a_live_process_fails_the_run() -> None:
    async def program(ports: Ports) -> None:  # noqa: ARG001
        logging.getLogger("moldau.broker").warning("this is only a warning")
        await asyncio.sleep(1)
        logging.getLogger("moldau.broker").error("all is lost")
        await asyncio.sleep(1)

    async def script(simulation: Simulation) -> None:
        await simulation.host("server").start(program)

    with pytest.raises(SimulationFailed, match="server#1 logged: all is lost") as caught:
        Simulation(0).run(script)
    assert "this is only a warning" in "\n".join(caught.value.__notes__)


def test_log_of_a_dead_process_is_ignored() -> None:
    async def program(ports: Ports) -> None:  # noqa: ARG001
        try:
            await asyncio.sleep(10)
        finally:
            logging.getLogger("moldau.broker").error("the last line")

    async def script(simulation: Simulation) -> None:
        server = simulation.host("server")
        starting = asyncio.ensure_future(server.start(program))
        await asyncio.sleep(1)
        server.crash()
        with pytest.raises(Crashed):
            await starting
        await asyncio.sleep(20)

    Simulation(0).run(script)


def test_stop_runs_the_stop_of_the_server() -> None:
    async def script(simulation: Simulation) -> None:
        server = simulation.host("server")
        server.disk.prepare_folder("/data")
        await server.start(keeper())
        await server.stop()
        assert not server.is_up
        await server.restart()
        assert server.is_up

    assert Simulation(0).run(script).faults == {}


def test_stop_is_allowed_once_per_process() -> None:
    class Slow:
        async def stop(self) -> None:
            await asyncio.sleep(10)

    async def program(ports: Ports) -> Slow:  # noqa: ARG001
        return Slow()

    async def script(simulation: Simulation) -> None:
        server = simulation.host("server")
        await server.start(program)
        stopping = asyncio.ensure_future(server.stop())
        await asyncio.sleep(1)
        assert (server.is_up, server.is_stopping) == (True, True)
        with pytest.raises(RuntimeError, match="already stopping"):
            await server.stop()
        server.crash()
        with pytest.raises(Crashed):
            await stopping
        assert not server.is_stopping
        await server.restart()
        assert not server.is_stopping
        await server.stop()
        assert (server.is_up, server.is_stopping) == (False, False)

    Simulation(0).run(script)


def test_paused_process_runs_due_callbacks_after_resume() -> None:
    async def script(simulation: Simulation) -> None:
        ticks: list[float] = []

        async def program(ports: Ports) -> None:  # noqa: ARG001
            async def tick() -> None:
                while True:
                    await asyncio.sleep(1)
                    ticks.append(simulation.now_s)

            ticking.append(asyncio.get_running_loop().create_task(tick()))

        ticking: list[asyncio.Task[None]] = []
        server = simulation.host("server")
        await server.start(program)
        await asyncio.sleep(2.5)
        server.pause()
        assert (server.is_up, server.is_paused) == (True, True)
        await asyncio.sleep(10)
        server.resume()
        await asyncio.sleep(1.1)
        assert ticks == [1, 2, 12.5, 13.5]
        server.pause()
        server.crash()
        await asyncio.sleep(5)
        assert len(ticks) == 4

    assert Simulation(0).run(script).faults == {"pause": 2, "crash": 1}


def test_paused_process_keeps_connections_and_responds_later() -> None:
    async def script(simulation: Simulation) -> None:
        server, client = simulation.host("server"), simulation.host("client")
        server.disk.prepare_folder("/data")
        await server.start(keeper())
        server.pause()

        async def ask(ports: Ports) -> None:
            await Asker(ports, lambda _: None).ask_once(7)

        asking = asyncio.ensure_future(client.start(ask))
        await asyncio.sleep(20)
        assert not asking.done()
        server.resume()
        await asking

    Simulation(0).run(script)
