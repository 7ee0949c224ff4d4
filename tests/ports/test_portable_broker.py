"""A whole broker with every fallback forced, as on systems other than Linux."""

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from moldau.testing import Broker


@pytest.mark.parametrize("is_portable", ["true", "false"])
def test_portable_broker_serves_clients_like_any_other(is_portable: str) -> None:
    values = [str(number).encode() * 100 for number in range(2000)]
    settings = {"moldau.portable.io": is_portable, "log.segment.bytes": 100_000, "log.preallocate": "true"}
    with Broker(settings=settings) as broker:
        broker.create_topic("t")
        failures: list[object] = []
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "batch.size": 20_000})
        for value in values:
            producer.produce("t", value, on_delivery=lambda error, _: failures.append(error) if error else None)
        assert producer.flush(30) == 0
        assert failures == []
        broker.restart()
        consumer = Consumer(
            {"bootstrap.servers": broker.bootstrap_servers, "group.id": "g", "enable.auto.commit": False}
        )
        consumer.assign([TopicPartition("t", 0, 0)])
        seen = [message.value() for message in consumer.consume(len(values), timeout=30)]
        while len(seen) < len(values):
            more = consumer.consume(len(values) - len(seen), timeout=30)
            assert more
            seen += [message.value() for message in more]
        consumer.close()
    assert seen == values
