"""Writes docs/terminal.svg, the picture in README.md, from a real run of the commands in it."""

import io
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

from moldau.testing import Broker

PICTURE = Path(__file__).resolve().parents[1] / "docs" / "terminal.svg"
COLUMNS = 92
WEB_FONT = re.compile(r"@font-face \{.*?\}\n?", re.DOTALL)  # a page with the picture must not load fonts from a CDN
COMMANDS = (
    "moldau topic create orders --partitions 3",
    r"printf 'alice:two books\ncarol:a lamp\ndave:a clock\nalice:a third book\n' | moldau produce orders -K :",
    "moldau consume orders --until end --format '%p/%o %k %v'",
    "moldau topic describe orders",
    "moldau consume orders --group billing --count 4 > /dev/null",
    "moldau group describe billing",
)


def run(command: str, broker: Broker) -> str:
    """The output of a shell command that talks to the broker."""
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "MOLDAU_BOOTSTRAP_SERVERS": broker.bootstrap_servers,
        "COLUMNS": str(COLUMNS),
    }
    done = subprocess.run(
        ["bash", "-c", command],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
    )
    return done.stdout


def main() -> int:
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    with tempfile.TemporaryDirectory() as folder, Broker(data=Path(folder) / "data") as broker:
        for command in COMMANDS:
            console.print(Text.assemble(("$ ", "bold green"), (command, "bold")))
            if output := run(command, broker).rstrip():
                console.print(Text(output))
    picture = console.export_svg(title="moldau")
    PICTURE.write_text(WEB_FONT.sub("", picture))
    return 0


if __name__ == "__main__":
    sys.exit(main())
