"""CPU and throughput of the REST gateway: requests of one record and of a hundred, each source tree in turn.

    python extra/gateway/bench_gateway.py [LABEL=SRC …]

The CPU time is that of the gateway's process, so that it can be compared on a busy machine; requests per second cannot.
"""

import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from moldau.testing import Broker

OWN = Path(__file__).resolve().parents[2] / "src"
TOPIC = "bench"
PARTITIONS = 6
ROUNDS = 5  # the first one warms up
LOADS = ((1, 16, 60), (100, 8, 25))  # records of a request, connections, requests of each
ORDER = {"order_id": "ord_9082348", "amount": 128.5, "items": ["sku_1", "sku_2"]}


class Gateway(NamedTuple):
    """A running gateway."""

    process: "subprocess.Popen[bytes]"
    port: int

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def served(source: str, bootstrap: str) -> Iterator[Gateway]:
    ready, announce = os.pipe()
    ports = ("--listen", "127.0.0.1:0", "--registry-listen", "127.0.0.1:0", "--announce-fd", str(announce))
    command = [sys.executable, "-P", "-m", "moldau.cli.main", "serve", "-b", bootstrap, *ports]
    environment = {**os.environ, "PYTHONPATH": source}
    with subprocess.Popen(command, pass_fds=[announce], env=environment, stdout=subprocess.DEVNULL) as process:
        os.close(announce)
        try:
            with os.fdopen(ready) as lines:
                yield Gateway(process, int(json.loads(lines.readline())["console"].rpartition(":")[2]))
        finally:
            process.terminate()


def request_of(records: int) -> bytes:
    body = json.dumps({"records": [{"key": f"user_{number}", "value": ORDER} for number in range(records)]})
    head = f"POST /v1/topics/{TOPIC}/produce HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()


async def send(port: int, request: bytes, count: int) -> None:
    """Send requests one after the other on one connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for _ in range(count):
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        if not head.startswith(b"http/1.1 200"):
            raise RuntimeError(head.decode())
        await reader.readexactly(int(head.partition(b"content-length:")[2].split(b"\r\n")[0]))
    writer.close()


async def load(port: int, request: bytes, connections: int, count: int) -> None:
    await asyncio.gather(*(send(port, request, count) for _ in range(connections)))


def measure(gateway: Gateway, request: bytes, connections: int, count: int) -> tuple[float, float]:
    """Return microseconds of CPU per request, and requests per second."""
    cpu_s, started = gateway.cpu_s(), time.perf_counter()
    asyncio.run(load(gateway.port, request, connections, count))
    total = connections * count
    return (gateway.cpu_s() - cpu_s) / total * 1e6, total / (time.perf_counter() - started)


def create_topic(gateway: Gateway) -> None:
    body = json.dumps({"name": TOPIC, "partitions": PARTITIONS}).encode()
    headers = {"Content-Type": "application/json"}
    urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{gateway.port}/v1/topics", body, headers)).close()


def main(arguments: list[str]) -> None:
    sources = {"this": str(OWN)} | dict(each.split("=", 1) for each in arguments)
    with Broker() as broker, ExitStack() as stack:
        gateways = {
            label: stack.enter_context(served(source, broker.bootstrap_servers)) for label, source in sources.items()
        }
        create_topic(gateways["this"])
        for records, connections, count in LOADS:
            request = request_of(records)
            found: dict[str, list[tuple[float, float]]] = {label: [] for label in gateways}
            for _ in range(ROUNDS):
                for label, gateway in gateways.items():
                    found[label].append(measure(gateway, request, connections, count))
            for label, rounds in found.items():
                cpu_us, rate = (statistics.median(each) for each in zip(*rounds[1:], strict=True))
                print(f"{label:8} {records:4} records: {cpu_us:6.0f} us CPU and {rate:6.0f} requests/s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
