"""The table and the JSON of a comparison: ratios Moldau/Kafka per round, with their spread."""

import os
import platform
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from moldau.cli.bench.reports import number, value_range
from moldau.cli.bench.statistics import Spread, ratios, spread
from moldau.cli.output import show_table
from moldau_dev.bench.kafka.promised import Core
from moldau_dev.bench.kafka.rows import Figures
from moldau_dev.bench.kafka.runner import KAFKA, MOLDAU, Compared, Effort

_MEASURES: Final = {
    "per_s": "per second",
    "cpu_us": "us of CPU",
    "p50_ms": "p50, ms",
    "p99_ms": "p99, ms",
    "value": "",
}


@dataclass(frozen=True, slots=True)
class Line:
    """One measure of one row."""

    row: str
    measure: str
    moldau: Spread
    kafka: Spread | None = None
    ratio: Spread | None = None
    is_ahead: bool | None = None  # in the median

    def as_json(self) -> dict[str, Any]:
        return {
            "row": self.row,
            "measure": self.measure,
            MOLDAU: self.moldau.as_json(),
            KAFKA: None if self.kafka is None else self.kafka.as_json(),
            "ratio": None if self.ratio is None else self.ratio.as_json(),
            "is_ahead": self.is_ahead,
        }


def lines(compared: Sequence[Compared]) -> Iterator[Line]:
    for row in compared:
        for each in fields(Figures):
            ours = [getattr(figures, each.name) for figures in row.rounds[MOLDAU]]
            theirs = [getattr(figures, each.name) for figures in row.rounds.get(KAFKA, ())]
            if not ours or None in ours or None in theirs:
                continue
            measure = _MEASURES[each.name]
            if each.name in ("per_s", "cpu_us"):
                measure = f"{row.counted}s per second" if each.name == "per_s" else f"us of CPU per {row.counted}"
            if not theirs:
                yield Line(row.name, measure, spread(ours))
                continue
            ratio = ratios(ours, theirs)
            is_ahead = ratio.median >= 1 if each.name == "per_s" else ratio.median <= 1
            yield Line(row.name, measure, spread(ours), spread(theirs), ratio, is_ahead)


def show(compared: Sequence[Compared]) -> None:
    columns = ("row", "measure", "Moldau", "Kafka", "ratio", "from … to", "ahead")
    cells = [
        (
            each.row,
            each.measure,
            number(each.moldau.median),
            None if each.kafka is None else number(each.kafka.median),
            None if each.ratio is None else f"{number(each.ratio.median)} x",
            None if each.ratio is None else value_range(each.ratio),
            None if each.is_ahead is None else ("yes" if each.is_ahead else "NO"),
        )
        for each in lines(compared)
    ]
    show_table(columns, cells, numbers=("Moldau", "Kafka", "ratio"))


def show_cores(found: Iterable[Core]) -> None:
    columns = ("row", "of", "records/s for each core of broker")
    show_table(columns, [(each.row, each.subject, number(each.records_per_s)) for each in found], numbers=columns[2:])


def as_json(compared: Sequence[Compared], effort: Effort) -> Mapping[str, Any]:
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": {
            "processors": os.cpu_count(),
            "kernel": platform.release(),
            "python": platform.python_version(),
            "load_average": os.getloadavg()[0],
        },
        "kafka": "4.3.1",
        "seconds": effort.seconds,
        "rounds": effort.rounds,
        "rows": [each.as_json() for each in lines(compared)],
    }
