"""Passwords that a command asks for, or reads from a file."""

import sys
from pathlib import Path
from typing import Final

import typer

from moldau.cli.errors import CommandError, usage_error
from moldau.cli.files import read_text

STDIN: Final = "-"


def read_password(file: Path | None) -> str:
    """Return the password; it is never an argument, which other users of the machine could see."""
    if file is None:
        if not sys.stdin.isatty():
            raise usage_error("there is no terminal to type a password at; use --password-file FILE, or - for stdin")
        password = str(typer.prompt("Password", hide_input=True, confirmation_prompt=True))
    else:
        text = sys.stdin.readline() if str(file) == STDIN else read_text(file)
        password = text.partition("\n")[0].rstrip("\r")
    if not password:
        raise CommandError("the password is empty")
    return password
