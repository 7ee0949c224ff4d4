"""`moldau txn` against a broker."""

import json
import os
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest
from typer.testing import CliRunner

from moldau.cli.main import app
from moldau.client.async_client import AsyncClient
from moldau.client.transactional_producer import TransactionalProducer
from moldau.client.types import LATEST, Isolation
from moldau.model.errors import KafkaError
from moldau.model.ids import TopicPartition
from moldau.records.builder import NewRecord
from moldau.testing.broker import Broker

pytestmark = [pytest.mark.proves("A4", part="transactions"), pytest.mark.proves("P3")]

Moldau = Callable[..., str]
numbers = count()
LONG_AGO_MS = 1_600_000_000_000
RECORD: NewRecord = (LONG_AGO_MS, None, b"deed", ())


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    settings = {
        "transaction.state.log.num.partitions": 3,
        "transaction.max.timeout.ms": 60_000,
        # With the check on, no transaction could hang.
        "transaction.partition.verification.enable": "false",
    }
    with Broker(settings=settings) as running:
        yield running


@pytest.fixture
def moldau(broker: Broker) -> Moldau:
    environment = {**os.environ, "MOLDAU_BOOTSTRAP_SERVERS": broker.bootstrap_servers}

    def run(*arguments: str, text: str = "", code: int = 0) -> str:
        result = CliRunner().invoke(app, arguments, input=text, env=environment)
        assert result.exit_code == code, f"{result.output}{result.exception!r}"
        return result.stdout if code == 0 else result.stderr

    return run


@pytest.fixture
def topic(broker: Broker) -> str:
    return broker.create_topic(f"deeds-{next(numbers)}", partitions=2)


@pytest.fixture
def client(broker: Broker) -> Iterator[Any]:
    with broker.client() as client:
        yield client


async def begin(client: AsyncClient, topic: str, name: str) -> TransactionalProducer:
    """A producer with a transaction open on partition 1."""
    producer = TransactionalProducer(client, name)
    await producer.initialise()
    await producer.send(topic, 1, [RECORD])
    return producer


async def leave_hanging(client: AsyncClient, topic: str, name: str | None = None) -> int:
    """Append a transactional batch that is unknown to the coordinator, like a delayed request of an old version."""
    producer = TransactionalProducer(client, name or "unknown", is_v1=True)
    producer.identity = await (client.init_producer_id() if name is None else producer.initialise())
    producer._added_partitions[TopicPartition(topic, 0)] = None
    await producer.send(topic, 0, [RECORD])
    return producer.identity.producer_id


def listed(moldau: Moldau, *options: str) -> dict[str, str]:
    shown = json.loads(moldau("txn", "list", "--json", *options))
    return {each["transactional_id"]: each["state"] for each in shown}


def test_transactions_are_listed_and_described(moldau: Moldau, client: Any, topic: str) -> None:
    producer = client.run(begin(client.asynchronous, topic, f"doer of {topic}"))
    name = producer.transactional_id
    assert listed(moldau)[name] == "Ongoing"
    assert listed(moldau, "--state", "Ongoing", "--pattern", f".* {topic}") == {name: "Ongoing"}
    assert name not in listed(moldau, "--open-for", "60")
    shown = json.loads(moldau("txn", "describe", name, "--json"))
    assert (shown["state"], shown["partitions"], shown["timeout_ms"]) == ("Ongoing", [f"{topic}-1"], 60_000)
    assert (shown["producer"], shown["epoch"]) == producer.identity
    assert shown["open_since"].startswith("20")
    assert "Ongoing" in moldau("txn", "describe", name)
    assert name in moldau("txn", "list")


def test_ended_transaction_is_not_listed_as_open(moldau: Moldau, client: Any, topic: str) -> None:
    producer = client.run(begin(client.asynchronous, topic, f"doer of {topic}"))
    name = producer.transactional_id
    assert listed(moldau, "--open-for", "0", "--pattern", f".* {topic}") == {name: "Ongoing"}
    client.run(producer.end(is_commit=True))
    assert listed(moldau, "--pattern", f".* {topic}") == {name: "CompleteCommit"}
    assert listed(moldau, "--open-for", "0", "--pattern", f".* {topic}") == {}
    assert json.loads(moldau("txn", "describe", name, "--json"))["open_since"] is None


def test_producers_of_a_partition_are_listed(moldau: Moldau, client: Any, topic: str) -> None:
    producer = client.run(begin(client.asynchronous, topic, f"doer of {topic}"))
    (shown,) = json.loads(moldau("txn", "producers", f"{topic}:1", "--json"))
    assert (shown["producer"], shown["epoch"], shown["open_since_offset"]) == (*producer.identity, 0)
    assert shown["last_written"] == "2020-09-13T12:26:40.000+00:00"
    assert json.loads(moldau("txn", "producers", f"{topic}:0", "--json")) == []


def test_abort_ends_a_transaction_and_fences_its_producer(moldau: Moldau, client: Any, topic: str) -> None:
    producer = client.run(begin(client.asynchronous, topic, f"doer of {topic}"))
    assert "fenced" in moldau("txn", "abort", producer.transactional_id, text="n\n", code=1)
    moldau("txn", "abort", producer.transactional_id, "--yes")
    assert listed(moldau)[producer.transactional_id] in ("CompleteAbort", "Empty")
    with pytest.raises(KafkaError):
        client.run(producer.end(is_commit=True))
    end = client.list_offset(topic, 1, LATEST, isolation=Isolation.READ_COMMITTED).offset
    assert end == 2  # the record and its marker


def test_hanging_transaction_is_found_and_aborted(moldau: Moldau, client: Any, topic: str) -> None:
    open_one = client.run(begin(client.asynchronous, topic, f"doer of {topic}"))
    producer_id = client.run(leave_hanging(client.asynchronous, topic))
    (found,) = json.loads(moldau("txn", "find-hanging", "--topic", topic, "--json"))
    assert (found["producer"], found["partition"], found["open_since_offset"]) == (producer_id, 0, 0)
    assert client.list_offset(topic, 0, LATEST, isolation=Isolation.READ_COMMITTED).offset == 0
    where = ("--partition", f"{topic}:0", "--start-offset", "0")
    assert "will be dropped" in moldau("txn", "abort", *where, text="n\n", code=1)
    moldau("txn", "abort", *where, "--yes")
    assert client.list_offset(topic, 0, LATEST, isolation=Isolation.READ_COMMITTED).offset == 2
    assert json.loads(moldau("txn", "find-hanging", "--topic", topic, "--json")) == []
    client.run(open_one.end(is_commit=True))  # old, but known to its coordinator


def test_transaction_of_an_older_epoch_is_hanging(moldau: Moldau, client: Any, topic: str) -> None:
    client.run(leave_hanging(client.asynchronous, topic, f"doer of {topic}"))
    (found,) = json.loads(moldau("txn", "find-hanging", "--topic", topic, "--json"))
    assert found["transactional_id"] == f"doer of {topic}"
    assert "--start-offset 0" in CliRunner().invoke(app, ["txn", "find-hanging", "-b", servers(client)]).stderr


def servers(client: Any) -> str:
    return ",".join(f"{each.host}:{each.port}" for each in client.describe_cluster().brokers)


def test_unknown_transactions_are_reported(moldau: Moldau, topic: str) -> None:
    assert "there is no transactional id missing" in moldau("txn", "describe", "missing", code=1)
    assert "there is no transactional id missing" in moldau("txn", "abort", "missing", "--yes", code=1)
    assert "no open transaction" in moldau(
        "txn", "abort", "--partition", f"{topic}:0", "--start-offset", "5", "--yes", code=1
    )
    assert "Unknown state: Sleeping" in moldau("txn", "list", "--state", "Sleeping", code=1)


def test_find_hanging_rejects_unknown_topics_and_brokers(moldau: Moldau, topic: str) -> None:
    assert "nowhere does not exist" in moldau("txn", "find-hanging", "--topic", "nowhere", code=1)
    assert "broker 99 does not exist" in moldau("txn", "find-hanging", "--broker", "99", code=1)
    assert json.loads(moldau("txn", "find-hanging", "--topic", topic, "--broker", "1", "--json")) == []


def test_wrong_usage_of_txn_is_rejected(moldau: Moldau, topic: str) -> None:
    assert "give a TRANSACTIONAL_ID" in moldau("txn", "abort", code=2)
    assert "give a TRANSACTIONAL_ID" in moldau(
        "txn", "abort", "one", "--partition", f"{topic}:0", "--start-offset", "0", code=2
    )
    assert "write TOPIC:PARTITION" in moldau("txn", "producers", topic, code=2)
