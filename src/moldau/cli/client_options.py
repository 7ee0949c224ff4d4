"""How commands connect to a secured cluster: `--command-config FILE` and `-X KEY=VALUE` of every command with `-b`.

The settings have the names of Kafka's Java clients, so that one file serves Kafka's tools and these commands. Secrets
belong in the file: other users can see the arguments of a process.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from moldau.cli.files import read_text
from moldau.cli.options import BOOTSTRAP_DEFAULT, BootstrapIfGiven, pairs
from moldau.model.errors import InvalidConfig
from moldau.model.jaas import parse_jaas
from moldau.node.properties import read_properties

COMMAND_CONFIG_VARIABLE: Final = "MOLDAU_COMMAND_CONFIG"
ADDRESS: Final = "bootstrap.servers"

CommandConfig = Annotated[
    Path | None,
    typer.Option(
        "--command-config",
        metavar="FILE",
        envvar=COMMAND_CONFIG_VARIABLE,
        help="A properties file of client settings: security.protocol=SASL_SSL …",
    ),
]
ClientSetting = Annotated[
    list[str] | None,
    typer.Option("-X", metavar="KEY=VALUE", help="A client setting; may be repeated. Overrides the file."),
]

_settings: dict[str, str] = {}  # of the command that runs


def client_settings() -> Mapping[str, str]:
    """The client settings of the command that runs."""
    return _settings


def user_name() -> str | None:
    """The user as whom the command authenticates by SASL, if the settings name one."""
    from moldau.client.security_settings import JAAS, USERNAME

    if USERNAME in _settings or not _settings.get(JAAS):
        return _settings.get(USERNAME)
    try:
        return parse_jaas(_settings[JAAS]).username
    except InvalidConfig:
        return None


def use_client_settings(settings: Mapping[str, str]) -> None:
    """Use these settings for all later connections."""
    _settings.clear()
    _settings.update(settings)


def add_client_options(app: typer.Typer) -> None:
    """Give the options to each command, and subcommand, that has an address."""
    for command in app.registered_commands:
        if command.callback is not None:
            command.callback = _with_client_options(command.callback)
    for group in app.registered_groups:
        if group.typer_instance is not None:
            add_client_options(group.typer_instance)


def _with_client_options(command: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(command, eval_str=True)
    address = signature.parameters.get("bootstrap_servers")
    if address is None or "command_config" in signature.parameters:
        return command

    @functools.wraps(command)
    def run(*, command_config: Path | None, client_setting: list[str] | None, **given: Any) -> Any:
        settings = read_client_settings(command_config, client_setting)
        use_client_settings(settings)
        if given["bootstrap_servers"] is None:
            given["bootstrap_servers"] = settings.get(ADDRESS, address.default)
        return command(**given)

    parameters = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in signature.parameters.values()]
    if address.default == BOOTSTRAP_DEFAULT:  # the default is known once the file has been read
        index = [each.name for each in parameters].index(address.name)
        parameters[index] = parameters[index].replace(annotation=BootstrapIfGiven, default=None)
    parameters += [
        inspect.Parameter("command_config", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=CommandConfig),
        inspect.Parameter("client_setting", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=ClientSetting),
    ]
    run.__annotations__ = {each.name: each.annotation for each in parameters} | {"return": None}
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined] # read by Typer
    return run


def read_client_settings(command_config: Path | None, client_setting: list[str] | None) -> dict[str, str]:
    """The settings of the file, and those of the command line, which override it."""
    of_file = {} if command_config is None else read_client_properties(command_config)
    return of_file | pairs(client_setting, "-X")


def read_client_properties(path: Path) -> dict[str, str]:
    """Read a properties file of client settings, as Kafka's tools do."""
    return {entry.name: entry.text for entry in read_properties(read_text(path), str(path))}
