"""Latency of acknowledgements while a large log is compacted, compared with no compaction."""

import re
import time
from typing import Final

from moldau.cli.bench import processes, stalls
from moldau.cli.bench.bench import Bench, Load
from moldau.cli.bench.cluster import Topic
from moldau.cli.bench.latency import LatencyCase, latency_round
from moldau.cli.bench.requests import Shape, probe, produce_frame
from moldau.cli.bench.rounds import Round
from moldau.cli.bench.servers import Server
from moldau.cli.bench.streams import Flow
from moldau.cli.errors import CommandError
from moldau.client.types import Resource, ResourceKind
from moldau.model.units import MiB

WITHOUT_NAME: Final = "acknowledge, no compaction"
WHILE_NAME: Final = "acknowledge, while compacting"
SHAPE: Final = Shape(149, 100)
KEYS: Final = 40_000
FRAMES: Final = 256
FILL_S_MAX: Final = 300.0
BEGIN_S_MAX: Final = 60.0
COMPACT_S_MAX: Final = 600.0
CHECK_S: Final = 0.05
STARTED_CPU_S: Final = 0.5  # the worker has started by then
BUSY_SHARE: Final = 0.1  # of a core: the worker has the lowest priority and may get little CPU time
SETTINGS: Final = {"log.cleaner.backoff.ms": "100", "log.retention.check.interval.ms": "1000"}
TOPIC_CONFIGS: Final = {
    "cleanup.policy": "delete",
    "segment.bytes": str(64 * MiB),
    "min.cleanable.dirty.ratio": "0.01",
}


def run_compaction(bench: Bench, case: LatencyCase, log_bytes: int) -> dict[str, list[Round]]:
    """Fill the log under `cleanup.policy=delete`; the change to `compact` starts compaction."""
    batch = case.shape.batch()
    with bench.cluster.topic(1, TOPIC_CONFIGS) as topic:
        bench.tell(f"filling a log with {log_bytes // MiB} MiB")
        _fill(bench, topic, log_bytes)
        bench.tell("warming up")
        latency_round(bench, case, batch)
        full_bytes = _log_bytes(bench, topic)
        _begin_compaction(bench, topic)
        measured: dict[str, list[Round]] = {WITHOUT_NAME: [], WHILE_NAME: []}
        deadline = time.monotonic() + COMPACT_S_MAX
        while len(measured[WHILE_NAME]) < bench.rounds and _log_bytes(bench, topic) > full_bytes / 2:
            if time.monotonic() > deadline:
                break
            bench.tell(f"{WHILE_NAME}: round {len(measured[WHILE_NAME]) + 1} of at most {bench.rounds}")
            _measure_both(bench, case, batch, measured)
    if not measured[WHILE_NAME]:
        raise CommandError("compaction did not run for a whole round; try a larger --log-mib or fewer --seconds")
    return measured


def _measure_both(bench: Bench, case: LatencyCase, batch: bytes, measured: dict[str, list[Round]]) -> None:
    """Measure a round with the broker's worker frozen and one with it running, if it compacted meanwhile."""
    pid = _pid(bench)
    with processes.frozen_children(pid):
        without = latency_round(bench, case, batch)
    before_s = processes.children_cpu_s(pid)
    during = latency_round(bench, case, batch)
    if processes.children_cpu_s(pid) - before_s > BUSY_SHARE * case.seconds:
        measured[WITHOUT_NAME].append(without)
        measured[WHILE_NAME].append(during)


def _pid(bench: Bench) -> int:
    assert isinstance(bench.cluster.server, Server), "the broker is ours"
    return bench.cluster.server.pid


def _fill(bench: Bench, topic: Topic, log_bytes: int) -> None:
    batches = [SHAPE.batch(key_count=KEYS, first_key=number * SHAPE.records) for number in range(FRAMES)]
    frames = [produce_frame(topic.name, 0, batch) for batch in batches]
    leader = topic.leaders[0]
    flow = Flow(leader, frames, probe(leader, frames[0]).reply_bytes)
    bench.pump(None, [flow], Load(in_flight=5, bytes_max=log_bytes, seconds_max=FILL_S_MAX))


def _begin_compaction(bench: Bench, topic: Topic) -> None:
    """Start compaction, and wait until the worker runs it."""
    before_s = processes.children_cpu_s(_pid(bench))
    bench.cluster.client.alter_configs(Resource(ResourceKind.TOPIC, topic.name), {"cleanup.policy": "compact"})
    bench.tell("waiting for compaction to begin")
    deadline = time.monotonic() + BEGIN_S_MAX
    while processes.children_cpu_s(_pid(bench)) < before_s + STARTED_CPU_S:
        if time.monotonic() > deadline:
            raise CommandError(f"compaction has not begun within {BEGIN_S_MAX:g} s")
        time.sleep(CHECK_S)


def _log_bytes(bench: Bench, topic: Topic) -> int:
    assert bench.cluster.server is not None, "the broker is ours"
    assert bench.cluster.server.metrics is not None, "it serves metrics"
    page = stalls.scrape(bench.cluster.server.metrics)
    found = re.search(rf'^kafka_log_log_size\{{topic="{topic.name}",partition="0"\}} (\d+)', page, re.MULTILINE)
    if found is None:
        raise CommandError("the broker's metrics do not tell the size of the log")
    return int(found[1])
