"""What the Spark tests have in common: records to read, queries in few words, drivers in processes of their own."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from moldau.testing.broker import Broker

HERE: Final = Path(__file__).parent
DONE_S_MAX: Final = 120
LIFE_S_MAX: Final = 400
READ_S_MAX: Final = 60
# A driver beside the session of the other tests: small, and quick to start.
DRIVER_SETTINGS: Final = {
    "spark.driver.memory": "512m",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.log.level": "OFF",
}


def live(program: str, plan: dict[str, Any], **environment: str) -> tuple[int, str]:
    """A whole life of a driver, in a session of its own: how it ended, and its last words."""
    path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, str(HERE / program), json.dumps(plan)],
        env={**os.environ, "PYTHONPATH": path, **environment},
        start_new_session=True,
        capture_output=True,
        text=True,
        timeout=LIFE_S_MAX,
        check=False,
    )
    return done.returncode, done.stderr[-3000:]


def read_committed(broker: Broker, topic: str, partitions: int) -> list[tuple[bytes, bytes]]:
    """Keys and values of all that was committed."""
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


def produce(broker: Broker, topic: str, count: int, first: int = 0) -> None:
    """Records whose value is a number, in turns to both partitions."""
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
    """A streaming query that runs to the end of what is there, and the rows that it has written."""

    def __init__(self, spark: Any, folder: Path) -> None:
        self._spark = spark
        self._checkpoint, self._rows = folder / "checkpoint", folder / "rows"

    def run(self, frame: Any) -> Any:
        writing = frame.writeStream.format("parquet").option("path", str(self._rows))
        query = writing.option("checkpointLocation", str(self._checkpoint)).trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(DONE_S_MAX)
        finally:
            query.stop()
        return query

    @property
    def numbers(self) -> list[int]:
        return numbers(self._spark.read.parquet(str(self._rows)).collect())

    @property
    def stored_offsets(self) -> list[str]:
        """The last line of each batch's entry in the checkpoint."""
        files = sorted((self._checkpoint / "offsets").glob("[0-9]*"), key=lambda each: int(each.name))
        return [each.read_text().splitlines()[-1] for each in files]
