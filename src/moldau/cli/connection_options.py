"""How a job reaches the cluster: its address, and the settings of Kafka's clients for TLS, SASL and the rest."""

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
_REMARKS: Final = ("#", "!")
_PROPERTY: Final = re.compile(r"([^\s=:]+)\s*(?:[=:]\s*|\s)(.*)|([^\s=:]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """The options. Settings have the names that they have for Java's clients."""

    bootstrap_servers: BootstrapIfGiven = None
    command_config: Annotated[
        Path | None,
        typer.Option(
            "--command-config",
            metavar="FILE",
            help="Settings of Kafka's clients as properties: security.protocol=SSL …",
        ),
    ] = None
    kafka: Annotated[
        list[str] | None,
        typer.Option(
            "--kafka", metavar="KEY=VALUE", help="Such a setting; may be repeated. They beat those of the file."
        ),
    ] = None

    @property
    def servers(self) -> str:
        """The address of the file, if none was given."""
        return self.bootstrap_servers or self._all().get(_ADDRESS, BOOTSTRAP_DEFAULT)

    @property
    def settings(self) -> dict[str, str]:
        return {name: value for name, value in self._all().items() if name != _ADDRESS}

    @property
    def options(self) -> dict[str, str]:
        """As `format("moldau")` takes them, beside the address."""
        return {f"kafka.{name}": value for name, value in self.settings.items()}

    @property
    def is_secured(self) -> bool:
        return self.settings.get("security.protocol", "PLAINTEXT").strip().upper() != "PLAINTEXT"

    def plain_servers(self, job: str) -> str:
        """The address, for what talks to the cluster through our own client."""
        if self.is_secured:
            raise CommandError(f"{job} asks the cluster for more than records, and cannot do that over TLS or SASL yet")
        return self.servers

    def _all(self) -> dict[str, str]:
        path = self.command_config
        of_file = {} if path is None else properties(read_text(path), path)
        return of_file | pairs(self.kafka, "--kafka")


def properties(text: str, path: Path) -> dict[str, str]:
    """A properties file as Java reads it: comments, lines that go on after a backslash, `=`, `:` or a blank between."""
    found = {}
    for line in _whole_lines(text):
        match = _PROPERTY.fullmatch(line)
        if match is None:
            raise usage_error(f"{path}: {line!r} is no setting; write it as KEY=VALUE")
        found[match[1] or match[3]] = (match[2] or "").strip()
    return found


def _whole_lines(text: str) -> Iterator[str]:
    begun = ""
    for line in text.splitlines():
        if not begun and line.lstrip().startswith(_REMARKS):
            continue  # whatever it ends with: a remark does not go on
        begun += line.strip()
        if begun.endswith("\\"):
            begun = begun[:-1]
            continue
        if begun:
            yield begun
        begun = ""
    if begun:
        yield begun
