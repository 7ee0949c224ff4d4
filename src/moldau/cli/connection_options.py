"""The options that connect a job to a cluster: its address, and Kafka client settings such as TLS and SASL."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from moldau.cli.errors import CommandError, usage_error
from moldau.cli.files import read_text
from moldau.cli.options import BOOTSTRAP_DEFAULT, BootstrapIfGiven, pairs

_ADDRESS: Final = "bootstrap.servers"
_COMMENTS: Final = ("#", "!")
_PROPERTY: Final = re.compile(r"([^\s=:]+)\s*(?:[=:]\s*|\s)(.*)|([^\s=:]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """The options. Settings have the names of Kafka's Java clients."""

    bootstrap_servers: BootstrapIfGiven = None
    command_config: Annotated[
        Path | None,
        typer.Option(
            "--command-config",
            metavar="FILE",
            help="A properties file of client settings: security.protocol=SSL …",
        ),
    ] = None
    kafka: Annotated[
        list[str] | None,
        typer.Option("--kafka", metavar="KEY=VALUE", help="A client setting; may be repeated. Overrides the file."),
    ] = None

    @property
    def servers(self) -> str:
        """The address of the command line, else of the file."""
        return self.bootstrap_servers or self._all().get(_ADDRESS, BOOTSTRAP_DEFAULT)

    @property
    def settings(self) -> dict[str, str]:
        return {name: value for name, value in self._all().items() if name != _ADDRESS}

    @property
    def options(self) -> dict[str, str]:
        """The settings as options of `format("moldau")`."""
        return {f"kafka.{name}": value for name, value in self.settings.items()}

    @property
    def is_secured(self) -> bool:
        return self.settings.get("security.protocol", "PLAINTEXT").strip().upper() != "PLAINTEXT"

    def plain_servers(self, job: str) -> str:
        """The address, for jobs that use our own client, which knows neither TLS nor SASL."""
        if self.is_secured:
            raise CommandError(f"{job} does not support TLS or SASL yet")
        return self.servers

    def _all(self) -> dict[str, str]:
        path = self.command_config
        of_file = {} if path is None else properties(read_text(path), path)
        return of_file | pairs(self.kafka, "--kafka")


def properties(text: str, path: Path) -> dict[str, str]:
    """Parse a properties file as Java does: comments, continuation lines, and `=`, `:` or a blank as separator."""
    found = {}
    for line in _whole_lines(text):
        match = _PROPERTY.fullmatch(line)
        if match is None:
            raise usage_error(f"{path}: {line!r} is not a setting; write it as KEY=VALUE")
        found[match[1] or match[3]] = (match[2] or "").strip()
    return found


def _whole_lines(text: str) -> Iterator[str]:
    partial = ""
    for line in text.splitlines():
        if not partial and line.lstrip().startswith(_COMMENTS):
            continue  # a comment has no continuation lines
        partial += line.strip()
        if partial.endswith("\\"):
            partial = partial[:-1]
            continue
        if partial:
            yield partial
        partial = ""
    if partial:
        yield partial
