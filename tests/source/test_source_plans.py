"""Offset ranges of the next batch, planned against a fake cluster."""

import json
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

import pytest

from moldau.model.ids import TopicPartition
from pyspark_moldau.options.offset_limits import Offsets, OptionError, offsets_json, parse_offsets_json
from pyspark_moldau.options.source_options import (
    Assignment,
    Pattern,
    SourceOptions,
    Subscription,
    Topics,
    batch_options,
    stream_options,
)
from pyspark_moldau.source.offset_ranges import OffsetRange
from pyspark_moldau.source.read_plan import RecordsLost, StreamPlan, Topic, UnknownTopic, plan_batch

MUST = {"kafka.bootstrap.servers": "localhost:9092"}
A, B = TopicPartition("t", 0), TopicPartition("t", 1)


@dataclass
class FakeCluster:
    """Partitions with a start and an end offset; the timestamp of a record is its offset times 1,000."""

    extents: dict[TopicPartition, tuple[int, int]]
    ids: dict[str, str] = field(default_factory=dict)
    committed: dict[str, Offsets] = field(default_factory=dict)
    commit_error: Exception | None = None
    on_latest: Callable[[], None] = lambda: None  # called once before the next request for end offsets

    def topics(self, subscription: Subscription) -> dict[str, Topic]:
        match subscription:
            case Topics(names):
                wanted = [each for each in self.extents if each.topic in names]
            case Pattern():
                wanted = [each for each in self.extents if subscription.matches(each.topic)]
            case Assignment(partitions):
                topics = {each.topic for each in partitions}
                wanted = [each for each in self.extents if each.topic in topics]
        return {
            name: Topic(
                self.ids.get(name, f"id-{name}"), tuple(each.partition for each in wanted if each.topic == name)
            )
            for name in dict.fromkeys(each.topic for each in wanted)
        }

    def earliest(self, partitions: Collection[TopicPartition]) -> Offsets:
        return {each: self.extents[each][0] for each in partitions}

    def latest(self, partitions: Collection[TopicPartition]) -> Offsets:
        change, self.on_latest = self.on_latest, lambda: None
        change()
        return {each: self.extents[each][1] for each in partitions}

    def at_times(self, times_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        found: dict[TopicPartition, int | None] = {}
        for where, time_ms in times_ms.items():
            start, end = self.extents[where]
            offset = max(-(-time_ms // 1000), start)
            found[where] = offset if offset < end else None
        return found

    def commit(self, group: str, offsets: Offsets) -> None:
        if self.commit_error is not None:
            raise self.commit_error
        self.committed[group] = dict(offsets)


def batch(**given: object) -> SourceOptions:
    return batch_options({**MUST, "subscribe": "t", **texts(given)})


def stream(**given: object) -> SourceOptions:
    return stream_options({**MUST, "subscribe": "t", **texts(given)})


def texts(given: Mapping[str, object]) -> dict[str, str]:
    return {name: json.dumps(value) if isinstance(value, dict) else str(value) for name, value in given.items()}


def plan(cluster: FakeCluster, options: SourceOptions, now_ms: float = 0.0) -> StreamPlan:
    return StreamPlan(options, cluster, lambda: now_ms)


def extents(ranges: list[OffsetRange]) -> dict[TopicPartition, tuple[int, int]]:
    return {TopicPartition(each.topic, each.partition): (each.from_offset, each.until_offset) for each in ranges}


def two() -> FakeCluster:
    return FakeCluster({A: (2, 10), B: (0, 20)})


# Batches


def test_batch_reads_all_records() -> None:
    assert plan_batch(batch(), two()) == [OffsetRange("t", 0, 2, 10, "id-t"), OffsetRange("t", 1, 0, 20, "id-t")]


def test_batch_reads_between_given_offsets() -> None:
    options = batch(startingOffsets={"t": {"0": -2, "1": 5}}, endingOffsets={"t": {"0": 7, "1": -1}})
    assert extents(plan_batch(options, two())) == {A: (2, 7), B: (5, 20)}


@pytest.mark.proves("D1")
@pytest.mark.parametrize("offsets", [{"t": {"0": 5}}, {"t": {"0": 5, "1": 5, "2": 5}}, {"u": {"0": 5, "1": 5}}])
def test_offsets_must_name_every_partition_and_no_other(offsets: dict[str, dict[str, int]]) -> None:
    with pytest.raises(OptionError, match="exactly the partitions"):
        plan_batch(batch(startingOffsets=offsets), two())
    with pytest.raises(OptionError, match="exactly the partitions"):
        plan_batch(batch(endingOffsetsByTimestamp=offsets), two())


def test_batch_reads_between_timestamps() -> None:
    assert extents(plan_batch(batch(startingTimestamp=4500, endingTimestamp=8000), two())) == {A: (5, 8), B: (5, 8)}
    by_partition = batch(startingOffsetsByTimestamp={"t": {"0": 0, "1": 7000}})
    assert extents(plan_batch(by_partition, two())) == {A: (2, 10), B: (7, 20)}
    until = batch(endingOffsetsByTimestamp={"t": {"0": 6000, "1": 99_000}})
    assert extents(plan_batch(until, two())) == {A: (2, 6), B: (0, 20)}


def test_start_after_the_last_record_is_an_error() -> None:
    with pytest.raises(OptionError, match=r"t-0.*startingOffsetsByTimestampStrategy"):
        plan_batch(batch(startingTimestamp=15_000), two())


def test_start_after_the_last_record_is_latest_with_the_latest_strategy() -> None:
    options = batch(startingTimestamp=15_000, startingOffsetsByTimestampStrategy="latest")
    assert extents(plan_batch(options, two())) == {B: (15, 20)}


def test_end_after_the_last_record_is_latest() -> None:
    assert extents(plan_batch(batch(endingTimestamp=99_000), two())) == {A: (2, 10), B: (0, 20)}


@pytest.mark.proves("D1")
@pytest.mark.parametrize(
    "given",
    [
        {"startingOffsets": {"t": {"0": 5, "1": 5}}, "endingOffsets": {"t": {"0": 9, "1": 4}}},
        {"startingOffsets": {"t": {"0": -2, "1": 21}}},
        {"startingTimestamp": 9000, "endingTimestamp": 3000},
    ],
    ids=["offsets", "after-the-last-record", "times"],
)
def test_batch_that_ends_before_it_starts_is_rejected(given: dict[str, object]) -> None:
    with pytest.raises(OptionError, match=r"end before it starts.*t-1 from"):
        plan_batch(batch(**given), two())


def test_missing_topic_or_partition_is_named() -> None:
    with pytest.raises(OptionError, match="Topics do not exist: u"):
        plan_batch(batch(subscribe="t,u"), two())
    with pytest.raises(OptionError, match="t-7"):
        plan_batch(batch_options({**MUST, "assign": '{"t": [0, 7]}'}), two())


def test_only_assigned_partitions_are_read() -> None:
    assert extents(plan_batch(batch_options({**MUST, "assign": '{"t": [1]}'}), two())) == {B: (0, 20)}


def test_pattern_without_match_reads_nothing() -> None:
    assert plan_batch(batch_options({**MUST, "subscribePattern": "x.*"}), two()) == []


# Streams


def test_stream_starts_at_starting_offsets() -> None:
    assert plan(two(), stream()).initial() == {A: 10, B: 20}
    assert plan(two(), stream(startingOffsets="earliest")).initial() == {A: 2, B: 0}
    assert plan(two(), stream(startingOffsets={"t": {"0": 4, "1": -1}})).initial() == {A: 4, B: 20}


@pytest.mark.proves("D1")
@pytest.mark.parametrize(
    "given",
    [
        {"startingOffsets": "latest"},
        {"startingOffsets": {"t": {"0": -1, "1": -1, "2": -1}}},
        {"startingOffsets": {"t": {"0": 10, "1": 20, "2": 3}}},  # like --from end, resolved for each run
        {"startingTimestamp": 9000, "startingOffsetsByTimestampStrategy": "latest"},
        {"startingTimestamp": 99_000, "startingOffsetsByTimestampStrategy": "latest"},
    ],
    ids=["latest", "latest-by-partition", "offsets", "time", "time-to-come"],
)
def test_rerun_first_batch_does_not_start_after_its_end(given: dict[str, object]) -> None:
    """The checkpoint has the end of the first batch, but not its start, which has advanced since."""
    cluster = FakeCluster({A: (0, 10), B: (0, 20), TopicPartition("t", 2): (0, 3)})
    run = plan(cluster, stream(**given))
    assert run.ranges(run.initial(), {A: 8, B: 9}) == []
    end = run.latest({A: 8, B: 9}, is_limited=False)
    assert extents(run.ranges({A: 8, B: 9}, end)) == {A: (8, 10), B: (9, 20), TopicPartition("t", 2): (0, 3)}


@pytest.mark.proves("D1")
@pytest.mark.parametrize(
    "given",
    [{"startingOffsets": "earliest"}, {"startingOffsets": "latest"}, {"startingTimestamp": 0}],
    ids=["earliest", "latest", "time"],
)
def test_records_lost_before_a_rerun_of_the_first_batch_are_a_loss(given: dict[str, object]) -> None:
    cluster = FakeCluster({A: (9, 10), B: (0, 20)})
    run = plan(cluster, stream(**given))
    with pytest.raises(RecordsLost, match="t-0 was to be read up to offset 8 but now begins at 9"):
        run.ranges(run.initial(), {A: 8, B: 20})
    lenient = plan(cluster, stream(failOnDataLoss="false", **given))
    assert A not in extents(lenient.ranges(lenient.initial(), {A: 8, B: 20}))


def test_rerun_first_batch_skips_new_partitions() -> None:
    cluster = FakeCluster({A: (0, 10), B: (0, 20), TopicPartition("t", 2): (0, 3)})
    run = plan(cluster, stream(startingOffsets="earliest"))
    assert extents(run.ranges(run.initial(), {A: 8, B: 20})) == {A: (0, 8), B: (0, 20)}


def test_checkpoint_overrides_starting_offsets() -> None:
    run = plan(two(), stream(startingOffsets="latest"))
    end = run.latest({A: 4, B: 4}, is_limited=False)
    assert extents(run.ranges({A: 4, B: 4}, end)) == {A: (4, 10), B: (4, 20)}


@pytest.mark.proves("D1")
def test_new_partition_starts_at_earliest() -> None:
    run = plan(two(), stream(startingOffsets="latest"))
    end = run.latest({A: 10}, is_limited=False)
    assert extents(run.ranges({A: 10}, end)) == {B: (0, 20)}


def test_new_partition_without_its_first_records_is_a_loss() -> None:
    run = plan(two(), stream())
    with pytest.raises(RecordsLost, match="t-0 starts at offset 2"):
        run.ranges({B: 0}, {A: 10, B: 20})
    lenient = plan(two(), stream(failOnDataLoss="false"))
    assert extents(lenient.ranges({B: 0}, {A: 10, B: 20})) == {A: (2, 10), B: (0, 20)}


def test_missing_partition_is_a_loss() -> None:
    run = plan(FakeCluster({A: (0, 10)}), stream())
    end = run.latest({A: 5, B: 5}, is_limited=False)
    with pytest.raises(RecordsLost, match="t-1 does not exist any more"):
        run.ranges({A: 5, B: 5}, end)
    lenient = plan(FakeCluster({A: (0, 10)}), stream(failOnDataLoss="false"))
    assert extents(lenient.ranges({A: 5, B: 5}, {A: 10})) == {A: (5, 10)}


@pytest.mark.proves("D1")
@pytest.mark.parametrize("start", [{"t": {"0": 5}}, {"t": {"0": 5}, "u": {"0": 1}}])
def test_rerun_batch_skips_deleted_topics_without_fail_on_data_loss(
    start: dict[str, dict[str, int]], caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise the query could never continue."""
    cluster = FakeCluster({A: (0, 10)})
    end = parse_offsets_json({"t": {"0": 8}, "u": {"0": 4}})
    with pytest.raises(RecordsLost, match="u-0 does not exist any more"):
        plan(cluster, stream(subscribe="t,u")).ranges(parse_offsets_json(start), end)
    run = plan(cluster, stream(subscribe="t,u", failOnDataLoss="false"))
    assert run.ranges(parse_offsets_json(start), end) == [OffsetRange("t", 0, 5, 8, "id-t")]
    assert caplog.text.count("u-0 does not exist any more") == 1


@pytest.mark.proves("D1")
def test_available_now_from_latest_loses_nothing_while_records_arrive() -> None:
    """Spark asks for the end first and for the start later, when it may be beyond that end."""
    cluster = FakeCluster({A: (0, 10)})
    run = plan(cluster, stream(startingOffsets="latest"))
    run.prepare_available_now()
    cluster.extents |= {A: (0, 15), B: (0, 3)}
    start = run.initial()
    assert run.latest(start, is_limited=True) == start == {A: 15, B: 3}
    assert run.ranges(start, start) == []


def test_available_now_does_not_wait_for_deleted_topics() -> None:
    other = TopicPartition("u", 0)
    cluster = FakeCluster({A: (0, 10), other: (0, 4)})
    run = plan(cluster, stream(subscribe="t,u", failOnDataLoss="false"))
    run.prepare_available_now()
    del cluster.extents[other]
    start = {A: 5, other: 1}
    assert run.latest(start, is_limited=True) == {A: 10}
    assert run.ranges(start, {A: 10}) == [OffsetRange("t", 0, 5, 10, "id-t")]
    assert run.latest({A: 10, other: 4}, is_limited=True) == {A: 10, other: 4}, "a completely read topic was dropped"


def test_truncated_partition_is_a_loss(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(RecordsLost, match="up to offset 30 but now ends at 20"):
        plan(two(), stream()).latest({A: 10, B: 30}, is_limited=False)
    with caplog.at_level(logging.WARNING):
        lenient = plan(two(), stream(failOnDataLoss="false"))
        assert lenient.latest({A: 10, B: 30}, is_limited=False) == {A: 10, B: 20}
        assert lenient.ranges({A: 10, B: 30}, {A: 10, B: 20}) == []
    assert "t-1" in caplog.text


@pytest.mark.proves("D1")
def test_recreated_topic_with_more_records_is_a_loss() -> None:
    cluster = two()
    run = plan(cluster, stream())
    start = run.latest({A: 2, B: 0}, is_limited=False)
    cluster.ids["t"] = "another"
    cluster.extents = {A: (0, 500), B: (0, 500)}
    with pytest.raises(RecordsLost, match=r"recreated.*another"):
        run.latest(start, is_limited=False)


def deleted_while_listed(cluster: FakeCluster, recreated: dict[TopicPartition, tuple[int, int]]) -> None:
    def delete() -> None:
        cluster.extents, cluster.ids["t"] = recreated, "another"
        raise UnknownTopic("Cannot list offsets of t: Unknown topic or partition")

    cluster.on_latest = delete


@pytest.mark.proves("D1")
def test_topic_recreated_while_its_offsets_are_listed_is_a_loss() -> None:
    cluster = two()
    run = plan(cluster, stream())
    start = run.latest({A: 2, B: 0}, is_limited=False)
    deleted_while_listed(cluster, {A: (0, 500), B: (0, 500)})
    with pytest.raises(RecordsLost, match=r"recreated.*another"):
        run.latest(start, is_limited=False)


@pytest.mark.proves("D1")
def test_topic_deleted_while_its_offsets_are_listed_is_a_loss() -> None:
    cluster = two()
    run = plan(cluster, stream())
    start = run.latest({A: 2, B: 0}, is_limited=False)
    deleted_while_listed(cluster, {})
    end = run.latest(start, is_limited=False)
    with pytest.raises(RecordsLost, match="not exist any more"):
        run.ranges(start, end)


def test_unknown_topic_that_still_exists_is_an_error() -> None:
    cluster = two()
    run = plan(cluster, stream())
    deleted_while_listed(cluster, cluster.extents)
    cluster.ids["t"] = "another"
    with pytest.raises(UnknownTopic):
        run.latest({A: 2, B: 0}, is_limited=False)


def test_recreated_topic_is_read_from_its_start_without_fail_on_data_loss() -> None:
    cluster = two()
    run = plan(cluster, stream(failOnDataLoss="false"))
    start = run.latest({A: 2, B: 0}, is_limited=False)
    cluster.ids["t"] = "another"
    cluster.extents = {A: (0, 3), B: (0, 500)}
    end = run.latest(start, is_limited=False)
    assert extents(run.ranges(start, end)) == {A: (0, 3), B: (0, 500)}
    cluster.extents = {A: (0, 5), B: (0, 501)}
    assert extents(run.ranges(end, run.latest(end, is_limited=False))) == {A: (3, 5), B: (500, 501)}


@pytest.mark.proves("D1")
def test_recreated_topic_with_equal_end_offsets_is_not_read_twice() -> None:
    cluster = two()
    run = plan(cluster, stream(failOnDataLoss="false"))
    start = run.latest({A: 2, B: 0}, is_limited=False)
    cluster.ids["t"] = "another"
    cluster.extents = {A: (0, start[A]), B: (0, 3)}
    end = run.latest(start, is_limited=False)
    assert extents(run.ranges(start, end)) == {A: (0, start[A]), B: (0, 3)}
    cluster.extents = {A: (0, start[A] + 5), B: (0, 3)}
    assert extents(run.ranges(end, run.latest(end, is_limited=False))) == {A: (start[A], start[A] + 5)}


@pytest.mark.proves("D1")
def test_topic_recreated_between_runs_is_a_loss_with_a_known_id() -> None:
    known = json.dumps({"t": "its-previous-id"})
    with pytest.raises(RecordsLost, match=r"recreated: its id was its-previous-id and is id-t"):
        plan(two(), stream(topicIds=known)).latest({A: 5, B: 0}, is_limited=False)
    with pytest.raises(RecordsLost, match="recreated"):  # in a rerun batch of the previous run
        plan(two(), stream(topicIds=known)).ranges({A: 5, B: 0}, {A: 10, B: 20})
    lenient = plan(two(), stream(topicIds=known, failOnDataLoss="false"))
    end = lenient.latest({A: 5, B: 7}, is_limited=False)
    assert extents(lenient.ranges({A: 5, B: 7}, end)) == {A: (2, 10), B: (0, 20)}
    same = plan(two(), stream(topicIds=json.dumps({"t": "id-t", "elsewhere": "x"})))
    assert same.latest({A: 5, B: 7}, is_limited=False) == {A: 10, B: 20}


@pytest.mark.parametrize("text", ["t", "[]", '{"t": 1}'])
def test_invalid_topic_ids_are_rejected(text: str) -> None:
    with pytest.raises(OptionError, match=r"'topicIds' must be JSON like"):
        stream(topicIds=text)


def test_tasks_of_a_rerun_batch_get_the_topic_id() -> None:
    (first, second) = plan(two(), stream()).ranges({A: 2, B: 0}, {A: 10, B: 20})
    assert first.topic_id == second.topic_id == "id-t"


def test_limit_applies_to_new_partitions() -> None:
    run = plan(two(), stream(maxOffsetsPerTrigger=14))
    assert run.latest({A: 2, B: 0}, is_limited=True) == {A: 6, B: 10}
    assert plan(FakeCluster({A: (0, 10), B: (0, 10)}), stream(maxOffsetsPerTrigger=10)).latest(
        {A: 0}, is_limited=True
    ) == {A: 5, B: 5}


def test_batch_that_waits_for_min_offsets_ends_where_it_starts() -> None:
    cluster = two()
    run = plan(cluster, stream(minOffsetsPerTrigger=100))
    start = run.latest({A: 2, B: 0}, is_limited=True)
    cluster.extents[B] = (0, 21)
    cluster.extents[TopicPartition("t", 2)] = (0, 5)
    assert run.latest(start, is_limited=True) == start
    assert run.newest[B] == 21
    assert run.latest(start, is_limited=False)[B] == 21


@pytest.mark.proves("D1")
def test_available_now_reads_existing_records_in_several_batches() -> None:
    cluster = two()
    run = plan(cluster, stream(maxOffsetsPerTrigger=14, minOffsetsPerTrigger=14))
    run.prepare_available_now()
    cluster.extents = {A: (2, 1000), B: (0, 1000)}
    offsets = [{A: 2, B: 0}]
    while len(offsets) < 10 and (end := run.latest(offsets[-1], is_limited=True)) != offsets[-1]:
        offsets.append(end)
    assert offsets == [{A: 2, B: 0}, {A: 6, B: 10}, {A: 10, B: 20}]


@pytest.mark.proves("D4")
def test_progress_is_committed_after_and_before_each_batch() -> None:
    cluster = two()
    run = plan(cluster, stream(commitOffsets="g"))
    run.latest({A: 3, B: 0}, is_limited=False)
    assert cluster.committed == {"g": {A: 3, B: 0}}
    run.commit({A: 4, B: 0})
    assert cluster.committed == {"g": {A: 4, B: 0}}


@pytest.mark.proves("D4")
def test_idle_query_commits_again_before_its_group_expires() -> None:
    cluster, hour_ms, now_ms = two(), 3_600_000, [0.0]
    run = StreamPlan(stream(commitOffsets="g"), cluster, lambda: now_ms[0])
    commits_at = []
    for hour in range(30):
        now_ms[0] = hour * hour_ms
        cluster.committed.clear()
        run.latest({A: 10, B: 20}, is_limited=False)
        commits_at += [hour] if cluster.committed else []
    assert commits_at == [0, 12, 24]


def test_commit_is_optional_and_its_failure_does_not_stop_the_query(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = two()
    cluster.commit_error = RuntimeError("no coordinator")
    plan(cluster, stream()).commit({A: 3})
    with caplog.at_level(logging.WARNING):
        plan(cluster, stream(commitOffsets="g")).commit({A: 3})
    assert "no coordinator" in caplog.text


def test_offsets_are_stored_like_those_of_the_official_source() -> None:
    offsets = {TopicPartition("u", 10): 7, TopicPartition("t", 1): 5, TopicPartition("t", 0): 3}
    assert json.dumps(offsets_json(offsets)) == '{"t": {"0": 3, "1": 5}, "u": {"10": 7}}'
    assert parse_offsets_json(offsets_json(offsets)) == offsets
    assert parse_offsets_json(None) == {}
