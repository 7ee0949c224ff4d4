"""Produce to three replicas, compared with a plain pipeline of three processes and with one replica."""

from contextlib import ExitStack
from dataclasses import replace
from typing import Final

from moldau.cli.bench import cases
from moldau.cli.bench.bench import Bench
from moldau.cli.bench.cluster import bench_folder, own_cluster
from moldau.cli.bench.generator import Generator
from moldau.cli.bench.latency import run_latency
from moldau.cli.bench.pages import touch_pages
from moldau.cli.bench.produce_load import ProduceCase, learn, produce_round, rate_of
from moldau.cli.bench.rounds import Round, Subjects, Tell
from moldau.cli.bench.servers import Server
from moldau.cli.bench.session import Plan
from moldau.cli.bench.streams import Flow

REPLICAS: Final = 3
COPY_REPLY_BYTES: Final = 4  # the response of a follower to each request

THREE: Final = replace(cases.PRODUCE_64K, name="produce 64 KiB, 3 replicas")
ONE: Final = replace(cases.PRODUCE_64K, name="produce 64 KiB, 1 replica")


def measure_replicated(plan: Plan, tell: Tell) -> dict[str, list[Round]]:
    """Measure our own cluster; CPU time is the sum of all its brokers."""
    with ExitStack() as stack:
        folder = stack.enter_context(bench_folder(plan.folder))
        tell("starting three brokers")
        cluster = stack.enter_context(own_cluster(folder, REPLICAS))
        generator = stack.enter_context(Generator())
        bench = Bench(cluster, generator, folder, plan.connections, plan.rounds, tell)
        # Each of the three leads a third of the partitions, and has as many connections as a single broker.
        busy = replace(bench, connections=REPLICAS * plan.connections)
        batch = THREE.shape.batch()
        subjects: Subjects = {
            THREE.name: lambda: produce_round(busy, THREE, batch),
            ONE.name: lambda: produce_round(busy, ONE, batch, replicas=1),
        }
        if bench.has_baselines:
            subjects = {**subjects, THREE.plain_name: _plain(busy, THREE, batch, stack)}
        return {**busy.interleave(subjects), **run_latency(bench, cases.ACKNOWLEDGE_20_MB)}


def _plain(bench: Bench, case: ProduceCase, batch: bytes, stack: ExitStack) -> "PlainPipeline":
    frame, reply_bytes = learn(bench, case, batch)
    sizes = {"folder": bench.folder, "frame_bytes": len(frame)}
    copies = [
        stack.enter_context(bench.baseline("receive_and_write", **sizes, reply_bytes=COPY_REPLY_BYTES))
        for _ in range(REPLICAS - 1)
    ]
    first = stack.enter_context(
        bench.baseline(
            "receive_write_forward",
            **sizes,
            reply_bytes=reply_bytes,
            others=",".join(each.bootstrap_servers for each in copies),
            others_reply_bytes=COPY_REPLY_BYTES,
        )
    )
    return PlainPipeline(bench, case, Flow(first.address, [frame], reply_bytes), [first, *copies], len(batch))


class PlainPipeline:
    """Three processes that forward bytes without parsing them."""

    def __init__(self, bench: Bench, case: ProduceCase, flow: Flow, servers: list[Server], batch_bytes: int) -> None:
        self._bench = bench
        self._case = case
        self._flow = flow
        self._servers = servers
        self._batch_bytes = batch_bytes

    def __call__(self) -> Round:
        touch_pages(self._bench.folder, REPLICAS * self._case.load.bytes_max)
        before_s = self._cpu_s()
        measured = self._bench.pump(None, [self._flow] * self._bench.connections, self._case.load)
        measured = replace(measured, server_cpu_s=self._cpu_s() - before_s)
        return rate_of(measured, self._case, self._batch_bytes)

    def _cpu_s(self) -> float:
        return sum(server.cpu_s() for server in self._servers)
