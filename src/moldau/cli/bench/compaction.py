"""Latency of acknowledgements while a large log is being compacted, beside the same without."""

import re
import time
from typing import Final

from moldau.cli.bench import stalls
from moldau.cli.bench.bench import Bench, Load
from moldau.cli.bench.cluster import Topic
from moldau.cli.bench.latency import LatencyCase, latency_round
from moldau.cli.bench.requests import Shape, probe, produce_frame
from moldau.cli.bench.rounds import Round
from moldau.cli.bench.streams import Flow
from moldau.cli.errors import Complaint
from moldau.client.words import Resource, ResourceKind
from moldau.model.units import MiB

WITHOUT_NAME: Final = "acknowledge, no compaction"
WHILE_NAME: Final = "acknowledge, while compacting"
SHAPE: Final = Shape(149, 100)
KEYS: Final = 40_000
FRAMES: Final = 256
SECONDS_MAX: Final = 300.0
BUSY_SHARE: Final = 0.5  # of a core, beside what the load itself takes: then compaction was at work in that round
SETTINGS: Final = {"log.cleaner.backoff.ms": "100", "log.retention.check.interval.ms": "1000"}
TOPIC_CONFIGS: Final = {
    "cleanup.policy": "delete",
    "segment.bytes": str(64 * MiB),
    "min.cleanable.dirty.ratio": "0.01",
}


def run_compaction(bench: Bench, case: LatencyCase, log_bytes: int) -> dict[str, list[Round]]:
    """The log is filled under `cleanup.policy=delete`; the change to `compact` starts the work."""
    batch = case.shape.batch()
    with bench.cluster.topic(1, TOPIC_CONFIGS) as topic:
        bench.tell(f"filling a log with {log_bytes // MiB} MiB")
        _fill(bench, topic, log_bytes)
        without = bench.interleave({WITHOUT_NAME: lambda: latency_round(bench, case, batch)})
        usual_cpu_s = max(each.server_cpu_s or 0.0 for each in without[WITHOUT_NAME])
        _compact(bench, topic)
        found = _rounds_while(bench, case, batch, topic, usual_cpu_s)
    # Round by round, as far as both go.
    count = min(len(found), len(without[WITHOUT_NAME]))
    return {WITHOUT_NAME: without[WITHOUT_NAME][:count], WHILE_NAME: found[:count]}


def _fill(bench: Bench, topic: Topic, log_bytes: int) -> None:
    batches = [SHAPE.batch(key_count=KEYS, first_key=number * SHAPE.records) for number in range(FRAMES)]
    frames = [produce_frame(topic.name, 0, batch) for batch in batches]
    leader = topic.leaders[0]
    flow = Flow(leader, frames, probe(leader, frames[0]).reply_bytes)
    bench.pump(None, [flow], Load(in_flight=5, bytes_max=log_bytes, seconds_max=SECONDS_MAX))


def _compact(bench: Bench, topic: Topic) -> None:
    bench.cluster.client.alter_configs(Resource(ResourceKind.TOPIC, topic.name), {"cleanup.policy": "compact"})


def _rounds_while(bench: Bench, case: LatencyCase, batch: bytes, topic: Topic, usual_cpu_s: float) -> list[Round]:
    """Rounds in which compaction was at work from beginning to end, as far as the log's size and the CPU tell."""
    full_bytes = _log_bytes(bench, topic)
    deadline = time.monotonic() + SECONDS_MAX
    rounds: list[Round] = []
    while len(rounds) < bench.rounds and time.monotonic() < deadline:
        bench.tell(f"{WHILE_NAME}: round {len(rounds) + 1} of at most {bench.rounds}")
        measured = latency_round(bench, case, batch)
        if _log_bytes(bench, topic) < full_bytes / 2:
            break
        if (measured.server_cpu_s or 0.0) > usual_cpu_s + BUSY_SHARE * case.seconds:
            rounds.append(measured)
    if not rounds:
        raise Complaint(
            "compaction was not seen at work; was the log too small for a whole round? (--seconds, --bytes)"
        )
    return rounds


def _log_bytes(bench: Bench, topic: Topic) -> int:
    assert bench.cluster.server is not None, "the broker is ours"
    assert bench.cluster.server.metrics is not None, "it serves metrics"
    page = stalls.scrape(bench.cluster.server.metrics)
    found = re.search(rf'^kafka_log_log_size\{{topic="{topic.name}",partition="0"\}} (\d+)', page, re.MULTILINE)
    if found is None:
        raise Complaint("the broker's metrics do not tell the size of the log")
    return int(found[1])
