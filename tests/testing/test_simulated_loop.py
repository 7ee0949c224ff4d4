"""The event loop on virtual time: asyncio works on it, and every failure is reported."""

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import nullcontext

import pytest

from moldau.testing.disk import Crashed, SimulatedDisk
from moldau.testing.trace import Trace
from moldau_dev.simulation.executor import SimulatedExecutor
from moldau_dev.simulation.loop import Deadlock, SimulatedLoop, SimulationFailed
from moldau_dev.simulation.process import SimulatedProcess, context_of


def test_sleep_takes_no_real_time() -> None:
    async def sleep() -> float:
        loop = asyncio.get_running_loop()
        before = loop.time()
        await asyncio.sleep(3600)
        return loop.time() - before

    started = time.monotonic()
    assert SimulatedLoop().run(sleep()) == 3600
    assert time.monotonic() - started < 10


def test_callbacks_run_in_order_and_timers_by_time_then_age() -> None:
    order: list[str] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(2, order.append, "late")
        loop.call_later(1, order.append, "early")
        loop.call_later(1, order.append, "early too")
        loop.call_soon(order.append, "first")
        loop.call_soon(order.append, "second")
        loop.call_later(1, order.append, "never").cancel()
        await asyncio.sleep(3)

    SimulatedLoop().run(main())
    assert order == ["first", "second", "early", "early too", "late"]


def test_asyncio_primitives_work() -> None:
    async def numbers() -> AsyncIterator[int]:
        for number in range(3):
            await asyncio.sleep(0.1)
            yield number

    async def main() -> list[object]:
        results: list[object] = []
        event, lock, queue = asyncio.Event(), asyncio.Lock(), asyncio.Queue[int]()
        async with asyncio.TaskGroup() as group:
            group.create_task(event.wait())
            group.create_task(queue.put(7))
            async with lock:
                event.set()
        results.append(await queue.get())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await asyncio.Event().wait()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 5)
        results.extend(await asyncio.gather(asyncio.sleep(1, "a"), asyncio.sleep(0.5, "b")))
        async for number in numbers():
            if number == 1:
                break
        results.append(number)
        return results

    assert SimulatedLoop().run(main()) == [7, "a", "b", 1]


def test_deadlock_error_lists_the_waiting_tasks() -> None:
    async def wait_in_vain() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Deadlock, match=r"wait_in_vain at .*test_simulated_loop"):
        SimulatedLoop().run(wait_in_vain())


def test_exception_in_a_callback_fails_the_run() -> None:
    def break_down() -> None:
        raise ValueError("broken")

    async def main() -> None:
        asyncio.get_running_loop().call_later(1, break_down)
        await asyncio.sleep(10)

    with pytest.raises(SimulationFailed, match="broken"):
        SimulatedLoop().run(main())


def test_unretrieved_task_exception_fails_the_run() -> None:
    async def break_down() -> None:
        raise ValueError("unretrieved")

    async def main() -> None:
        task = asyncio.create_task(break_down())
        await asyncio.sleep(1)
        del task
        await asyncio.sleep(0)

    with pytest.raises(SimulationFailed, match="unretrieved"):
        SimulatedLoop().run(main())


@pytest.mark.parametrize("is_killed", [True, False])
def test_task_exceptions_of_killed_processes_are_ignored(is_killed: bool) -> None:
    process, loop = SimulatedProcess("process"), SimulatedLoop()

    async def break_down() -> None:
        raise ValueError("unretrieved")

    async def main() -> None:
        task = loop.create_task(break_down(), context=context_of(process))
        await asyncio.sleep(1)
        if is_killed:
            loop.kill(process)
        del task
        await asyncio.sleep(0)

    with nullcontext() if is_killed else pytest.raises(SimulationFailed, match="unretrieved"):
        loop.run(main())


def test_run_is_bounded_in_virtual_time() -> None:
    async def forever() -> None:
        while True:
            await asyncio.sleep(1)

    with pytest.raises(SimulationFailed, match="Virtual time limit exceeded"):
        SimulatedLoop().run(forever(), virtual_s_max=60)


def test_endless_loop_at_one_point_in_time_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def spin() -> None:
        while True:
            await asyncio.sleep(0)

    monkeypatch.setattr("moldau_dev.simulation.loop.EVENTS_AT_ONCE_MAX", 1000)
    with pytest.raises(SimulationFailed, match="endless loop"):
        SimulatedLoop().run(spin())


def test_remaining_tasks_are_closed_at_the_end() -> None:
    closed: list[str] = []

    async def linger() -> None:
        try:
            await asyncio.sleep(100)
        finally:
            closed.append("linger")

    async def main() -> None:
        main.task = asyncio.create_task(linger())  # type: ignore[attr-defined]
        await asyncio.sleep(1)

    loop = SimulatedLoop()
    loop.run(main())
    assert closed == ["linger"]
    assert loop.is_closed()


def test_no_code_of_a_killed_process_runs() -> None:
    steps: list[str] = []

    async def work(name: str) -> None:
        while True:
            await asyncio.sleep(1)
            steps.append(name)

    async def process() -> None:
        asyncio.get_running_loop().call_later(10, steps.append, "timer")
        async with asyncio.TaskGroup() as group:
            group.create_task(work("one"))
            group.create_task(work("two"))

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop)
        killed = SimulatedProcess("node")
        ended = loop.run_as(killed, process())
        await asyncio.sleep(2.5)
        loop.kill(killed)
        with pytest.raises(Crashed):
            await ended
        await asyncio.sleep(20)

    SimulatedLoop().run(main())
    assert steps == ["one", "two", "one", "two"]


def test_generators_are_closed_only_in_live_processes() -> None:
    closed: list[str] = []

    async def numbers(name: str) -> AsyncIterator[int]:
        try:
            for number in range(10):
                await asyncio.sleep(1)
                yield number
        finally:
            await asyncio.sleep(1)
            closed.append(name)

    async def process(name: str) -> None:
        async for number in numbers(name):
            if number == 3:
                return

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop)
        doomed = SimulatedProcess("doomed")
        await loop.run_as(SimulatedProcess("lucky"), process("lucky"))
        loop.run_as(doomed, process("doomed"))
        await asyncio.sleep(1.5)
        loop.kill(doomed)
        await asyncio.sleep(60)

    SimulatedLoop().run(main())
    assert closed == ["lucky"]


def test_cleanup_of_a_killed_process_has_no_effect() -> None:
    disk = SimulatedDisk()

    async def process() -> None:
        mounted = disk.mount()
        file = mounted.open("/a", create=True)
        try:
            await asyncio.sleep(100)
        finally:
            file.pwrite(b"from the grave", 0)
            await asyncio.sleep(1)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop)
        killed = SimulatedProcess("node")
        loop.run_as(killed, process())
        await asyncio.sleep(1)
        disk.crash()
        loop.kill(killed)
        await asyncio.sleep(200)

    SimulatedLoop().run(main())
    assert disk.contents() == {"/a": b""}


def test_seed_determines_the_order_of_executor_jobs() -> None:
    def run(seed: int) -> tuple[list[int], str]:
        trace = Trace()
        done: list[int] = []

        async def main() -> None:
            executor = SimulatedExecutor(asyncio.get_running_loop(), random.Random(seed), SimulatedDisk().mount())
            await asyncio.gather(*(executor.run(done.append, number) for number in range(10)))
            assert await executor.work_on_files(count_files, "/") == 0
            with pytest.raises(FileNotFoundError):
                await executor.work_on_files(count_files, "/no")
            await executor.close()

        SimulatedLoop(trace=trace).run(main())
        return done, trace.hash()

    assert sorted(run(1)[0]) == list(range(10))
    assert run(1)[0] != run(2)[0]
    assert run(1) == run(1)


def count_files(disk: object, folder: str) -> int:
    assert hasattr(disk, "list")
    return len(disk.list(folder))


def test_unpicklable_job_fails_as_in_a_worker_process() -> None:
    async def main() -> None:
        executor = SimulatedExecutor(asyncio.get_running_loop(), random.Random(0), SimulatedDisk().mount())
        with pytest.raises(Exception, match=r"pickle|local object"):
            await executor.work_on_files(lambda _disk, _job: None, None)

    SimulatedLoop().run(main())
