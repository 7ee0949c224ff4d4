"""What the Spark tests have in common: records to read, and queries in few words."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Producer

from moldau.testing.broker import Broker

DONE_S_MAX: Final = 120


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
