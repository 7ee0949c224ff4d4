"""Everything about Spark that has a target, in one run."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from moldau.cli.bench.bench import Bench
from moldau.cli.bench.rounds import Round, Tell, interleave
from moldau.cli.bench.session import Plan
from moldau.cli.bench.session import session as bench_session
from moldau.cli.bench.statistics import Spread, ratios, spread
from moldau.cli.bench.targets import Measured, Verdict
from moldau.cli.errors import CommandError
from moldau_dev.bench.spark.archive import ARCHIVE, LAKE, archive_rounds
from moldau_dev.bench.spark.avro_batches import COLUMNS, LOOP, avro_subjects
from moldau_dev.bench.spark.reads import CEILING, READ, reads
from moldau_dev.bench.spark.records import Records, filled
from moldau_dev.bench.spark.streams import FLOOR, NOOP, SINK, streams

MASTER: Final = "local[2]"
RECORDS_MIN: Final = 20_000
_SETTINGS: Final = {"spark.log.level": "ERROR", "spark.driver.memory": "2g", "spark.driver.host": "127.0.0.1"}


@dataclass(frozen=True, slots=True)
class SparkPlan:
    """The amount that is read and written. The JVM needs several warm-up rounds."""

    records: int = 2_000_000
    archive_batches: int = 5
    warm_up_rounds: int = 2
    official_jars: Path | None = None

    def __post_init__(self) -> None:
        if self.records < RECORDS_MIN or self.records % RECORDS_MIN:
            raise CommandError(f"records come in batches: their number must be a multiple of {RECORDS_MIN}")
        if self.official_jars is not None and not self.jars:
            raise CommandError(f"there are no jars in {self.official_jars}")

    @property
    def small(self) -> Records:
        return Records(self.records, 100, 500)

    @property
    def large(self) -> Records:
        return Records(self.records // 2, 1024, 50)

    @property
    def jars(self) -> list[str]:
        return [] if self.official_jars is None else sorted(map(str, self.official_jars.glob("*.jar")))


def measure_spark(plan: Plan, wanted: SparkPlan, tell: Tell) -> dict[str, list[Round]]:
    with bench_session(plan, tell) as bench:
        with filled(bench, wanted.small) as topic, _spark(wanted) as spark:
            subjects = {
                **reads(spark, bench, topic, wanted.small, with_official=bool(wanted.jars)),
                **streams(spark, bench, topic, wanted.small),
            }
            for _ in range(wanted.warm_up_rounds - 1):
                interleave(subjects, 0, tell)
            measured = interleave(subjects, bench.rounds, tell)
        return measured | interleave(avro_subjects(), bench.rounds, tell) | measure_archive(bench, wanted)


def measure_archive(bench: Bench, wanted: SparkPlan) -> dict[str, list[Round]]:
    with filled(bench, wanted.large) as topic:
        return {
            each: archive_rounds(bench, topic, wanted.large, wanted.archive_batches, subject=each)
            for each in (ARCHIVE, LAKE)
        }


@contextmanager
def _spark(wanted: SparkPlan) -> Iterator[Any]:
    from moldau.pipelines.requirements import require_spark

    require_spark()
    from pyspark_moldau import session

    jars = {"spark.jars": ",".join(wanted.jars)} if wanted.jars else {}
    spark = session("moldau-bench", master=MASTER, settings={**_SETTINGS, **jars})
    try:
        yield spark
    finally:
        spark.stop()


def spark_verdicts(measured: Measured) -> list[Verdict]:
    """Judge the targets whose figures were measured."""
    found: list[Verdict] = []
    if measured.get(READ) and measured.get(CEILING):
        read = ratios(_rates(measured[READ]), _rates(measured[CEILING]))
        found.append(Verdict("read of 100 B records into noop, of an in-memory Arrow source", 0.7, True, "x", read))
    if measured.get(SINK) and measured.get(FLOOR):
        batch = ratios(_seconds(measured[SINK]), _seconds(measured[FLOOR]))
        found.append(
            Verdict("batch of 100 B rows exactly once, of into a sink that keeps nothing", 1.15, False, "x", batch)
        )
    if measured.get(COLUMNS) and measured.get(LOOP):
        decoded = ratios(_rates(measured[COLUMNS]), _rates(measured[LOOP]))
        found.append(Verdict("Avro values of ten columns decoded, of a loop of fastavro", 3, True, "x", decoded))
    if measured.get(LAKE):
        written = spread([each / 1000 for each in _rates(measured[LAKE])])
        found.append(Verdict("records of 1 KiB written to a Delta table a second", 100, True, "k/s", written))
    if measured.get(ARCHIVE):
        archived = spread([each / 1000 for each in _rates(measured[ARCHIVE])])
        found.append(Verdict("records of 1 KiB archived to Parquet a second", 100, True, "k/s", archived))
    return found


def spark_floors(measured: Measured) -> dict[str, Spread]:
    """Return the lower bound of any Python sink and our ratio to it: figures that explain one with a target."""
    if not (measured.get(SINK) and measured.get(NOOP) and measured.get(FLOOR)):
        return {}
    sink, noop, floor = (_seconds(measured[each]) for each in (SINK, NOOP, FLOOR))
    return {
        "batch of 100 B rows into a Python sink that keeps nothing, of into noop": ratios(floor, noop),
        "batch of 100 B rows exactly once into a topic, of into noop": ratios(sink, noop),
    }


def _rates(rounds: Sequence[Round]) -> list[float]:
    return [each.records_per_s for each in rounds]


def _seconds(rounds: Sequence[Round]) -> list[float]:
    return [each.elapsed_s / each.requests for each in rounds]
