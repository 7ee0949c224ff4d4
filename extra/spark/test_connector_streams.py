"""Streams: the same batches, the same rows, and a checkpoint of one connector that the other goes on from."""

import json
from pathlib import Path
from typing import Any

import pytest
from connector import BOTH, OFFICIAL, OURS, Kept, awaited, stored_offsets, with_options
from connector_scene import produce_numbers

from moldau.testing.broker import Broker

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
        {"startingOffsets": "earliest", "maxOffsetsPerTrigger": 64, "minOffsetsPerTrigger": 32},
        {"startingTimestamp": 1, "maxOffsetsPerTrigger": 101, "includeHeaders": "true"},
    ],
    ids=["whole", "limited", "in-pieces", "least-and-most", "from-a-time"],
)
def test_a_stream_has_the_same_batches_and_rows(
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


@pytest.mark.parametrize("form", BOTH)
def test_a_stream_starts_at_the_latest_unless_told(
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
def test_one_connector_goes_on_from_the_checkpoint_of_the_other(
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
def test_a_batch_that_one_connector_left_undone_is_done_by_the_other(
    spark: Any, moldau_broker: Broker, topic: str, tmp_path: Path, first: str, second: str, fails_in: int
) -> None:
    """With its own offsets, though more has come since."""
    options = {"subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": 50}
    seen: dict[int, list[int]] = {}
    failing = [fails_in]

    def write(frame: Any, batch: int) -> None:
        if batch in failing:
            raise RuntimeError("on purpose")
        seen[batch] = numbers(frame.collect())

    def run(form: str) -> None:
        frame = with_options(spark.readStream, form, moldau_broker, options).load()
        awaited(frame.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path)))

    produce_numbers(moldau_broker, topic, 120)
    with pytest.raises(Exception, match="on purpose"):
        run(first)
    failing.clear()
    left_undone = stored_offsets(tmp_path)
    produce_numbers(moldau_broker, topic, 30, first=120)
    run(second)
    assert stored_offsets(tmp_path)[: len(left_undone)] == left_undone
    assert sorted(each for batch in seen.values() for each in batch) == list(range(150))


@pytest.mark.parametrize(("first", "second"), [(OFFICIAL, OFFICIAL), (OURS, OURS), (OFFICIAL, OURS), (OURS, OFFICIAL)])
def test_a_stream_from_the_latest_that_failed_in_its_first_batch_goes_on(
    spark: Any, moldau_broker: Broker, topic: str, tmp_path: Path, first: str, second: str
) -> None:
    """What came after the failure is read, though "latest" is another place by then."""
    seen: list[int] = []
    failing = [True]

    def write(frame: Any, _: int) -> None:
        if failing:
            raise RuntimeError("on purpose")
        seen.extend(numbers(frame.collect()))

    def run(form: str) -> None:
        frame = with_options(spark.readStream, form, moldau_broker, {"subscribe": topic}).load()
        awaited(frame.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path)))

    produce_numbers(moldau_broker, topic, 10)
    with pytest.raises(Exception, match="on purpose"):
        run(first)
    failing.clear()
    produce_numbers(moldau_broker, topic, 10, first=10)
    run(second)
    assert sorted(seen) == list(range(10, 20))
