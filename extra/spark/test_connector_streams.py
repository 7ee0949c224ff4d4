"""Streams: both connectors have the same batches and rows, and resume from each other's checkpoints."""

import json
from pathlib import Path
from typing import Any

import pytest
from connector import BOTH, OFFICIAL, OURS, Kept, with_options
from connector_scene import produce_numbers

from moldau.testing.broker import Broker
from moldau_dev.spark import stored_offsets, until_done

COUNT = 200


def numbers(rows: list[Any]) -> list[int]:
    return sorted(int(bytes(row["value"])) for row in rows)


def ends(offsets: list[str]) -> list[Any]:
    return [json.loads(each) for each in offsets]


@pytest.mark.proves("D1")
@pytest.mark.parametrize(
    "options",
    [
        {"startingOffsets": "earliest"},
        {"startingOffsets": "earliest", "maxOffsetsPerTrigger": 70},
        {"startingOffsets": "earliest", "maxOffsetsPerTrigger": 70, "minPartitions": 5},
        {"startingTimestamp": 1, "maxOffsetsPerTrigger": 101, "includeHeaders": "true"},
    ],
    ids=["whole", "limited", "in-pieces", "from-a-time"],
)
def test_streams_have_the_same_batches_and_rows(
    spark: Any, moldau_broker: Broker, topic: str, tmp_path: Path, options: dict[str, object]
) -> None:
    produce_numbers(moldau_broker, topic, COUNT)
    runs = {form: Kept(spark, tmp_path / form) for form in BOTH}
    for form, kept in runs.items():
        kept.run(form, moldau_broker, {"subscribe": topic, **options})
    official, ours = runs[OFFICIAL], runs[OURS]
    assert numbers(official.rows) == list(range(COUNT))
    assert ours.rows == official.rows
    assert ends(ours.stored_offsets) == ends(official.stored_offsets)


def test_moldau_alone_reads_a_rest_below_min_offsets(
    spark: Any, moldau_broker: Broker, topic: str, tmp_path: Path
) -> None:
    """An AvailableNow run is to read what is there; until then the batches are the same."""
    options = {"subscribe": topic, "startingOffsets": "earliest"}
    options |= {"maxOffsetsPerTrigger": "64", "minOffsetsPerTrigger": "32"}
    produce_numbers(moldau_broker, topic, COUNT)
    runs = {form: Kept(spark, tmp_path / form) for form in BOTH}
    for form, kept in runs.items():
        kept.run(form, moldau_broker, options)
    official, ours = runs[OFFICIAL], runs[OURS]
    assert numbers(ours.rows) == list(range(COUNT))
    assert 0 < len(official.rows) < COUNT
    assert ends(ours.stored_offsets)[: len(official.stored_offsets)] == ends(official.stored_offsets)


@pytest.mark.parametrize("form", BOTH)
def test_stream_starts_at_latest_by_default(
    spark: Any, moldau_broker: Broker, topic: str, tmp_path: Path, form: str
) -> None:
    produce_numbers(moldau_broker, topic, 10)
    kept = Kept(spark, tmp_path)
    kept.run(form, moldau_broker, {"subscribe": topic})
    produce_numbers(moldau_broker, topic, 10, first=10)
    kept.run(form, moldau_broker, {"subscribe": topic})
    assert numbers(kept.rows) == list(range(10, 20))


@pytest.mark.proves("D1")
@pytest.mark.parametrize(("first", "second"), [(OFFICIAL, OURS), (OURS, OFFICIAL)], ids=["to-ours", "and-back"])
def test_connector_resumes_from_the_checkpoint_of_the_other(
    spark: Any, moldau_broker: Broker, topic: str, tmp_path: Path, first: str, second: str
) -> None:
    options = {"subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": 70}
    kept = Kept(spark, tmp_path)
    produce_numbers(moldau_broker, topic, COUNT)
    kept.run(first, moldau_broker, options)
    produce_numbers(moldau_broker, topic, 50, first=COUNT)
    kept.run(second, moldau_broker, options)
    produce_numbers(moldau_broker, topic, 50, first=COUNT + 50)
    kept.run(first, moldau_broker, options)
    assert numbers(kept.rows) == list(range(COUNT + 100))
    assert ends(kept.stored_offsets)[-1] == {topic: {"0": 100, "1": 200}}


@pytest.mark.parametrize("fails_in", [0, 2])
@pytest.mark.parametrize(("first", "second"), [(OFFICIAL, OURS), (OURS, OFFICIAL)], ids=["to-ours", "and-back"])
def test_uncommitted_batch_is_rerun_by_the_other_connector(
    spark: Any, moldau_broker: Broker, topic: str, tmp_path: Path, first: str, second: str, fails_in: int
) -> None:
    """The rerun uses the planned offsets, although more records have arrived."""
    options = {"subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": 50}
    seen: dict[int, list[int]] = {}
    failing = [fails_in]

    def write(frame: Any, batch: int) -> None:
        if batch in failing:
            raise RuntimeError("on purpose")
        seen[batch] = numbers(frame.collect())

    def run(form: str) -> None:
        frame = with_options(spark.readStream, form, moldau_broker, options).load()
        until_done(frame.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path)))

    produce_numbers(moldau_broker, topic, 120)
    with pytest.raises(Exception, match="on purpose"):
        run(first)
    failing.clear()
    left_undone = stored_offsets(tmp_path)
    produce_numbers(moldau_broker, topic, 30, first=120)
    run(second)
    assert stored_offsets(tmp_path)[: len(left_undone)] == left_undone
    assert sorted(each for batch in seen.values() for each in batch) == list(range(150))


def rows_after_failure(spark: Any, broker: Broker, topic: str, checkpoint: Path, forms: tuple[str, str]) -> list[int]:
    """A stream from the latest whose first batch fails, and what comes after it in a second run."""
    seen: list[int] = []
    failing = [True]

    def write(frame: Any, _: int) -> None:
        if failing:
            raise RuntimeError("on purpose")
        seen.extend(numbers(frame.collect()))

    def run(form: str) -> None:
        frame = with_options(spark.readStream, form, broker, {"subscribe": topic}).load()
        until_done(frame.writeStream.foreachBatch(write).option("checkpointLocation", str(checkpoint)))

    first, second = forms
    produce_numbers(broker, topic, 10)
    with pytest.raises(Exception, match="on purpose"):
        run(first)
    failing.clear()
    produce_numbers(broker, topic, 10, first=10)
    run(second)
    return sorted(seen)


@pytest.mark.parametrize("forms", [(OFFICIAL, OFFICIAL), (OURS, OURS), (OFFICIAL, OURS)])
def test_stream_from_latest_resumes_when_its_first_batch_failed(
    spark: Any, moldau_broker: Broker, topic: str, tmp_path: Path, forms: tuple[str, str]
) -> None:
    """Records after the failure are read, although "latest" has advanced."""
    assert rows_after_failure(spark, moldau_broker, topic, tmp_path, forms) == list(range(10, 20))


def test_spark_connector_lacks_the_start_of_our_first_batch(
    spark: Any, moldau_broker: Broker, topic: str, tmp_path: Path
) -> None:
    """It keeps that in a file of its own beside the offsets, which a source in Python has no way to write."""
    with pytest.raises(Exception, match=r"(?i)offset"):
        rows_after_failure(spark, moldau_broker, topic, tmp_path, (OURS, OFFICIAL))
