"""Latency of acknowledgements at a fixed rate, compared with an echo of the same bytes."""

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from moldau.cli.bench.bench import Bench
from moldau.cli.bench.open_loop import Pace
from moldau.cli.bench.produce_load import produce_flows
from moldau.cli.bench.requests import Shape
from moldau.cli.bench.rounds import Round, Subjects
from moldau.cli.bench.servers import MeasuredServer, Server
from moldau.cli.bench.streams import Flow

NAME: Final = "acknowledge"
ECHO_NAME: Final = "echo"


@dataclass(frozen=True, slots=True)
class LatencyCase:
    """Batches of one shape, at a fixed rate for a fixed time."""

    shape: Shape
    bytes_per_s: float
    seconds: float
    acks: int = -1


def run_latency(bench: Bench, case: LatencyCase, *, with_baseline: bool = True) -> dict[str, list[Round]]:
    batch = case.shape.batch()
    with ExitStack() as stack:
        subjects: Subjects = {NAME: lambda: latency_round(bench, case, batch)}
        if with_baseline and bench.has_baselines:
            server = stack.enter_context(bench.baseline("echo"))
            subjects = {**subjects, ECHO_NAME: lambda: _echo_round(bench, case, server, batch)}
        return bench.interleave(subjects)


def latency_round(bench: Bench, case: LatencyCase, batch: bytes) -> Round:
    with bench.cluster.topic(bench.connections) as topic:
        return _paced(bench, case, bench.cluster.server, produce_flows(topic, batch, case.acks))


def _echo_round(bench: Bench, case: LatencyCase, server: Server, batch: bytes) -> Round:
    flow = Flow(server.address, [batch], len(batch))
    return _paced(bench, case, server, [flow] * bench.connections)


def _paced(bench: Bench, case: LatencyCase, server: MeasuredServer | None, flows: list[Flow]) -> Round:
    frame_bytes = flows[0].frame_bytes
    before = server.cpu_s() if server else 0.0
    samples_ms = bench.run(Pace(flows, case.bytes_per_s / frame_bytes, case.seconds))
    spent = server.cpu_s() - before if server else None
    return Round(
        len(samples_ms), case.seconds, len(samples_ms) * frame_bytes, server_cpu_s=spent, samples_ms=samples_ms
    )
