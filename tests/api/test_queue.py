"""Queues of the Python API: verdicts, retries, threads, coroutines and workers, against a real broker."""

import asyncio
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import pytest

import moldau
from moldau.api import Connection, Failed, Job, Progress, Queue
from moldau.testing import Broker

pytestmark = pytest.mark.proves("C8", part="queues of the Python API")

DEADLINE_S = 30.0
LOCK_S = 30.0
SETTINGS = {
    "group.share.min.heartbeat.interval.ms": 100,
    "group.share.heartbeat.interval.ms": 300,
    "share.coordinator.state.topic.num.partitions": 3,
}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(settings=SETTINGS) as broker:
        yield broker


@pytest.fixture
def connection(broker: Broker) -> Iterator[Connection]:
    with moldau.connect(broker.bootstrap_servers, log_level=0) as connection:
        yield connection


MakeQueue = Callable[..., Queue]


@pytest.fixture
def make_queue(broker: Broker, connection: Connection, request: pytest.FixtureRequest) -> MakeQueue:
    topic_name = re.sub(r"[^a-zA-Z0-9]+", "-", request.node.name)

    def make(**options: object) -> Queue:
        name = broker.create_queue(topic_name, share_delivery_count_limit=3)
        return connection.queue(name, **{"idle_s": 3.0, **options})  # type: ignore[arg-type]

    return make


def until(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.02)  # polls the condition


def take(queue: Queue, count: int) -> Iterator[Job]:
    """The next jobs; more than `count` would be a failure of the caller's expectation."""
    for _ in range(count):
        job = queue.take(DEADLINE_S)
        assert job is not None
        yield job


def put(queue: Queue, count: int) -> None:
    for number in range(count):
        queue.put(str(number), waits=True)


def test_verdicts_decide_whether_a_job_is_delivered_again(make_queue: MakeQueue) -> None:
    queue = make_queue()
    put(queue, 4)
    seen: list[tuple[str | None, int]] = []
    for job in take(queue, 6):
        seen.append((job.text, job.attempt))
        if job.text == "1":
            job.reject("broken")
        elif job.text == "2" and job.attempt == 1:
            job.retry()
        elif job.text != "3" or job.attempt == 2:
            job.ack()  # without a verdict, "3" is delivered again
    assert sorted(seen) == [("0", 1), ("1", 1), ("2", 1), ("2", 2), ("3", 1), ("3", 2)]
    assert queue.take(1.0) is None


def test_job_is_delivered_until_its_attempts_are_used_up(make_queue: MakeQueue) -> None:
    queue = make_queue()
    put(queue, 1)
    attempts = []
    for job in take(queue, 3):
        attempts.append(job.attempt)
        job.retry()
    assert attempts == [1, 2, 3]
    assert queue.take(1.0) is None


def test_exception_releases_the_job_in_hand(make_queue: MakeQueue) -> None:
    def fail() -> None:
        with make_queue(prefetch=5) as queue:
            put(queue, 3)
            for job in queue:
                if job.text == "1":
                    raise ZeroDivisionError
                job.ack()

    with pytest.raises(ZeroDivisionError):
        fail()
    left = []
    for job in take(make_queue(), 2):
        left.append(job.text)
        job.ack(waits=True)
    assert left == ["1", "2"]


def test_put_keeps_key_and_headers(make_queue: MakeQueue) -> None:
    queue = make_queue()
    place = queue.put({"to": "ann"}, key="ann", headers={"kind": "welcome"}, waits=True)
    job = queue.take(DEADLINE_S)
    assert job is not None
    assert (job.place, job.json(), job.key, job.headers) == (place, {"to": "ann"}, b"ann", (("kind", b"welcome"),))
    job.ack()


def test_invalid_calls_raise_failed(make_queue: MakeQueue, connection: Connection) -> None:
    queue = make_queue()
    put(queue, 2)
    first = queue.take(DEADLINE_S)
    assert first is not None
    first.ack()
    with pytest.raises(Failed, match="has its verdict already"):
        first.reject()
    second = queue.take(DEADLINE_S)
    queue.close()
    assert second is not None
    with pytest.raises(Failed, match="was released: its queue was closed"):
        second.ack()
    with pytest.raises(Failed, match="is closed"):
        queue.take(0)
    with pytest.raises(Failed, match="has no worker"):
        queue.run()
    with pytest.raises(Failed, match="prefetch=0"):
        connection.queue("any", prefetch=0)
    with pytest.raises(Failed, match="concurrency=0"):
        queue.worker(concurrency=0)


def test_delay_is_rejected_for_a_group_without_delays(make_queue: MakeQueue) -> None:
    queue = make_queue()
    with pytest.raises(Failed, match=r"has no delays \(share\.delay\.enable\)"):
        queue.put("later", delay=5)
    with pytest.raises(Failed, match="Give delay or at, not both"):
        queue.put("later", delay=5, at=datetime.now(UTC))
    put(queue, 1)
    job = queue.take(DEADLINE_S)
    assert job is not None
    with pytest.raises(Failed, match="has no delays"):
        job.retry(in_=5)
    job.ack()


def test_threads_share_a_queue(make_queue: MakeQueue) -> None:
    queue = make_queue(idle_s=DEADLINE_S)
    seen: dict[int, list[str]] = {}

    def work() -> None:
        mine = seen[threading.get_ident()] = []
        for job in queue:
            mine.append(job.text or "")
            job.ack()
            if sum(map(len, seen.values())) == 60:
                queue.close()

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    put(queue, 60)
    for thread in threads:
        thread.join(DEADLINE_S)
    assert sorted(text for mine in seen.values() for text in mine) == sorted(map(str, range(60)))


def test_coroutines_iterate_over_a_queue(make_queue: MakeQueue) -> None:
    async def work() -> list[str | None]:
        seen = []
        async with make_queue() as queue:
            await asyncio.to_thread(put, queue, 5)
            async for job in queue:
                seen.append(job.text)
                job.ack()
                if len(seen) == 5:
                    break
        return seen

    assert asyncio.run(work()) == list("01234")


def test_worker_acks_retries_and_rejects(make_queue: MakeQueue) -> None:
    queue = make_queue()
    put(queue, 12)
    seen: list[tuple[str | None, int]] = []
    reports: list[Progress] = []

    @queue.worker(concurrency=3, reject_on=ValueError)
    def work(job: Job) -> None:
        seen.append((job.text, job.attempt))
        if job.text == "3":
            raise ValueError("broken")
        if job.text == "5" and job.attempt < 3:
            raise ConnectionError("try later")

        if len(seen) == 14:
            queue.stop()

    progress = queue.run(on_progress=reports.append, progress_s=0.5)
    assert (progress.done, progress.retried, progress.rejected) == (11, 2, 1)
    once = [(str(number), 1) for number in range(12)]
    assert sorted(seen) == sorted([*once, ("5", 2), ("5", 3)])
    assert reports[-1].done == 11


def test_coroutine_worker_runs_jobs_concurrently(make_queue: MakeQueue) -> None:
    queue = make_queue()
    put(queue, 4)
    running = 0
    together = asyncio.Event()

    @queue.worker(concurrency=4)
    async def work(_: Job) -> None:
        nonlocal running
        running += 1
        if running == 4:
            together.set()
            queue.stop()
        await asyncio.wait_for(together.wait(), DEADLINE_S)

    progress = queue.run()
    assert (progress.done, progress.retried) == (4, 0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_finishes_the_jobs_in_hand(make_queue: MakeQueue, number: signal.Signals) -> None:
    queue = make_queue()
    put(queue, 3)
    started = threading.Event()

    @queue.worker(concurrency=1)
    def work(_: Job) -> None:
        started.set()
        until(lambda: queue._worker is not None and queue._worker.stopping.is_set())

    def send() -> None:
        started.wait(DEADLINE_S)
        os.kill(os.getpid(), number)

    sender = threading.Thread(target=send)
    sender.start()
    progress = queue.run()
    sender.join()
    assert (progress.done, progress.released) == (1, 0)
    queue.close()
    assert [job.text for job in take(make_queue(prefetch=2), 2)] == ["1", "2"]


def test_job_is_released_when_the_grace_period_is_over(make_queue: MakeQueue) -> None:
    queue = make_queue()
    put(queue, 1)
    started, end = threading.Event(), threading.Event()

    @queue.worker()
    def work(_: Job) -> None:
        started.set()
        queue.stop()
        end.wait(DEADLINE_S)

    progress = queue.run(grace_s=0.3)
    assert (progress.done, progress.released) == (0, 1)
    job = make_queue().take(LOCK_S / 2)
    end.set()
    assert job is not None
    assert job.text == "0"
    job.ack()
