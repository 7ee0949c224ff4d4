"""Archives and restores without Spark: maps of offsets, chunks, sums, and where an archive goes on."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.cli.errors import Complaint
from moldau.cli.pipeline_restores import parse_until, show_restored
from moldau.pipelines.archive import Archive, ArchivedTopic, Seldom, committed, continued, look_at
from moldau.pipelines.flow import TopicSource
from moldau.pipelines.offset_maps import Piece, Sum, chunks_of, differences, map_of
from moldau.pipelines.restore import Restored, Until
from moldau.testing.broker import Broker

MAP = map_of([Piece(0, 20, 24, 6), Piece(0, 10, 14, 0), Piece(1, 0, 0, 0)], {0: 12, 1: 2, 2: 0})
SOURCE = TopicSource(bootstrap_servers="here:9092", topics=("t",))


@pytest.mark.proves("O3")
@pytest.mark.parametrize(
    ("old", "new"), [(0, 0), (10, 0), (12, 2), (14, 4), (15, 6), (19, 6), (20, 6), (24, 10), (25, 11), (99, 11)]
)
def test_a_reader_goes_on_with_the_record_it_would_have_read_next(old: int, new: int) -> None:
    assert MAP.moved(0, old) == new


def test_a_reader_of_an_empty_partition_waits_at_its_end() -> None:
    assert MAP.moved(2, 17) == 0
    assert MAP.shape()["1"] == [{"old": [0, 0], "new": [0, 0]}]


@given(
    st.dictionaries(
        st.integers(0, 5), st.tuples(st.integers(0, 50), st.integers(0, 50)).map(lambda x: (x[0], x[0] + x[1]))
    ),
    st.integers(1, 40),
)
def test_chunks_cover_every_offset_once_and_in_order(extents: dict[int, tuple[int, int]], rows_max: int) -> None:
    seen: dict[int, list[int]] = {partition: [] for partition in extents}
    chunks = chunks_of(extents, rows_max)
    for chunk in chunks:
        assert sum(end - start for start, end in chunk.ranges.values()) <= max(rows_max, len(extents))
        for partition, (start, end) in chunk.ranges.items():
            seen[partition] += range(start, end)
    assert seen == {partition: list(range(*extent)) for partition, extent in extents.items()}


@pytest.mark.proves("O3")
def test_what_differs_is_named() -> None:
    before = {0: Sum(3, 10, 7), 1: Sum(2, 5, 1), 2: Sum(1, 1, 1)}
    assert differences(before, dict(before)) == []
    assert differences(before, {0: Sum(3, 10, 6), 2: Sum(1, 1, 1), 3: Sum(1, 2, 3)}) == [
        "partition 0 has 3 records as the archive, but not the same ones",
        "partition 1 has 0 records, the archive 2",
        "partition 3 has 1 records, the archive 0",
    ]


def test_an_archive_goes_on_where_it_ends() -> None:
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


def test_an_ejected_archive_needs_nothing_of_ours_but_the_source() -> None:
    job = Archive(name="a", root="/lake/t", source=SOURCE, connect=lambda: pytest.fail("no need to ask"))
    script = job.flow(SOURCE).script(master=None, checkpoint="/c", once=True)
    compile(script, "script", "exec")
    assert "def replace_folder" in script
    assert "moldau.pipelines" not in script


def test_groups_are_noted_now_and_then() -> None:
    now_s: list[float] = [0.0]
    calls: list[float] = []
    seldom = Seldom(calls.append, clock=lambda: now_s[0])
    for now_s[0] in (1, 59, 60, 61, 100, 130):
        seldom(now_s[0])
    assert calls == [60, 130]


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
def test_a_moment_is_a_time_or_offsets(text: str | None, until: Until) -> None:
    assert parse_until(text) == until


@pytest.mark.parametrize("text", ["start", "-5", "0:1,", "noon"])
def test_what_is_no_moment_is_refused(text: str) -> None:
    with pytest.raises(Complaint):
        parse_until(text)


def test_offsets_by_partition_leave_out_partitions_that_are_not_named() -> None:
    assert Until(offsets={1: 98, 0: 120}).condition() == (
        "offset >= case partition when 0 then 120 when 1 then 98 else 0 end"
    )


def test_a_restore_that_is_not_the_same_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def restored(found: list[str] | None) -> Restored:
        return Restored(topic="t", rows=11, map=MAP, differences=found, groups={"g": {"0": 4}}, notes=["mind it"])

    show_restored(restored([]), is_json=False, folder=tmp_path)
    out, err = capsys.readouterr()
    assert out.splitlines()[1].split() == ["0", "10-14", "0-4"]
    assert "group g is at 0: 4" in err
    assert "11 records are back in t, the same as in the archive" in err
    assert json.loads((tmp_path / "offsets.json").read_text())["0"][1] == {"old": [20, 24], "new": [6, 10]}
    with pytest.raises(Complaint, match="t is not what was archived: partition 0 is odd"):
        show_restored(restored(["partition 0 is odd"]), is_json=True, folder=tmp_path)
    assert json.loads(capsys.readouterr().out)["verified"] is False


def test_an_archive_knows_settings_and_groups_of_its_topic(moldau_broker: Broker) -> None:
    topic = moldau_broker.create_topic("archive-settings", partitions=3, **{"retention.ms": "5000"})
    from moldau.client.groups import Groups
    from moldau.model.ids import TopicPartition

    with moldau_broker.client() as client:
        groups = Groups(client.asynchronous)
        client.run(groups.commit("readers", {TopicPartition(topic, 1): 5, TopicPartition(topic, 0): 4}))
        found = look_at(client, topic, 17)
        assert committed(client, topic) == {"readers": {"0": 4, "1": 5}}
    assert (found.topic, found.partitions, found.at_ms) == (topic, 3, 17)
    assert found.configs == {"retention.ms": "5000"}
    assert found.groups == {"readers": {"0": 4, "1": 5}}
    assert ArchivedTopic.of_text(found.to_text()) == found
