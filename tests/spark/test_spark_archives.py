"""Archive a topic, lose it, restore it: what comes back is what was there."""

import shutil
import uuid
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from moldau.cli.connecting import connect
from moldau.client.groups import Groups
from moldau.model.ids import TopicPartition as Place
from moldau.pipelines.archive import Archive, records_of
from moldau.pipelines.flow import TopicSource
from moldau.pipelines.folders import RunFolder, new_run
from moldau.pipelines.requirements import PipelineError
from moldau.pipelines.restore import Restore, Restored, Until
from moldau.pipelines.running import Conditions
from moldau.testing.broker import Broker

START_MS = 1_700_000_000_000
READ_S_MAX = 60
PARTITIONS = (0, 1)


@pytest.fixture
def topic(moldau_broker: Broker) -> str:
    """A fresh topic for records of long ago, which by default might be deleted at any moment."""
    return moldau_broker.create_topic(f"spark-{uuid.uuid4().hex}", partitions=2, **{"retention.ms": "-1"})


def fill(broker: Broker, topic: str) -> None:
    """Nulls, empties, headers in odd orders, times that jump, and transactions of both outcomes in between."""
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
    """All committed records by partition, with their offsets in front."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    places = [TopicPartition(topic, each) for each in PARTITIONS]
    asked = admin.list_offsets({place: OffsetSpec.latest() for place in places})
    ends = {place.partition: future.result().offset for place, future in asked.items()}
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


def archive(broker: Broker, topic: str, folder: Path, ending: str | None = None) -> Archive:
    servers = broker.bootstrap_servers
    job = Archive(
        name=f"archive-{topic}",
        root=str(folder / "lake" / topic),
        source=TopicSource(
            bootstrap_servers=servers, topics=(topic,), rows_per_batch_max=25, group=f"archive-{topic}", ending=ending
        ),
        connect=lambda: connect(servers),
    )
    run_folder = RunFolder(folder / "pipelines", job.name)
    job.run(Conditions(folder=run_folder, master="local[2]", once=True), new_run("archive", {}, "local[2]"))
    return job


def restore(spark: Any, broker: Broker, job: Archive, folder: Path, topic: str, **options: Any) -> Restored:
    place = folder / f"restore-{topic}"
    place.mkdir(exist_ok=True)
    servers = broker.bootstrap_servers
    wanted = Restore(
        root=job.root,
        topic=topic,
        bootstrap_servers=servers,
        folder=place,
        connect=lambda: connect(servers),
        is_verified=True,
        tell=print,
        **{"rows_per_chunk": 40} | options,
    )
    return wanted.run(spark)


def in_archive(spark: Any, job: Archive) -> list[tuple[int, int]]:
    rows = records_of(spark, job.root).select("partition", "offset").collect()
    return sorted((row["partition"], row["offset"]) for row in rows)


def offsets_of(records: dict[int, list[tuple[Any, ...]]]) -> list[tuple[int, int]]:
    return sorted((partition, row[0]) for partition, rows in records.items() for row in rows)


@pytest.mark.proves("O3", "D3")
def test_archived_deleted_and_restored_it_is_identical(
    spark: Any, moldau_broker: Broker, topic: str, tmp_path: Path
) -> None:
    fill(moldau_broker, topic)
    transact(moldau_broker, topic, is_commit=False)
    transact(moldau_broker, topic, is_commit=True)
    fill(moldau_broker, topic)
    before = dump(moldau_broker, topic)
    with moldau_broker.client() as client:
        client.run(Groups(client.asynchronous).commit("readers", {Place(topic, 0): 35, Place(topic, 1): 3}))
    job = archive(moldau_broker, topic, tmp_path)
    assert in_archive(spark, job) == offsets_of(before)
    with moldau_broker.client() as client:
        client.delete_topic(topic)

    restored = restore(spark, moldau_broker, job, tmp_path, topic, groups=("readers",))
    assert restored.differences == []
    after = dump(moldau_broker, topic)
    assert contents(after) == contents(before)
    for partition in PARTITIONS:
        moves = zip(before[partition], after[partition], strict=True)
        assert all(restored.map.moved(partition, old[0]) == new[0] for old, new in moves)
    expected = {
        str(partition): next(
            new[0]
            for old, new in zip(before[partition], after[partition], strict=True)
            if old[0] >= {0: 35, 1: 3}[partition]
        )
        for partition in PARTITIONS
    }
    assert restored.groups == {"readers": expected}


@pytest.mark.proves("O3")
def test_a_moment_is_restored_beside_the_topic(spark: Any, moldau_broker: Broker, topic: str, tmp_path: Path) -> None:
    fill(moldau_broker, topic)
    job = archive(moldau_broker, topic, tmp_path, ending=f'{{"{topic}": {{"0": 30, "1": 30}}}}')
    before, until_ms = dump(moldau_broker, topic), START_MS + 40_000
    with pytest.raises(PipelineError, match="exists; restore to another"):
        restore(spark, moldau_broker, job, tmp_path, topic)
    other = f"{topic}-then"
    assert restore(spark, moldau_broker, job, tmp_path, other, until=Until(time_ms=until_ms)).differences == []
    cuts = {
        partition: next(number for number, row in enumerate(rows) if row[-1] >= until_ms)
        for partition, rows in before.items()
    }
    then = {partition: rows[: cuts[partition]] for partition, rows in contents(before).items()}
    assert contents(dump(moldau_broker, other)) == then


@pytest.mark.proves("D3")
def test_a_replayed_batch_and_a_lost_checkpoint_leave_each_record_once(
    spark: Any, moldau_broker: Broker, topic: str, tmp_path: Path
) -> None:
    fill(moldau_broker, topic)
    job = archive(moldau_broker, topic, tmp_path)
    folder = RunFolder(tmp_path / "pipelines", job.name)
    commits = sorted((folder.checkpoint / "commits").glob("[0-9]*"), key=lambda each: int(each.name))
    commits[-1].unlink()  # as after a crash between the last batch and its commit
    commits[-1].with_name(f".{commits[-1].name}.crc").unlink(missing_ok=True)
    job = archive(moldau_broker, topic, tmp_path)
    assert in_archive(spark, job) == offsets_of(dump(moldau_broker, topic))

    shutil.rmtree(folder.checkpoint)
    fill(moldau_broker, topic)
    job = archive(moldau_broker, topic, tmp_path)
    assert in_archive(spark, job) == offsets_of(dump(moldau_broker, topic))


@pytest.mark.proves("O3")
def test_a_restore_that_was_broken_off_goes_on(
    spark: Any, moldau_broker: Broker, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(moldau_broker, topic)
    before = dump(moldau_broker, topic)
    job = archive(moldau_broker, topic, tmp_path)
    assert in_archive(spark, job) == offsets_of(before)
    other, remember, left = f"{topic}-again", Restore._remember, [2]

    def forget(self: Restore, memory: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError("no space left")  # the second part is out, and nobody has noted it
        remember(self, memory)

    monkeypatch.setattr(Restore, "_remember", forget)
    with pytest.raises(OSError, match="no space"):
        restore(spark, moldau_broker, job, tmp_path, other, rows_per_chunk=20)
    monkeypatch.setattr(Restore, "_remember", remember)
    assert restore(spark, moldau_broker, job, tmp_path, other, rows_per_chunk=20).differences == []
    assert contents(dump(moldau_broker, other)) == contents(before)
