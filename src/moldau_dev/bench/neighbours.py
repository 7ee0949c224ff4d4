"""Effects of clients on their neighbours: many logins at once, and a client that exceeds its quota tenfold.

A neighbour sends small produce requests, each acknowledged before the next, in a process of its own. Its latencies are
compared with those of the quiet rounds in between.
"""

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

from moldau.cli.bench.rounds import Tell
from moldau.cli.bench.statistics import Spread, quantile, ratios, spread
from moldau.cli.errors import CommandError
from moldau.client.async_client import AsyncClient
from moldau.client.client_quotas import ClientQuotas
from moldau.client.security_settings import parse_security
from moldau.client.settings import ClientSettings
from moldau.model.units import MiB
from moldau.node.ports.clock import SystemClock
from moldau.node.ports.randomness import system_random
from moldau.node.ports.sockets import SocketNetwork
from moldau.testing import Broker

Result = TypeVar("Result")

LOGINS: Final = 1_000
LOGINS_AT_ONCE: Final = 20
QUIET_S: Final = 5.0
QUOTA_BYTES: Final = MiB  # per second
EXCESS: Final = 10
TOPICS: Final = ("neighbour", "greedy")

# Prints the latency of each request in milliseconds, as JSON, when its standard input ends.
_NEIGHBOUR: Final = """
import json, sys, threading, time
from confluent_kafka import Producer
producer = Producer({"linger.ms": 0, "client.id": "neighbour", "log_level": 3, **json.loads(sys.argv[1])})
is_over = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), is_over.set()), daemon=True).start()
def send():
    producer.produce("neighbour", bytes(100))
    if producer.flush(30):
        sys.exit("not acknowledged")
send()
print("ready", flush=True)
found = []
while not is_over.is_set():
    started = time.perf_counter()
    send()
    found.append((time.perf_counter() - started) * 1000)
print(json.dumps(found))
"""
# Tries to send at a rate for some seconds, and prints how many bytes were acknowledged.
_GREEDY: Final = """
import json, sys, time
from confluent_kafka import Producer
settings, rate, seconds = json.loads(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
acknowledged = 0
def delivered(error, message):
    global acknowledged
    if error is None and time.perf_counter() < end:
        acknowledged += len(message.value())
limits = {"queue.buffering.max.kbytes": 65536, "batch.size": 65536, "linger.ms": 5, "message.timeout.ms": 600000}
producer = Producer({"client.id": "greedy", "log_level": 3, "on_delivery": delivered, **limits, **settings})
started = time.perf_counter()
end, sent = started + seconds, 0
while (now := time.perf_counter()) < end:
    if sent < (now - started) * rate:
        try:
            producer.produce("greedy", bytes(10000))
            sent += 10000
        except BufferError:
            producer.poll(0.01)
    else:
        producer.poll(0.001)
    producer.poll(0)
print(json.dumps([acknowledged, sent]), flush=True)
import os; os._exit(0)
"""


@dataclass(slots=True)
class Latency:
    """The p99 of a neighbour, quiet and disturbed, round by round."""

    quiet_ms: list[float] = field(default_factory=list)
    disturbed_ms: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class LoginFigures:
    """The cost of 1,000 logins for the neighbours."""

    quiet_p99_ms: Spread
    disturbed_p99_ms: Spread
    ratio: Spread
    logins_per_s: Spread


@dataclass(frozen=True, slots=True)
class ThrottleFigures:
    """The throttling of a client at ten times its quota, and its effect on the neighbours."""

    of_quota: Spread  # bytes that were acknowledged, to those that the quota allows
    attempted: Spread  # bytes that the client wanted to send, to the same
    quiet_p99_ms: Spread
    disturbed_p99_ms: Spread
    ratio: Spread


def measure_logins(rounds: int, tell: Tell, logins: int = LOGINS, quiet_s: float = QUIET_S) -> LoginFigures:
    latency, per_s = Latency(), []
    with Broker(security="scram") as broker:
        broker.create_topic(TOPICS[0])
        settings = {"bootstrap.servers": broker.bootstrap_servers, **broker.librdkafka_settings}
        for number in range(rounds + 1):
            tell(f"{logins:,} logins: round {number} of {rounds}" if number else "warming up")
            quiet, _ = _p99_while(settings, partial(time.sleep, quiet_s))
            disturbed, taken_s = _p99_while(settings, partial(_log_in, broker, logins))
            if number:
                latency.quiet_ms.append(quiet)
                latency.disturbed_ms.append(disturbed)
                per_s.append(logins / taken_s)
    return LoginFigures(
        spread(latency.quiet_ms),
        spread(latency.disturbed_ms),
        ratios(latency.disturbed_ms, latency.quiet_ms),
        spread(per_s),
    )


def measure_throttling(rounds: int, seconds: float, tell: Tell) -> ThrottleFigures:
    latency, held, attempted = Latency(), [], []
    with Broker() as broker:
        for topic in TOPICS:
            broker.create_topic(topic)
        with broker.client() as admin:
            limit = {"producer_byte_rate": float(QUOTA_BYTES)}
            admin.run(ClientQuotas(admin.asynchronous).alter({"client-id": "greedy"}, set_to=limit))
        settings = {"bootstrap.servers": broker.bootstrap_servers}
        for number in range(rounds):
            tell(f"a client at {EXCESS} times its quota for {seconds:g} s: round {number + 1} of {rounds}")
            quiet, _ = _p99_while(settings, partial(time.sleep, seconds))
            disturbed, (acknowledged, sent) = _p99_while(settings, partial(_exceed, settings, seconds))
            latency.quiet_ms.append(quiet)
            latency.disturbed_ms.append(disturbed)
            held.append(acknowledged / QUOTA_BYTES / seconds)
            attempted.append(sent / QUOTA_BYTES / seconds)
    return ThrottleFigures(
        spread(held),
        spread(attempted),
        spread(latency.quiet_ms),
        spread(latency.disturbed_ms),
        ratios(latency.disturbed_ms, latency.quiet_ms),
    )


def _p99_while(settings: dict[str, Any], work: Callable[[], Result]) -> tuple[float, Result]:
    """The p99 latency of a neighbour during the work, in milliseconds, and the result of the work."""
    with _neighbour(settings) as found:
        result = work()
    return quantile(sorted(found), 0.99), result


@contextmanager
def _neighbour(settings: dict[str, Any]) -> Iterator[list[float]]:
    command = [sys.executable, "-c", _NEIGHBOUR, json.dumps(settings)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    found: list[float] = []
    try:
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            raise CommandError("the neighbour cannot produce")
        yield found
        output, _ = process.communicate()
        found += json.loads(output)
    finally:
        process.kill()
        process.wait()


def _exceed(settings: dict[str, Any], seconds: float) -> tuple[int, int]:
    command = [sys.executable, "-c", _GREEDY, json.dumps(settings), str(EXCESS * QUOTA_BYTES), str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    acknowledged, sent = json.loads(done.stdout)
    return acknowledged, sent


def _log_in(broker: Broker, count: int) -> float:
    """Log in that many times in a thread of its own; return the seconds."""
    settings = ClientSettings(security=parse_security(broker.client_settings, system_random().randbytes))

    async def one(turn: asyncio.Semaphore) -> None:
        network = SocketNetwork()
        async with (
            turn,
            AsyncClient(network, SystemClock(), system_random(), broker.bootstrap_servers, settings=settings) as client,
        ):
            await client.describe_cluster()

    async def all_of_them() -> None:
        turn = asyncio.Semaphore(LOGINS_AT_ONCE)
        await asyncio.gather(*(one(turn) for _ in range(count)))

    started_s = time.perf_counter()
    thread = threading.Thread(target=lambda: asyncio.run(all_of_them()))
    thread.start()
    thread.join()
    return time.perf_counter() - started_s
