"""Exactly once from topic to topic, with aiokafka: results and progress are committed in one transaction.

Each message of `payments` is transformed to one of `receipts`. Kill it at any moment and restart it: a `read_committed`
consumer finds each receipt once.
"""

import argparse
import asyncio
import os

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

parser = argparse.ArgumentParser()
parser.add_argument("--bootstrap-servers", default="localhost:9092")
parser.add_argument("--source", default="payments")
parser.add_argument("--target", default="receipts")
parser.add_argument("--group", default="receipts")
parser.add_argument("--name", default="receipts-1", help="one per running program, and the same after a restart")
parser.add_argument("--idle-s", type=float, default=5.0, help="end when nothing came for so long")
parser.add_argument("--crash-at", type=int, default=-1, help="die in the middle of this message, as by a power cut")
arguments = parser.parse_args()


async def transform() -> None:
    consumer = AIOKafkaConsumer(
        arguments.source,
        bootstrap_servers=arguments.bootstrap_servers,
        group_id=arguments.group,
        group_instance_id=arguments.name,  # a restarted program gets its partitions back at once
        auto_offset_reset="earliest",
        enable_auto_commit=False,  # the transaction commits
        isolation_level="read_committed",
    )
    producer = AIOKafkaProducer(bootstrap_servers=arguments.bootstrap_servers, transactional_id=arguments.name)
    await producer.start()  # fences the previous run of this program and aborts its open transaction
    await consumer.start()
    while batches := await consumer.getmany(timeout_ms=int(arguments.idle_s * 1000), max_records=5):
        async with producer.transaction():  # commits at its end, aborts on an exception
            for message in (message for batch in batches.values() for message in batch):
                receipt = b"receipt for " + message.value
                await producer.send_and_wait(arguments.target, key=message.key, value=receipt)
                if message.offset == arguments.crash_at:
                    os._exit(1)  # the receipt is in the log but must never become visible
            offsets = {place: batch[-1].offset + 1 for place, batch in batches.items()}
            await producer.send_offsets_to_transaction(offsets, arguments.group)
    await consumer.stop()
    await producer.stop()


asyncio.run(transform())
