"""`moldau debug`: collect what helps to find the cause of a problem."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from moldau.cli.errors import usage_error
from moldau.cli.interrupts import run_async
from moldau.cli.options import BOOTSTRAP_DEFAULT, Bootstrap, Json
from moldau.cli.output import human_bytes, note, show_json

if TYPE_CHECKING:
    from moldau.cli.debug_bundle import DebugBundle

PART_TIMEOUT_MS = 10_000

app = typer.Typer(help="Collect what helps to find the cause of a problem.", no_args_is_help=True)


@app.callback()
def debug() -> None:
    """Collect what helps to find the cause of a problem."""


@app.command()
def bundle(
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="A new file. [moldau-debug-TIME.tar.gz]")
    ] = None,
    metrics: Annotated[
        list[str] | None, typer.Option("--metrics", metavar="URL", help="A metrics page; may be repeated.")
    ] = None,
    log: Annotated[
        list[Path] | None, typer.Option("--log", metavar="FILE", help="A log file; may be repeated.")
    ] = None,
    bootstrap_servers: Bootstrap = BOOTSTRAP_DEFAULT,
    json: Json = False,
) -> None:
    """Write an archive with the state of the cluster, settings, versions, metrics and the ends of logs.

    It contains no records. Brokers hide their passwords, and lines of logs are cut where a secret may follow; look it
    through before you pass it on, since names of topics, groups, hosts and users are in it.
    """
    for url in metrics or ():
        if not url.startswith(("http://", "https://")):
            raise usage_error(f"--metrics {url}: write a URL, for example http://localhost:9404/metrics")
    now = datetime.now(UTC)
    path = output or Path(f"moldau-debug-{now:%Y%m%dT%H%M%SZ}.tar.gz")
    collected = run_async(_collect(bootstrap_servers, now.isoformat(), tuple(metrics or ()), tuple(log or ())))
    try:
        size = collected.write(path)
    except FileExistsError:
        raise usage_error(f"{path} exists already; choose another name with --output") from None
    if json:
        shown = {"file": str(path), "bytes": size, "parts": sorted(collected.parts), "errors": collected.errors}
        show_json(shown)
        return
    print(f"wrote {path}: {len(collected.parts)} parts, {human_bytes(size)}")
    for name, error in collected.errors.items():
        note(f"warning: without {name}: {error}")


async def _collect(bootstrap: str, at: str, metrics: tuple[str, ...], logs: tuple[Path, ...]) -> "DebugBundle":
    from moldau.cli.cluster_client import connect_async
    from moldau.cli.debug_bundle import DebugBundle
    from moldau.client.settings import ClientSettings

    settings = ClientSettings(total_timeout_ms=PART_TIMEOUT_MS)
    async with connect_async(bootstrap, settings) as client:
        found = DebugBundle(client, at, metrics, logs)
        await found.collect()
        return found
