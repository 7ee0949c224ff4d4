"""The commands against other brokers: librdkafka's mock cluster of three."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

pytestmark = pytest.mark.proves("A4", part="produce and consume")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A librdkafka client with mock brokers, which live as long as the client."""
    client = Producer({"bootstrap.servers": "mock", "test.mock.num.brokers": 3, "log_level": 0})
    yield client
    client.flush(5)


@pytest.fixture(scope="module")
def servers(cluster: Any) -> str:
    return ",".join(f"{each.host}:{each.port}" for each in cluster.list_topics(timeout=10).brokers.values())


def moldau(servers: str, *arguments: str, text: str = "") -> str:
    result = subprocess.run(
        [sys.executable, "-m", "moldau.cli.main", *arguments],
        input=text,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "MOLDAU_BOOTSTRAP_SERVERS": servers},
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_other_client_reads_records_of_produce(servers: str) -> None:
    lines = "".join(f"key{n}:value{n}\n" for n in range(50))
    shown = json.loads(
        moldau(servers, "produce", "ours", "-K", ":", "-H", "from=moldau", "-z", "lz4", "--json", text=lines)
    )
    assert shown["records"] == 50
    assert len(shown["partitions"]) > 1
    reader = Consumer({"bootstrap.servers": servers, "group.id": "x", "log_level": 0})
    try:
        reader.assign([TopicPartition("ours", each["partition"], 0) for each in shown["partitions"]])
        read: list[Any] = []
        while len(read) < 50:
            message = reader.poll(10)
            assert message is not None
            assert message.error() is None
            read.append((message.key(), message.value(), message.headers()))
    finally:
        reader.close()
    assert sorted(read) == sorted((b"key%d" % n, b"value%d" % n, [("from", b"moldau")]) for n in range(50))


@pytest.mark.proves("T2", part="keyed")
def test_produce_partitions_keys_like_other_clients(servers: str) -> None:
    placed: dict[bytes | None, int | None] = {}
    other = Producer({"bootstrap.servers": servers, "partitioner": "murmur2_random", "log_level": 0})
    for n in range(40):
        other.produce(
            "keyed", key=b"k%d" % n, on_delivery=lambda _, message: placed.update({message.key(): message.partition()})
        )
    assert other.flush(10) == 0
    moldau(servers, "produce", "keyed", "-K", ":", text="".join(f"k{n}:ours\n" for n in range(40)))
    lines = moldau(servers, "consume", "keyed", "--until", "end", "--format", "%k %p %v").splitlines()
    ours = {line.split()[0].encode(): int(line.split()[1]) for line in lines if line.endswith("ours")}
    assert ours == placed


def test_consume_reads_records_of_other_client(servers: str) -> None:
    other = Producer({"bootstrap.servers": servers, "compression.type": "zstd", "log_level": 0})
    for n in range(100):
        other.produce("theirs", key=b"k", value=b"%d" % n, headers={"n": b"%d" % n}, timestamp=1_700_000_000_000 + n)
    assert other.flush(10) == 0
    lines = [json.loads(line) for line in moldau(servers, "consume", "theirs", "--json", "--until", "end").splitlines()]
    assert [each["value"] for each in lines] == [str(n) for n in range(100)]
    assert [each["timestamp"] - 1_700_000_000_000 for each in lines] == list(range(100))
    assert lines[3]["headers"] == [{"name": "n", "value": "3"}]
    place = str(lines[0]["partition"])
    assert moldau(servers, "consume", "theirs", "-p", place, "--from", "-3", "-n", "2") == "97\n98\n"
    assert moldau(servers, "consume", "theirs", "-p", place, "--from", "5", "--until", "7") == "5\n6\n"


def test_topics_are_listed_and_described(servers: str) -> None:
    moldau(servers, "produce", "listed", text="x\n")
    topics = {each["name"]: each for each in json.loads(moldau(servers, "topic", "list", "--json"))}
    assert topics["listed"]["replication_factor"] == 3
    (described,) = json.loads(moldau(servers, "topic", "describe", "listed", "--json"))
    assert sum(each["end_offset"] for each in described["partitions"]) == 1
    assert described["configs"] is None  # not supported by the mock brokers
