"""The public fixtures with a real broker, as an application test would use them."""

import asyncio
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

import moldau
from moldau.client.types import EARLIEST, LATEST, Resource, ResourceKind
from moldau.records.record import iterate_batches, iterate_records
from moldau.testing import Broker, BrokerFailed

confluent_kafka = pytest.importorskip("confluent_kafka")


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(log_retention_ms=12_345_678) as broker:
        yield broker


def test_client_library_produces_and_consumes(moldau_broker: Broker, moldau_topic: str) -> None:
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


def test_queue_delivers_jobs_from_the_start(moldau_broker: Broker, moldau_queue: str) -> None:
    with (
        moldau.connect(moldau_broker.bootstrap_servers, log_level=0) as connection,
        connection.queue(moldau_queue) as queue,
    ):
        queue.put("first", waits=True)
        job = queue.take(30.0)
        assert job is not None
        assert job.text == "first"
        job.ack(waits=True)


@pytest.mark.parametrize("turn", [1, 2])
def test_every_test_gets_its_own_topic(moldau_broker: Broker, moldau_topic: str, turn: int) -> None:  # noqa: ARG001
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


async def test_blocking_client_works_in_an_async_test(moldau_broker: Broker, moldau_topic: str) -> None:
    assert moldau_broker.create_topic(f"{moldau_topic}-more") == f"{moldau_topic}-more"
    with moldau_broker.client() as client:
        client.produce(moldau_topic, 0, [(0, None, b"mine", ())])
        assert client.list_offset(moldau_topic, 0, LATEST).offset == 1


def test_interrupted_request_leaves_no_task_behind(broker: Broker) -> None:
    class TimeLimit(Exception):
        pass

    def ring(*_: object) -> None:
        raise TimeLimit

    async def tasks_left() -> int:
        return len(asyncio.all_tasks()) - 1

    broker.create_topic("awaited")
    before = signal.signal(signal.SIGALRM, ring)
    try:
        with broker.client() as client:
            assert client.list_offset("awaited", 0, LATEST).offset == 0
            broker.pause()
            signal.setitimer(signal.ITIMER_REAL, 0.5)
            with pytest.raises(TimeLimit):
                client.list_offset("awaited", 0, LATEST)
            assert client.run(tasks_left()) == 0
            broker.resume()
            assert client.list_offset("awaited", 0, LATEST).offset == 0
    finally:
        broker.resume()
        signal.signal(signal.SIGALRM, before)


def test_metrics_have_their_own_port(broker: Broker) -> None:
    assert broker.metrics is not None
    with urllib.request.urlopen(broker.metrics, timeout=30) as page:
        assert b"kafka_" in page.read()


def test_error_reports_a_locked_directory_and_an_unknown_setting(broker: Broker, tmp_path: Path) -> None:
    with pytest.raises(BrokerFailed, match=r"before it was ready. Its output:\n.*data"), Broker(data=broker.data):
        pass
    with pytest.raises(BrokerFailed, match=r"no\.such\.setting"), Broker(data=tmp_path, no_such_setting=1):
        pass


def test_broker_ignores_modules_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("queue", "types", "select"):
        (tmp_path / f"{module}.py").write_text("class Order: ...\n")
    monkeypatch.chdir(tmp_path)
    with Broker() as broker:
        broker.create_topic("orders")


def test_restart_finds_the_data_after_a_change_of_the_working_directory(
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
