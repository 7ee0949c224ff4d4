"""`moldau start`: one node, broker and controller in one process."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from moldau import __version__
from moldau.cli.errors import CommandError, usage_error
from moldau.cli.files import check_not_foreign, read_text
from moldau.cli.local.console_process import ConsoleProcess, Serve, console_process
from moldau.cli.output import note
from moldau.cli.standard_streams import ignore_full_disk

if TYPE_CHECKING:
    from moldau.node.configuration import Configuration
    from moldau.node.run import Announcement

app = typer.Typer()


@app.command()
def start(
    data: Annotated[
        Path | None, typer.Option("--data", "-d", metavar="DIRECTORY", help="The data directory. [moldau-data]")
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option("--listen", "-l", metavar="HOST:PORT", help="Address to listen on. [localhost:9092]"),
    ] = None,
    files: Annotated[
        list[Path] | None, typer.Option("--config", metavar="FILE", help="A settings file: .toml or server.properties.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("-c", metavar="KEY=VALUE", help="One setting, by Kafka's name.")
    ] = None,
    serve: Serve = False,
    announce_fd: Annotated[int | None, typer.Option("--announce-fd", hidden=True)] = None,
    lifeline_fd: Annotated[int | None, typer.Option("--lifeline-fd", "--exit-with-fd", hidden=True)] = None,
) -> None:
    """Run a broker until it is stopped (Ctrl-C, SIGTERM).

    Later sources override earlier ones: files, then -c, then --data and --listen.
    """
    from moldau.model.listeners import SecurityProtocol

    configuration = _configuration(files or [], [*(settings or []), *_flags(data, listen)])
    for warning in configuration.warnings:
        note(f"warning: {warning}")
    is_secured = any(each.protocol is not SecurityProtocol.PLAINTEXT for each in configuration.listeners.for_clients)
    with console_process(serve, is_secured=is_secured) as console:
        _run(configuration, console, announce_fd, lifeline_fd)


def _run(
    configuration: "Configuration", console: ConsoleProcess | None, announce_fd: int | None, lifeline_fd: int | None
) -> None:
    from moldau.node.run import NodeFailed, serve
    from moldau.storage.log_dir import CorruptMetaProperties, LogDirLocked

    def announce(announced: "Announcement") -> None:
        _announce(announced, announce_fd, configuration.is_broker)
        if console is not None and configuration.is_broker:
            console.start(announced.bootstrap_servers)

    check_not_foreign(Path(configuration.settings.folders[0]))
    try:
        serve(configuration, announce, lifeline=lifeline_fd)
    except (LogDirLocked, CorruptMetaProperties) as error:
        raise CommandError(str(error)) from error
    except NodeFailed as error:
        raise CommandError(f"the node failed: {error}") from error


def _flags(data: Path | None, listen: str | None) -> list[str]:
    settings = []
    if data is not None:
        settings.append(f"log.dirs={data}")
    if listen is not None:
        if not listen.rpartition(":")[2].isdecimal():
            raise usage_error(f"--listen {listen}: write it as HOST:PORT, for example localhost:9092 or 0.0.0.0:9092")
        address = listen if ":" in listen else f"localhost:{listen}"
        settings.append(f"listeners=PLAINTEXT://{address}")
    return settings


def _configuration(files: list[Path], overrides: list[str]) -> "Configuration":
    from moldau.node.configuration import load_configuration

    return load_configuration([(str(path), read_text(path)) for path in files], overrides)


def _announce(announced: "Announcement", descriptor: int | None, is_broker: bool) -> None:
    if descriptor is not None:
        import json

        line = {"bootstrap_servers": announced.bootstrap_servers, "metrics": announced.metrics}
        os.write(descriptor, json.dumps(line).encode() + b"\n")
        os.close(descriptor)
    with ignore_full_disk(sys.stdout):
        _print_greeting(announced, is_broker)


def _print_greeting(announced: "Announcement", is_broker: bool) -> None:
    where = announced.bootstrap_servers
    option = "" if where == "localhost:9092" else f" -b {where}"
    print(f"moldau {__version__} {'broker' if is_broker else 'controller'} serves on {where}")
    print(f"  data     {announced.data} (cluster {announced.cluster_id})")
    if announced.metrics:
        print(f"  metrics  {announced.metrics}")
    if is_broker:
        print(f"  try      echo hello | moldau produce greetings{option}")
        print(f"           moldau consume greetings{option}")
    print("  stop     Ctrl-C")
