"""A cluster with data of every kind that the console shows, hostile names and values included."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from moldau.testing import Cluster

MANY_TOPICS = 300
ORDERS = 5_000
MARKUP = '<img src=x onerror="window.attacked = true"><script>window.attacked = true</script>'
COUNTRIES = ("CH", "DE", "FR", "IT", "AT")


@dataclass
class Scene:
    """A running cluster, and a group with a member."""

    cluster: Cluster
    producer: Producer
    consumer: Consumer
    open_transaction: Producer

    @property
    def bootstrap(self) -> str:
        return self.cluster.bootstrap_servers

    def produce_orders(self, count: int) -> None:
        for number in range(count):
            order = {
                "order": number,
                "country": COUNTRIES[number % 5],
                "amount": round(number * 1.37 % 500, 2),
                "items": [{"sku": f"A-{number % 97}", "count": number % 4 + 1}],
            }
            headers: list[tuple[str, str | bytes | None]] = [("trace", f"{number:08x}".encode()), ("source", b"shop")]
            self.producer.produce("orders", json.dumps(order), f"customer-{number % 800}", headers=headers)
            self.producer.poll(0)
        assert self.producer.flush(30) == 0


@contextmanager
def scene() -> Iterator[Scene]:
    """Run three brokers with topics, records, groups and an open transaction."""
    with Cluster() as cluster:
        servers: dict[str, str | int | float | bool] = {"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0}
        admin = AdminClient(servers)
        topics = [NewTopic("orders", 6, 3, config={"retention.ms": "86400000"}), NewTopic("payments", 3, 3)]
        topics += [NewTopic("hostile", 1, 1), NewTopic("binary", 1, 3), NewTopic("customers", 3, 3)]
        topics += [NewTopic(f"many-{number:04}", 10, 1) for number in range(MANY_TOPICS)]
        for created in admin.create_topics(topics, operation_timeout=60, request_timeout=90).values():
            created.result(90)
        producer = Producer({**servers, "linger.ms": 20})
        consumer = Consumer(
            {**servers, "group.id": "billing", "auto.offset.reset": "earliest", "enable.auto.commit": False}
        )
        open_transaction = Producer({**servers, "transactional.id": "checkout-1", "transaction.timeout.ms": 600_000})
        running = Scene(cluster, producer, consumer, open_transaction)
        running.produce_orders(ORDERS)
        producer.produce("hostile", MARKUP, MARKUP, headers=[(MARKUP, MARKUP.encode())])
        producer.produce("binary", bytes(range(256)), b"\xff\x00")
        producer.produce("binary", b"\x00\x00\x00\x01\x02avro", "schema")
        producer.produce("binary", None, "tombstone")
        producer.flush(30)
        consumer.subscribe(["orders"])
        messages = consumer.consume(500, timeout=30)
        consumer.commit(message=messages[-1], asynchronous=False)
        open_transaction.init_transactions(30)
        open_transaction.begin_transaction()
        open_transaction.produce("payments", "open", "p-1")
        open_transaction.flush(30)
        try:
            yield running
        finally:
            consumer.close()
