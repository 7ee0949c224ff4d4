"""Moldau's queues beside Redis streams, each with its own Python client: throughput, p99, and what a kill -9 loses.

    put     jobs of 100 bytes, confirmed in batches
    take    members that take one job at a time and acknowledge it
    p99     from put to take at a fixed rate, with one member
    lost    jobs whose put was confirmed, one by one, that are gone after kill -9 of the server

Figures are only comparable within one run, on an idle machine.
"""

import argparse
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Protocol

import moldau
from moldau.testing import Broker
from moldau.testing.free_ports import free_ports

VALUE: Final = b"x" * 80
QUEUE: Final = "bench"
RATE: Final = 200  # jobs per second, of the latency
READY_S: Final = 30.0


class Server(Protocol):
    """One server with a queue, and how its client puts and takes."""

    name: str

    def put_many(self, values: list[bytes]) -> None: ...

    def put(self, value: bytes) -> None: ...

    def take(self, count: int, done: Callable[[bytes], None]) -> None: ...

    def crash(self) -> None: ...

    def close(self) -> None: ...


class MoldauServer:
    """A broker with default settings: an acknowledged record is in the page cache, as in Kafka."""

    name = "moldau"

    def __init__(self) -> None:
        self._broker = Broker().start()
        self._broker.create_queue(QUEUE)
        self._connect()

    def _connect(self) -> None:
        self._connection = moldau.connect(self._broker.bootstrap_servers, log_level=0, linger_ms=1)

    def put_many(self, values: list[bytes]) -> None:
        for value in values:
            self._connection.publish(QUEUE, value)
        self._connection.flush()

    def put(self, value: bytes) -> None:
        self._connection.publish(QUEUE, value, waits=True, timeout_s=5)

    def take(self, count: int, done: Callable[[bytes], None]) -> None:
        with self._connection.queue(QUEUE) as queue:
            for _ in range(count):
                job = queue.take(READY_S)
                if job is None:
                    return
                done(job.value or b"")
                job.ack()

    def crash(self) -> None:
        self._broker.kill()
        self._broker.start()

    def close(self) -> None:
        self._connection.close()
        self._broker.close()


class RedisServer:
    """Redis with an append-only file; `fsync` is `everysec`, the default, or `always`."""

    def __init__(self, fsync: str) -> None:
        import redis

        self._redis = redis
        self.name = f"redis, {fsync}"
        self._fsync = fsync
        self._folder = Path(tempfile.mkdtemp(prefix="moldau-redis-"))
        (self._port,) = free_ports(1)
        self._start()
        self._client.xgroup_create(QUEUE, QUEUE, id="0", mkstream=True)

    def _start(self) -> None:
        options = ["--port", str(self._port), "--appendonly", "yes", "--appendfsync", self._fsync, "--save", ""]
        self._process = subprocess.Popen(
            ["redis-server", *options, "--dir", str(self._folder)], stdout=subprocess.DEVNULL
        )
        self._client = self._redis.Redis(port=self._port)
        end_s = time.monotonic() + READY_S
        while True:
            try:
                self._client.ping()
                return
            except self._redis.exceptions.RedisError:
                if time.monotonic() > end_s:
                    raise
                time.sleep(0.05)  # polls the condition

    def put_many(self, values: list[bytes]) -> None:
        for first in range(0, len(values), 500):
            pipeline = self._client.pipeline(transaction=False)
            for value in values[first : first + 500]:
                pipeline.xadd(QUEUE, {"v": value})
            pipeline.execute()

    def put(self, value: bytes) -> None:
        self._client.xadd(QUEUE, {"v": value})

    def take(self, count: int, done: Callable[[bytes], None]) -> None:
        client: Any = self._redis.Redis(port=self._port)
        member = str(threading.get_ident())
        for _ in range(count):
            found = client.xreadgroup(QUEUE, member, {QUEUE: ">"}, count=1, block=int(READY_S * 1000))
            if not found:
                return
            ((identity, fields),) = found[0][1]
            done(fields[b"v"])
            client.xack(QUEUE, QUEUE, identity)

    def crash(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        self._start()

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


@contextmanager
def timed() -> Iterator[Callable[[], float]]:
    began_s = time.monotonic()
    yield lambda: time.monotonic() - began_s


def take_all(server: Server, jobs: int, members: int) -> float:
    """Jobs per second of all members together."""
    threads = [threading.Thread(target=server.take, args=(jobs // members, lambda _: None)) for _ in range(members)]
    with timed() as elapsed_s:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return jobs / elapsed_s()


def latency_p99_ms(server: Server, seconds: float) -> float:
    """From put to take, at RATE."""
    found: list[float] = []
    jobs = int(seconds * RATE)
    taker = threading.Thread(
        target=server.take, args=(jobs, lambda value: found.append(time.monotonic() - float(value.split()[0])))
    )
    taker.start()
    began_s = time.monotonic()
    for number in range(jobs):
        time.sleep(max(0.0, began_s + number / RATE - time.monotonic()))  # the pace of the puts
        server.put(f"{time.monotonic()} ".encode() + VALUE)
    taker.join()
    return sorted(found[jobs // 10 :])[int(len(found[jobs // 10 :]) * 0.99)] * 1000


def lost_after_kill(server: Server, seconds: float) -> tuple[int, int]:
    """Confirmed puts until the kill, and how many of them are gone."""
    confirmed: list[bytes] = []
    is_over = threading.Event()

    def put() -> None:
        while not is_over.is_set():
            value = b"%d " % len(confirmed) + VALUE
            try:
                server.put(value)
            except Exception:
                return  # the server is gone: this one is not confirmed
            confirmed.append(value)

    putter = threading.Thread(target=put)
    putter.start()
    time.sleep(seconds)  # how long it puts before the kill
    server.crash()
    is_over.set()
    putter.join()
    left = set(confirmed)
    taken: list[bytes] = []
    server.take(len(confirmed), taken.append)
    return len(confirmed), len(left.difference(taken))


def measure(server: Server, jobs: int, members: int, seconds: float) -> None:
    values = [b"%08d " % number + VALUE for number in range(jobs)]
    with timed() as elapsed_s:
        server.put_many(values)
    put_per_s = jobs / elapsed_s()
    take_per_s = take_all(server, jobs, members)
    p99_ms = latency_p99_ms(server, seconds)
    confirmed, lost = lost_after_kill(server, seconds)
    server.close()
    print(
        f"{server.name:16} put {put_per_s:9,.0f}/s   take {take_per_s:7,.0f}/s   p99 {p99_ms:7.2f} ms   "
        f"lost {lost} of {confirmed}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--members", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=5.0, help="of the latency, and until the kill")
    options = parser.parse_args()
    servers: list[Callable[[], Server]] = [
        MoldauServer,
        lambda: RedisServer("everysec"),
        lambda: RedisServer("always"),
    ]
    for new_server in servers:
        measure(new_server(), options.jobs, options.members, options.seconds)


if __name__ == "__main__":
    main()
