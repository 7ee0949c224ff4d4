"""The program `moldau`: finds the command, runs it, and turns what a user can act on into one line."""

import importlib
import os
import sys
from contextlib import suppress
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from moldau import __version__
from moldau.cli.commands import COMMANDS
from moldau.cli.errors import DEBUG_VARIABLE, CommandError, explain, is_debugging
from moldau.cli.parameter_checks import add_parameter_checks
from moldau.cli.standard_streams import discard_output

INTERRUPTED: Final = 130  # as shells have it: 128 and the signal's number
STREAMS: Final = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))  # as the system numbers them


class Program(TyperGroup):
    """A group whose commands are imported when they are asked for."""

    def list_commands(self, _: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, _: Any, name: str) -> Any:
        if name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[name].partition(":")
        try:
            app = getattr(importlib.import_module(module), attribute)
        except ModuleNotFoundError as missing:
            if missing.name is None or not module.startswith(missing.name):
                raise
            return None  # a part that is not in this installation
        command = typer.main.get_command(app)
        command.name = name
        add_parameter_checks(command)
        return command

    def invoke(self, context: Any) -> Any:
        try:
            result = super().invoke(context)
            sys.stdout.flush()
            return result
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            discard_output(sys.stdout)
            raise typer.Exit(0) from None
        except typer.Abort:  # typer itself says "Aborted.", of which `moldau txn abort` would mean the opposite
            raise typer.Exit(_tell(CommandError("not confirmed, nothing was changed; --yes does not ask"))) from None
        except Exception as error:
            complaint = explain(error)
            if complaint is None or is_debugging():
                raise
            raise typer.Exit(_tell(complaint)) from None


def _tell(complaint: CommandError) -> int:
    label = typer.style("error:", fg="red", bold=True) if sys.stderr.isatty() else "error:"
    with suppress(OSError):  # where nothing can be said any more, the exit code says it
        print(label, complaint, file=sys.stderr)
    return complaint.exit_code


def _open_streams() -> None:
    """Those that were closed when we were started lead nowhere from now on. Else the next file, a log perhaps, is given
    the number of a stream, and what is meant for people is written into it."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) < len(STREAMS):
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    for number, (name, mode) in enumerate(STREAMS):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115 - it stays open until the end


def _end_streams() -> None:
    """Python flushes them once more, and has words and an exit code of its own if it cannot: all has been said here."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            discard_output(stream)


app = typer.Typer(
    cls=Program,
    help="Moldau: a distributed commit log that speaks the Kafka protocol.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        print(f"moldau {__version__}", flush=True)
        raise typer.Exit


@app.callback()
def moldau(
    debug: Annotated[bool, typer.Option("--debug", help="Show the whole traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    del version
    if debug:
        os.environ[DEBUG_VARIABLE] = "1"


program = typer.main.get_command(app)


def main() -> None:
    """The entry point. `--debug` may stand anywhere, since nobody remembers where it belongs."""
    _open_streams()
    arguments = sys.argv[1:]
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    if "--debug" in options:
        arguments.remove("--debug")
        os.environ[DEBUG_VARIABLE] = "1"
    try:
        program(args=arguments, prog_name="moldau")
    except OSError as error:  # of the help or the version, which are printed before there is a command
        complaint = explain(error)
        if complaint is None or is_debugging():
            raise
        sys.exit(_tell(complaint))
    finally:
        _end_streams()


if __name__ == "__main__":
    main()
