"""`moldau topic analyze` on a broker."""

import json
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Producer
from typer.testing import CliRunner

from moldau.cli.main import app
from moldau.testing import Broker

pytestmark = pytest.mark.proves("A4", part="cluster state")

Analyze = Callable[..., Any]
START_MS = 1_700_000_000_000
RECORDS = 1000
HOT = 4  # every fourth record has another key


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(num_partitions=2) as running:
        producer = Producer(
            {"bootstrap.servers": running.bootstrap_servers, "compression.type": "zstd", "linger.ms": 50}
        )
        for number in range(RECORDS):  # one record in 100 ms
            key = f"user {number}" if number % HOT == 0 else "hot\n"
            producer.produce("clicks", b"x" * 100, key, partition=0, timestamp=START_MS + 100 * number)
        producer.produce("clicks", None, b"hot\n", partition=0, timestamp=START_MS + 100 * RECORDS)
        assert producer.flush(20) == 0
        yield running


@pytest.fixture
def analyze(broker: Broker) -> Analyze:
    def run(topic: str, *arguments: str, code: int = 0) -> Any:
        environment = {**os.environ, "MOLDAU_BOOTSTRAP_SERVERS": broker.bootstrap_servers}
        done = CliRunner().invoke(app, ["topic", "analyze", topic, *arguments], env=environment)
        assert done.exit_code == code, f"{done.output}{done.exception!r}"
        return done.stderr if code else json.loads(done.stdout) if "--json" in arguments else done.stdout

    return run


def test_analyze_shows_times_rate_sizes_and_keys(analyze: Analyze) -> None:
    shown = analyze("clicks", "--json")
    filled, empty = shown["partitions"]
    assert (filled["start"], filled["end"]) == (0, RECORDS + 1)
    assert (filled["oldest_ms"], filled["newest_ms"]) == (START_MS, START_MS + 100 * RECORDS)
    assert filled["records_per_second"] == pytest.approx(10, rel=0.01)
    assert (empty["end"], empty["size_bytes"], empty["oldest_ms"], empty["records_per_second"]) == (0, 0, None, None)
    sample = shown["sample"]
    assert (sample["records"], sample["tombstones"], sample["records_without_key"]) == (RECORDS + 1, 1, 0)
    assert sample["batch_bytes"] == filled["size_bytes"]
    assert sample["compression"] == {"zstd": sample["batches"]}
    assert sample["compression_ratio"] > 5
    assert sample["record_bytes"] == {"median": 104, "p99": 108, "max": 108}
    assert sample["different_keys"] == RECORDS // HOT + 1
    assert sample["most_frequent_keys"][0] == {"key": "hot\\n", "records": RECORDS - RECORDS // HOT + 1}
    text = analyze("clicks")
    assert "2023-11-14T22:13:20Z" in text
    assert f"{100 * (RECORDS - RECORDS // HOT + 1) / (RECORDS + 1):.1f} %  hot\\n" in text


def test_analyze_reads_no_more_than_the_sample(broker: Broker, analyze: Analyze) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 0, "batch.num.messages": 10})
    for number in range(100):
        producer.produce("small", str(number).encode(), partition=1)
    assert producer.flush(20) == 0
    sample = analyze("small", "--sample", "20", "--json")["sample"]
    assert 20 <= sample["records"] < 40
    assert sample["records_without_key"] == sample["records"]
    assert (sample["most_frequent_keys"], sample["compression"]) == ([], {"none": sample["batches"]})


def test_analyze_rejects_unknown_topics(analyze: Analyze) -> None:
    assert "payments" in analyze("payments", code=1)
    assert "--sample" in analyze("clicks", "--sample", "0", code=2)
