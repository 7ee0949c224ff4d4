"""Tables of figures of the development benchmarks."""

import dataclasses
from collections.abc import Mapping, Sequence

from moldau.cli.bench.reports import number, value_range
from moldau.cli.bench.statistics import Spread, spread
from moldau.cli.bench.targets import MB, Measured
from moldau.cli.output import show_table
from moldau_dev.bench.figures import Comparison
from moldau_dev.bench.growth.curve import Curve
from moldau_dev.bench.neighbours import LoginFigures, ThrottleFigures
from moldau_dev.bench.security import Row as SecurityRow
from moldau_dev.bench.tls import TlsRow


def show_rates(measured: Measured) -> None:
    """Print rates of batches that take seconds."""
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


def show_floors(floors: Mapping[str, Spread]) -> None:
    """Print figures without a target: the lower bounds of other figures."""
    rows = [(text, f"{number(found.median)} x", value_range(found)) for text, found in floors.items()]
    if rows:
        show_table(("beside the targets", "median", "rounds from … to"), rows, numbers=("median",))


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


def show_security(rows: Sequence[SecurityRow]) -> None:
    columns = ("security", "us/request", "beside", "ratio", "from … to", "ms/MiB", "MiB ratio", "of MiB from … to")
    cells = [
        (
            each.name,
            number(each.us_per_request.median),
            each.reference,
            f"{number(each.request_ratio.median)} x" if each.request_ratio else None,
            value_range(each.request_ratio) if each.request_ratio else None,
            number(each.ms_per_mib.median),
            f"{number(each.mib_ratio.median)} x" if each.mib_ratio else None,
            value_range(each.mib_ratio) if each.mib_ratio else None,
        )
        for each in rows
    ]
    show_table(columns, cells, numbers=("us/request", "ratio", "ms/MiB", "MiB ratio"))


def show_curves(curves: Sequence[Curve]) -> None:
    columns = ("cost", "at sizes", "unit", "limit", "met")
    cells = [
        (
            each.name,
            ", ".join(f"{size}: {number(cost)}" for size, cost in sorted(each.costs.items())),
            each.unit,
            None if each.limit is None else number(each.limit),
            None if each.limit is None else ("yes" if each.is_met else "NO"),
        )
        for each in curves
    ]
    show_table(columns, cells)


def show_tls(rows: Sequence[TlsRow]) -> None:
    columns = ("over TLS 1.3", "MiB/s", "of the copy", "from … to", "ms/MiB", "of its CPU", "of CPU from … to")
    cells = [
        (
            each.name,
            number(each.mib_per_s.median),
            f"{number(each.of_copy.median)} x" if each.of_copy else None,
            value_range(each.of_copy) if each.of_copy else None,
            number(each.ms_per_mib.median),
            f"{number(each.cpu_of_copy.median)} x" if each.cpu_of_copy else None,
            value_range(each.cpu_of_copy) if each.cpu_of_copy else None,
        )
        for each in rows
    ]
    show_table(columns, cells, numbers=("MiB/s", "of the copy", "ms/MiB", "of its CPU"))


def show_spreads(figures: LoginFigures | ThrottleFigures) -> None:
    """One row per field."""
    names = [each.name for each in dataclasses.fields(figures)]
    values = [(name, getattr(figures, name)) for name in names]
    cells = [(name.replace("_", " "), number(each.median), value_range(each)) for name, each in values]
    show_table(("figure", "median", "from … to"), cells, numbers=("median",))
