"""The program `moldau`: finds the command, runs it, and prints errors that the user can fix as one line."""

import importlib
import os
import sys
from contextlib import suppress
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from moldau import __version__
from moldau.cli.client_options import add_client_options
from moldau.cli.commands import COMMANDS
from moldau.cli.errors import DEBUG_VARIABLE, CommandError, as_command_error, is_debugging
from moldau.cli.interrupts import INTERRUPTS
from moldau.cli.parameter_checks import add_parameter_checks
from moldau.cli.standard_streams import discard_output

NOT_CONFIRMED: Final = "not confirmed, nothing was changed; use --yes to skip the prompt"
INTERRUPTED: Final = 130  # the convention of shells: 128 plus the signal's number
STREAMS: Final = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))  # in the order of their descriptors: 0, 1, 2


class Program(TyperGroup):
    """A command group that imports a command's module when the command is called."""

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
            return None  # a part that is not installed
        add_client_options(app)
        command = typer.main.get_command(app)
        command.name = name
        add_parameter_checks(command)
        return command

    def invoke(self, context: Any) -> Any:
        try:
            with INTERRUPTS.handled():
                result = super().invoke(context)
                sys.stdout.flush()
            return result
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            discard_output(sys.stdout)
            raise typer.Exit(0) from None
        except typer.Abort:  # Typer's own message is "Aborted.", which `moldau txn abort` would turn into its opposite
            raise typer.Exit(_print_error(CommandError(NOT_CONFIRMED))) from None
        except Exception as error:
            shown = as_command_error(error)
            if shown is None or is_debugging():
                raise
            raise typer.Exit(_print_error(shown)) from None


def _print_error(error: CommandError) -> int:
    label = typer.style("error:", fg="red", bold=True) if sys.stderr.isatty() else "error:"
    with suppress(OSError):  # the exit code remains
        print(label, error, file=sys.stderr)
    return error.exit_code


def _open_streams() -> None:
    """Open /dev/null for every standard stream that is closed. Otherwise the next file, perhaps a log segment, would
    get the descriptor of a stream, and messages would be written into it."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) < len(STREAMS):
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    for number, (name, mode) in enumerate(STREAMS):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115 - open until the process ends


def _end_streams() -> None:
    """Flush here, since a flush that fails at interpreter exit prints a message and changes the exit code."""
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
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    del version
    if debug:
        os.environ[DEBUG_VARIABLE] = "1"


program = typer.main.get_command(app)


def main() -> None:
    """The entry point. `--debug` is accepted anywhere on the line."""
    _open_streams()
    arguments = sys.argv[1:]
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    if "--debug" in options:
        arguments.remove("--debug")
        os.environ[DEBUG_VARIABLE] = "1"
    try:
        program(args=arguments, prog_name="moldau")
    except OSError as error:  # from printing the help or the version, before a command runs
        shown = as_command_error(error)
        if shown is None or is_debugging():
            raise
        sys.exit(_print_error(shown))
    finally:
        _end_streams()


if __name__ == "__main__":
    main()
