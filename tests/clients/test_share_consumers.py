"""Share groups with confluent-kafka's `ShareConsumer`: shared partitions, acknowledgements, redelivery."""

import time
from collections.abc import Callable, Iterator

import confluent_kafka
import pytest
from confluent_kafka import AcknowledgeType, ShareConsumer, TopicPartition, admin

from moldau.testing import Broker

pytestmark = pytest.mark.proves("C8")

DEADLINE_S = 30.0
BATCH_RECORDS = 50

MakeConsumer = Callable[..., ShareConsumer]


@pytest.fixture(scope="module")
def share_broker() -> Iterator[Broker]:
    """A broker with short heartbeat intervals of share groups."""
    settings = {
        "group.share.min.heartbeat.interval.ms": "100",
        "group.share.heartbeat.interval.ms": "300",
        "offsets.topic.num.partitions": "3",
        "share.coordinator.state.topic.num.partitions": "3",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "moldau.metrics.listener": "",
    }
    with Broker(settings=settings) as broker:
        yield broker


@pytest.fixture
def topic(share_broker: Broker, topic_name: str) -> str:
    """A topic with one partition, and a group of the same name that starts at the beginning."""
    client = admin.AdminClient({"bootstrap.servers": share_broker.bootstrap_servers, "log_level": 0})
    client.create_topics([admin.NewTopic(topic_name, 1, 1)])[topic_name].result()
    earliest = admin.ConfigEntry(
        "share.auto.offset.reset", "earliest", incremental_operation=admin.AlterConfigOpType.SET
    )
    resource = admin.ConfigResource(admin.ConfigResource.Type.GROUP, topic_name, incremental_configs=[earliest])
    client.incremental_alter_configs([resource])[resource].result()
    return topic_name


@pytest.fixture
def consumer(share_broker: Broker, topic: str) -> Iterator[MakeConsumer]:
    """A factory of consumers of the topic."""
    made: list[ShareConsumer] = []

    def make(**config: object) -> ShareConsumer:
        share_consumer = ShareConsumer(
            {
                "bootstrap.servers": share_broker.bootstrap_servers,
                "group.id": topic,
                "log_level": 0,
                **{name.replace("_", "."): value for name, value in config.items()},
            }
        )
        share_consumer.subscribe([topic])
        made.append(share_consumer)
        return share_consumer

    yield make
    for each in made:
        each.close()


def produce(broker: Broker, topic: str, count: int) -> list[bytes]:
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0, "linger.ms": 0})
    values = [b"%d" % number for number in range(count)]
    for number, value in enumerate(values, 1):
        producer.produce(topic, value)
        if number % BATCH_RECORDS == 0:  # fetches acquire whole batches
            producer.flush(30)
    assert producer.flush(30) == 0
    return values


def poll(*consumers: ShareConsumer, count: int) -> list[list[confluent_kafka.Message]]:
    """Poll in turn until `count` records have come; return those of each consumer."""
    received: list[list[confluent_kafka.Message]] = [[] for _ in consumers]
    end_s = time.monotonic() + DEADLINE_S
    while sum(map(len, received)) < count:
        assert time.monotonic() < end_s, f"only {sum(map(len, received))} of {count} records"
        for messages, each in zip(received, consumers, strict=True):
            found = list(each.poll(0.2))
            assert not any(message.error() for message in found), [message.error() for message in found]
            messages += found
    return received


def is_drained(consumer: ShareConsumer) -> bool:
    return not list(consumer.poll(1.0))


def test_records_are_accepted_by_the_next_poll(share_broker: Broker, topic: str, consumer: MakeConsumer) -> None:
    values = produce(share_broker, topic, 500)
    first = consumer()
    (received,) = poll(first, count=500)
    assert [message.value() for message in received] == values
    assert is_drained(first)
    first.close()
    assert is_drained(consumer())


def test_consumers_of_one_partition_share_its_records(share_broker: Broker, topic: str, consumer: MakeConsumer) -> None:
    consumers = [consumer(max_poll_records=20) for _ in range(4)]
    for each in consumers:
        each.poll(0.5)
    values = produce(share_broker, topic, 500)
    received = poll(*consumers, count=500)
    assert sorted(int(message.value() or b"") for each in received for message in each) == list(range(len(values)))
    assert sum(bool(each) for each in received) > 1
    assert all(is_drained(each) for each in consumers)


def test_each_record_is_acknowledged_by_itself(share_broker: Broker, topic: str, consumer: MakeConsumer) -> None:
    produce(share_broker, topic, 4)
    first = consumer(share_acknowledgement_mode="explicit")
    (received,) = poll(first, count=4)
    kinds = (AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT, AcknowledgeType.RELEASE)
    for message, kind in zip(received, kinds, strict=True):
        first.acknowledge(message, kind)
    results = first.commit_sync(30.0)
    assert results == {TopicPartition(topic, 0): None}
    (received,) = poll(first, count=2)
    assert [message.value() for message in received] == [b"1", b"3"]
    for message in received:
        first.acknowledge(message)
    first.commit_sync(30.0)
    assert is_drained(first)


def test_unacknowledged_records_of_a_closed_consumer_are_redelivered(
    share_broker: Broker, topic: str, consumer: MakeConsumer
) -> None:
    values = produce(share_broker, topic, 3)
    first = consumer(share_acknowledgement_mode="explicit")
    poll(first, count=3)
    first.close()
    (received,) = poll(consumer(), count=3)
    assert [message.value() for message in received] == values


def test_groups_of_one_topic_are_independent(share_broker: Broker, topic: str, consumer: MakeConsumer) -> None:
    other = consumer(group_id=f"{topic}-other")
    other.poll(2.0)  # starts at the end
    values = produce(share_broker, topic, 50)
    received = poll(consumer(), other, count=100)
    assert [[message.value() for message in each] for each in received] == [values, values]
