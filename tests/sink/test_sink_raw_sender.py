"""The raw sender: batches of one transaction to a broker that is slow or has no leader yet."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from sink_drivers import PARTITIONS, READ_S_MAX, is_open

from moldau.client.async_client import AsyncClient
from moldau.client.errors import ConnectionLost
from moldau.client.metadata import TopicView
from moldau.client.partitioner import partition_for_key
from moldau.model.errors import LeaderNotAvailable, UnknownTopicOrPartition
from moldau.node.ports.clock import SystemClock
from moldau.node.ports.randomness import system_random
from moldau.node.ports.sockets import SocketNetwork
from moldau.testing import Broker
from moldau.wire.messages import ProduceRequest
from pyspark_moldau.options.sink_options import SinkOptions, sink_stream_options
from pyspark_moldau.sink import raw_sender
from pyspark_moldau.sink.raw_sender import PartitionCounts, RawSender
from pyspark_moldau.sink.sender import DeliveryFailed

KEY = b"writer"


class FaultyClient(AsyncClient):
    """A client whose first topic lookup fails, and whose batches for some partitions are never sent."""

    def __init__(self, options: SinkOptions) -> None:
        super().__init__(SocketNetwork(), SystemClock(), system_random(), options.kafka.bootstrap_servers)
        self.failures: list[Exception] = []
        self.stuck: set[int] = set()
        self.level: int | None = None

    async def topic(self, name: str) -> TopicView:
        if self.failures:
            raise self.failures.pop()
        return await super().topic(name)

    async def send(self, request: Any, **how: Any) -> Any:
        if isinstance(request, ProduceRequest) and request.topic_data[0].partition_data[0].index in self.stuck:
            await asyncio.Event().wait()
        return await super().send(request, **how)

    async def feature(self, name: str) -> int:
        return await super().feature(name) if self.level is None else self.level


@pytest.fixture
def options(broker: Broker, topic: str, tmp_path: Path) -> SinkOptions:
    given = {"kafka.bootstrap.servers": broker.bootstrap_servers, "topic": topic, "stagingLocation": str(tmp_path)}
    return sink_stream_options(given)


@pytest.fixture
def client(options: SinkOptions, monkeypatch: pytest.MonkeyPatch) -> FaultyClient:
    made = FaultyClient(options)
    monkeypatch.setattr(raw_sender, "sink_client", lambda _: made)
    return made


@pytest.fixture
def sender(client: FaultyClient, options: SinkOptions, topic: str) -> Iterator[RawSender]:
    assert client is not None
    made = RawSender(options, f"id-{topic}", 60_000)
    yield made
    made.close()


def key_of(partition: int) -> bytes:
    return next(
        key for key in (b"%d" % number for number in range(100)) if partition_for_key(key, PARTITIONS) == partition
    )


def values(options: SinkOptions) -> list[bytes]:
    """Return the committed values, sorted, once no transaction is open."""
    servers, topic = options.kafka.bootstrap_servers, str(options.topic)
    deadline = time.monotonic() + READ_S_MAX
    while is_open(servers, topic):
        assert time.monotonic() < deadline, "the transaction is still open"
    settings = {"group.id": "r", "isolation.level": "read_committed", "enable.partition.eof": True}
    consumer = Consumer({"bootstrap.servers": servers, **settings})
    missing, found = set(range(PARTITIONS)), []
    consumer.assign([TopicPartition(topic, number, 0) for number in missing])
    while missing:
        message = consumer.poll(READ_S_MAX)
        assert message is not None, "no message before the end of the partition"
        if message.error() is None:
            found.append(message.value() or b"")
        else:
            missing.discard(message.partition() or 0)
    consumer.close()
    return sorted(found)


FAILURES = [
    LeaderNotAvailable("it is being elected"),
    UnknownTopicOrPartition("it is being created"),
    ConnectionLost("it is being restarted", was_sent=True),
]


@pytest.mark.proves("D2")
@pytest.mark.parametrize("failure", FAILURES, ids=lambda each: type(each).__name__)
def test_topic_lookup_of_a_task_is_retried(
    client: FaultyClient, options: SinkOptions, topic: str, failure: Exception
) -> None:
    client.failures = [failure]
    counts = PartitionCounts(options)
    try:
        assert counts(topic) == PARTITIONS
    finally:
        counts.close()


@pytest.mark.proves("D2")
@pytest.mark.parametrize("failure", FAILURES, ids=lambda each: type(each).__name__)
def test_topic_lookup_of_a_marker_is_retried(
    client: FaultyClient, sender: RawSender, options: SinkOptions, topic: str, failure: Exception
) -> None:
    sender.initialise()
    sender.begin()
    client.failures = [failure]
    sender.send(topic, KEY, b"marker")
    sender.flush(READ_S_MAX)
    sender.commit(READ_S_MAX)
    assert values(options) == [b"marker"]


def test_marker_for_a_missing_topic_is_not_delivered(sender: RawSender, topic: str) -> None:
    sender.initialise()
    sender.begin()
    with pytest.raises(DeliveryFailed, match=f"A record for {topic}-none was not delivered"):
        sender.send(f"{topic}-none", KEY, b"marker")
    sender.abort(1.0)


@pytest.mark.proves("D2")
def test_marker_waits_for_earlier_batches_of_its_partition(sender: RawSender, options: SinkOptions, topic: str) -> None:
    """The commit topic may be the topic of the rows."""
    sender.initialise()
    sender.begin()
    for number in range(5):
        sender.send(topic, KEY, b"%d" % number)
    sender.flush(READ_S_MAX)
    sender.commit(READ_S_MAX)
    assert values(options) == [b"%d" % number for number in range(5)]


def test_flush_timeout_is_reported_with_the_whole_wait(client: FaultyClient, sender: RawSender, topic: str) -> None:
    sender.initialise()
    sender.begin()
    client.stuck = {1}
    for partition in (0, 1):
        sender.send(topic, key_of(partition), b"v")
    with pytest.raises(DeliveryFailed, match=r"^1 batches were not acknowledged within 0\.5 s\.$"):
        sender.flush(0.5)
    sender.abort(0.1)


@pytest.mark.proves("D2")
@pytest.mark.parametrize("level", [1, 2])
def test_aborted_batches_that_arrive_late_have_an_old_epoch(
    client: FaultyClient, sender: RawSender, options: SinkOptions, topic: str, level: int
) -> None:
    client.level = level
    sender.initialise()
    epoch = sender._transactional.identity.epoch
    sender.begin()
    client.stuck = {1}
    for partition in (0, 1):
        sender.send(topic, key_of(partition), b"never")
    with pytest.raises(DeliveryFailed):
        sender.flush(0.2)
    sender.abort(0.1)
    assert sender._transactional.identity.epoch > epoch
    client.stuck = set()
    sender.begin()
    sender.send(topic, key_of(1), b"now")
    sender.flush(READ_S_MAX)
    sender.commit(READ_S_MAX)
    assert values(options) == [b"now"]
