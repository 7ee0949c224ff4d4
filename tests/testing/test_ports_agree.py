"""The simulated ports behave like the real ones: the same scripts run on both."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from moldau.model.ids import Address
from moldau.model.ports import Connection, Disk, Executor, FileSlice, Network
from moldau.node.ports.executor import SystemExecutor
from moldau.node.ports.files import SystemDisk
from moldau.node.ports.sockets import SocketNetwork
from moldau.testing.disk import SimulatedDisk
from moldau.testing.network import SimulatedNetwork
from moldau_dev.simulation.executor import SimulatedExecutor
from moldau_dev.simulation.loop import SimulatedLoop

Where = tuple[Disk, str]


@pytest.fixture(params=["real", "simulated"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Where:
    if request.param == "real":
        return SystemDisk(), str(tmp_path)
    disk = SimulatedDisk()
    disk.prepare_folder("/data")
    return disk.mount(), "/data"


def kind_of_failure(call: Callable[[], object]) -> type[BaseException] | None:
    try:
        call()
    except OSError as error:
        return type(error)
    return None


def test_files_agree(where: Where) -> None:
    disk, folder = where
    path = f"{folder}/file"
    file = disk.open(path, create=True)
    assert (file.pwrite(b"abc", 5), file.size()) == (3, 8)
    assert file.pread(100, 0) == b"\0\0\0\0\0abc"
    assert file.pread(100, 8) == b""
    file.allocate(1000)
    assert file.size() == 8
    assert file.pwrite(memoryview(bytearray(b"xyz")), 0) == 3
    assert file.pwrite(b"", 0) == 0
    assert file.is_cached(8, 0)
    file.truncate(4)
    file.truncate(6)
    file.fsync()
    assert disk.read(path) == b"xyz\0\0\0"
    assert (disk.read_uncached(path, 3, 1), disk.read_uncached(path, 100, 4)) == (b"yz\0", b"\0\0")
    assert disk.read_uncached(path, 10, 6) == b""
    view = disk.map(path)
    assert (view.readonly, bytes(view)) == (True, b"xyz\0\0\0")
    disk.unlink(path)
    assert not disk.exists(path)
    assert file.pread(3, 0) == b"xyz", "an open file outlives its name"
    assert bytes(view) == b"xyz\0\0\0"
    view.release()
    file.close()
    file.close()
    assert kind_of_failure(lambda: file.pread(1, 0)) is OSError
    disk.open(path, create=True).close()
    with disk.map(path) as empty:
        assert len(empty) == 0


def test_folders_agree(where: Where) -> None:
    disk, folder = where
    disk.make_directory(f"{folder}/a/b/c")
    disk.make_directory(f"{folder}/a/b")
    for name in ("z", "a", "M"):
        disk.open(f"{folder}/a/{name}", create=True).close()
    assert disk.list(f"{folder}/a") == ["M", "a", "b", "z"]
    disk.rename(f"{folder}/a/z", f"{folder}/a/M")
    disk.rename(f"{folder}/a", f"{folder}/n")
    disk.sync_directory(f"{folder}/n")
    assert (disk.list(folder), disk.list(f"{folder}/n")) == (["n"], ["M", "a", "b"])
    disk.rename(f"{folder}/n/a", f"{folder}/n/b/a")
    disk.remove_directory(f"{folder}/n")
    assert disk.list(folder) == []
    assert 0 < disk.free_bytes(folder) <= disk.total_bytes(folder)


def test_disk_errors_agree(where: Where) -> None:
    disk, folder = where
    file = disk.open(f"{folder}/file", create=True)
    disk.make_directory(f"{folder}/full")
    disk.open(f"{folder}/full/file", create=True).close()
    disk.make_directory(f"{folder}/empty")
    assert [
        kind_of_failure(call)
        for call in (
            lambda: disk.open(f"{folder}/no"),
            lambda: disk.open(f"{folder}/no/file", create=True),
            lambda: disk.open(folder),
            lambda: disk.read(f"{folder}/no"),
            lambda: disk.map(f"{folder}/no"),
            lambda: disk.size(f"{folder}/no"),
            lambda: disk.list(f"{folder}/no"),
            lambda: disk.unlink(f"{folder}/no"),
            lambda: disk.rename(f"{folder}/no", f"{folder}/yes"),
            lambda: disk.remove_directory(f"{folder}/no"),
            lambda: disk.sync_directory(f"{folder}/no"),
            lambda: disk.make_directory(f"{folder}/file/below"),
            lambda: disk.open(f"{folder}/file/below", create=True),
            lambda: disk.list(f"{folder}/file"),
            lambda: disk.rename(f"{folder}/file", f"{folder}/full"),
            lambda: disk.rename(f"{folder}/empty", f"{folder}/file"),
            lambda: disk.rename(f"{folder}/empty", f"{folder}/full"),
            lambda: disk.rename(f"{folder}/full", f"{folder}/empty"),
            lambda: disk.open(f"{folder}/file", read_only=True).pwrite(b"x", 0),
            lambda: disk.exists(f"{folder}/no/no"),
        )
    ] == [
        *[FileNotFoundError] * 2,
        IsADirectoryError,
        *[FileNotFoundError] * 8,
        *[NotADirectoryError] * 3,
        IsADirectoryError,
        NotADirectoryError,
        OSError,
        None,
        OSError,
        None,
    ]
    file.close()


def test_locks_agree(where: Where) -> None:
    disk, folder = where
    lock = disk.lock(f"{folder}/.lock")
    assert kind_of_failure(lambda: disk.lock(f"{folder}/.lock")) is BlockingIOError
    lock.release()
    lock.release()
    disk.lock(f"{folder}/.lock").release()
    assert disk.list(folder) == [".lock"]


# Network and executor


class Echo:
    """Echo every frame; close after an empty one."""

    def connected(self, connection: Connection) -> None:
        self.connection = connection

    def frame_received(self, frame: memoryview) -> None:
        self.connection.send([len(frame).to_bytes(4, "big"), bytes(frame)])
        if not len(frame):
            self.connection.close()
            self.connection.send([b"\0\0\0\3too late"])

    def drained(self) -> None: ...

    def disconnected(self, reason: str) -> None: ...


class RecordingEndpoint:
    """Record all events."""

    def __init__(self) -> None:
        self.events: list[object] = []
        self.ended = asyncio.Event()

    def connected(self, connection: Connection) -> None:
        self.events.append("connected")
        self.connection = connection

    def frame_received(self, frame: memoryview) -> None:
        self.events.append(bytes(frame))

    def drained(self) -> None: ...

    def disconnected(self, reason: str) -> None:
        self.events.append(reason)
        self.ended.set()


def run_real(script: Callable[[Network, Executor], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        executor = SystemExecutor()
        await script(SocketNetwork(), executor)
        await executor.close()

    asyncio.run(main())


def run_simulated(script: Callable[[Network, Executor], Coroutine[Any, Any, None]]) -> None:
    loop = SimulatedLoop()
    executor = SimulatedExecutor(loop, random.Random(0), SimulatedDisk().mount())
    loop.run(script(SimulatedNetwork(loop).host("here"), executor))


Run = Callable[[Callable[[Network, Executor], Coroutine[Any, Any, None]]], None]
on_both = pytest.mark.parametrize("run", [run_real, run_simulated], ids=["real", "simulated"])


@on_both
def test_connections_agree(run: Run, where: Where) -> None:
    async def script(network: Network, executor: Executor) -> None:  # noqa: ARG001
        listener = await network.listen(Address("127.0.0.1", 0), Echo, 1000)
        endpoint = RecordingEndpoint()
        connection = await network.connect(listener.address, endpoint, 1000)
        assert endpoint.events == ["connected"]
        disk, folder = where
        file = disk.open(f"{folder}/file", create=True)
        file.pwrite(b"..from a file..", 0)
        connection.send([b"\0\0\0\5hello", b"\0\0", b"\0\x0b", FileSlice(file, 2, 11)])
        connection.send([b"\0\0\0\0"])
        await asyncio.wait_for(endpoint.ended.wait(), 60)
        assert endpoint.events == ["connected", b"hello", b"from a file", b"", ""]
        connection.send([b"\0\0\0\1x"])
        connection.close()
        assert connection.queued_bytes == 0
        file.close()
        await listener.close()

    run(script)


@on_both
def test_rejected_frames_and_ports_agree(run: Run) -> None:
    async def script(network: Network, executor: Executor) -> None:  # noqa: ARG001
        listener = await network.listen(Address("127.0.0.1", 0), Echo, 10)
        endpoint = RecordingEndpoint()
        connection = await network.connect(listener.address, endpoint, 10)
        connection.send([b"\0\0\0\1x", b"\0\0\0\x0b", bytes(11)])
        await asyncio.wait_for(endpoint.ended.wait(), 60)
        assert endpoint.events[:2] == ["connected", b"x"]
        await listener.close()
        with pytest.raises(ConnectionRefusedError):
            await network.connect(listener.address, RecordingEndpoint(), 10)
        again = await network.listen(listener.address, Echo, 10)
        with pytest.raises(OSError, match="in use"):
            await network.listen(listener.address, Echo, 10)
        await again.close()

    run(script)


@on_both
def test_paused_reading_agrees(run: Run) -> None:
    async def script(network: Network, executor: Executor) -> None:
        listener = await network.listen(Address("127.0.0.1", 0), Echo, 1 << 20)
        endpoint = RecordingEndpoint()
        connection = await network.connect(listener.address, endpoint, 1 << 20)
        connection.pause_reading()
        connection.send([b"\0\0\0\1x", b"\0\0\0\0"])
        for _ in range(20):
            await executor.run(len, b"")
        assert endpoint.events == ["connected"]
        connection.resume_reading()
        await asyncio.wait_for(endpoint.ended.wait(), 60)
        assert endpoint.events == ["connected", b"x", b"", ""]
        await listener.close()

    run(script)


def fail_on(disk: Disk, job: str) -> list[str]:
    return disk.list(job)


@on_both
def test_executors_agree(run: Run) -> None:
    async def script(network: Network, executor: Executor) -> None:  # noqa: ARG001
        assert await executor.run(max, 1, 2) == 2
        with pytest.raises(ZeroDivisionError):
            await executor.run(divmod, 1, 0)
        works: list[Awaitable[int]] = [executor.run(abs, -number) for number in range(50)]
        assert await asyncio.gather(*works) == list(range(50))
        with pytest.raises(FileNotFoundError):
            await executor.work_on_files(fail_on, "/no/such/folder")

    run(script)
