"""Archive and restore: the restored topic equals the original."""

import json
import shutil
import uuid
from pathlib import Path
from typing import Any

import pytest
from archive_scene import (
    PARTITIONS,
    START_MS,
    archive,
    contents,
    dump,
    fill,
    forget_commit,
    in_archive,
    parse_offsets_json,
    restore,
    restore_of,
    transact,
    until,
)
from confluent_kafka import Producer
from typer.testing import CliRunner

from moldau.cli.main import app
from moldau.client.groups import Groups
from moldau.model.ids import TopicPartition as Place
from moldau.pipelines import hadoop_files
from moldau.pipelines.archive import Archive
from moldau.pipelines.offset_maps import Bucket
from moldau.pipelines.requirements import PipelineError
from moldau.pipelines.restore import Restore, Until, buckets_of
from moldau.pipelines.run_folder import RunFolder
from moldau.testing.broker import Broker

READ_S_MAX = 60


@pytest.fixture
def topic(moldau_broker: Broker) -> str:
    """A new topic for old records, which would be deleted with the default retention."""
    return moldau_broker.create_topic(f"spark-{uuid.uuid4().hex}", partitions=2, **{"retention.ms": "-1"})


@pytest.fixture(scope="module")
def archived(spark: Any, moldau_broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Archive]:
    """A topic and its archive, for tests that only read them."""
    del spark
    topic = moldau_broker.create_topic(f"spark-{uuid.uuid4().hex}", partitions=2, **{"retention.ms": "-1"})
    fill(moldau_broker, topic)
    return topic, archive(moldau_broker, topic, tmp_path_factory.mktemp("archived"))


@pytest.mark.proves("O3", "D3")
def test_restored_topic_equals_the_deleted_one(spark: Any, moldau_broker: Broker, topic: str, tmp_path: Path) -> None:
    fill(moldau_broker, topic)
    transact(moldau_broker, topic, is_commit=False)
    transact(moldau_broker, topic, is_commit=True)
    fill(moldau_broker, topic)
    before = dump(moldau_broker, topic)
    with moldau_broker.client() as client:
        client.run(Groups(client.asynchronous).commit("readers", {Place(topic, 0): 35, Place(topic, 1): 3}))
    job = archive(moldau_broker, topic, tmp_path)
    assert in_archive(spark, job) == parse_offsets_json(before)
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
def test_all_groups_excludes_those_of_archives(spark: Any, moldau_broker: Broker, topic: str, tmp_path: Path) -> None:
    """Groups of archives only show progress; in a restored topic they would have a lag for ever."""
    fill(moldau_broker, topic)
    job = archive(moldau_broker, topic, tmp_path)
    fill(moldau_broker, topic)
    with moldau_broker.client() as client:
        client.run(Groups(client.asynchronous).commit("readers", {Place(topic, 0): 35, Place(topic, 1): 3}))
    archive(moldau_broker, topic, tmp_path, name=f"also-{topic}")
    beside = f"{topic}-beside"
    restored = restore(spark, moldau_broker, job, tmp_path, beside, groups=("all",), is_verified=False)
    assert list(restored.groups) == ["readers"]
    # A group that is named is moved.
    named = restore_of(moldau_broker, job, tmp_path, beside, groups=(job.name,))
    with moldau_broker.client() as client:
        assert list(named.move_groups(client, named._archived(spark), restored.map)) == [job.name]


@pytest.mark.proves("O3")
def test_topic_is_restored_up_to_a_time(
    spark: Any, moldau_broker: Broker, archived: tuple[str, Archive], tmp_path: Path
) -> None:
    topic, job = archived
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
def test_replayed_batch_or_lost_checkpoint_duplicates_nothing(
    spark: Any, moldau_broker: Broker, topic: str, tmp_path: Path
) -> None:
    fill(moldau_broker, topic)
    job = archive(moldau_broker, topic, tmp_path, rows_per_batch=50)
    folder = RunFolder(tmp_path / "pipelines", job.name)
    forget_commit(folder.checkpoint)
    job = archive(moldau_broker, topic, tmp_path)
    assert in_archive(spark, job) == parse_offsets_json(dump(moldau_broker, topic))

    shutil.rmtree(folder.checkpoint)
    fill(moldau_broker, topic)
    job = archive(moldau_broker, topic, tmp_path)
    assert in_archive(spark, job) == parse_offsets_json(dump(moldau_broker, topic))


@pytest.mark.proves("D3", part="archive and restore")
def test_alternating_writers_archive_each_record_once(
    spark: Any, moldau_broker: Broker, topic: str, tmp_path: Path
) -> None:
    fill(moldau_broker, topic)
    archive(moldau_broker, topic, tmp_path)
    fill(moldau_broker, topic)
    archive(moldau_broker, topic, tmp_path, until(topic, 50))  # beyond the checkpoint of the first
    archive(moldau_broker, topic, tmp_path, name="another")
    fill(moldau_broker, topic)
    job = archive(moldau_broker, topic, tmp_path)
    assert in_archive(spark, job) == parse_offsets_json(dump(moldau_broker, topic))
    fill(moldau_broker, topic)
    archive(moldau_broker, topic, tmp_path, name="another")
    assert in_archive(spark, job) == parse_offsets_json(dump(moldau_broker, topic))


@pytest.mark.proves("D3", part="archive and restore")
def test_uncommitted_first_batch_is_archived_once(
    spark: Any, moldau_broker: Broker, topic: str, tmp_path: Path
) -> None:
    """The archive continues with a new checkpoint and crashes after its first batch is in place."""
    where = tmp_path / "elsewhere"
    checkpoint = where.as_uri()
    fill(moldau_broker, topic)
    archive(moldau_broker, topic, tmp_path, until(topic, 30))
    fill(moldau_broker, topic)
    archive(moldau_broker, topic, tmp_path, rows_per_batch=1000, checkpoint=checkpoint)
    forget_commit(where)
    job = archive(moldau_broker, topic, tmp_path, rows_per_batch=1000, checkpoint=checkpoint)
    assert in_archive(spark, job) == parse_offsets_json(dump(moldau_broker, topic))

    forget_commit(where)
    fill(moldau_broker, topic)
    archive(moldau_broker, topic, tmp_path, until(topic, 90))  # another writer continues before the rerun
    fill(moldau_broker, topic)
    archive(moldau_broker, topic, tmp_path, rows_per_batch=1000, checkpoint=checkpoint)
    assert in_archive(spark, job) == parse_offsets_json(dump(moldau_broker, topic))


@pytest.mark.proves("D3", part="archive and restore")
def test_note_survives_an_interrupted_update(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, steps_left = str(tmp_path / "_topic.json"), [0]
    rename = hadoop_files.replace_folder

    def stop_before(session: Any, source: str, target: str) -> None:
        if not steps_left[0]:
            raise KeyboardInterrupt
        steps_left[0] -= 1
        rename(session, source, target)

    assert hadoop_files.read_text(spark, place) is None
    hadoop_files.write_text(spark, place, "first")
    monkeypatch.setattr(hadoop_files, "replace_folder", stop_before)
    for steps_left[0] in (0, 1):
        with pytest.raises(KeyboardInterrupt):
            hadoop_files.write_text(spark, place, "second")
        assert hadoop_files.read_text(spark, place) == "first"
    steps_left[0] = 2
    hadoop_files.write_text(spark, place, "third")
    assert hadoop_files.read_text(spark, place) == "third"


@pytest.mark.proves("D3", part="client settings")
@pytest.mark.usefixtures("spark")
def test_large_records_are_restored_with_compression(moldau_broker: Broker, topic: str, tmp_path: Path) -> None:
    """A topic with a limit of 1 MiB can hold records of 3 MB only if they are compressed."""
    large = {"bootstrap.servers": moldau_broker.bootstrap_servers, "message.max.bytes": 10_000_000}
    producer = Producer({**large, "compression.type": "zstd"})
    for partition in PARTITIONS:
        producer.produce(topic, bytes(3_000_000), partition=partition, timestamp=START_MS)
    assert producer.flush(30) == 0
    job = archive(moldau_broker, topic, tmp_path)
    other = f"{topic}-large"
    words = ["pipeline", "run", "restore", "--archive", job.root, "--to", other, "--verify", "--json"]
    runs = ["--folder", str(tmp_path / "pipelines"), "--master", "local[2]"]
    there = ["-b", moldau_broker.bootstrap_servers, "--kafka", "compression.type=zstd"]
    result = CliRunner().invoke(app, [*words, *runs, *there])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["verified"] is True
    assert contents(dump(moldau_broker, other)) == contents(dump(moldau_broker, topic))


@pytest.mark.proves("D3", part="archive and restore")
def test_records_are_counted_by_offset_range(spark: Any) -> None:
    rows = spark.sql("select int(id % 2) as partition, id * 1000000 as offset from range(10)")
    near = spark.sql("select 2 as partition, id as offset from range(95, 105)")
    found = buckets_of(rows.union(near), 100)
    assert sorted(found) == [
        *[
            Bucket(partition, each, each + 1, 1)
            for partition in (0, 1)
            for each in range(partition * 10**6, 10**7, 2 * 10**6)
        ],
        Bucket(2, 95, 100, 5),
        Bucket(2, 100, 105, 5),
    ]


@pytest.mark.proves("O3")
def test_interrupted_restore_resumes(
    spark: Any,
    moldau_broker: Broker,
    archived: tuple[str, Archive],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic, job = archived
    before = dump(moldau_broker, topic)
    assert in_archive(spark, job) == parse_offsets_json(before)
    other, remember, left = f"{topic}-again", Restore._remember, [2]

    def remove_writer(self: Restore, memory: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError("no space left")  # the second chunk is written, but not recorded
        remember(self, memory)

    monkeypatch.setattr(Restore, "_remember", remove_writer)
    with pytest.raises(OSError, match="no space"):
        restore(spark, moldau_broker, job, tmp_path, other, rows_per_chunk=30)
    monkeypatch.setattr(Restore, "_remember", remember)
    assert restore(spark, moldau_broker, job, tmp_path, other, rows_per_chunk=30).differences == []
    assert contents(dump(moldau_broker, other)) == contents(before)


@pytest.mark.proves("O3")
def test_partitions_added_after_the_last_note_are_restored(
    spark: Any, moldau_broker: Broker, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last note may be a minute old when archiver and cluster crash, and the archive grows later."""
    fill(moldau_broker, topic)
    early = archive(moldau_broker, topic, tmp_path)
    broken_off, late = f"{topic}-early", f"{topic}-late"
    monkeypatch.setattr(Restore, "_read_back", lambda *_: 1 / 0)  # a crash before the verification
    with pytest.raises(ZeroDivisionError):
        restore(spark, moldau_broker, early, tmp_path, broken_off)
    monkeypatch.undo()

    with moldau_broker.client() as client:
        client.create_partitions({topic: 3})
        client.produce(topic, 2, [(START_MS, None, b"of a new partition", ())])
    monkeypatch.setattr(Archive, "_note_topic", lambda *_: None)
    job = archive(moldau_broker, topic, tmp_path)
    assert restore(spark, moldau_broker, job, tmp_path, late, groups=(job.name,)).differences == []
    assert restore(spark, moldau_broker, job, tmp_path, broken_off, groups=(job.name,)).differences == []
    with moldau_broker.client() as client:
        assert [len(client.describe_topic(each).partitions) for each in (late, broken_off)] == [3, 2]
