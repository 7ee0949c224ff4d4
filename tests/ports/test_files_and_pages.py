"""The real disk, the executor, and the HTTP pages."""

import asyncio
import os
import select
import subprocess
import sys
import threading
import time
from concurrent.futures.process import _ExecutorManagerThread
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from moldau.model.ids import Address
from moldau.model.ports import Disk, Page, PageRequest
from moldau.node.ports.capabilities import Capabilities
from moldau.node.ports.clock import SystemClock
from moldau.node.ports.executor import SystemExecutor, Worker
from moldau.node.ports.files import SystemDisk
from moldau.node.ports.pages import CONNECTIONS_MAX
from moldau.node.ports.randomness import system_random
from moldau.node.ports.sockets import SocketNetwork

BOTH = pytest.mark.parametrize(
    "capabilities", [Capabilities.detect(), Capabilities.portable()], ids=["linux", "portable"]
)


@BOTH
def test_file_is_written_read_truncated_and_sized(tmp_path: Path, capabilities: Capabilities) -> None:
    disk = SystemDisk(capabilities)
    file = disk.open(str(tmp_path / "a"), create=True)
    file.allocate(4096)
    assert file.size() == 0
    assert file.pwrite(b"hello world", 0) == 11
    assert file.pread(100, 6) == b"world"
    assert file.is_cached(11, 0)
    file.truncate(5)
    file.fsync()
    file.close()
    file.close()
    assert disk.read(str(tmp_path / "a")) == b"hello"
    assert bytes(disk.map(str(tmp_path / "a"))) == b"hello"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux reserves blocks without making the file longer")
def test_allocate_does_not_change_the_file_size(tmp_path: Path) -> None:
    file = SystemDisk().open(str(tmp_path / "a"), create=True)
    file.allocate(8 * 1024 * 1024)
    assert file.size() == 0
    assert os.stat(tmp_path / "a").st_blocks * 512 >= 8 * 1024 * 1024
    file.close()


@pytest.mark.parametrize("has_direct_reads", [True, False])
@pytest.mark.parametrize(("length", "position"), [(1, 0), (5000, 4090), (4096, 4096), (50_000, 9_000), (10, 70_000)])
def test_reads_past_the_page_cache_return_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_direct_reads: bool, length: int, position: int
) -> None:
    if not has_direct_reads:
        monkeypatch.delattr(os, "O_DIRECT", raising=False)
    content = os.urandom(70_001)
    path = tmp_path / "file"
    path.write_bytes(content)
    disk = SystemDisk()
    assert disk.read_uncached(str(path), length, position) == content[position : position + length]
    assert disk.read_uncached(str(path), length, 70_001) == b""


def test_other_users_cannot_read_new_files_and_folders(tmp_path: Path) -> None:
    disk = SystemDisk()
    before = os.umask(0o022)
    try:
        disk.make_directory(f"{tmp_path}/data/t-0")
        disk.open(f"{tmp_path}/data/t-0/log", create=True).close()
        disk.lock(f"{tmp_path}/data/.lock").release()
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "data").rglob("*")}
    assert modes == {"t-0": 0o750, "log": 0o640, ".lock": 0o640}


def test_empty_file_can_be_mapped(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert bytes(SystemDisk().map(str(tmp_path / "empty"))) == b""


def test_directories_are_made_listed_renamed_and_removed(tmp_path: Path) -> None:
    disk = SystemDisk()
    disk.make_directory(str(tmp_path / "x" / "y"))
    disk.make_directory(str(tmp_path / "x" / "y"))
    disk.open(str(tmp_path / "x" / "f"), create=True).close()
    disk.rename(str(tmp_path / "x" / "f"), str(tmp_path / "x" / "g"))
    disk.sync_directory(str(tmp_path / "x"))
    assert disk.list(str(tmp_path / "x")) == ["g", "y"]
    disk.unlink(str(tmp_path / "x" / "g"))
    disk.remove_directory(str(tmp_path / "x"))
    assert not disk.exists(str(tmp_path / "x"))
    assert 0 < disk.free_bytes(str(tmp_path)) <= disk.total_bytes(str(tmp_path))


def test_lock_is_exclusive_and_can_be_released(tmp_path: Path) -> None:
    disk = SystemDisk()
    held = disk.lock(str(tmp_path / ".lock"))
    with pytest.raises(BlockingIOError):
        disk.lock(str(tmp_path / ".lock"))
    held.release()
    disk.lock(str(tmp_path / ".lock")).release()


def test_missing_file_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        SystemDisk().open(str(tmp_path / "nothing"))


def test_clocks_advance() -> None:
    clock = SystemClock()
    assert clock.wall_ms() > 1_600_000_000_000
    assert clock.monotonic_ms() <= clock.monotonic_ms()
    assert system_random().randbytes(16) != system_random().randbytes(16)


def _names_in(disk: Disk, folder: str) -> tuple[int, list[str]]:
    return os.getpid(), disk.list(folder)


async def test_work_runs_in_threads_and_in_a_worker_process(tmp_path: Path) -> None:
    executor = SystemExecutor()
    (tmp_path / "file").touch()
    assert await executor.run(os.path.basename, "/a/b") == "b"
    pid, names = await executor.work_on_files(_names_in, str(tmp_path))
    assert pid != os.getpid()
    assert names == ["file"]
    await executor.close()


NODE = """
import asyncio, os, sys
sys.path.insert(0, sys.argv[1])
from moldau.node.ports.executor import SystemExecutor
from worker_pid import tell
async def main():
    print(await SystemExecutor().work_on_files(tell, None), flush=True)
    sys.stdin.read()
if __name__ == "__main__":
    asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child that its parent died")
def test_worker_dies_with_a_killed_node(tmp_path: Path) -> None:
    (tmp_path / "worker_pid.py").write_text("import os\ndef tell(disk, job):\n    return os.getpid()\n")
    (tmp_path / "node.py").write_text(NODE)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    with subprocess.Popen(
        [sys.executable, str(tmp_path / "node.py"), str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
    ) as node:
        assert node.stdout is not None
        worker = int(node.stdout.readline())
        watched = os.pidfd_open(worker)
        node.kill()
        readable, _, _ = select.select([watched], [], [], 30)
        os.close(watched)
    assert readable


async def test_failed_work_raises_in_its_caller(tmp_path: Path) -> None:
    executor = SystemExecutor()
    with pytest.raises(FileNotFoundError):
        await executor.work_on_files(_names_in, str(tmp_path / "nothing"))
    with pytest.raises(FileNotFoundError):
        await executor.run(os.stat, str(tmp_path / "nothing"))
    await executor.close()


def _wait_for(disk: Disk, path: str) -> bool:
    until = time.monotonic() + 20
    while not disk.exists(path) and time.monotonic() < until:
        time.sleep(0.01)  # in another process
    return disk.exists(path)


def _make(disk: Disk, path: str) -> int:
    disk.open(path, create=True).close()
    return os.getpid()


@pytest.mark.proves("C3", part="committed offsets survive a crash")
async def test_urgent_job_does_not_wait_for_other_jobs(tmp_path: Path) -> None:
    executor, path = SystemExecutor(), str(tmp_path / "made")
    slow = asyncio.ensure_future(executor.work_on_files(_wait_for, path))
    await asyncio.wait_for(executor.work_on_files(_make, path, is_urgent=True), 60)
    assert await asyncio.wait_for(slow, 60)
    await executor.close()


def _die(disk: Disk, code: int) -> None:  # noqa: ARG001
    os._exit(code)


async def test_dead_worker_fails_its_job_and_the_next_job_starts_another(tmp_path: Path) -> None:
    executor = SystemExecutor()
    with pytest.raises(OSError, match="died"):
        await executor.work_on_files(_die, 1, is_urgent=True)
    assert await executor.work_on_files(_make, str(tmp_path / "made"), is_urgent=True) != os.getpid()
    await executor.close()


@pytest.mark.proves("A1", part="every Python from 3.11 on")
async def test_dead_worker_leaves_no_thread_that_blocks_shutdown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminate = _ExecutorManagerThread.terminate_broken

    def terminate_slowly(thread: _ExecutorManagerThread, cause: Any) -> None:
        terminate(thread, cause)
        time.sleep(0.5)  # the failure is reported, but the thread has not ended yet

    monkeypatch.setattr(_ExecutorManagerThread, "terminate_broken", terminate_slowly)
    executor = SystemExecutor()
    with pytest.raises(OSError, match="died"):
        await executor.work_on_files(_die, 1)
    assert not [each for each in threading.enumerate() if isinstance(each, _ExecutorManagerThread)]
    await executor.close()


async def test_idle_worker_exits_and_another_starts_on_demand(tmp_path: Path) -> None:
    worker = Worker(niceness=1, idle_s=0.01)
    first = await worker.run(_make, str(tmp_path / "made"))
    with suppress(ProcessLookupError):
        while True:
            os.kill(first, 0)
            await asyncio.sleep(0.01)
    assert await worker.run(_make, str(tmp_path / "made")) != first
    worker.close()


async def _fetch(address: Address, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(*address)
    writer.write(request)
    response = await reader.read()
    writer.close()
    return response


async def _page(request: PageRequest) -> Page:
    path = request.path
    return (200, "text/plain", b"body of " + path.encode()) if path == "/metrics" else (404, "text/plain", b"no")


@pytest.mark.parametrize(
    ("request_bytes", "status", "ending"),
    [
        (b"GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\n\r\n", b"200", b"body of /metrics"),
        (b"HEAD /metrics HTTP/1.1\r\n\r\n", b"200", b"\r\n\r\n"),
        (b"GET /else HTTP/1.0\r\n\r\n", b"404", b"no"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", b"405", b"here.\n"),
        (b"nonsense\r\n\r\n", b"400", b"HTTP.\n"),
        (b"GET /" + b"x" * 9000, b"400", b"long.\n"),
    ],
)
async def test_pages_are_served_over_http(request_bytes: bytes, status: bytes, ending: bytes) -> None:
    listener = await SocketNetwork().serve_pages(Address("127.0.0.1", 0), _page)
    response = await _fetch(listener.address, request_bytes)
    assert response.startswith(b"HTTP/1.1 " + status)
    assert response.endswith(ending)
    await listener.close()


async def test_rejected_request_gets_challenges() -> None:
    async def closed(request: PageRequest) -> Page:
        return (200, "text/plain", b"") if request.authorization == "Bearer a" else (401, "text/plain", b"")

    listener = await SocketNetwork().serve_pages(Address("127.0.0.1", 0), closed)
    response = await _fetch(listener.address, b"GET / HTTP/1.1\r\n\r\n")
    assert response.startswith(b"HTTP/1.1 401 Unauthorized")
    assert b"WWW-Authenticate: Bearer\r\n" in response
    for headers, status in (
        (b"authorization:Bearer a", b"200"),
        (b"X: y\r\nAUTHORIZATION:  Bearer a ", b"200"),
        (b"Authorization: Bearer b\r\nAuthorization: Bearer a", b"401"),
        (b"\r\nAuthorization: Bearer a", b"401"),  # behind the headers
    ):
        response = await _fetch(listener.address, b"GET / HTTP/1.1\r\n" + headers + b"\r\n\r\n")
        assert response.startswith(b"HTTP/1.1 " + status), headers
    await listener.close()


async def test_slow_clients_do_not_keep_others_from_the_pages() -> None:
    listener = await SocketNetwork().serve_pages(Address("127.0.0.1", 0), _page)
    address = listener.address
    slow = [await asyncio.open_connection(*address) for _ in range(CONNECTIONS_MAX)]
    reader, writer = await asyncio.open_connection(*address)
    writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
    assert (await reader.read()).startswith(b"HTTP/1.1 200")
    for _, each in [*slow, (reader, writer)]:
        each.close()
    await listener.close()
