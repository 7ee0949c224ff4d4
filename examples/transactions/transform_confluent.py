"""Exactly once from topic to topic, with confluent-kafka: results and progress are committed in one transaction.

Each message of `payments` is transformed to one of `receipts`. Kill it at any moment and restart it: a `read_committed`
consumer finds each receipt once.
"""

import argparse
import os

from confluent_kafka import Consumer, Producer

parser = argparse.ArgumentParser()
parser.add_argument("--bootstrap-servers", default="localhost:9092")
parser.add_argument("--source", default="payments")
parser.add_argument("--target", default="receipts")
parser.add_argument("--group", default="receipts")
parser.add_argument("--name", default="receipts-1", help="one per running program, and the same after a restart")
parser.add_argument("--idle-s", type=float, default=5.0, help="end when nothing came for so long")
parser.add_argument("--crash-at", type=int, default=-1, help="die in the middle of this message, as by a power cut")
arguments = parser.parse_args()

consumer = Consumer(
    {
        "bootstrap.servers": arguments.bootstrap_servers,
        "group.id": arguments.group,
        "group.instance.id": arguments.name,  # a restarted program gets its partitions back at once
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,  # the transaction commits
        "isolation.level": "read_committed",
    }
)
producer = Producer({"bootstrap.servers": arguments.bootstrap_servers, "transactional.id": arguments.name})
producer.init_transactions()  # fences the previous run of this program and aborts its open transaction
consumer.subscribe([arguments.source])

while messages := consumer.consume(num_messages=5, timeout=arguments.idle_s):
    producer.begin_transaction()
    for message in messages:
        if message.error():
            raise SystemExit(message.error())
        producer.produce(arguments.target, key=message.key(), value=b"receipt for " + message.value())
        if message.offset() == arguments.crash_at:
            producer.flush()  # the receipt is in the log but must never become visible
            os._exit(1)
    producer.send_offsets_to_transaction(consumer.position(consumer.assignment()), consumer.consumer_group_metadata())
    producer.commit_transaction()

consumer.close()
