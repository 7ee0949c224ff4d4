"""Commits against a real broker: written rows, rejected batches, and the state after a failure."""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from sink_drivers import PARTITIONS, READ_S_MAX, end_of, is_open
from sink_output import read, staged, values

from moldau.client.partitioner import partition_for_key
from moldau.client.transactions import Transactions
from moldau.testing import Broker
from pyspark_moldau.options.sink_options import BatchIdentity, Guarantee, SinkOptions, sink_stream_options
from pyspark_moldau.sink import transaction_commit
from pyspark_moldau.sink.commit_markers import MarkersUnreadable
from pyspark_moldau.sink.librdkafka_sender import produce_all
from pyspark_moldau.sink.records import RowRejected, to_records
from pyspark_moldau.sink.sender import DeliveryFailed, ProducerFenced
from pyspark_moldau.sink.staged_batches import StagingFailed
from pyspark_moldau.sink.transaction_commit import BatchCommitters, TransactionTimedOut, WriterFenced, create_sender

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
TIME = pa.timestamp("ms", "UTC")


class StepRecorder(list[str]):
    """Records the steps of a commit."""

    def __call__(self, place: str) -> None:
        self.append(place)


@pytest.mark.proves("D2")
def test_row_is_written_with_all_its_fields(options: SinkOptions, topic: str) -> None:
    identity = BatchIdentity(f"w-{topic}", 0)
    columns = {
        "key": ["a", "b", None, ""],
        "value": ["1", "", "3", None],
        "partition": pa.array([None, None, 1, 0], pa.int32()),
        "headers": pa.array([[("h", b"x"), ("h", None)], None, [], None], HEADERS),
    }
    assert BatchCommitters().commit(options, identity, [staged(options, identity, columns)])
    found = {message.key(): message for message in read(options, topic, range(PARTITIONS))}
    assert {key: message.value() for key, message in found.items()} == {b"a": b"1", b"b": b"", None: b"3", b"": None}
    assert found[b"a"].partition() == partition_for_key(b"a", PARTITIONS)
    assert found[b"b"].partition() == partition_for_key(b"b", PARTITIONS)
    assert (found[None].partition(), found[b""].partition()) == (1, 0)
    assert found[b"a"].headers() == [("h", b"x"), ("h", None)]


@pytest.mark.proves("D2")
def test_timestamp_is_written_unchanged_or_the_row_is_rejected(options: SinkOptions, topic: str) -> None:
    """librdkafka replaces timestamp 0 by the current time."""
    identity, timed = BatchIdentity(f"w-{topic}", 0), replace(options, has_timestamps=True)
    times = [0, 1, -1] if options.is_raw else [1, -1]

    def rows(times_ms: list[int]) -> dict[str, Any]:
        zeros = pa.array([0] * len(times_ms), pa.int32())
        return {"value": ["x"] * len(times_ms), "partition": zeros, "timestamp": pa.array(times_ms, TIME)}

    assert BatchCommitters().commit(timed, identity, [staged(timed, identity, rows(times))])
    assert [message.timestamp()[1] for message in read(options, topic, [0])] == times
    at_least_once = replace(timed, guarantee=Guarantee.AT_LEAST_ONCE)
    for chosen in (at_least_once,) if options.is_raw else (at_least_once, timed):
        with pytest.raises(RowRejected, match="1970-01-01 00:00:00 UTC, which librdkafka replaces"):
            staged(chosen, identity, rows([5, 0]))


@pytest.mark.proves("D2")
def test_rows_of_a_partition_keep_the_order_of_their_tasks(options: SinkOptions, topic: str) -> None:
    identity = BatchIdentity(f"w-{topic}", 0)
    zeros = pa.array([0, 0], pa.int32())
    parts = [
        staged(options, identity, {"value": [f"{task}a", f"{task}b"], "partition": zeros}, task) for task in (2, 0, 1)
    ]
    BatchCommitters().commit(options, identity, parts)
    assert [each.value() for each in read(options, topic, [0])] == [b"0a", b"0b", b"1a", b"1b", b"2a", b"2b"]


@pytest.mark.proves("D2")
def test_producer_is_reused_and_remembers_its_marker(options: SinkOptions, topic: str) -> None:
    steps = StepRecorder()
    committers = BatchCommitters(steps)
    outcomes = [
        committers.commit(options, identity, [staged(options, identity, {"value": [f"{identity.batch}"]})])
        for identity in (BatchIdentity(f"w-{topic}", batch) for batch in (0, 1, 1, 2))
    ]
    assert outcomes == [True, True, False, True]
    assert steps.count("initialised") == 1
    assert values(options) == [b"0", b"1", b"2"]


@pytest.mark.proves("D2")
def test_producer_is_replaced_when_its_timeout_is_too_short_for_a_batch(options: SinkOptions, topic: str) -> None:
    steps = StepRecorder()
    committers = BatchCommitters(steps)
    for batch, size_bytes in enumerate((100, 4_000_000_000, 200)):
        identity = BatchIdentity(f"w-{topic}", batch)
        part = staged(options, identity, {"value": [f"{batch}"]})
        committers.commit(options, identity, [replace(part, size_bytes=size_bytes)])
    assert steps.count("initialised") == 2
    assert values(options) == [b"0", b"1", b"2"]


def test_batch_without_rows_begins_no_transaction(options: SinkOptions, topic: str) -> None:
    steps = StepRecorder()
    identity = BatchIdentity(f"w-{topic}", 0)
    assert not BatchCommitters(steps).commit(
        options, identity, [staged(options, identity, {"value": pa.array([], "utf8")})]
    )
    assert steps == []


@pytest.mark.proves("D2")
def test_second_driver_fences_the_first(options: SinkOptions, topic: str) -> None:
    first, second = BatchCommitters(), BatchCommitters()
    for committers, batch in ((first, 0), (second, 1)):
        identity = BatchIdentity(f"w-{topic}", batch)
        committers.commit(options, identity, [staged(options, identity, {"value": [f"{batch}"]})])
    identity = BatchIdentity(f"w-{topic}", 2)
    with pytest.raises(WriterFenced, match="has fenced this one"):
        first.commit(options, identity, [staged(options, identity, {"value": ["stray"]})])
    assert values(options) == [b"0", b"1"]
    assert second.commit(options, identity, [staged(options, identity, {"value": ["2"]})])
    assert values(options) == [b"0", b"1", b"2"]


@pytest.mark.proves("D2")
def test_processes_of_one_run_take_turns(options: SinkOptions, topic: str) -> None:
    """The queries of a session share a pool of committing processes; each batch may use another one."""
    first, second = BatchCommitters(), BatchCommitters()
    for batch, committers in enumerate((first, second, first, first, second, first)):
        identity = BatchIdentity(f"w-{topic}", batch, run="a")
        assert committers.commit(options, identity, [staged(options, identity, {"value": [f"{batch}"]})])
    assert values(options) == [b"0", b"1", b"2", b"3", b"4", b"5"]


@pytest.mark.proves("D2")
@pytest.mark.parametrize("idle_s_max", [3600.0, 0.0], ids=["busy", "quiet"])
def test_second_run_fences_the_first(
    options: SinkOptions, topic: str, idle_s_max: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction_commit, "_IDLE_S_MAX", idle_s_max)
    first, second = BatchCommitters(), BatchCommitters()
    for committers, batch, run in ((first, 0, "a"), (second, 1, "b")):
        identity = BatchIdentity(f"w-{topic}", batch, run=run)
        committers.commit(options, identity, [staged(options, identity, {"value": [f"{batch}"]})])
    identity = BatchIdentity(f"w-{topic}", 1, run="a")
    with pytest.raises(WriterFenced, match="has fenced this one"):
        first.commit(options, identity, [staged(options, identity, {"value": ["stray"]})])
    assert values(options) == [b"0", b"1"]


@pytest.fixture
def expiring_broker() -> Iterator[Broker]:
    """A broker whose transactional ids expire within seconds, but not within a batch on a busy machine."""
    cleanup = {"transaction.remove.expired.transaction.cleanup.interval.ms": "100"}
    with Broker(settings={"transactional.id.expiration.ms": "2000", **cleanup}) as broker:
        yield broker


def wait_until_expired(broker: Broker) -> None:
    """Wait until the broker has no transactional id any more."""
    deadline_s = time.monotonic() + READ_S_MAX
    with broker.client() as client:
        while client.run(Transactions(client.asynchronous).all()):
            assert time.monotonic() < deadline_s, "the transactional id has not expired"


@pytest.mark.proves("D2")
@pytest.mark.parametrize("sender", ["raw", "librdkafka"])
def test_idle_query_continues_after_its_transactional_id_expired(
    expiring_broker: Broker, sender: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = {
        "kafka.bootstrap.servers": expiring_broker.bootstrap_servers,
        "topic": expiring_broker.create_topic("out", PARTITIONS),
    }
    options = sink_stream_options({**place, "stagingLocation": str(tmp_path), "sender": sender})
    monkeypatch.setattr(transaction_commit, "_IDLE_S_MAX", 1.5)
    committers = BatchCommitters()
    for batch in range(2):
        identity = BatchIdentity("w", batch, run="a")
        assert committers.commit(options, identity, [staged(options, identity, {"value": [f"{batch}"]})])
        wait_until_expired(expiring_broker)
    assert values(options) == [b"0", b"1"]


@pytest.mark.proves("D2")
def test_second_run_reinitialises_a_process_of_the_first(options: SinkOptions, topic: str) -> None:
    first, second = BatchCommitters(), BatchCommitters()
    for committers, batch, run in ((first, 0, "a"), (second, 0, "b"), (first, 1, "b")):
        identity = BatchIdentity(f"w-{topic}", batch, run=run)
        committers.commit(options, identity, [staged(options, identity, {"value": [f"{batch}"]})])
    assert values(options) == [b"0", b"1"]


def test_producer_is_reused_after_batches_without_rows(options: SinkOptions, topic: str) -> None:
    steps = StepRecorder()
    committers = BatchCommitters(steps)
    for batch, rows in enumerate((["0"], [], [], ["3"])):
        identity = BatchIdentity(f"w-{topic}", batch, run="a")
        committers.commit(options, identity, [staged(options, identity, {"value": pa.array(rows, "utf8")})])
    assert steps.count("initialised") == 1
    assert values(options) == [b"0", b"3"]


def wait_for_end(options: SinkOptions, old_end: int) -> None:
    """Wait until the topic has grown beyond `old_end` and the broker has aborted the transaction."""
    servers, topic = options.kafka.bootstrap_servers, str(options.topic)
    deadline = time.monotonic() + READ_S_MAX
    while end_of(servers, topic) <= old_end or is_open(servers, topic):
        assert time.monotonic() < deadline, "the transaction is still open"


@pytest.fixture
def short_timeout(options: SinkOptions) -> SinkOptions:
    """The same options with a transaction timeout of two seconds."""
    given = {"kafka.bootstrap.servers": options.kafka.bootstrap_servers, "stagingLocation": str(options.staging)}
    sender = "raw" if options.is_raw else "librdkafka"
    return sink_stream_options(
        {**given, "topic": str(options.topic), "sender": sender, "kafka.transaction.timeout.ms": "2000"}
    )


@pytest.mark.proves("D2")
@pytest.mark.parametrize("place", ["publishing", "flushed"])
def test_transaction_timeout_is_reported_with_its_setting(
    short_timeout: SinkOptions, options: SinkOptions, topic: str, place: str
) -> None:
    waits_at: dict[str, int] = {}
    committers = BatchCommitters(lambda at: wait_for_end(short_timeout, waits_at.pop(at)) if at in waits_at else None)
    identity = BatchIdentity(f"w-{topic}", 0)
    committers.commit(short_timeout, identity, [staged(short_timeout, identity, {"value": ["0"]})])
    identity = BatchIdentity(f"w-{topic}", 1)
    columns = {"value": ["1"], "partition": pa.array([0], pa.int32())}
    parts = [staged(short_timeout, identity, columns, task) for task in (0, 1)]
    waits_at[place] = end_of(short_timeout.kafka.bootstrap_servers, topic)
    with pytest.raises(TransactionTimedOut, match=r"timed out: .* kafka\.transaction\.timeout\.ms is 2000"):
        committers.commit(short_timeout, identity, parts)
    assert values(options) == [b"0"]
    assert BatchCommitters().commit(options, identity, [staged(options, identity, {"value": ["1"]})])
    assert values(options) == [b"0", b"1"]


@pytest.mark.proves("D2")
@pytest.mark.parametrize("options", ["raw"], indirect=True)  # librdkafka reports it at the abort
def test_records_after_the_transaction_timeout_are_fenced(short_timeout: SinkOptions, topic: str) -> None:
    early, late = (
        staged(
            short_timeout,
            BatchIdentity(f"w-{topic}", 0),
            {"value": [f"{task}"], "partition": pa.array([0], pa.int32())},
            task,
        )
        for task in (0, 1)
    )
    sender = create_sender(short_timeout, f"late-{topic}", 2000)
    try:
        sender.initialise()
        sender.begin()
        sender.produce(early.batches(), lambda: None)
        sender.flush(READ_S_MAX)
        wait_for_end(short_timeout, 0)
        sender.produce(late.batches(), lambda: None)
        with pytest.raises(ProducerFenced, match=f"A record for {topic}-0 was not delivered"):
            sender.flush(READ_S_MAX)
    finally:
        sender.close()


@pytest.mark.proves("D2")
def test_undeliverable_batch_leaves_no_rows_and_can_be_retried(options: SinkOptions, topic: str) -> None:
    committers = BatchCommitters()
    identity = BatchIdentity(f"w-{topic}", 0)
    columns = {"value": ["good", "bad"], "partition": pa.array([0, 7], pa.int32())}
    with pytest.raises(DeliveryFailed, match=f"{topic}-7 was not delivered: the partition does not exist"):
        committers.commit(options, identity, [staged(options, identity, columns)])  # may fail in staging already
    assert not is_open(options.kafka.bootstrap_servers, topic)
    assert values(options) == []
    assert committers.commit(options, identity, [staged(options, identity, {"value": ["good"]})])
    assert values(options) == [b"good"]


@pytest.mark.proves("D2")
@pytest.mark.parametrize("sender", ["raw", "librdkafka"])
def test_rejected_batch_leaves_no_rows_and_can_be_retried(
    broker: Broker, topic: str, tmp_path: Path, sender: str
) -> None:
    small = broker.create_topic(f"{topic}-small", partitions=2, max_message_bytes="2000")
    given = {"kafka.bootstrap.servers": broker.bootstrap_servers, "stagingLocation": str(tmp_path)}
    options = sink_stream_options({**given, "topic": small, "sender": sender})
    identity, committers = BatchIdentity(f"w-{topic}", 0), BatchCommitters()
    columns = {"value": ["good", "x" * 5_000], "partition": pa.array([0, 1], pa.int32())}
    with pytest.raises(DeliveryFailed, match=f"A record for {small}-1 was not delivered"):
        committers.commit(options, identity, [staged(options, identity, columns)])
    assert not is_open(options.kafka.bootstrap_servers, small)
    assert values(options) == []
    assert committers.commit(options, identity, [staged(options, identity, {"value": ["good"]})])
    assert values(options) == [b"good"]


@pytest.mark.parametrize("sender", ["raw", "librdkafka", None])
def test_rows_of_missing_partitions_become_dead_letters(
    broker: Broker, topic: str, tmp_path: Path, sender: str | None
) -> None:
    dead = broker.create_topic(f"{topic}-dead")
    given = {"kafka.bootstrap.servers": broker.bootstrap_servers, "stagingLocation": str(tmp_path)}
    options = sink_stream_options({**given, "topic": topic, "deadLetterTopic": dead, "sender": sender or "auto"})
    columns = {"value": ["1", "2", "3"], "partition": pa.array([0, 7, None], pa.int32())}
    identity = BatchIdentity(f"w-{topic}", 0)
    if sender is not None:  # exactly once
        assert BatchCommitters().commit(options, identity, [staged(options, identity, columns)])
    else:
        produce_all(to_records(pa.RecordBatch.from_pydict(columns), options), options)
    assert values(options) == [b"1", b"3"]
    (dead_letter,) = read(options, dead, [0])
    assert dead_letter.value() == b"2"
    assert dict(dead_letter.headers()) == {
        "moldau.reason": f"column 'partition' is 7, but {topic} has {PARTITIONS} partitions".encode(),
        "moldau.topic": topic.encode(),
        "moldau.partition": b"7",
    }


@pytest.mark.proves("D2")
@pytest.mark.parametrize("sender", ["raw", "librdkafka"])
def test_no_metadata_is_requested_for_topics_of_dead_letters(
    broker: Broker, topic: str, tmp_path: Path, sender: str
) -> None:
    dead = broker.create_topic(f"{topic}-dead")
    given = {"kafka.bootstrap.servers": broker.bootstrap_servers, "stagingLocation": str(tmp_path)}
    options = sink_stream_options({**given, "deadLetterTopic": dead, "sender": sender})
    columns = {
        "topic": [topic, "no topic!", f"{topic}-never"],
        "value": ["1", "2", "3"],
        "partition": pa.array([0, 0, -1], pa.int32()),
    }
    identity = BatchIdentity(f"w-{topic}", 0)
    assert BatchCommitters().commit(options, identity, [staged(options, identity, columns)])
    assert [each.value() for each in read(options, topic, range(PARTITIONS))] == [b"1"]
    assert [each.value() for each in read(options, dead, [0])] == [b"2", b"3"]


@pytest.mark.proves("D2")
def test_lost_staging_file_leaves_no_rows_and_the_batch_can_be_retried(options: SinkOptions, topic: str) -> None:
    committers = BatchCommitters()
    identity = BatchIdentity(f"w-{topic}", 0)
    parts = [staged(options, identity, {"value": [f"{task}"]}, task) for task in (0, 1)]
    parts[1].delete()
    with pytest.raises(StagingFailed, match="'stagingLocation'"):
        committers.commit(options, identity, parts)
    assert values(options) == []
    parts = [staged(options, identity, {"value": [f"{task}"]}, task) for task in (0, 1)]
    assert committers.commit(options, identity, parts)
    assert values(options) == [b"0", b"1"]


@pytest.mark.proves("D2")
def test_commit_topic_without_compaction_is_rejected(broker: Broker, topic: str, tmp_path: Path) -> None:
    commits = broker.create_topic(f"{topic}-commits", cleanup_policy="delete")
    servers = {"kafka.bootstrap.servers": broker.bootstrap_servers, "stagingLocation": str(tmp_path)}
    options = sink_stream_options({**servers, "topic": topic, "commitTopic": commits})
    identity = BatchIdentity("w", 0)
    with pytest.raises(MarkersUnreadable, match=r"cleanup\.policy=delete"):
        BatchCommitters().commit(options, identity, [staged(options, identity, {"value": ["1"]})])


def test_write_without_replays_leaves_no_marker(broker: Broker, topic: str, tmp_path: Path) -> None:
    servers = {"kafka.bootstrap.servers": broker.bootstrap_servers, "stagingLocation": str(tmp_path)}
    options = sink_stream_options({**servers, "topic": topic, "commitTopic": f"{topic}-commits"})
    identity = BatchIdentity("once", 0, is_durable=False)
    assert BatchCommitters().commit(options, identity, [staged(options, identity, {"value": ["1"]})])
    assert values(options) == [b"1"]
    assert not list(tmp_path.iterdir()), "a staging directory was created"
    with broker.client() as client:
        assert f"{topic}-commits" not in {each.name for each in client.describe_topics()}


def test_tasks_produce_directly_when_at_least_once(options: SinkOptions) -> None:
    batch = pa.RecordBatch.from_pydict({"value": [f"{number:05}" for number in range(20_000)]})
    assert produce_all(to_records(batch, options), options) == 20_000
    assert values(options) == [b"%05d" % number for number in range(20_000)]


@pytest.mark.proves("D2")
def test_task_fails_when_its_rows_are_not_delivered(options: SinkOptions, topic: str) -> None:
    columns = {"value": ["x"], "partition": pa.array([9], pa.int32())}
    rows = to_records(pa.RecordBatch.from_pydict(columns), options)
    with pytest.raises(DeliveryFailed, match=f"{topic}-9"):
        produce_all(rows, options)
