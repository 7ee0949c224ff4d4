"""Targets for produce, fetch and latency: their limits, and verdicts on measurements."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from moldau.cli.bench import cases, fetch_load, latency
from moldau.cli.bench.produce_load import ProduceCase
from moldau.cli.bench.rounds import Round
from moldau.cli.bench.statistics import Spread, latencies, ratios, spread

Measured = Mapping[str, Sequence[Round]]
MB: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Target:
    """A limit on one figure: the median over the rounds must be within it."""

    text: str
    limit: float
    is_least: bool  # whether the limit is a minimum, not a maximum
    unit: str
    needs: tuple[str, ...]
    figure: Callable[[Measured], Spread]


@dataclass(frozen=True, slots=True)
class Verdict:
    """A target and the measured value."""

    text: str
    limit: float
    is_least: bool
    unit: str
    reached: Spread

    @property
    def is_met(self) -> bool:
        return self.reached.median >= self.limit if self.is_least else self.reached.median <= self.limit

    def as_json(self) -> dict[str, Any]:
        return {
            "target": self.text,
            "limit": self.limit,
            "limit_is": "at least" if self.is_least else "at most",
            "unit": self.unit,
            **self.reached.as_json(),
            "is_met": self.is_met,
        }


def throughput_ratio(ours: str, plain: str) -> Callable[[Measured], Spread]:
    return lambda measured: ratios(
        [each.bytes_per_s for each in measured[ours]], [each.bytes_per_s for each in measured[plain]]
    )


def p99_ratio(ours: str, plain: str) -> Callable[[Measured], Spread]:
    return lambda measured: ratios(p99s_ms(measured[ours]), p99s_ms(measured[plain]))


def p99s_ms(rounds: Sequence[Round]) -> list[float]:
    return [latencies(each.samples_ms).p99_ms for each in rounds]


def cpu_us(measured: Measured, name: str) -> list[float]:
    return [each.cpu_us for each in measured[name]]


def _of_plain(case: ProduceCase, limit: float, size: str) -> Target:
    return Target(
        f"produce of {size} batches, of a plain receive-and-write loop",
        limit,
        True,
        "x",
        (case.name, case.plain_name),
        throughput_ratio(case.name, case.plain_name),
    )


TARGETS: Final = (
    _of_plain(cases.PRODUCE_64K, 0.7, "64 KiB"),
    _of_plain(cases.PRODUCE_16K, 0.35, "16 KiB"),
    Target(
        "fetch of 1 MiB, of plain sendfile",
        0.7,
        True,
        "x",
        (fetch_load.NAME, fetch_load.PLAIN_NAME),
        throughput_ratio(fetch_load.NAME, fetch_load.PLAIN_NAME),
    ),
    Target(
        "CPU of a one-record produce request",
        25.0,
        False,
        "us",
        (cases.PRODUCE_ONE.name,),
        lambda measured: spread(cpu_us(measured, cases.PRODUCE_ONE.name)),
    ),
    Target(
        "p99 of an ack at 20 MB/s, of an echo of the same size",
        3.0,
        False,
        "x",
        (latency.NAME, latency.ECHO_NAME),
        p99_ratio(latency.NAME, latency.ECHO_NAME),
    ),
    Target(
        "records of 100 B produced a second, in raw batches",
        5.0,
        True,
        "M/s",
        (cases.PRODUCE_64K.name,),
        lambda measured: spread([each.records_per_s / 1e6 for each in measured[cases.PRODUCE_64K.name]]),
    ),
    Target(
        "CPU of a 64 KiB batch of 600 records, of one of 10",
        1.1,
        False,
        "x",
        (cases.PRODUCE_64K.name, cases.PRODUCE_64K_LARGE_RECORDS.name),
        lambda measured: ratios(
            cpu_us(measured, cases.PRODUCE_64K.name), cpu_us(measured, cases.PRODUCE_64K_LARGE_RECORDS.name)
        ),
    ),
)


def verdicts(measured: Measured) -> list[Verdict]:
    """Return the verdicts on those targets whose figures were measured."""
    return judge(TARGETS, measured)


def judge(targets: Sequence[Target], measured: Measured) -> list[Verdict]:
    return [
        Verdict(each.text, each.limit, each.is_least, each.unit, each.figure(measured))
        for each in targets
        if all(measured.get(name) and _is_complete(measured[name]) for name in each.needs)
    ]


def _is_complete(rounds: Sequence[Round]) -> bool:
    """Return whether all figures are known: CPU time is measured only for embedded brokers."""
    return all(each.server_cpu_s is not None or each.samples_ms for each in rounds)
