"""Archives and restores without Spark: offset maps, chunks, checksums, and the start of the next run."""

import json
import logging
import time
import uuid
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer
from hypothesis import given
from hypothesis import strategies as st

from moldau.cli.errors import CommandError
from moldau.cli.pipeline_restore import parse_until, show_restored
from moldau.client.errors import Unreachable
from moldau.client.types import OffsetResult
from moldau.model.errors import InvalidTimestamp, KafkaError, LeaderNotAvailable, NotCoordinator
from moldau.model.ids import TopicPartition
from moldau.pipelines.archive import Archive, ArchivedTopic, RateLimiter, begun, committed, continued, describe_topic
from moldau.pipelines.archive_sink import Contents
from moldau.pipelines.flow import TopicSource
from moldau.pipelines.offset_maps import Bucket, Piece, Sum, chunks_of, differences, extents_of, map_of
from moldau.pipelines.requirements import PipelineError
from moldau.pipelines.restore import Restore, Restored, Until, ends_of
from moldau.testing.broker import Broker

MAP = map_of([Piece(0, 20, 24, 6), Piece(0, 10, 14, 0), Piece(1, 0, 0, 0)], {0: 12, 1: 2, 2: 0})
JOIN_S_MAX = 60
SOURCE = TopicSource(bootstrap_servers="here:9092", topics=("t",))


@pytest.mark.proves("O3")
@pytest.mark.parametrize(
    ("old", "new"), [(0, 0), (10, 0), (12, 2), (14, 4), (15, 6), (19, 6), (20, 6), (24, 10), (25, 11), (99, 11)]
)
def test_group_offset_is_mapped_to_the_next_record(old: int, new: int) -> None:
    assert MAP.moved(0, old) == new


def test_group_offset_of_an_empty_partition_is_mapped_to_its_end() -> None:
    assert MAP.moved(2, 17) == 0
    assert MAP.shape()["1"] == [{"old": [0, 0], "new": [0, 0]}]


def cut(offsets: dict[int, set[int]], width: int) -> list[Bucket]:
    """Count the records by bucket, like the query on Spark."""
    found = []
    for partition, there in offsets.items():
        for _, each in groupby(sorted(there), key=lambda offset: offset // width):
            inside = list(each)
            found.append(Bucket(partition, inside[0], inside[-1] + 1, len(inside)))
    return found


@given(
    st.dictionaries(st.integers(0, 5), st.sets(st.integers(0, 200), min_size=1)),
    st.integers(1, 40),
)
def test_chunks_cover_every_record_once_in_order(offsets: dict[int, set[int]], rows_max: int) -> None:
    seen: dict[int, list[int]] = {partition: [] for partition in offsets}
    buckets = cut(offsets, max(rows_max // 6, 1))
    chunks = chunks_of(buckets, rows_max)
    for chunk in chunks:
        inside = {each: sorted(set(range(*span)) & offsets[each]) for each, span in chunk.ranges.items()}
        assert 0 < sum(map(len, inside.values())) <= rows_max
        for partition, found in inside.items():
            seen[partition] += found
    assert seen == {partition: sorted(there) for partition, there in offsets.items()}
    assert len(chunks) <= 2 * sum(map(len, offsets.values())) / rows_max + 1
    assert extents_of(buckets) == {each: (min(there), max(there) + 1) for each, there in offsets.items()}


@pytest.mark.proves("D3", part="archive and restore")
def test_sparse_records_make_few_chunks() -> None:
    """A compacted topic: 12 partitions of 100 million offsets, with one record per million."""
    offsets = {partition: set(range(partition, 100_000_000, 1_000_000)) for partition in range(12)}
    (chunk,) = chunks_of(cut(offsets, 500_000 // 12), 500_000)
    assert chunk.ranges == {partition: (partition, 99_000_001 + partition) for partition in range(12)}


def test_all_partitions_advance_together() -> None:
    offsets = {0: set(range(40)), 1: set(range(1000, 1040))}
    chunks = chunks_of(cut(offsets, 10), 20)
    assert chunks[0].ranges == {0: (0, 10), 1: (1000, 1010)}
    assert chunks[-1].ranges == {0: (30, 40), 1: (1030, 1040)}


@pytest.mark.proves("O3")
def test_differences_are_listed_by_partition() -> None:
    before = {0: Sum(3, 10, 7), 1: Sum(2, 5, 1), 2: Sum(1, 1, 1)}
    assert differences(before, dict(before)) == []
    assert differences(before, {0: Sum(3, 10, 6), 2: Sum(1, 1, 1), 3: Sum(1, 2, 3)}) == [
        "partition 0 has 3 records as the archive, but different ones",
        "partition 1 has 0 records, the archive 2",
        "partition 3 has 1 records, the archive 0",
    ]


def test_archive_continues_at_its_end() -> None:
    assert continued(SOURCE, {}, [0, 1]) == SOURCE
    assert json.loads(continued(SOURCE, {0: 7}, [0, 1]).starting) == {"t": {"0": 7, "1": -2}}
    bounded = TopicSource(
        bootstrap_servers="here:9092",
        topics=("t",),
        starting='{"t": {"0": 1, "1": 2}}',
        ending='{"t": {"0": 5, "1": 9}}',
    )
    on = continued(bounded, {0: 7}, [0, 1])
    assert json.loads(on.starting) == {"t": {"0": 7, "1": 2}}
    assert json.loads(on.ending or "") == {"t": {"0": 7, "1": 9}}


@pytest.mark.proves("D3", part="archive and restore")
def test_batch_excludes_records_written_by_others() -> None:
    held = Contents(ends={0: 150, 1: 7}, last_batch=4, floors={0: 100, 1: 7}, ceilings={0: 120})
    assert held.missing_condition(5) == "offset >= case partition when 0 then 150 when 1 then 7 else 0 end"
    assert held.missing_condition(4) == (
        "offset >= case partition when 0 then 100 when 1 then 7 else 0 end "
        f"and offset < case partition when 0 then 120 else {2**63 - 1} end"
    )
    with pytest.raises(PipelineError, match="batch 3 is a replay, but the archive already has batch 4"):
        held.missing_condition(3)
    assert Contents().missing_condition(0) == "offset >= 0"


def test_query_keeps_its_first_starting_offsets() -> None:
    later = TopicSource(bootstrap_servers="here:9092", topics=("t",), starting='{"t": {"0": 90}}')
    assert begun(later, "earliest", [0, 1]).starting == "earliest"
    assert json.loads(begun(later, '{"t": {"0": 7}}', [0, 1]).starting) == {"t": {"0": 7, "1": -2}}


def test_ejected_archive_needs_only_the_source() -> None:
    job = Archive(name="a", root="/lake/t", source=SOURCE, connect=lambda: pytest.fail("no connection needed"))
    script = job.flow(SOURCE).script(master=None, checkpoint="/c", once=True)
    compile(script, "script", "exec")
    assert "def replace_folder" in script
    assert "moldau.pipelines" not in script


def test_groups_are_saved_at_intervals() -> None:
    now_s: list[float] = [0.0]
    calls: list[float] = []
    seldom = RateLimiter(calls.append, clock=lambda: now_s[0])
    for now_s[0] in (1, 59, 60, 61, 100, 130):
        seldom(now_s[0])
    assert calls == [60, 130]


@pytest.mark.proves("D3", part="archive and restore")
@pytest.mark.parametrize("error", [NotCoordinator("it has moved"), Unreachable("cannot reach b:9092")])
def test_archive_continues_when_groups_cannot_be_saved(
    error: KafkaError | OSError, caplog: pytest.LogCaptureFixture
) -> None:
    now_s: list[float] = [0.0]
    calls: list[float] = []

    def note(now: Any) -> None:
        calls.append(now)
        raise error

    seldom = RateLimiter(note, clock=lambda: now_s[0])
    with caplog.at_level(logging.WARNING, "moldau.pipelines"):
        for now_s[0] in (60, 130):
            seldom(now_s[0])
    assert calls == [60, 130]
    assert [each.message for each in caplog.records] == [
        f"archive metadata not updated, retrying in a minute: {error}"
    ] * 2


@pytest.mark.proves("D3", part="client settings")
def test_restore_passes_client_settings_to_source_and_sink(tmp_path: Path) -> None:
    from pyspark_moldau.options.sink_options import sink_batch_options

    given_options = {"kafka.client.id": "me", "kafka.isolation.level": "read_uncommitted"}
    job = Restore(
        root="/lake/t",
        topic="t",
        bootstrap_servers="here:9092",
        folder=tmp_path,
        connect=lambda: pytest.fail("no connection needed"),
        options=given_options,
    )
    written, read = job.write_options("w", 3), job.read_options()
    assert (written["kafka.client.id"], read["kafka.client.id"]) == ("me", "me")
    assert read["kafka.isolation.level"] == "read_committed"
    assert sink_batch_options(written).row_bytes_max == 1_000_000_000
    assert not sink_batch_options(written).is_sent_by_librdkafka, "librdkafka cannot write timestamp 0"


@pytest.mark.proves("D3", part="archive and restore")
def test_restore_accepts_records_older_than_the_timestamp_limit(moldau_broker: Broker, tmp_path: Path) -> None:
    """The timestamp limit is set only after the records are restored."""
    limits = {"message.timestamp.before.max.ms": "60000", "segment.bytes": "1048576"}
    archived = ArchivedTopic(topic="old", topic_id="", partitions=1, configs=limits)
    job = Restore(
        root="/lake/old",
        topic="restored-times",
        bootstrap_servers=moldau_broker.bootstrap_servers,
        folder=tmp_path,
        connect=moldau_broker.client,
    )
    with moldau_broker.client() as client:
        job.create(client, archived)
        client.produce(job.topic, 0, [(1000, None, b"long ago", ())])
        job.settle(client, archived)
        assert describe_topic(client, job.topic, 17).configs == {
            **limits,
            "retention.ms": "-1",
            "retention.bytes": "-1",
        }
        with pytest.raises(InvalidTimestamp):
            client.produce(job.topic, 0, [(1000, None, b"long ago", ())])


@pytest.mark.proves("O3")
def test_groups_with_members_are_reported_and_all_others_moved(moldau_broker: Broker, tmp_path: Path) -> None:
    """Consumers of a lost topic may be waiting for its restore."""
    topic = moldau_broker.create_topic(f"restored-{uuid.uuid4().hex}", 1)
    busy, idle = f"a-{topic}", f"b-{topic}"
    archived = ArchivedTopic(
        topic="old", topic_id="", partitions=1, groups={group: {"0": 12, "7": 3} for group in (busy, idle)}
    )
    job = Restore(
        root="/lake/old",
        topic=topic,
        bootstrap_servers=moldau_broker.bootstrap_servers,
        folder=tmp_path,
        connect=moldau_broker.client,
        groups=("all",),
    )
    moved = map_of([Piece(0, 10, 14, 0)], {0: 5})
    reader = Consumer({"bootstrap.servers": moldau_broker.bootstrap_servers, "group.id": busy})
    reader.subscribe([topic])
    deadline = time.monotonic() + JOIN_S_MAX
    while not reader.assignment():
        reader.poll(0.1)
        assert time.monotonic() < deadline
    with moldau_broker.client() as client:
        with pytest.raises(
            PipelineError, match=f"the offsets of {busy} cannot be set while the groups have live members"
        ):
            job.move_groups(client, archived, moved)
        assert committed(client, topic) == {idle: {"0": 2}}
        reader.close()
        assert job.move_groups(client, archived, moved) == {busy: {"0": 2}, idle: {"0": 2}}
        assert committed(client, topic) == {busy: {"0": 2}, idle: {"0": 2}}


@pytest.mark.parametrize(
    ("text", "until"),
    [
        (None, Until()),
        ("end", Until()),
        ("@1700000000000", Until(time_ms=1_700_000_000_000)),
        ("120", Until(offset=120)),
        ("0:120,1:98", Until(offsets={0: 120, 1: 98})),
    ],
)
def test_until_is_parsed_as_a_time_or_offsets(text: str | None, until: Until) -> None:
    assert parse_until(text) == until


@pytest.mark.parametrize("text", ["start", "-5", "0:1,", "noon"])
def test_invalid_until_is_rejected(text: str) -> None:
    with pytest.raises(CommandError):
        parse_until(text)


def test_unnamed_partitions_are_excluded_by_until() -> None:
    assert Until(offsets={1: 98, 0: 120}).condition() == (
        "offset >= case partition when 0 then 120 when 1 then 98 else 0 end"
    )


def test_restore_that_differs_from_the_archive_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def restored(found: list[str] | None) -> Restored:
        return Restored(topic="t", rows=11, map=MAP, differences=found, groups={"g": {"0": 4}}, notes=["a note"])

    show_restored(restored([]), is_json=False, folder=tmp_path)
    out, err = capsys.readouterr()
    assert out.splitlines()[1].split() == ["0", "10-14", "0-4"]
    assert "group g: offsets 0: 4" in err
    assert "restored 11 records to t, verified against the archive" in err
    assert json.loads((tmp_path / "offsets.json").read_text())["0"][1] == {"old": [20, 24], "new": [6, 10]}
    with pytest.raises(CommandError, match="t differs from the archive: partition 0 differs"):
        show_restored(restored(["partition 0 differs"]), is_json=True, folder=tmp_path)
    assert json.loads(capsys.readouterr().out)["verified"] is False


def test_archive_saves_settings_and_groups_of_its_topic(moldau_broker: Broker) -> None:
    topic = moldau_broker.create_topic("archive-settings", partitions=3, **{"retention.ms": "5000"})
    from moldau.client.groups import Groups
    from moldau.model.ids import TopicPartition

    with moldau_broker.client() as client:
        groups = Groups(client.asynchronous)
        client.run(groups.commit("readers", {TopicPartition(topic, 1): 5, TopicPartition(topic, 0): 4}))
        found = describe_topic(client, topic, 17)
        assert committed(client, topic) == {"readers": {"0": 4, "1": 5}}
    assert (found.topic, found.partitions, found.at_ms) == (topic, 3, 17)
    assert found.configs == {"retention.ms": "5000"}
    assert found.groups == {"readers": {"0": 4, "1": 5}}
    assert ArchivedTopic.of_text(found.to_text()) == found


@pytest.mark.proves("O3")
def test_failed_offset_lookup_is_an_error(moldau_broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = moldau_broker.create_topic(f"silent-{uuid.uuid4().hex}", partitions=2)
    with moldau_broker.client() as client:
        assert ends_of(client, topic) == {0: 0, 1: 0}
        found = {
            TopicPartition(topic, 0): OffsetResult(7),
            TopicPartition(topic, 1): OffsetResult(-1, error=LeaderNotAvailable()),
        }
        monkeypatch.setattr(client, "list_offsets", lambda *_, **__: found)
        with pytest.raises(LeaderNotAvailable):
            ends_of(client, topic)
