"""Output of results: tables for people, JSON for programs, and progress on stderr."""

import os
import platform
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from moldau import __version__
from moldau.cli.bench.rounds import Round, Tell
from moldau.cli.bench.statistics import Latencies, Spread, latencies, spread
from moldau.cli.bench.targets import MB, Measured, Verdict
from moldau.cli.output import note, show_json, show_table

_DIGITS: Final = 3


@contextmanager
def progress() -> Iterator[Tell]:
    """Show progress: on a terminal one line that is overwritten, elsewhere one line per step."""
    if not sys.stderr.isatty():
        yield note
        return
    from rich.console import Console

    with Console(stderr=True).status("starting") as status:
        yield status.update


def number(value: float) -> str:
    """Format with three significant digits, or all digits before the decimal point."""
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
            value_range(each.reached),
            "met" if each.is_met else "NOT MET",
        )
        for each in verdicts
    ]
    show_table(("target", "limit", "median", "rounds from … to", ""), rows, numbers=("limit", "median"))


def value_range(found: Spread) -> str:
    return f"{number(found.low)} … {number(found.high)}" if found.low != found.high else "-"


def report(measured: Measured, verdicts: Sequence[Verdict], **more: Any) -> dict[str, Any]:
    """Return all results in their JSON form."""
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
    figures: dict[str, Any] = {
        "rounds": len(rounds),
        "bytes_per_s": spread([each.bytes_per_s for each in rounds]).as_json(),
        "requests_per_s": spread([each.requests_per_s for each in rounds]).as_json(),
        "records_per_s": spread([each.records_per_s for each in rounds]).as_json(),
    }
    if rounds[0].server_cpu_s is not None:
        figures["cpu_us_per_request"] = spread([each.cpu_us for each in rounds]).as_json()
    return figures


def show(measured: Measured, verdicts: Sequence[Verdict], *, as_json: bool, stall_p99_ms: float | None = None) -> None:
    """Print the results, for people or as JSON."""
    if as_json:
        show_json({**report(measured, verdicts), "loop_stall_p99_ms": stall_p99_ms})
        return
    show_throughput(measured)
    show_latencies(measured)
    if stall_p99_ms is not None:
        print(f"loop stall p99: at most {stall_p99_ms:g} ms")
    show_verdicts(verdicts)
