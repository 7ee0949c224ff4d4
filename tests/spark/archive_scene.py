"""A topic with varied records, its contents, its archive, and a restore."""

import json
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from moldau.cli.cluster_client import connect
from moldau.pipelines.archive import Archive, records_of
from moldau.pipelines.flow import TopicSource
from moldau.pipelines.job_runner import RunConfig
from moldau.pipelines.restore import Restore, Restored
from moldau.pipelines.run_folder import RunFolder, new_run
from moldau.testing.broker import Broker

START_MS = 1_700_000_000_000
PARTITIONS = (0, 1)


def fill(broker: Broker, topic: str) -> None:
    """Produce nulls, empty values, repeated headers and unordered timestamps."""
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    keys: list[bytes | None] = [None, b"", b"k"]
    values: list[bytes | None] = [b"v", b"", None]
    headers: list[list[tuple[str, str | bytes | None]]] = [[], [("b", b"1"), ("a", b""), ("b", None)], [("", b"x")]]
    for number in range(60):
        producer.produce(
            topic,
            values[number // 2 % 3],
            keys[number // 6 % 3],
            partition=number % 2,
            timestamp=START_MS + (number * 1000 if number % 7 else number * 10),
            headers=headers[number % 3],
        )
    assert producer.flush(30) == 0


def transact(broker: Broker, topic: str, *, is_commit: bool) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": f"t-{topic}"})
    producer.init_transactions(30)
    producer.begin_transaction()
    for number in range(6):
        producer.produce(topic, f"transaction {number}", partition=number % 2, timestamp=START_MS + 500_000 + number)
    if is_commit:
        producer.commit_transaction(30)
    else:
        producer.flush(30)
        producer.abort_transaction(30)


def dump(broker: Broker, topic: str) -> dict[int, list[tuple[Any, ...]]]:
    """Return all committed records by partition, each preceded by its offset."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    places = [TopicPartition(topic, each) for each in PARTITIONS]
    futures = admin.list_offsets({place: OffsetSpec.latest() for place in places})
    ends = {place.partition: future.result().offset for place, future in futures.items()}
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "dump",
            "enable.auto.commit": False,
            "enable.partition.eof": False,
        }
    )
    found: dict[int, list[tuple[Any, ...]]] = {each: [] for each in PARTITIONS}
    consumer.assign([TopicPartition(topic, each, 0) for each in PARTITIONS])
    while any(place.offset < ends[place.partition] for place in consumer.position(places)):
        for each in consumer.consume(1000, 1):
            assert each.error() is None
            fields = (each.key(), each.value(), each.headers(), each.timestamp()[1])
            found[each.partition() or 0].append((each.offset(), *fields))
    consumer.close()
    return found


def contents(records: dict[int, list[tuple[Any, ...]]]) -> dict[int, list[tuple[Any, ...]]]:
    return {partition: [each[1:] for each in rows] for partition, rows in records.items()}


def archive(
    broker: Broker,
    topic: str,
    folder: Path,
    ending: str | None = None,
    *,
    name: str | None = None,
    rows_per_batch: int = 100,
    checkpoint: str | None = None,
    root: str | None = None,
) -> Archive:
    servers, name = broker.bootstrap_servers, name or f"archive-{topic}"
    source = TopicSource(
        bootstrap_servers=servers, topics=(topic,), rows_per_batch_max=rows_per_batch, group=name, ending=ending
    )
    root = root or str(folder / "lake" / topic)
    job = Archive(name=name, root=root, source=source, connect=lambda: connect(servers))
    config = RunConfig(
        folder=RunFolder(folder / "pipelines", name), master="local[2]", checkpoint=checkpoint, once=True
    )
    job.run(config, new_run("archive", {}, "local[2]"))
    return job


def until(topic: str, offset: int) -> str:
    return json.dumps({topic: {"0": offset, "1": offset}})


def forget_commit(checkpoint: Path) -> None:
    """Remove the last commit, like a crash between a batch and its commit."""
    last = max((checkpoint / "commits").glob("[0-9]*"), key=lambda each: int(each.name))
    last.unlink()
    last.with_name(f".{last.name}.crc").unlink(missing_ok=True)


def restore(spark: Any, broker: Broker, job: Archive, folder: Path, topic: str, **options: Any) -> Restored:
    return restore_of(broker, job, folder, topic, **options).run(spark)


def restore_of(broker: Broker, job: Archive, folder: Path, topic: str, **options: Any) -> Restore:
    place = folder / f"restore-{topic}"
    place.mkdir(exist_ok=True)
    servers = broker.bootstrap_servers
    return Restore(
        root=job.root,
        topic=topic,
        bootstrap_servers=servers,
        folder=place,
        connect=lambda: connect(servers),
        on_status=print,
        **{"rows_per_chunk": 80, "is_verified": True} | options,
    )


def in_archive(spark: Any, job: Archive) -> list[tuple[int, int]]:
    rows = records_of(spark, job.root).select("partition", "offset").collect()
    return sorted((row["partition"], row["offset"]) for row in rows)


def parse_offsets_json(records: dict[int, list[tuple[Any, ...]]]) -> list[tuple[int, int]]:
    return sorted((partition, row[0]) for partition, rows in records.items() for row in rows)
