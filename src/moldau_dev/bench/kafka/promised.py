"""The rows of F1 and F2: the figures that the design promises, and what one core of broker carries."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from moldau.cli.bench.bench import Bench, Load
from moldau.cli.bench.produce_load import ProduceCase, run_produce
from moldau.cli.bench.requests import Shape
from moldau_dev.bench.kafka.fan_out import fan_out
from moldau_dev.bench.kafka.rows import (
    REPLICATED_BYTES_MAX,
    Figures,
    Measure,
    Prepare,
    Row,
    of_round,
    paced_batches,
    raw_produce,
)
from moldau_dev.bench.kafka.runner import MOLDAU, Compared

OF_100_B: Final = Shape(600, 100)
OF_1_KIB: Final = Shape(60, 1024)
MB: Final = 1e6
PLAIN_BYTES_MAX: Final = 1 << 30


def plain_copy(shape: Shape) -> Prepare:
    """The plain receive-and-write loop with the same traffic, in place of the broker; of Moldau's figures only."""

    def prepare(bench: Bench, _stack: ExitStack, seconds: float) -> Measure:
        case = ProduceCase("plain", shape, Load(5, PLAIN_BYTES_MAX, seconds))

        def measure() -> Figures:
            (found,) = run_produce(bench, [case])[case.plain_name]
            return of_round(found, found.records)

        return measure

    return prepare


F1: Final = (
    Row("F1: 100 B, 64 KiB batches, closed loop", "record", raw_produce(OF_100_B, counts_records=True)),
    Row("F1: 1 KiB, 64 KiB batches, closed loop", "record", raw_produce(OF_1_KIB, counts_records=True)),
    Row("F1: 100 B at 640,000/s", "record", paced_batches(OF_100_B, 640_000)),
    Row("F1: 1 KiB at 200,000/s", "record", paced_batches(OF_1_KIB, 200_000)),
    Row("F1: plain copy of 100 B records", "record", plain_copy(OF_100_B), is_of_machine=True),
    Row(
        "F1: three replicas, 100 B, closed loop",
        "record",
        raw_produce(OF_100_B, counts_records=True, bytes_max=REPLICATED_BYTES_MAX),
        brokers=3,
    ),
    Row("F1: three replicas, 100 B at 400,000/s", "record", paced_batches(OF_100_B, 400_000), brokers=3),
)
F2: Final = (
    Row("F2: 115 MB/s in, five groups reading", "record", fan_out(OF_1_KIB, 115 * MB, 5)),
    Row("F2: peak, 1 KiB at 350,000/s", "record", paced_batches(OF_1_KIB, 350_000)),
)


@dataclass(frozen=True, slots=True)
class Core:
    """The load that one core of broker carries in a row, by its CPU time."""

    row: str
    subject: str
    records_per_s: float


def cores(compared: Sequence[Compared]) -> Iterator[Core]:
    """Records per second for each second of CPU, by the median round."""
    for row in compared:
        for subject, rounds in row.rounds.items():
            costs_us = sorted(each.cpu_us for each in rounds if each.cpu_us)
            if costs_us and row.counted == "record":
                yield Core(row.name, subject, 1e6 / costs_us[len(costs_us) // 2])


def is_met(compared: Sequence[Compared], row: str, *, p99_ms: float, per_s: float = 0.0) -> bool | None:
    """Whether Moldau's median round meets a target; None if the row was not measured."""
    for each in compared:
        if each.name == row:
            rounds = each.rounds[MOLDAU]
            latencies = sorted(found.p99_ms for found in rounds if found.p99_ms is not None)
            rates = sorted(found.per_s for found in rounds if found.per_s is not None)
            return latencies[len(latencies) // 2] <= p99_ms and (not per_s or rates[len(rates) // 2] >= per_s)
    return None


TARGETS: Final = (
    ("F1: 100 B at 640,000/s", 2.0, 0.0),
    ("F1: three replicas, 100 B at 400,000/s", 5.0, 0.0),
    ("F2: 115 MB/s in, five groups reading", 10.0, 110_000.0),
)
