"""`moldau profile`: addresses and credentials under a name, so that commands need neither option nor variable."""

from pathlib import Path
from typing import Annotated

import typer

from moldau.cli.client_options import ADDRESS, read_client_properties
from moldau.cli.errors import usage_error
from moldau.cli.options import BOOTSTRAP_DEFAULT, Json, pairs
from moldau.cli.output import note, show_json, show_table
from moldau.cli.passwords import read_password
from moldau.cli.profile_files import Profiles, user_profiles
from moldau.cli.secrets import is_secret, without_secrets

app = typer.Typer(
    help="Keep addresses and credentials of clusters under names. Only you may read them.", no_args_is_help=True
)


def complete_profiles(incomplete: str) -> list[str]:
    return [name for name in user_profiles().names() if name.startswith(incomplete)]


Name = Annotated[
    str, typer.Argument(metavar="PROFILE", show_default=False, help="Its name.", autocompletion=complete_profiles)
]
NameIfGiven = Annotated[
    str | None,
    typer.Argument(
        metavar="[PROFILE]", show_default=False, help="The current one if not given.", autocompletion=complete_profiles
    ),
]
PROTOCOL, MECHANISM, USERNAME, PASSWORD = "security.protocol", "sasl.mechanism", "sasl.username", "sasl.password"
MECHANISM_DEFAULT = "SCRAM-SHA-512"


@app.command()
def create(
    name: Annotated[str, typer.Argument(metavar="PROFILE", show_default=False, help="Its name.")],
    servers: Annotated[
        str | None, typer.Option("--servers", "-s", metavar="HOST:PORT,…", help="Brokers to connect to.")
    ] = None,
    from_file: Annotated[
        Path | None, typer.Option("--from", metavar="FILE", help="A properties file of client settings to copy.")
    ] = None,
    setting: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A client setting; may be repeated.")
    ] = None,
    user: Annotated[str | None, typer.Option("--user", metavar="NAME", help="Authenticate by SASL.")] = None,
    mechanism: Annotated[str, typer.Option("--mechanism", help="Of --user.")] = MECHANISM_DEFAULT,
    password_file: Annotated[
        Path | None, typer.Option("--password-file", metavar="FILE", help="Its first line, or - for standard input.")
    ] = None,
    json: Json = False,
) -> None:
    """Create a profile and make it the current one. The password of --user is prompted for, or read from a file."""
    profiles = user_profiles()
    profiles.path(name)
    settings = {} if from_file is None else read_client_properties(from_file)
    if servers is not None:
        settings[ADDRESS] = servers
    settings |= _given(setting)
    if user is not None:
        if PROTOCOL not in settings:
            raise usage_error(f"--user needs --set {PROTOCOL}=SASL_SSL (or SASL_PLAINTEXT, which does not encrypt)")
        settings |= {MECHANISM: mechanism, USERNAME: user, PASSWORD: read_password(password_file)}
    elif password_file is not None:
        raise usage_error("--password-file needs --user")
    path = profiles.write(name, {ADDRESS: BOOTSTRAP_DEFAULT, **settings})
    profiles.use(name)
    if json:
        show_json({"profile": name, "file": str(path), "current": True})
    else:
        print(f"profile {name} is the current one; its settings are in {path}")


@app.command()
def use(name: Name, json: Json = False) -> None:
    """Make a profile the current one."""
    user_profiles().use(name)
    if json:
        show_json({"profile": name, "current": True})
    else:
        print(f"profile {name} is the current one")


@app.command("list")
def list_profiles(json: Json = False) -> None:
    """List the profiles; an asterisk marks the current one."""
    profiles = user_profiles()
    current = profiles.current()
    rows = [{"profile": name, "current": name == current} for name in profiles.names()]
    if json:
        show_json(rows)
    elif not rows:
        note("there are no profiles; create one by moldau profile create NAME")
    else:
        show_table(("profile", "current"), [[each["profile"], "*" if each["current"] else ""] for each in rows])


@app.command()
def show(name: NameIfGiven = None, json: Json = False) -> None:
    """Show the settings of a profile. Secrets are hidden."""
    profiles = user_profiles()
    chosen = name or _current(profiles)
    settings = without_secrets(profiles.read(chosen))
    if json:
        show_json({"profile": chosen, "settings": settings})
    else:
        show_table(("setting", "value"), [list(each) for each in settings.items()])


@app.command()
def delete(name: Name, json: Json = False) -> None:
    """Delete a profile, with the credentials in it."""
    user_profiles().delete(name)
    if json:
        show_json({"profile": name, "deleted": True})
    else:
        print(f"profile {name} is deleted")


def _given(setting: list[str] | None) -> dict[str, str]:
    found = pairs(setting, "--set")
    for name in found:
        if is_secret(name) and found[name]:
            raise usage_error(
                f"--set {name} would show the secret to other users of this machine: use --user with --password-file, "
                "or --from FILE"
            )
    return found


def _current(profiles: Profiles) -> str:
    name = profiles.current()
    if name is None:
        raise usage_error("no profile is current; name one, or use moldau profile use NAME")
    return name
