"""Commit markers: the last committed batch of each writer, beside transactions of other writers."""

import pytest
from confluent_kafka import Producer

from moldau.testing import Broker
from pyspark_moldau.options.kafka_settings import producer_settings
from pyspark_moldau.sink.commit_markers import CommitMarker, CommitMarkers, MarkersUnreadable

WAIT_S = 30.0


class Writer:
    """A transactional producer that marks its batches."""

    def __init__(self, servers: str, topic: str, name: str) -> None:
        self._topic, self._name = topic, name
        self.producer = Producer({"bootstrap.servers": servers, "transactional.id": f"{topic}-{name}"})
        self.producer.init_transactions(WAIT_S)

    def send(self, batch: int) -> None:
        """Begin a transaction and flush its marker, without a commit."""
        self.producer.begin_transaction()
        self.producer.produce(self._topic, CommitMarker(batch, 1, None).to_bytes(), self._name)
        assert self.producer.flush(WAIT_S) == 0

    def mark(self, batch: int) -> None:
        self.send(batch)
        self.producer.commit_transaction(WAIT_S)


@pytest.fixture
def markers(broker: Broker, topic: str) -> CommitMarkers:
    made = CommitMarkers(producer_settings({"kafka.bootstrap.servers": broker.bootstrap_servers}), f"{topic}-commits")
    made.prepare()
    made.prepare()  # the topic may exist already
    return made


def test_each_writer_finds_its_newest_marker(broker: Broker, markers: CommitMarkers) -> None:
    one, other = (Writer(broker.bootstrap_servers, markers.topic, name) for name in ("one", "other"))
    assert markers.newest("one") is None
    for batch in range(3):
        one.mark(batch)
    other.mark(9)
    assert markers.newest("one") == CommitMarker(2, 1, None)
    assert markers.newest("other") == CommitMarker(9, 1, None)
    assert markers.newest("on") is None


def test_marker_of_an_aborted_transaction_is_ignored(broker: Broker, markers: CommitMarkers) -> None:
    writer = Writer(broker.bootstrap_servers, markers.topic, "one")
    writer.mark(0)
    writer.send(1)
    writer.producer.abort_transaction(WAIT_S)
    assert markers.newest("one") == CommitMarker(0, 1, None)


@pytest.mark.proves("D2")
def test_open_transaction_of_another_writer_does_not_block(broker: Broker, markers: CommitMarkers) -> None:
    one, other = (Writer(broker.bootstrap_servers, markers.topic, name) for name in ("one", "other"))
    one.mark(0)
    other.send(7)
    assert markers.newest("one") == CommitMarker(0, 1, None)
    assert markers.newest("third") is None
    other.producer.abort_transaction(WAIT_S)


@pytest.mark.proves("D2")
def test_marker_behind_an_open_transaction_is_not_missed(broker: Broker, markers: CommitMarkers) -> None:
    one, other = (Writer(broker.bootstrap_servers, markers.topic, name) for name in ("one", "other"))
    one.mark(0)
    other.send(7)
    one.mark(1)
    settings = producer_settings({"kafka.bootstrap.servers": broker.bootstrap_servers})
    short_wait = CommitMarkers(settings, markers.topic, read_s_max=1.0)
    with pytest.raises(MarkersUnreadable, match="is a transaction open"):
        short_wait.newest("one")
    other.producer.commit_transaction(WAIT_S)
    assert markers.newest("one") == CommitMarker(1, 1, None)
