"""Shared parts of the tests with Spark: small sessions, input records, short queries, and their output."""

import io
import runpy
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from moldau.pipelines.restarted_query import STARTS_MAX, RestartingQuery, is_worker_timeout
from moldau.testing.broker import Broker

READ_S_MAX: Final = 60
DONE_S_MAX: Final = 400
_LOOK_S: Final = 0.2
# Fast to start: with so little work, more threads of the JIT compiler or garbage collector cost more than they save.
JAVA_OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SETTINGS: Final[Mapping[str, str]] = {
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": JAVA_OPTIONS,
    "spark.sql.codegen.wholeStage": "false",  # with so few rows, generated code is not worth its compilation
    "spark.log.level": "OFF",
}
# A separate driver next to the session of the other tests.
DRIVER_SETTINGS: Final[Mapping[str, str]] = {**SETTINGS, "spark.driver.memory": "512m"}
SHAPES: Final = ("plain", "joined", "gathered")


def shaped(frame: Any, shape: str) -> Any:
    """Return the same rows by another plan, always with a nondeterministic column and distribution."""
    rows = frame.selectExpr("value", "uuid() as key")
    match shape:
        case "joined":
            one = frame.sparkSession.range(1)
            return rows.crossJoin(one).select("value", "key").repartition("key")
        case "gathered":
            return rows.repartition("key").coalesce(1)
        case _:
            return rows.repartition("key")


def until_done(writing: Any) -> RestartingQuery:
    """Run a streaming query until all available records are processed."""
    (query,) = until_all_done([writing.trigger(availableNow=True).start])
    return query


def until_all_done(starts: Sequence[Callable[[], Any]]) -> list[RestartingQuery]:
    """Run queries concurrently to their end; the first failure stops all."""
    queries: list[RestartingQuery] = []
    try:
        for start in starts:
            queries.append(RestartingQuery(start))
            queries[-1].wait_until_started()
        deadline_s, left = time.monotonic() + DONE_S_MAX, list(queries)
        while left:
            assert time.monotonic() < deadline_s, f"{len(left)} of {len(queries)} queries have no end"
            left = [query for query in left if not query.awaitTermination(_LOOK_S)]
    finally:
        for query in queries:
            query.stop()
    return queries


def stored_offsets(checkpoint: Path) -> list[str]:
    """Return the end offsets of each batch in the checkpoint."""
    files = sorted((checkpoint / "offsets").glob("[0-9]*"), key=lambda each: int(each.name))
    return [each.read_text().splitlines()[-1] for each in files]


def read_committed(broker: Broker, topic: str, partitions: int) -> list[tuple[bytes, bytes]]:
    """Return keys and values of all committed records."""
    settings: dict[str, Any] = {"bootstrap.servers": broker.bootstrap_servers, "group.id": "r"}
    consumer = Consumer({**settings, "isolation.level": "read_committed", "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    rows, missing = [], set(range(partitions))
    while missing:
        message = consumer.poll(READ_S_MAX)
        assert message is not None, "nothing comes, and the end is not reached"
        error = message.error()
        if error is None:
            rows.append((message.key() or b"", message.value() or b""))
        else:
            assert error.code() == KafkaError._PARTITION_EOF
            missing.discard(message.partition() or 0)
    consumer.close()
    return rows


def run_script(script: str) -> None:
    """Run an ejected job as a user does; retry if Spark timed out waiting for one of its processes."""
    for starts_left in reversed(range(STARTS_MAX)):
        try:
            exec(compile(script, "ejected.py", "exec"), {"__name__": "__main__"})
            return
        except Exception as error:
            if not starts_left or not is_worker_timeout(error):
                raise


def printed_by(program: Path, *words: str) -> str:
    """Return the output of a program that runs in this process and uses the existing session."""
    before, printed = sys.argv, io.StringIO()
    sys.argv = [str(program), *words]
    try:
        with redirect_stdout(printed):
            runpy.run_path(str(program), run_name="__main__")
    finally:
        sys.argv = before
    return printed.getvalue()


def produce(broker: Broker, topic: str, count: int, first: int = 0) -> None:
    """Produce records with numbers as values, alternating between both partitions."""
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for number in range(first, first + count):
        producer.produce(topic, b"%d" % number, key=b"k%d" % (number % 5), partition=number % 2)
    assert producer.flush(30) == 0


def reading(read: Any, broker: Broker, topic: str, **options: object) -> Any:
    """`spark.read` or `spark.readStream` of this topic; in the names of options, `__` stands for a dot."""
    source = read.format("moldau").option("kafka.bootstrap.servers", broker.bootstrap_servers)
    if not {"subscribePattern", "assign"} & set(options):
        source = source.option("subscribe", topic)
    for name, value in options.items():
        source = source.option(name.replace("__", "."), str(value))
    return source.load()


def numbers(rows: Sequence[Any]) -> list[int]:
    return sorted(int(bytes(row["value"])) for row in rows)


class Kept:
    """A streaming query that processes all available records, and the rows that it has written."""

    def __init__(self, spark: Any, folder: Path) -> None:
        self._spark = spark
        self._checkpoint, self._rows = folder / "checkpoint", folder / "rows"

    def run(self, frame: Any) -> Any:
        writing = frame.writeStream.format("parquet").option("path", str(self._rows))
        return until_done(writing.option("checkpointLocation", str(self._checkpoint)))

    @property
    def numbers(self) -> list[int]:
        return numbers(self._spark.read.parquet(str(self._rows)).collect())

    @property
    def stored_offsets(self) -> list[str]:
        return stored_offsets(self._checkpoint)
