"""`moldau serve`: the web console, the REST gateway and the schema registry of a cluster."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from moldau import __version__
from moldau.cli.errors import CommandError, usage_error
from moldau.cli.options import BOOTSTRAP_DEFAULT, Bootstrap
from moldau.cli.standard_streams import ignore_full_disk

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping

    from moldau.client.async_client import AsyncClient
    from moldau.console.settings import ConsoleSettings
    from moldau.model.ids import Address

app = typer.Typer()

CONSOLE_DEFAULT: Final = "127.0.0.1:8080"
REGISTRY_DEFAULT: Final = "127.0.0.1:8081"
CONSOLE_VARIABLE: Final = "MOLDAU_CONSOLE_LISTEN"
REGISTRY_VARIABLE: Final = "MOLDAU_REGISTRY_LISTEN"
CONSOLE: Final = "console"
REGISTRY: Final = "registry"

RegistryLogin = Annotated[
    bool,
    typer.Option("--registry-login", help="Users of the registry send credentials of a SASL user of the cluster."),
]
Certificate = Annotated[
    Path | None,
    typer.Option(
        "--certificate",
        metavar="FILE",
        help="Serve HTTPS with the key and certificates in this PEM file, which is read again when it changes.",
    ),
]


@app.command()
def serve(
    bootstrap_servers: Bootstrap = BOOTSTRAP_DEFAULT,
    listen: Annotated[
        str,
        typer.Option(
            "--listen",
            "-l",
            envvar=CONSOLE_VARIABLE,
            metavar="HOST:PORT",
            help="Address of the web console and the REST gateway.",
        ),
    ] = CONSOLE_DEFAULT,
    registry_listen: Annotated[
        str,
        typer.Option(
            "--registry-listen",
            envvar=REGISTRY_VARIABLE,
            metavar="HOST:PORT",
            help="Address of the schema registry.",
        ),
    ] = REGISTRY_DEFAULT,
    registry_login: RegistryLogin = False,
    certificate: Certificate = None,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Console and gateway change nothing in the cluster.")
    ] = False,
    console_login: Annotated[
        bool, typer.Option("--console-login", help="Users of console and gateway log in as SASL users of the cluster.")
    ] = False,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option("--allowed-host", metavar="NAME", help="A host name of the console in browsers; may be repeated."),
    ] = None,
    announce_fd: Annotated[int | None, typer.Option("--announce-fd", hidden=True)] = None,
    lifeline_fd: Annotated[int | None, typer.Option("--lifeline-fd", hidden=True)] = None,
) -> None:
    """Serve the web console, a REST gateway and the schema registry of any Kafka cluster until stopped.

    The gateway is /v1 of the console's address. All are clients of the cluster like any other; Ctrl-C or SIGTERM stops
    them. Needs the extra `serve`.
    """
    addresses = {CONSOLE: _address(listen, "--listen"), REGISTRY: _address(registry_listen, "--registry-listen")}
    try:
        from moldau.console.settings import ConsoleSettings

        console = ConsoleSettings(
            bootstrap_servers=bootstrap_servers,
            is_read_only=read_only,
            needs_login=console_login,
            allowed_hosts=tuple(allowed_host or ()),
        )
        tls = None if certificate is None else _tls(certificate)
        _run(_Services(console, addresses, registry_login, tls), announce_fd, lifeline_fd)
    except ModuleNotFoundError as missing:
        raise CommandError(
            f"moldau serve needs the extra moldau[serve], which is not installed (no module {missing.name})"
        ) from missing


@dataclass(frozen=True, slots=True)
class _Services:
    console: "ConsoleSettings"
    addresses: dict[str, "Address"]
    registry_needs_login: bool
    tls: "ssl.SSLContext | None"


def _run(services: _Services, announce_fd: int | None, lifeline_fd: int | None) -> None:
    import asyncio

    from moldau.cli.cluster_client import connect_as, connect_async
    from moldau.console.app import create_console
    from moldau.gateway.app import add_gateway
    from moldau.node.logs import set_up_logs
    from moldau.node.ports.clock import SystemClock
    from moldau.node.ports.randomness import system_random
    from moldau.registry.app import create_registry
    from moldau.web.http_servers import CannotListen, HttpServer, serve_until_stopped

    console, addresses, tls = services.console, services.addresses, services.tls
    bootstrap = console.bootstrap_servers
    if services.registry_needs_login or console.needs_login:
        _check_sasl("--registry-login" if services.registry_needs_login else "--console-login")

    async def work() -> None:
        def connect(credentials: "Mapping[str, str]") -> "AsyncClient":
            return connect_as(bootstrap, credentials)

        async with connect_async(bootstrap) as client, connect_async(bootstrap) as reader:
            registry, schemas = create_registry(client, reader, connect if services.registry_needs_login else None)
            pages = create_console(client, console, connect, SystemClock(), system_random(), add_gateway, schemas)
            servers = [
                HttpServer(CONSOLE, pages, addresses[CONSOLE], tls),
                HttpServer(REGISTRY, registry, addresses[REGISTRY], tls),
            ]
            await serve_until_stopped(
                servers, lambda urls: _announce(urls, bootstrap, announce_fd), lifeline=lifeline_fd
            )

    set_up_logs("text", "info")
    try:
        asyncio.run(work())
    except CannotListen as error:
        raise CommandError(str(error)) from error


def _check_sasl(option: str) -> None:
    """Without SASL, the cluster would accept any credentials."""
    from moldau.cli.client_options import client_settings
    from moldau.client.security_settings import SECURITY_PROTOCOL

    protocol = client_settings().get(SECURITY_PROTOCOL, "").strip().upper()
    if not protocol.startswith("SASL"):
        raise usage_error(
            f"{option} needs a listener with SASL: set security.protocol and sasl.mechanism with -X or --command-config"
        )


def _tls(file: Path) -> "ssl.SSLContext":
    """Return a context that presents the certificate which is in the file when a client connects."""
    from moldau.model.errors import InvalidConfig
    from moldau.model.tls import PEM, CertificateStore, TlsSettings
    from moldau.node.ports.tls_context import TlsContexts

    contexts, settings = TlsContexts(), TlsSettings(keystore=CertificateStore(type=PEM, location=str(file)))

    def renew(connection: "ssl.SSLObject", _name: str | None, _context: "ssl.SSLContext") -> None:
        connection.context = contexts.server(settings)

    try:
        context = contexts.server(settings)
    except InvalidConfig as error:
        raise usage_error(f"--certificate: {error}") from error
    context.sni_callback = renew
    return context


def _address(text: str, option: str) -> "Address":
    """Parse HOST:PORT; port 0 is any free port."""
    from moldau.client.addresses import parse_address
    from moldau.model.ids import Address

    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal():
        raise usage_error(f"{option} {text}: write it as HOST:PORT, for example 127.0.0.1:8080")
    try:
        return Address(parse_address(f"{host}:1").host, 0) if int(port) == 0 else parse_address(text)
    except ValueError as error:
        raise usage_error(f"{option}: {error}") from error


def _announce(urls: dict[str, str], bootstrap: str, descriptor: int | None) -> None:
    if descriptor is not None:
        import json

        os.write(descriptor, json.dumps(urls).encode() + b"\n")
        os.close(descriptor)
    with ignore_full_disk(sys.stdout):
        print(f"moldau {__version__} serves the cluster at {bootstrap}")
        for name, url in urls.items():
            print(f"  {name:9} {url}")
        print("  stop      Ctrl-C", flush=True)
