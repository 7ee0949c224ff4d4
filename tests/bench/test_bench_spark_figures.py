"""How the figures of `python -m moldau_dev.bench spark` are read and judged."""

import json
from pathlib import Path

import pytest

from moldau.cli.bench.rounds import Round
from moldau.cli.errors import CommandError
from moldau_dev.bench.spark.archive import ARCHIVE, LAKE, rounds_of
from moldau_dev.bench.spark.avro_batches import COLUMNS, LOOP, avro_subjects
from moldau_dev.bench.spark.reads import CEILING, READ
from moldau_dev.bench.spark.records import Records
from moldau_dev.bench.spark.streams import BATCHES, FLOOR, NOOP, SINK, of_batches
from moldau_dev.bench.spark.suite import SparkPlan, spark_floors, spark_verdicts

FEW = Records(2_000, 100, 100)


def test_batches_are_read_from_the_output_of_archive() -> None:
    lines = [json.dumps({"rows": rows, "batch_ms": 2000, "batch": 0}) for rows in (500, 0, 250)]
    assert rounds_of("\n".join(["hello", *lines]), 1024) == [
        Round(1, 2.0, 500 * 1024, 500),
        Round(1, 2.0, 250 * 1024, 250),
    ]


def test_first_batch_of_a_stream_is_ignored() -> None:
    given = [{"numInputRows": 10, "durationMs": {"triggerExecution": 1000 * (4 - number)}} for number in range(BATCHES)]
    found = of_batches([*given, {"numInputRows": 0, "durationMs": {}}], FEW)
    assert (found.requests, found.records, found.elapsed_s) == (3, 30, 6.0)
    with pytest.raises(CommandError, match="batches expected"):
        of_batches(given[:2], FEW)


def test_each_target_is_judged_by_the_median_of_its_rounds() -> None:
    def rounds(*seconds: float) -> list[Round]:
        return [Round(1, each, 100, 100_000) for each in seconds]

    measured = {
        READ: rounds(1.0, 2.0, 3.0),
        CEILING: rounds(1.0, 1.0, 1.0),
        SINK: rounds(1.1, 1.2),
        FLOOR: rounds(1.0, 1.0),
        COLUMNS: rounds(0.3, 0.4),
        LOOP: rounds(1.0, 1.0),
        ARCHIVE: rounds(0.9, 0.8),
        LAKE: rounds(1.1, 1.2),
    }
    assert [each.is_met for each in spark_verdicts(measured)] == [False, True, False, False, True]


def test_avro_values_are_decoded_both_ways() -> None:
    decoded = {name: measure() for name, measure in avro_subjects().items()}
    assert decoded[COLUMNS].records == decoded[LOOP].records == 100_000


def test_floor_of_a_python_sink_is_given() -> None:
    measured = {SINK: [Round(2, 6.0)], NOOP: [Round(2, 2.0)], FLOOR: [Round(2, 3.0)]}
    assert [each.median for each in spark_floors(measured).values()] == [1.5, 3.0]
    assert spark_floors({SINK: measured[SINK], NOOP: measured[NOOP]}) == {}


def test_directory_without_jars_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="no jars"):
        SparkPlan(official_jars=tmp_path)
    with pytest.raises(CommandError, match="multiple of 20000"):
        SparkPlan(30_000)
