"""All curves. Each size has a broker of its own, so that no figure depends on what earlier sizes left behind."""

import time
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from moldau.cli.bench.cluster import Cluster, bench_folder, own_broker
from moldau.cli.bench.requests import PRODUCE_VERSION, frame_of
from moldau.cli.bench.rounds import Tell
from moldau.cli.bench.streams import Address
from moldau.cli.errors import CommandError
from moldau.records.builder import build_batch
from moldau.wire.messages import (
    CreateTopicsRequest,
    IncrementalAlterConfigsRequest,
    Message,
    ProduceRequest,
)
from moldau_dev.bench.growth.curve import Curve
from moldau_dev.bench.growth.lines import Line, Pings, cpu_s, cpu_us
from moldau_dev.bench.growth.sessions import FETCH_VERSION, Change, Consumer

CREATE_VERSION: Final = 5
ALTER_VERSION: Final = 0
TOPIC_RESOURCE: Final = 2
TOPICS_PER_REQUEST: Final = 500
CHANGES_MAX: Final = 100
SCRAPES: Final = 5
PRODUCES: Final = 300
SETTINGS: Final = {
    "max.connections.per.ip": "20000",
    "max.connections": "20000",
    "num.partitions": "1",
    "max.incremental.fetch.session.cache.slots": "20000",
    "connections.max.idle.ms": "600000",
}
IDLE_WAIT_MS: Final = 30_000
SETTLE_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of each curve."""

    topics: Sequence[int] = (10, 100, 1_000, 9_800)  # a cluster of one broker has at most 10,000 partitions
    partitions_per_request: Sequence[int] = (1, 10, 100, 500)
    idle_consumers: Sequence[int] = (100, 1_000, 7_000)
    idle_s: float = 6.0

    def up_to(self, topics: int, consumers: int) -> "Sizes":
        """The same, without sizes beyond these."""
        return replace(
            self,
            topics=[*(each for each in self.topics if each < topics), topics],
            idle_consumers=[*(each for each in self.idle_consumers if each < consumers), consumers],
        )


def measure_growth(sizes: Sizes, tell: Tell, folder: Path | None = None) -> list[Curve]:
    """Every curve, with the limits that the design sets."""
    by_topics: dict[str, dict[int, float]] = {}
    for count in sizes.topics:
        tell(f"{count} topics")
        with bench_folder(folder) as where, own_broker(where, SETTINGS) as cluster:
            for name, cost in measure_with_topics(cluster, count).items():
                by_topics.setdefault(name, {})[count] = cost
    requests = _produce_requests(sizes, tell, folder)
    consumers = _idle_consumers(sizes, tell, folder)
    return [
        Curve("empty fetch of a session", "partitions in the session", "us", by_topics["empty"], 100),
        Curve("append, fetch and next fetch of one partition", "partitions in the session", "us", by_topics["one"]),
        Curve("change of one topic's config", "topics", "us", by_topics["config"], 1000),
        Curve("creation of a topic", "topics", "us", by_topics["create"]),
        Curve("scrape of the metrics, CPU per partition", "partitions", "us", by_topics["scrape"]),
        Curve("longest stall during a scrape", "partitions", "ms", by_topics["stall"], 5),
        Curve("produce request, CPU per partition", "partitions in the request", "us", requests),
        Curve("idle consumers, share of a core", "consumers", "%", consumers, 2),
    ]


def measure_with_topics(cluster: Cluster, count: int) -> dict[str, float]:
    address = _address(cluster)
    topics = [f"growth-{number:05d}" for number in range(count)]
    create_topics(address, topics)
    consumer = Consumer(address, dict.fromkeys(topics, 1))
    change = Change(consumer, topics[count // 2])
    costs = {"empty": cpu_us(cluster, consumer.fetch_nothing), "one": cpu_us(cluster, change)}
    change.close()
    consumer.close()
    with Line(address) as line:
        numbers = iter(range(1_000_000))
        costs["config"] = cpu_us(
            cluster, lambda: _ask(line, ALTER_VERSION, _retention(topics[0], next(numbers))), repeats_max=CHANGES_MAX
        )
        costs["create"] = cpu_us(
            cluster,
            lambda: _ask(line, CREATE_VERSION, _creation([f"more-{next(numbers)}"])),
            repeats_max=CHANGES_MAX,
        )
    return {**costs, **_scrapes(cluster, count)}


def _scrapes(cluster: Cluster, count: int) -> dict[str, float]:
    assert cluster.server is not None, "the broker is ours"
    assert cluster.server.metrics is not None, "it serves metrics"
    metrics = cluster.server.metrics
    before_s = cpu_s(cluster)
    for _ in range(SCRAPES):
        _scrape(metrics)
    scrape_us = (cpu_s(cluster) - before_s) / SCRAPES / count * 1e6
    with Pings(_address(cluster)) as pings:
        for _ in range(SCRAPES):
            _scrape(metrics)
    return {"scrape": scrape_us, "stall": pings.longest_s * 1000}


def _scrape(metrics: str) -> None:
    with urllib.request.urlopen(metrics, timeout=60) as page:
        page.read()


def _produce_requests(sizes: Sizes, tell: Tell, folder: Path | None) -> dict[int, float]:
    """CPU of one partition's batch of one record, in requests for more and more partitions."""
    costs: dict[int, float] = {}
    with bench_folder(folder) as where, own_broker(where, SETTINGS) as cluster:
        address = _address(cluster)
        topics = [f"growth-{number:05d}" for number in range(max(sizes.partitions_per_request))]
        create_topics(address, topics)
        for count in sizes.partitions_per_request:
            tell(f"produce requests of {count} partitions")
            request = produce_request(topics[:count])
            with Line(address) as line:
                ask = _asking(line, request)
                costs[count] = cpu_us(cluster, ask, repeats_max=PRODUCES) / count
    return costs


def _asking(line: Line, request: Message) -> Callable[[], None]:
    return lambda: _ask(line, PRODUCE_VERSION, request)


def produce_request(topics: Sequence[str]) -> ProduceRequest:
    batch = bytes(build_batch([(0, None, b"value", ())]))
    data = [
        ProduceRequest.TopicProduceData(
            name=topic, partition_data=[ProduceRequest.PartitionProduceData(index=0, records=batch)]
        )
        for topic in topics
    ]
    return ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=data)


def _idle_consumers(sizes: Sizes, tell: Tell, folder: Path | None) -> dict[int, float]:
    """The share of a core that consumers take whose long polls of 30 s end without records."""
    shares: dict[int, float] = {}
    for count in sizes.idle_consumers:
        tell(f"{count} idle consumers")
        with bench_folder(folder) as where, own_broker(where, SETTINGS) as cluster:
            address = _address(cluster)
            create_topics(address, ["growth"])
            consumers = [Consumer(address, {"growth": 1}) for _ in range(count)]
            share = _idle_share(cluster, consumers, sizes.idle_s)
            shares[count] = share * 100
            for consumer in consumers:
                consumer.close()
    return shares


def _idle_share(cluster: Cluster, consumers: Sequence[Consumer], idle_s: float) -> float:
    """While they wait, and what the polls that end within 30 s would add."""
    before_s = cpu_s(cluster)
    for consumer in consumers:
        consumer.line.send(_frame(consumer))
    time.sleep(SETTLE_S)
    polls_s = cpu_s(cluster) - before_s
    before_s = cpu_s(cluster)
    time.sleep(idle_s)
    return (cpu_s(cluster) - before_s) / idle_s + polls_s / (IDLE_WAIT_MS / 1000)


def _frame(consumer: Consumer) -> bytes:
    return frame_of(FETCH_VERSION, consumer.request({}, IDLE_WAIT_MS))


def create_topics(address: Address, topics: Sequence[str]) -> None:
    with Line(address) as line:
        for start in range(0, len(topics), TOPICS_PER_REQUEST):
            _ask(line, CREATE_VERSION, _creation(topics[start : start + TOPICS_PER_REQUEST]))


def _creation(topics: Sequence[str]) -> CreateTopicsRequest:
    return CreateTopicsRequest(
        topics=[
            CreateTopicsRequest.CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in topics
        ],
        timeout_ms=60_000,
    )


def _retention(topic: str, number: int) -> IncrementalAlterConfigsRequest:
    config = IncrementalAlterConfigsRequest.AlterableConfig(
        name="retention.ms", config_operation=0, value=str(86_400_000 + number)
    )
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=TOPIC_RESOURCE, resource_name=topic, configs=[config]
    )
    return IncrementalAlterConfigsRequest(resources=[resource])


def _ask(line: Line, version: int, request: Message) -> None:
    response = line.ask(version, request)
    for each in getattr(response, "topics", ()) or getattr(response, "responses", ()):
        partitions = getattr(each, "partition_responses", ())
        failed = [code for code in (getattr(each, "error_code", 0), *(p.error_code for p in partitions)) if code]
        if failed:
            raise CommandError(f"the broker responded with error {failed[0]}")


def _address(cluster: Cluster) -> Address:
    assert cluster.server is not None, "the broker is ours"
    return cluster.server.address
