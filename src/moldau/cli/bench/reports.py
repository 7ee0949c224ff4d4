"""How results look: tables for people, JSON for programs, and a line on stderr while it runs."""

import os
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from moldau import __version__
from moldau.cli.bench.figures import Comparison
from moldau.cli.bench.rounds import Round, Tell
from moldau.cli.bench.statistics import Latencies, Spread, latencies, spread
from moldau.cli.bench.targets import MB, Measured, Verdict
from moldau.cli.output import note, show_table

_DIGITS: Final = 3


@contextmanager
def progress() -> Iterator[Tell]:
    """A line that is overwritten on a terminal, one line for each step elsewhere."""
    if not sys.stderr.isatty():
        yield note
        return
    from rich.console import Console

    with Console(stderr=True).status("starting") as status:
        yield status.update


def number(value: float) -> str:
    """Three digits that count; more where they stand before the point."""
    digits = max(_DIGITS - len(str(int(abs(value)))), 0) if abs(value) >= 1 else _DIGITS
    return f"{value:,.{digits}f}"


def show_throughput(measured: Measured) -> None:
    rows = [_throughput_row(name, rounds) for name, rounds in measured.items() if rounds and not rounds[0].samples_ms]
    if rows:
        columns = ("load", "MB/s", "requests/s", "records/s", "CPU us/request", "rounds")
        show_table(columns, rows, numbers=columns[1:])


def _throughput_row(name: str, rounds: Sequence[Round]) -> tuple[object, ...]:
    def middle(values: list[float]) -> str:
        return number(spread(values).median)

    return (
        name,
        middle([each.bytes_per_s / MB for each in rounds]),
        middle([each.requests_per_s for each in rounds]),
        middle([each.records_per_s for each in rounds]),
        middle([each.cpu_us for each in rounds]) if rounds[0].server_cpu_s is not None else None,
        len(rounds),
    )


def show_rates(measured: Measured) -> None:
    """For work that comes in batches of seconds."""
    columns = ("load", "records/s", "MB/s", "s", "rounds")
    rows = [
        (
            name,
            number(spread([each.records_per_s for each in rounds]).median),
            number(spread([each.bytes_per_s / MB for each in rounds]).median),
            number(spread([each.elapsed_s / each.requests for each in rounds]).median),
            len(rounds),
        )
        for name, rounds in measured.items()
    ]
    show_table(columns, rows, numbers=columns[1:])


def show_latencies(measured: Measured) -> None:
    rows = [
        _latency_row(name, all_latencies(rounds))
        for name, rounds in measured.items()
        if rounds and rounds[0].samples_ms
    ]
    if rows:
        columns = ("latency in ms", "p50", "p99", "p99.9", "max", "requests")
        show_table(columns, rows, numbers=columns[1:])


def all_latencies(rounds: Sequence[Round]) -> Latencies:
    return latencies([sample for each in rounds for sample in each.samples_ms])


def _latency_row(name: str, found: Latencies) -> tuple[object, ...]:
    figures = (found.p50_ms, found.p99_ms, found.p999_ms, found.max_ms)
    return (name, *map(number, figures), found.count)


def show_verdicts(verdicts: Sequence[Verdict]) -> None:
    if not verdicts:
        return
    rows = [
        (
            each.text,
            f"{'≥' if each.is_least else '≤'} {each.limit:g} {each.unit}",
            f"{number(each.reached.median)} {each.unit}",
            _range(each.reached),
            "met" if each.is_met else "NOT MET",
        )
        for each in verdicts
    ]
    show_table(("target", "limit", "median", "rounds from … to", ""), rows, numbers=("limit", "median"))


def show_floors(floors: Mapping[str, Spread]) -> None:
    """Figures without a target, which say how much of another one is not ours."""
    rows = [(text, f"{number(found.median)} x", _range(found)) for text, found in floors.items()]
    if rows:
        show_table(("beside the targets", "median", "rounds from … to"), rows, numbers=("median",))


def _range(found: Spread) -> str:
    return f"{number(found.low)} … {number(found.high)}" if found.low != found.high else "-"


def show_comparisons(comparisons: Sequence[Comparison]) -> None:
    rows = [
        (
            each.name,
            f"{number(each.now)} {each.unit}",
            f"{number(each.then)} {each.unit}" if each.then is not None else None,
            number(each.change) if each.change is not None else None,
            number(each.change_of_plain) if each.change_of_plain is not None else None,
        )
        for each in comparisons
    ]
    columns = ("CPU per request", "now", "committed", "now/committed", "the same, of plain")
    show_table(columns, rows, numbers=columns[1:])


def report(measured: Measured, verdicts: Sequence[Verdict], **more: Any) -> dict[str, Any]:
    """Everything as JSON."""
    return {
        "moldau": __version__,
        "machine": {
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "system": f"{platform.system()} {platform.release()}",
        },
        "measurements": {name: _rounds_json(rounds) for name, rounds in measured.items() if rounds},
        "targets": [each.as_json() for each in verdicts],
        **more,
    }


def _rounds_json(rounds: Sequence[Round]) -> dict[str, Any]:
    if rounds[0].samples_ms:
        return {"rounds": len(rounds), "latency": all_latencies(rounds).as_json()}
    told: dict[str, Any] = {
        "rounds": len(rounds),
        "bytes_per_s": spread([each.bytes_per_s for each in rounds]).as_json(),
        "requests_per_s": spread([each.requests_per_s for each in rounds]).as_json(),
        "records_per_s": spread([each.records_per_s for each in rounds]).as_json(),
    }
    if rounds[0].server_cpu_s is not None:
        told["cpu_us_per_request"] = spread([each.cpu_us for each in rounds]).as_json()
    return told
