"""Transactions of real clients: atomicity, fencing of zombies, offsets."""

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest
from client_driver import KafkaClient, Sent
from client_driver_confluent import ConfluentKafka
from transactional_driver import TRANSACTORS, Fenced, Transactor

from moldau.client.groups import Groups
from moldau.client.transactions import Transactions
from moldau.client.types import LATEST, Isolation
from moldau.model.ids import TopicPartition
from moldau.testing import Broker

pytestmark = pytest.mark.proves("P3")

Make = Callable[..., Transactor]
numbers = count()


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    settings = {
        "auto.create.topics.enable": "false",
        "moldau.metrics.listener": "",
        "transaction.state.log.num.partitions": 3,
        "offsets.topic.num.partitions": 3,
        "group.initial.rebalance.delay.ms": 0,
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": 200,
    }
    with Broker(settings=settings) as broker:
        yield broker


@pytest.fixture(scope="module")
def reader(broker: Broker) -> Iterator[KafkaClient]:
    client = ConfluentKafka(broker.bootstrap_servers)
    yield client
    client.close()


@pytest.fixture(params=list(TRANSACTORS))
def make(request: pytest.FixtureRequest, broker: Broker) -> Iterator[Make]:
    """Producers of each library in turn, closed in the end."""
    made: list[Transactor] = []

    def make(transactional_id: str, **options: Any) -> Transactor:
        made.append(TRANSACTORS[request.param](broker.bootstrap_servers, transactional_id, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def names(broker: Broker) -> tuple[str, str]:
    """A topic with two partitions and a transactional id, both unique."""
    number = next(numbers)
    broker.create_topic(f"deeds-{number}", partitions=2)
    return f"deeds-{number}", f"doer-{number}"


def values(reader: KafkaClient, topic: str, count: int, partition: int = 0, **options: Any) -> list[bytes | None]:
    return [each.value for each in reader.consume(topic, count, offsets={partition: 0}, **options)]


def stable_end(broker: Broker, topic: str, partition: int = 0) -> int:
    """Return the last stable offset."""
    with broker.client() as client:
        return int(client.list_offset(topic, partition, LATEST, isolation=Isolation.READ_COMMITTED).offset)


def committed(broker: Broker, group: str, topic: str) -> int | None:
    with broker.client() as client:
        offsets: dict[TopicPartition, int] = client.run(Groups(client.asynchronous).offsets(group))
    return offsets.get(TopicPartition(topic, 0))


@pytest.mark.proves("C7")
def test_committed_records_are_read_and_aborted_ones_are_not(
    make: Make, reader: KafkaClient, names: tuple[str, str]
) -> None:
    topic, name = names
    transactor = make(name)
    for word, ends_well in (("one", True), ("two", False), ("three", True)):
        transactor.begin()
        transactor.send(topic, word, partition=0)
        transactor.send(topic, word, partition=1)
        (transactor.commit if ends_well else transactor.abort)()
    for partition in (0, 1):
        seen = values(reader, topic, 2, partition, isolation="read_committed")
        assert seen == [b"one", b"three"]
        assert values(reader, topic, 3, partition) == [b"one", b"two", b"three"]


@pytest.mark.proves("C7")
def test_open_transaction_blocks_reads_at_the_last_stable_offset(
    make: Make, broker: Broker, reader: KafkaClient, names: tuple[str, str]
) -> None:
    topic, name = names
    reader.produce(topic, [Sent(b"before")])
    transactor = make(name)
    transactor.begin()
    transactor.send(topic, "inside")
    reader.produce(topic, [Sent(b"behind")])
    assert stable_end(broker, topic) == 1
    assert values(reader, topic, 3) == [b"before", b"inside", b"behind"]
    transactor.commit()
    assert values(reader, topic, 3, isolation="read_committed") == [b"before", b"inside", b"behind"]


def test_zombie_is_fenced_and_its_records_are_aborted(make: Make, reader: KafkaClient, names: tuple[str, str]) -> None:
    topic, name = names
    zombie = make(name)
    zombie.begin()
    zombie.send(topic, "of the zombie")
    successor = make(name)
    successor.begin()
    successor.send(topic, "of the successor")
    successor.commit()
    with pytest.raises(Fenced):
        zombie.commit()
    assert values(reader, topic, 1, isolation="read_committed") == [b"of the successor"]


@pytest.mark.proves("C6")
def test_offsets_are_committed_only_with_their_transaction(
    make: Make, broker: Broker, reader: KafkaClient, names: tuple[str, str]
) -> None:
    topic, name = names
    transactor = make(name)
    for offset, ends_well, then in ((3, True, 3), (7, False, 3), (9, True, 9)):
        transactor.begin()
        transactor.send(topic, f"up to {offset}")
        transactor.send_offset(f"group of {name}", topic, 0, offset)
        (transactor.commit if ends_well else transactor.abort)()
        assert committed(broker, f"group of {name}", topic) == then
    assert values(reader, topic, 2, isolation="read_committed") == [b"up to 3", b"up to 9"]


def test_transaction_is_aborted_after_its_timeout(
    make: Make, broker: Broker, reader: KafkaClient, names: tuple[str, str]
) -> None:
    topic, name = names
    forgetful = make(name, timeout_ms=1_000)
    forgetful.begin()
    forgetful.send(topic, "forgotten")
    reader.produce(topic, [Sent(b"behind")])
    assert values(reader, topic, 1, isolation="read_committed") == [b"behind"]
    with broker.client() as client:
        described = client.run(Transactions(client.asynchronous).describe(name))
    assert described.state in ("PrepareAbort", "CompleteAbort")
