"""`python -m moldau_dev.bench spark`, very small: its queries run and are counted."""

from pathlib import Path
from typing import Any

from moldau.cli.bench.bench import Bench
from moldau.cli.bench.cluster import own_broker
from moldau.cli.bench.generator import Generator
from moldau.cli.bench.rounds import interleave
from moldau_dev.bench.spark.reads import CEILING, OFFICIAL, READ, reads
from moldau_dev.bench.spark.records import Records, filled
from moldau_dev.bench.spark.streams import NOOP, SINK, streams
from moldau_dev.bench.spark.suite import spark_verdicts

FEW = Records(2_000, 100, 100)


def test_reads_and_writes_are_measured_against_spark(spark: Any, tmp_path: Path) -> None:
    with own_broker(tmp_path) as cluster, Generator() as generator:
        bench = Bench(cluster, generator, tmp_path, connections=1, rounds=1, tell=lambda _: None)
        with filled(bench, FEW) as topic:
            subjects = {**reads(spark, bench, topic, FEW, with_official=True), **streams(spark, bench, topic, FEW)}
            measured = interleave(subjects, 1, bench.tell)
    assert [measured[name][0].records for name in (READ, CEILING, OFFICIAL)] == [2_000] * 3
    assert [(measured[name][0].records, measured[name][0].requests) for name in (SINK, NOOP)] == [(1_500, 3)] * 2
    assert [each.unit for each in spark_verdicts(measured)] == ["x", "x"]
