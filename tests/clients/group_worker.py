"""A consumer process that can be killed, stopped and restarted: it records its work, then commits."""

import json
import sys

from confluent_kafka import Consumer, KafkaError, KafkaException

BATCH_MAX = 50


def work(config: dict[str, object], topic: str, results: str) -> None:
    consumer = Consumer(config)
    consumer.subscribe([topic])
    with open(results, "a") as file:
        while True:
            messages = consumer.consume(BATCH_MAX, timeout=0.1)
            for message in messages:
                value = message.value()
                if message.error() is None and value is not None:
                    print(message.partition(), message.offset(), value.decode(), file=file, flush=True)
            if messages:
                _commit(consumer)


def _commit(consumer: Consumer) -> None:
    """Commit. It may fail in a rebalance or while the broker is down; then the records are read again."""
    try:
        consumer.commit(asynchronous=False)
    except KafkaException as error:
        if error.args[0].code() == KafkaError._NO_OFFSET:
            return
        print(f"not committed: {error}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    work(json.loads(sys.argv[1]), sys.argv[2], sys.argv[3])
