"""The public fixture with the real broker: what somebody who tests against Kafka would do with it."""

import asyncio
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from moldau.client.types import EARLIEST, LATEST, Resource, ResourceKind
from moldau.records.record import iterate_batches, iterate_records
from moldau.testing import Broker, BrokerFailed

confluent_kafka = pytest.importorskip("confluent_kafka")


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(log_retention_ms=12_345_678) as broker:
        yield broker


def test_a_client_library_produces_and_consumes(moldau_broker: Broker, moldau_topic: str) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": moldau_broker.bootstrap_servers})
    producer.produce(moldau_topic, value=b"hello", key=b"k")
    assert producer.flush(30) == 0
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": moldau_broker.bootstrap_servers, "group.id": "g", "enable.auto.commit": False}
    )
    consumer.assign([confluent_kafka.TopicPartition(moldau_topic, 0, 0)])
    message = consumer.poll(30)
    consumer.close()
    assert message is not None
    assert (message.error(), message.key(), message.value()) == (None, b"k", b"hello")


@pytest.mark.parametrize("turn", [1, 2])
def test_every_test_has_a_topic_of_its_own(moldau_broker: Broker, moldau_topic: str, turn: int) -> None:  # noqa: ARG001
    with moldau_broker.client() as client:
        assert client.list_offset(moldau_topic, 0, LATEST).offset == 0
        client.produce(moldau_topic, 0, [(0, None, b"mine", ())])


def test_topics_are_created_with_partitions_and_settings(broker: Broker) -> None:
    assert broker.create_topic("made", partitions=3, cleanup_policy="compact") == "made"
    with broker.client() as client:
        assert len(client.describe_topic("made").partitions) == 3
        entries = {each.name: each.value for each in client.describe_configs(Resource(ResourceKind.TOPIC, "made"))}
    assert (entries["cleanup.policy"], entries["retention.ms"]) == ("compact", "12345678")


def test_acknowledged_records_survive_a_kill_and_a_clean_restart(broker: Broker) -> None:
    broker.create_topic("kept")
    where = broker.bootstrap_servers
    with broker.client() as client:
        client.produce("kept", 0, [(0, None, b"first", ())])
    broker.kill()
    broker.start()
    with broker.client() as client:
        client.produce("kept", 0, [(0, None, b"second", ())])
    broker.restart()
    with broker.client() as client:
        assert client.list_offset("kept", 0, EARLIEST).offset == 0
        fetched = client.fetch("kept", 0, 0)
        values = [record.value for _, batch in iterate_batches(fetched.records) for record in iterate_records(batch)]
    assert values == [b"first", b"second"]
    assert broker.bootstrap_servers == where


async def test_a_test_that_is_a_coroutine_asks_as_any_other(moldau_broker: Broker, moldau_topic: str) -> None:
    assert moldau_broker.create_topic(f"{moldau_topic}-more") == f"{moldau_topic}-more"
    with moldau_broker.client() as client:
        client.produce(moldau_topic, 0, [(0, None, b"mine", ())])
        assert client.list_offset(moldau_topic, 0, LATEST).offset == 1


def test_what_a_time_limit_interrupts_is_not_done_later(broker: Broker) -> None:
    class TookTooLong(Exception):
        pass

    def ring(*_: object) -> None:
        raise TookTooLong

    async def tasks_left() -> int:
        return len(asyncio.all_tasks()) - 1

    broker.create_topic("awaited")
    before = signal.signal(signal.SIGALRM, ring)
    try:
        with broker.client() as client:
            assert client.list_offset("awaited", 0, LATEST).offset == 0
            broker.pause()
            signal.setitimer(signal.ITIMER_REAL, 0.5)
            with pytest.raises(TookTooLong):
                client.list_offset("awaited", 0, LATEST)
            assert client.run(tasks_left()) == 0
            broker.resume()
            assert client.list_offset("awaited", 0, LATEST).offset == 0
    finally:
        broker.resume()
        signal.signal(signal.SIGALRM, before)


def test_metrics_have_a_port_of_their_own(broker: Broker) -> None:
    assert broker.metrics is not None
    with urllib.request.urlopen(broker.metrics, timeout=30) as page:
        assert b"kafka_" in page.read()


def test_a_folder_in_use_and_a_wrong_setting_are_told_in_the_brokers_words(broker: Broker, tmp_path: Path) -> None:
    with pytest.raises(BrokerFailed, match=r"before it was ready. It said:\n.*data"), Broker(data=broker.data):
        pass
    with pytest.raises(BrokerFailed, match=r"no\.such\.setting"), Broker(data=tmp_path, no_such_setting=1):
        pass


def test_files_of_the_project_under_test_are_not_taken_for_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("queue", "types", "select"):
        (tmp_path / f"{module}.py").write_text("class Order: ...\n")
    monkeypatch.chdir(tmp_path)
    with Broker() as broker:
        broker.create_topic("orders")


def test_a_broker_finds_its_data_again_though_the_test_went_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with Broker(data="mine") as broker:
        broker.create_topic("orders")
        monkeypatch.chdir(tmp_path / "elsewhere")
        broker.restart()
        with broker.client() as client:
            assert [each.name for each in client.describe_topics()] == ["orders"]
