"""Read a topic into `noop`, compared with an in-memory source, and with Spark's own connector if its jars are there."""

import time
from collections.abc import Mapping
from typing import Any, Final

from moldau.cli.bench.bench import Bench
from moldau.cli.bench.cluster import Topic
from moldau.cli.bench.rounds import Round, Subjects
from moldau_dev.bench.spark.records import KEY_BYTES, PARTITIONS, Records

READ: Final = "read of 100 B records into noop"
CEILING: Final = "the same rows from memory"
OFFICIAL: Final = "the same topic through format kafka"


def reads(spark: Any, bench: Bench, topic: Topic, records: Records, *, with_official: bool) -> Subjects:
    from moldau_dev.bench.spark.memory_source import FORMAT, MemorySource

    spark.dataSource.register(MemorySource)
    ready = {
        "rows": records.count,
        "partitions": PARTITIONS,
        "keyBytes": KEY_BYTES,
        "valueBytes": records.value_bytes,
    }
    from_topic = {"kafka.bootstrap.servers": bench.cluster.bootstrap_servers, "subscribe": topic.name}
    subjects: Subjects = {
        READ: lambda: _round(spark, "moldau", from_topic, records),
        CEILING: lambda: _round(spark, FORMAT, ready, records),
    }
    if with_official:
        subjects = {**subjects, OFFICIAL: lambda: _round(spark, "kafka", from_topic, records)}
    return subjects


def _round(spark: Any, source: str, options: Mapping[str, object], records: Records) -> Round:
    frame = spark.read.format(source).options(**options).load()
    began = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return Round(1, time.perf_counter() - began, records.total_bytes, records.count)
