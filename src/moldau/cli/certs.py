"""`moldau cert`: certificates for development and tests."""

from pathlib import Path
from typing import Annotated, Final

import typer

from moldau.cli.certificates import (
    AUTHORITY_FILE,
    AUTHORITY_KEY_FILE,
    DAYS,
    LOCAL_HOSTS,
    NODE_NAME,
    Authority,
    CertificateError,
)
from moldau.cli.errors import CommandError, usage_error
from moldau.cli.files import write_private
from moldau.cli.output import show_json

DIRECTORY: Final = Path("certificates")
DAYS_MAX: Final = 3650

app = typer.Typer(help="Make certificates for development.", no_args_is_help=True)


@app.callback()
def cert() -> None:
    """Make certificates for development."""


@app.command()
def create(
    directory: Annotated[Path, typer.Option("--dir", "-d", metavar="DIR", help="Where the files are.")] = DIRECTORY,
    host: Annotated[
        list[str] | None,
        typer.Option("--host", metavar="NAME|IP", help="A host of the nodes, besides this one; may be repeated."),
    ] = None,
    client: Annotated[
        list[str] | None,
        typer.Option("--client", metavar="NAME", help="A client, whose principal is User:CN=NAME; may be repeated."),
    ] = None,
    days: Annotated[int, typer.Option("--days", min=1, max=DAYS_MAX, help="How long they are valid.")] = DAYS,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Create an authority (unless DIR has one), a certificate for nodes, and certificates for clients.

    Each file NAME.pem has a private key and its certificates; ca.pem has the certificate to trust. Existing client
    files and the node file are replaced; running brokers reload them.
    """
    names = client or []
    _check_names(names)
    try:
        authority = load_or_create_authority(directory, days)
        files = {NODE_NAME: authority.issue(NODE_NAME, list(dict.fromkeys([*LOCAL_HOSTS, *(host or ())])), days=days)}
        files |= {name: authority.issue(name, days=days) for name in names}
    except CertificateError as error:
        raise CommandError(str(error)) from error
    for name, text in files.items():
        write_private(directory / f"{name}.pem", text)
    written = {name: str(directory / f"{name}.pem") for name in files}
    if json:
        show_json({"authority": str(directory / AUTHORITY_FILE), "certificates": written})
        return
    _explain(directory, names)


def _check_names(names: list[str]) -> None:
    reserved = {NODE_NAME, Path(AUTHORITY_FILE).stem, Path(AUTHORITY_KEY_FILE).stem}
    for name in names:
        if name in reserved or not name or name != Path(name).name or name.startswith("."):
            raise usage_error(f"--client {name!r} cannot be the name of a file {name}.pem here")


def load_or_create_authority(directory: Path, days: int) -> Authority:
    """Return the authority in this directory; a new one is valid for at least a year."""
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    if (directory / AUTHORITY_FILE).exists():
        return Authority.load(directory)
    authority = Authority.create(days=max(days, DAYS))
    authority.save(directory)
    return authority


def _explain(directory: Path, names: list[str]) -> None:
    """Print settings that are ready to use."""
    place = directory.absolute()
    print(f"# broker (server.properties)\nlisteners=SSL://0.0.0.0:9093\nssl.keystore.type=PEM\n"
          f"ssl.keystore.location={place / NODE_NAME}.pem\nssl.truststore.type=PEM\n"
          f"ssl.truststore.location={place / AUTHORITY_FILE}")  # fmt: skip
    if names:
        print("ssl.client.auth=required")
    print(f"\n# clients (Java, moldau --command-config)\nsecurity.protocol=SSL\nssl.truststore.type=PEM\n"
          f"ssl.truststore.location={place / AUTHORITY_FILE}")  # fmt: skip
    for name in names:
        print(f"# {name}\nssl.keystore.type=PEM\nssl.keystore.location={place / name}.pem")
    print(f"\n# confluent-kafka, kcat\nsecurity.protocol=SSL\nssl.ca.location={place / AUTHORITY_FILE}")
    for name in names:
        print(f"# {name}\nssl.certificate.location={place / name}.pem\nssl.key.location={place / name}.pem")
