"""Conversion of rows to records and dead letters, and their staging."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pyspark_moldau.options.sink_options import BatchIdentity, SinkOptions, sink_batch_options, sink_stream_options
from pyspark_moldau.sink.records import TRUNCATED_BYTES, RowRejected, to_records
from pyspark_moldau.sink.staged_batches import StagedBatches, StagingFailed, remove_batches, stage, writer_directory

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def options(**given: str) -> SinkOptions:
    return sink_stream_options({"kafka.bootstrap.servers": "here:9092", **given})


def records(columns: dict[str, Any], chosen: SinkOptions) -> list[dict[str, Any]]:
    batch = pa.RecordBatch.from_pydict(columns)
    return [row for each in to_records(batch, chosen) for row in each.to_pylist()]


def test_text_becomes_bytes_and_null_stays_null() -> None:
    columns = {"key": [None, "", "k"], "value": pa.array(["é", None, ""], pa.large_string()), "offset": [1, 2, 3]}
    rows = records(columns, options(topic="out"))
    assert [(row["topic"], row["key"], row["value"]) for row in rows] == [
        ("out", None, "é".encode()),
        ("out", b"", None),
        ("out", b"k", b""),
    ]
    assert {row["partition"] for row in rows} == {row["headers"] for row in rows} == {None}


def test_topic_option_overrides_the_topic_column() -> None:
    columns = {"topic": ["a", "b"], "value": ["1", "2"]}
    assert [row["topic"] for row in records(columns, options())] == ["a", "b"]
    assert [row["topic"] for row in records(columns, options(topic="c"))] == ["c", "c"]


def test_timestamps_are_written_only_with_include_timestamp() -> None:
    columns = {"value": ["1"], "timestamp": pa.array([1_234_567_890_999], pa.timestamp("us", "UTC"))}
    assert records(columns, options(topic="out"))[0]["timestamp_ms"] is None
    assert records(columns, options(topic="out", includeTimestamp="true"))[0]["timestamp_ms"] == 1_234_567_890


@pytest.mark.proves("D2")
@pytest.mark.parametrize("zone", ["UTC", "Europe/Prague", "Australia/Lord_Howe", "+05:30"])
def test_timestamps_are_converted_from_every_session_time_zone(zone: str) -> None:
    hour_us = 3_600_000_000
    last_sunday_of_october_us = 1_761_436_800_000_000
    times_us = [last_sunday_of_october_us + quarter * hour_us // 4 for quarter in range(24)] + [-1, 1, 999]
    columns = {"value": ["1"] * len(times_us), "timestamp": pa.array(times_us, pa.timestamp("us", zone))}
    written = records(columns, options(topic="out", includeTimestamp="true"))
    assert [row["timestamp_ms"] for row in written] == [each // 1000 for each in times_us]


@pytest.mark.proves("D2")
def test_headers_are_written_unless_disabled() -> None:
    columns = {"value": ["1"], "headers": pa.array([[("a", b"x"), ("a", None)]], HEADERS)}
    (row,) = records(columns, options(topic="out"))
    assert [tuple(each.values()) for each in row["headers"]] == [("a", b"x"), ("a", None)]
    assert records(columns, options(topic="out", includeHeaders="false"))[0]["headers"] is None


BAD: list[tuple[dict[str, Any], str]] = [
    ({"topic": [None]}, "the column 'topic' is null"),
    ({"topic": ["a b"]}, "'a b' is not a valid topic name"),
    ({"topic": [".."]}, "'..' is not a valid topic name"),
    ({"topic": ["t"], "partition": pa.array([-1], pa.int32())}, "column 'partition' is -1"),
    ({"topic": ["t"], "headers": pa.array([[(None, b"x")]], HEADERS)}, "column 'headers' has a header without a key"),
    ({"topic": ["t"], "key": ["k" * 1_048_500]}, "it is larger than 1048576 bytes"),
]


@pytest.mark.parametrize(("columns", "reason"), BAD, ids=lambda each: each if isinstance(each, str) else "")
def test_invalid_row_fails_with_the_reason(columns: dict[str, Any], reason: str) -> None:
    with pytest.raises(RowRejected, match="deadLetterTopic") as rejected:
        records({"value": ["x"], **columns}, options())
    assert reason in str(rejected.value)


@pytest.mark.parametrize(("columns", "reason"), BAD, ids=lambda each: each if isinstance(each, str) else "")
def test_invalid_row_becomes_a_dead_letter_with_the_reason(columns: dict[str, Any], reason: str) -> None:
    (row,) = records({"value": ["x"], **columns}, options(deadLetterTopic="dead"))
    assert (row["topic"], row["value"], row["partition"]) == ("dead", b"x", None)
    headers = {each["key"]: each["value"].decode() for each in row["headers"]}
    assert reason in headers["moldau.reason"]
    assert headers.get("moldau.topic") == columns["topic"][0]
    assert len(row["key"] or b"") <= TRUNCATED_BYTES


def dead_letter(columns: dict[str, Any], **given: str) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Return the only row, which must be a dead letter, and its headers by name."""
    (row,) = records(columns, options(deadLetterTopic="dead", **given))
    assert row["topic"] == "dead"
    return row, {each["key"]: each["value"] for each in row["headers"]}


def test_row_with_an_invalid_timestamp_becomes_a_dead_letter() -> None:
    columns = {"value": ["x"], "timestamp": pa.array([999], pa.timestamp("us", "UTC"))}
    given = {"topic": "out", "includeTimestamp": "true"}
    _, headers = dead_letter(columns, **given, sender="librdkafka")
    assert headers["moldau.reason"].startswith(b"column 'timestamp' is 1970-01-01 00:00:00 UTC")
    (row,) = records(columns, options(**given))
    assert (row["topic"], row["timestamp_ms"]) == ("out", 0), "the raw sender writes any timestamp"


@pytest.mark.proves("D2")
def test_dead_letter_is_complete_if_it_fits_a_record() -> None:
    content = {
        "key": ["k" * 100_000],
        "value": ["v" * 200_000],
        "headers": pa.array([[("h", b"x" * 300_000)]], HEADERS),
    }
    row, headers = dead_letter({"topic": ["no topic!"], **content})
    assert (len(row["key"]), len(row["value"]), len(headers["h"])) == (100_000, 200_000, 300_000)
    assert "moldau.cut" not in headers


@pytest.mark.proves("D2")
def test_truncated_dead_letter_states_the_original_sizes() -> None:
    pairs = pa.array([[("h", b"x" * 10)]], HEADERS)
    row, headers = dead_letter({"topic": ["t"], "key": ["k"], "value": ["v" * 2_000_000], "headers": pairs})
    assert (row["key"], row["value"], headers["h"]) == (b"k", b"v" * TRUNCATED_BYTES, b"x" * 10)
    assert headers["moldau.cut"] == b'{"value": 2000000}'
    pairs = pa.array([[("h", b"x" * 1_000_000), ("i", None)]], HEADERS)
    row, headers = dead_letter({"topic": ["no topic!"], "key": ["k" * 99_000], "value": ["v"], "headers": pairs})
    assert (row["key"], row["value"], "h" in headers) == (b"k" * TRUNCATED_BYTES, b"v", False)
    assert headers["moldau.cut"] == b'{"key": 99000, "headers": 1000022}'


@pytest.mark.proves("D2")
@pytest.mark.parametrize("spare_bytes", [5_000, 500, 300, 129])
def test_dead_letter_stays_within_the_record_size_limit(spare_bytes: int) -> None:
    """The reason counts too, and so does a very long topic name."""
    for name, row_bytes_max in (("no topic!", 20_000), ("no topic!" * 50_000, 40_000)):
        content = {"key": ["k" * 10_000], "value": ["v" * (row_bytes_max - 10_000 - spare_bytes)]}
        row, headers = dead_letter({"topic": [name], **content}, **{"kafka.max.request.size": str(row_bytes_max)})
        notes = sum(len(key) + len(value) + 10 for key, value in headers.items())
        assert len(row["key"]) + len(row["value"]) + notes <= row_bytes_max - 128
        assert headers["moldau.topic"].decode().startswith("no topic!")


def test_valid_rows_keep_their_order_beside_dead_letters() -> None:
    columns = {"topic": ["a", None, "a", "?", "b"], "value": list("12345")}
    rows = records(columns, options(deadLetterTopic="dead"))
    assert [(row["topic"], row["value"]) for row in rows] == [
        ("a", b"1"),
        ("a", b"3"),
        ("b", b"5"),
        ("dead", b"2"),
        ("dead", b"4"),
    ]


def staged(folder: Path, values: list[str], inline_bytes_max: int, batch: int = 3) -> StagedBatches:
    rows = to_records(pa.RecordBatch.from_pydict({"value": values}), options(topic="out"))
    return stage(rows, folder, BatchIdentity("a/b", batch), task=1, attempt=77, inline_bytes_max=inline_bytes_max)


def values_of(part: StagedBatches) -> list[str]:
    return [row["value"].decode() for batch in part.batches() for row in batch.to_pylist()]


def test_few_rows_are_sent_inline_and_many_in_a_file(tmp_path: Path) -> None:
    few, many = staged(tmp_path, ["1"], 10_000), staged(tmp_path, ["1", "2", "3"], 10)
    assert (few.path, few.rows, values_of(few)) == (None, 1, ["1"])
    assert many.path == str(tmp_path / "a%2Fb" / "3" / "77.arrow")
    assert (many.content, many.rows, values_of(many)) == (None, 3, ["1", "2", "3"])


def test_staged_part_knows_its_size(tmp_path: Path) -> None:
    few, many = staged(tmp_path, ["1"], 10_000), staged(tmp_path, ["x" * 5_000] * 100, 10)
    assert few.size_bytes == len(few.content or b"") > 0
    assert many.size_bytes == Path(str(many.path)).stat().st_size > 500_000


@pytest.mark.proves("D2")
def test_staging_directory_accepts_writers_of_any_length(tmp_path: Path) -> None:
    identities = [
        sink_batch_options(
            {"kafka.bootstrap.servers": "here:9092", "topic": topic, "txnAppId": "é" * 100, "txnVersion": "3"}
        ).identity
        for topic in ("t" * 249, "t" * 248)
    ]
    rows = [list(to_records(pa.RecordBatch.from_pydict({"value": ["1"]}), options(topic="out")))] * 2
    parts = [
        stage(each, tmp_path, identity, task=1, attempt=1, inline_bytes_max=0)
        for each, identity in zip(rows, identities, strict=True)
        if identity is not None
    ]
    assert [values_of(part) for part in parts] == [["1"], ["1"]]
    remove_batches(tmp_path, parts[0].writer, 3)
    assert [Path(str(part.path)).exists() for part in parts] == [False, True]
    assert {writer_directory(tmp_path, name).parent for name in (".", "..", "a/b")} == {tmp_path}


def test_staging_file_invisible_to_the_driver_names_the_option(tmp_path: Path) -> None:
    part = staged(tmp_path, ["1"], 0)
    part.delete()
    with pytest.raises(StagingFailed, match="'stagingLocation'"):
        values_of(part)


@pytest.mark.proves("D2")
def test_staging_file_with_other_rows_is_rejected(tmp_path: Path) -> None:
    part, other = staged(tmp_path, ["1", "2"], 0), staged(tmp_path / "other", ["1"], 0)
    Path(str(part.path)).write_bytes(Path(str(other.path)).read_bytes())
    with pytest.raises(StagingFailed, match="staged 2 rows, but"):
        values_of(part)


def test_failed_task_leaves_no_staging_file(tmp_path: Path) -> None:
    with pytest.raises(pa.ArrowInvalid):
        stage([pa.RecordBatch.from_pydict({"x": [1]})], tmp_path, BatchIdentity("w", 0), 0, 0, inline_bytes_max=0)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.proves("D2")
def test_cleanup_removes_committed_batches_and_keeps_later_ones(tmp_path: Path) -> None:
    parts = [staged(tmp_path, ["1"], 0, batch) for batch in (1, 2, 3)]
    remove_batches(tmp_path, "a/b", 2)
    remove_batches(tmp_path, "another", 9)
    assert [Path(str(part.path)).exists() for part in parts] == [False, False, True]
