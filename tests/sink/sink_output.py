"""Staged batches as input of a sink, and its committed output."""

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, TopicPartition
from sink_drivers import PARTITIONS, READ_S_MAX

from pyspark_moldau.options.sink_options import BatchIdentity, SinkOptions
from pyspark_moldau.sink.batch_builder import staging_batches
from pyspark_moldau.sink.records import to_records
from pyspark_moldau.sink.staged_batches import StagedBatches, stage


def staged(options: SinkOptions, identity: BatchIdentity, columns: dict[str, Any], task: int = 0) -> StagedBatches:
    rows = to_records(pa.RecordBatch.from_pydict(columns), options)
    with staging_batches(rows, options) as ready:
        return stage(ready, options.staging, identity, task, attempt=task, inline_bytes_max=0)


def read(options: SinkOptions, topic: str, partitions: Iterable[int]) -> list[Any]:
    settings: dict[str, Any] = {**options.kafka.librdkafka, "group.id": "r", "enable.partition.eof": True}
    consumer = Consumer({**settings, "isolation.level": "read_committed", "fetch.wait.max.ms": 20})
    missing = set(partitions)
    consumer.assign([TopicPartition(topic, number, 0) for number in missing])
    found = []
    while missing:
        message = consumer.poll(READ_S_MAX)
        assert message is not None, "no message before the end of the partition"
        error = message.error()
        if error is None:
            found.append(message)
        else:
            assert error.code() == KafkaError._PARTITION_EOF
            missing.discard(message.partition())
    consumer.close()
    return found


def values(options: SinkOptions) -> list[bytes]:
    assert options.topic is not None
    return sorted(message.value() for message in read(options, options.topic, range(PARTITIONS)))
