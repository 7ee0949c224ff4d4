"""Produce throughput, compared with a baseline loop that only receives and writes."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from moldau.cli.bench.bench import Bench, Load
from moldau.cli.bench.cluster import Topic
from moldau.cli.bench.pages import touch_pages
from moldau.cli.bench.requests import Probe, Shape, probe, produce_frame
from moldau.cli.bench.rounds import Round, Subjects
from moldau.cli.bench.servers import Server
from moldau.cli.bench.streams import Flow
from moldau.cli.errors import CommandError


@dataclass(frozen=True, slots=True)
class ProduceCase:
    """Batches of one shape."""

    name: str
    shape: Shape
    load: Load
    acks: int = -1

    @property
    def plain_name(self) -> str:
        return f"{self.name}, plain loop"


def run_produce(bench: Bench, cases: Sequence[ProduceCase], *, with_baselines: bool = True) -> dict[str, list[Round]]:
    """Measure all cases in turn, round by round."""
    with ExitStack() as stack:
        subjects: Subjects = {}
        for case in cases:
            subjects = {**subjects, **_subjects(bench, case, stack, with_baselines)}
        return bench.interleave(subjects)


def _subjects(bench: Bench, case: ProduceCase, stack: ExitStack, with_baseline: bool) -> Subjects:
    batch = case.shape.batch()
    subjects: Subjects = {case.name: lambda: produce_round(bench, case, batch)}
    if with_baseline and bench.has_baselines:
        frame, reply_bytes = learn(bench, case, batch)
        server = stack.enter_context(
            bench.baseline("receive_and_write", folder=bench.folder, frame_bytes=len(frame), reply_bytes=reply_bytes)
        )
        flow = Flow(server.address, [frame], reply_bytes)
        subjects = {**subjects, case.plain_name: lambda: _plain_round(bench, case, server, flow, len(batch))}
    return subjects


def learn(bench: Bench, case: ProduceCase, batch: bytes) -> tuple[bytes, int]:
    """Return a frame as sent to the broker and the size of its response, for a baseline with the same traffic."""
    with bench.cluster.topic(1) as topic:
        frame = produce_frame(topic.name, 0, batch, case.acks)
        return frame, probe(topic.leaders[0], frame).reply_bytes


def produce_round(bench: Bench, case: ProduceCase, batch: bytes, *, replicas: int | None = None) -> Round:
    """Measure one round, with one connection per partition of a new topic."""
    with bench.cluster.topic(bench.connections, replicas=replicas) as topic:
        flows = produce_flows(topic, batch, case.acks)
        touch_pages(bench.folder, case.load.bytes_max * max(replicas or bench.cluster.replicas, 1))
        measured = bench.pump(bench.cluster.server, flows, case.load)
        _verify(bench, topic, (measured.requests + len(flows)) * case.shape.records)
    return rate_of(measured, case, len(batch))


def produce_flows(topic: Topic, batch: bytes, acks: int = -1) -> list[Flow]:
    """Return a flow per partition, after one successful batch to each."""
    frames = [produce_frame(topic.name, index, batch, acks) for index in range(len(topic.leaders))]
    probes: list[Probe] = [probe(leader, frame) for leader, frame in zip(topic.leaders, frames, strict=True)]
    return [
        Flow(leader, [frame], tried.reply_bytes)
        for leader, frame, tried in zip(topic.leaders, frames, probes, strict=True)
    ]


def _verify(bench: Bench, topic: Topic, records: int) -> None:
    """Compare end offsets with the responses, which were only counted: some may have been errors."""
    found = sum(bench.cluster.end_offsets(topic))
    if found != records:
        raise CommandError(f"{records} records were acknowledged, but the log has {found}: some requests were rejected")


def _plain_round(bench: Bench, case: ProduceCase, server: Server, flow: Flow, batch_bytes: int) -> Round:
    touch_pages(bench.folder, case.load.bytes_max)
    measured = bench.pump(server, [flow] * bench.connections, case.load)
    return rate_of(measured, case, batch_bytes)


def rate_of(measured: Round, case: ProduceCase, batch_bytes: int) -> Round:
    requests = measured.requests
    return replace(measured, bytes=requests * batch_bytes, records=requests * case.shape.records)
