"""How answers look: tables for people, JSON for programs."""

import base64
import io
import json
import sys
from collections.abc import Sequence
from typing import Any, Final

PIPE_WIDTH: Final = 100_000  # nothing is wrapped for a program that reads our tables
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def show_json(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))


def show_json_line(value: Any) -> None:
    print(json.dumps(value, ensure_ascii=False))


def show_table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, numbers: Sequence[str] = ()) -> None:
    """A table; the columns named in `numbers` are aligned to the right."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(Text(column.upper()), justify="right" if column in numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(_cell(each)) for each in row))
    if sys.stdout.isatty():
        Console(file=sys.stdout, highlight=False).print(table)
        return
    console = Console(file=io.StringIO(), width=PIPE_WIDTH, highlight=False, color_system=None)
    with console.capture() as capture:
        console.print(table)
    for line in capture.get().splitlines():
        print(line.rstrip())


def note(text: str) -> None:
    """A remark beside the result: it does not get into a pipe, and a disk that is full is no reason to stop."""
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
    raise AssertionError("the last unit takes everything")


def topic_id_text(topic_id: bytes) -> str | None:
    """As Kafka writes it: base64 for URLs, without padding. None for the id that means there is none."""
    return base64.urlsafe_b64encode(topic_id).rstrip(b"=").decode() if any(topic_id) else None
