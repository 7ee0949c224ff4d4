"""`moldau version`."""

import platform
import sys

import typer

from moldau import __version__
from moldau.cli.options import Json
from moldau.cli.output import show_json

app = typer.Typer()


@app.command()
def version(json: Json = False) -> None:
    """Show the versions of Moldau and Python."""
    if json:
        show_json({"version": __version__, "python": platform.python_version(), "platform": sys.platform})
    else:
        print(f"moldau {__version__} (Python {platform.python_version()}, {sys.platform})")
