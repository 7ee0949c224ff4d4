"""How commands connect to a secured cluster: `--command-config FILE`, `--profile NAME` and `-X KEY=VALUE` of every
command with `-b`.

The settings have the names of Kafka's Java clients, so that one file serves Kafka's tools and these commands. Secrets
belong in the file: other users can see the arguments of a process.
"""

import functools
import inspect
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from moldau.cli.errors import usage_error
from moldau.cli.files import read_text
from moldau.cli.options import BOOTSTRAP_DEFAULT, BootstrapIfGiven, pairs
from moldau.cli.profile_files import PROFILE_VARIABLE, user_profiles
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
Profile = Annotated[
    str | None,
    typer.Option("--profile", metavar="NAME", help=f"A profile of moldau profile. [env var: {PROFILE_VARIABLE}]"),
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
    def run(*, command_config: Path | None, profile: str | None, client_setting: list[str] | None, **given: Any) -> Any:
        uses_current = given["bootstrap_servers"] is None and address.default == BOOTSTRAP_DEFAULT
        settings = read_client_settings(command_config, profile, uses_current=uses_current)
        settings |= pairs(client_setting, "-X")
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
        inspect.Parameter("profile", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Profile),
        inspect.Parameter("client_setting", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=ClientSetting),
    ]
    run.__annotations__ = {each.name: each.annotation for each in parameters} | {"return": None}
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined] # read by Typer
    return run


def read_client_settings(command_config: Path | None, profile: str | None, *, uses_current: bool) -> dict[str, str]:
    """The settings of the file or of the profile; the current profile, where it may be used, if neither is given."""
    if profile is not None:
        if command_config is not None and str(command_config) != os.environ.get(COMMAND_CONFIG_VARIABLE):
            raise usage_error("--profile and --command-config exclude each other")
        return user_profiles().read(profile)
    if command_config is not None:
        return read_client_properties(command_config)
    if chosen := os.environ.get(PROFILE_VARIABLE):
        return user_profiles().read(chosen)
    current = user_profiles().current() if uses_current else None
    return {} if current is None else user_profiles().read(current)


def read_client_properties(path: Path) -> dict[str, str]:
    """Read a properties file of client settings, as Kafka's tools do."""
    return {entry.name: entry.text for entry in read_properties(read_text(path), str(path))}
