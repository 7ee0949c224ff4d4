"""The committed figures, to see how a change affects the CPU time of a request.

Each is stored with the CPU of the plain loop in the same rounds: the ratio of the two can be compared
between machines and days, the microseconds only on one machine at one time.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from moldau.cli.bench import cases, fetch_load
from moldau.cli.bench.targets import Measured
from moldau.cli.errors import CommandError
from moldau.model.units import MiB

FILE_NAME: Final = "figures.json"
FIGURES_BYTES_MAX: Final = MiB
STALL: Final = "loop stall p99"

PAIRS: Final = {
    "produce one record": (cases.PRODUCE_ONE.name, cases.PRODUCE_ONE.plain_name),
    "produce 64 KiB": (cases.PRODUCE_64K.name, cases.PRODUCE_64K.plain_name),
    "fetch 1 MiB": (fetch_load.NAME, fetch_load.PLAIN_NAME),
}


@dataclass(frozen=True, slots=True)
class Figure:
    """CPU of a request in microseconds, here and in the plain loop."""

    cpu_us: float
    plain_cpu_us: float

    @property
    def of_plain(self) -> float:
        return self.cpu_us / self.plain_cpu_us


@dataclass(frozen=True, slots=True)
class Figures:
    """The results of `python -m moldau_dev.bench quick`."""

    requests: dict[str, Figure]
    stall_p99_ms: float | None

    def as_json(self) -> dict[str, Any]:
        return {
            "cpu_per_request": {
                name: {"cpu_us": round(each.cpu_us, 2), "plain_cpu_us": round(each.plain_cpu_us, 2)}
                for name, each in self.requests.items()
            },
            "loop_stall_p99_ms": self.stall_p99_ms,
        }


def figures(measured: Measured, stall_p99_ms: float | None) -> Figures:
    """Return the minimum of the rounds: other processes can only add CPU time."""
    return Figures(
        {
            name: Figure(min(each.cpu_us for each in measured[ours]), min(each.cpu_us for each in measured[plain]))
            for name, (ours, plain) in PAIRS.items()
        },
        stall_p99_ms,
    )


def load(folder: Path) -> Figures | None:
    path = folder / FILE_NAME
    if not path.is_file():
        return None
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        requests = {name: Figure(**each) for name, each in stored["cpu_per_request"].items()}
        return Figures(requests, stored["loop_stall_p99_ms"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CommandError(f"{path} cannot be read ({error}); --save replaces it") from error


def save(found: Figures, folder: Path) -> Path:
    path = folder / FILE_NAME
    path.write_text(json.dumps(found.as_json(), indent=2) + "\n", encoding="utf-8")
    return path


@dataclass(frozen=True, slots=True)
class Comparison:
    """A figure and its committed value. `change` is their ratio, `change_of_plain` is relative to the plain loop."""

    name: str
    unit: str
    now: float
    then: float | None
    change: float | None
    change_of_plain: float | None


def compare(now: Figures, then: Figures | None) -> list[Comparison]:
    rows = [
        _compare_request(name, each, then.requests.get(name) if then else None) for name, each in now.requests.items()
    ]
    if now.stall_p99_ms is not None:
        before_ms = then.stall_p99_ms if then else None
        change = now.stall_p99_ms / before_ms if before_ms else None
        rows.append(Comparison(STALL, "ms", now.stall_p99_ms, before_ms, change, None))
    return rows


def _compare_request(name: str, now: Figure, then: Figure | None) -> Comparison:
    if then is None:
        return Comparison(name, "us", now.cpu_us, None, None, None)
    return Comparison(name, "us", now.cpu_us, then.cpu_us, now.cpu_us / then.cpu_us, now.of_plain / then.of_plain)
