"""Fetch throughput: large slices of cached logs, compared with a baseline that sends slices of one file."""

from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import count, takewhile
from pathlib import Path
from typing import Final

from moldau.cli.bench.bench import Bench, Load
from moldau.cli.bench.cluster import Topic
from moldau.cli.bench.produce_load import produce_flows
from moldau.cli.bench.requests import Shape, fetch_frame, probe
from moldau.cli.bench.rounds import Round, Subjects
from moldau.cli.bench.servers import MeasuredServer, Server
from moldau.cli.bench.streams import Flow
from moldau.model.units import MiB

NAME: Final = "fetch 1 MiB"
PLAIN_NAME: Final = "fetch 1 MiB, plain sendfile"
SHAPE: Final = Shape(150, 100)
FILLING: Final = Load(in_flight=5, bytes_max=256 * MiB, seconds_max=30.0)
SLICES_MIN: Final = 4


@dataclass(frozen=True, slots=True)
class Slices:
    """The requests that read through a partition, and the size and record count of each response."""

    flow: Flow
    slice_bytes: int
    records: int


def run_fetch(
    bench: Bench, load: Load, fetch_bytes: int = MiB, *, with_baseline: bool = True
) -> dict[str, list[Round]]:
    with bench.cluster.topic(bench.connections) as topic, ExitStack() as stack:
        bench.tell(f"{NAME}: filling the topic")
        walks = _fill(bench, topic, fetch_bytes)
        flows = [each.flow for each in walks]
        subjects: Subjects = {NAME: lambda: _round(bench, bench.cluster.server, flows, walks[0], load)}
        if with_baseline and bench.has_baselines:
            server = stack.enter_context(_sendfile_server(bench, walks[0]))
            plain = [replace(each, address=server.address) for each in flows]
            subjects = {**subjects, PLAIN_NAME: lambda: _round(bench, server, plain, walks[0], load)}
        return bench.interleave(subjects)


def _fill(bench: Bench, topic: Topic, fetch_bytes: int) -> list[Slices]:
    batch = SHAPE.batch()
    bench.pump(None, produce_flows(topic, batch), FILLING)
    ends = bench.cluster.end_offsets(topic)
    return [walk(topic, index, ends[index], len(batch), SHAPE.records, fetch_bytes) for index in range(len(ends))]


def walk(
    topic: Topic, partition: int, end_offset: int, batch_bytes: int, batch_records: int, fetch_bytes: int
) -> Slices:
    """Build the requests for all slices of the partition that are complete."""
    first = probe(topic.leaders[partition], fetch_frame(topic.name, partition, 0, fetch_bytes))
    slice_bytes = len(first.response.responses[0].partitions[0].records)
    records = slice_bytes // batch_bytes * batch_records
    # A broker may truncate the last batch of a response; the next response then contains it.
    last = end_offset - -(-fetch_bytes // batch_bytes) * batch_records
    offsets = list(takewhile(lambda offset: offset <= last, count(0, records)))
    frames = [fetch_frame(topic.name, partition, offset, fetch_bytes) for offset in offsets]
    return Slices(Flow(topic.leaders[partition], frames, first.reply_bytes), slice_bytes, records)


def _sendfile_server(bench: Bench, walk: Slices) -> Server:
    path: Path = bench.folder / "sent"
    chunk = bytes(MiB)
    with path.open("wb") as file:
        for _ in range(FILLING.bytes_max // MiB):
            file.write(chunk)
    head_bytes = walk.flow.reply_bytes - walk.slice_bytes
    return bench.baseline(  # type: ignore[return-value]  # a context manager that is a server
        "send_file",
        file=path,
        request_bytes=walk.flow.frame_bytes,
        head_bytes=head_bytes,
        slice_bytes=walk.slice_bytes,
    )


def _round(bench: Bench, server: MeasuredServer | None, flows: list[Flow], walk: Slices, load: Load) -> Round:
    measured = bench.pump(server, flows, load)
    return replace(measured, bytes=measured.requests * walk.slice_bytes, records=measured.requests * walk.records)
