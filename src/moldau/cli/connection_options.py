"""The options that connect a job to a cluster: its address, and Kafka client settings such as TLS and SASL."""

from dataclasses import dataclass
from typing import Annotated

import typer

from moldau.cli.client_options import (
    ADDRESS,
    CommandConfig,
    Profile,
    read_client_settings,
    use_client_settings,
)
from moldau.cli.options import BOOTSTRAP_DEFAULT, BootstrapIfGiven, pairs


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """The options. Settings have the names of Kafka's Java clients."""

    bootstrap_servers: BootstrapIfGiven = None
    command_config: CommandConfig = None
    profile: Profile = None
    kafka: Annotated[
        list[str] | None,
        typer.Option("--kafka", metavar="KEY=VALUE", help="A client setting; may be repeated. Overrides the file."),
    ] = None

    @property
    def servers(self) -> str:
        """The address from the command line, else from the file."""
        return self.bootstrap_servers or self._all().get(ADDRESS, BOOTSTRAP_DEFAULT)

    @property
    def settings(self) -> dict[str, str]:
        return {name: value for name, value in self._all().items() if name != ADDRESS}

    @property
    def options(self) -> dict[str, str]:
        """The settings as options of `format("moldau")`."""
        return {f"kafka.{name}": value for name, value in self.settings.items()}

    @property
    def is_secured(self) -> bool:
        return self.settings.get("security.protocol", "PLAINTEXT").strip().upper() != "PLAINTEXT"

    def connect_with_own_client(self) -> str:
        """Use the settings for later connections of Moldau's own client; return the address."""
        use_client_settings(self.settings)
        return self.servers

    def _all(self) -> dict[str, str]:
        uses_current = self.bootstrap_servers is None
        chosen = read_client_settings(self.command_config, self.profile, uses_current=uses_current)
        return chosen | pairs(self.kafka, "--kafka")
