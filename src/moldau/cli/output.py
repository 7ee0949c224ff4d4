"""Output: tables for people, JSON for programs, notes on standard error."""

import base64
import io
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions

PIPE_WIDTH: Final = 100_000  # tables for programs are not wrapped
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def show_json(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))


def show_json_line(value: Any) -> None:
    print(json.dumps(value, ensure_ascii=False))


def show_table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, numbers: Sequence[str] = ()) -> None:
    """Print a table; the columns named in `numbers` are aligned to the right.

    On a terminal that is too narrow for it, each row is printed as a block with one line per column instead: a table
    whose cells are wrapped cannot be read.
    """
    from rich.console import Console
    from rich.measure import Measurement
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(Text(column.upper()), justify="right" if column in numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(_cell(each)) for each in row))
    if sys.stdout.isatty():
        console = Console(file=sys.stdout, highlight=False)
        if len(columns) > 2 and Measurement.get(console, _unlimited(console), table).maximum > console.width:
            _show_blocks(columns, rows)
        else:
            console.print(table)
        return
    console = Console(file=io.StringIO(), width=PIPE_WIDTH, highlight=False, color_system=None)
    with console.capture() as capture:
        console.print(table)
    for line in capture.get().splitlines():
        print(line.rstrip())


def _unlimited(console: "Console") -> "ConsoleOptions":
    return console.options.update(max_width=PIPE_WIDTH)


def _show_blocks(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    width = max(len(column) for column in columns)
    for number, row in enumerate(rows):
        if number:
            print()
        for column, value in zip(columns, row, strict=True):
            print(f"{column.upper():<{width}}  {_cell(value)}")


def note(text: str) -> None:
    """Print to standard error, where it does not mix with the result. A full disk is ignored."""
    try:
        print(text, file=sys.stderr)
    except BrokenPipeError:
        raise
    except OSError:
        pass


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ",".join(map(str, value)) or "-"
    return str(value)


def human_bytes(size: int) -> str:
    value = float(size)
    for unit in _UNITS:
        if abs(value) < 1024 or unit == _UNITS[-1]:
            return f"{int(value)} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError("unreachable: the last unit has no limit")


def topic_id_text(topic_id: bytes) -> str | None:
    """Encode an id as Kafka prints it: base64url without padding. The zero id, which means none, becomes None."""
    return base64.urlsafe_b64encode(topic_id).rstrip(b"=").decode() if any(topic_id) else None
