"""`moldau self-test`: does a cluster serve its clients?"""

from typing import TYPE_CHECKING, Annotated, Final

import typer

from moldau.cli.interrupts import run_async
from moldau.cli.options import BOOTSTRAP_DEFAULT, Bootstrap, Json, duration_ms
from moldau.cli.output import show_json, show_table

if TYPE_CHECKING:
    from moldau.cli.round_trip import RoundTrip

app = typer.Typer()

FAILED: Final = 1
NAME_PREFIX: Final = "moldau-self-test-"
TIMEOUT_DEFAULT: Final = "30s"


@app.command()
def self_test(
    timeout: Annotated[
        str, typer.Option("--timeout", metavar="DURATION", help="How long each request may take, with its retries.")
    ] = TIMEOUT_DEFAULT,
    bootstrap_servers: Bootstrap = BOOTSTRAP_DEFAULT,
    json: Json = False,
) -> None:
    """Produce, consume, commit and abort transactions, and join a group, in a temporary topic of any Kafka cluster.

    Topic, group and transactional id are named moldau-self-test-…; topic and group are deleted at the end.
    The exit code is 1 if a check fails.
    """
    trip = run_async(_run(bootstrap_servers, duration_ms(timeout, "--timeout")))
    if json:
        _show_json(trip)
    else:
        rows = [
            ("ok" if each.is_passed else "FAILED", each.name, each.elapsed_ms, each.detail) for each in trip.results
        ]
        show_table(("result", "check", "ms", "detail"), rows, numbers=("ms",))
        print("\npassed" if trip.is_passed else "\nfailed")
    if not trip.is_passed:
        raise typer.Exit(FAILED)


async def _run(bootstrap: str, timeout_ms: int) -> "RoundTrip":
    from moldau.cli.cluster_client import connect_async
    from moldau.cli.round_trip import RoundTrip
    from moldau.client.settings import ClientSettings
    from moldau.node.ports.clock import SystemClock
    from moldau.node.ports.randomness import system_random

    settings = ClientSettings(request_timeout_ms=timeout_ms, total_timeout_ms=timeout_ms)
    async with connect_async(bootstrap, settings) as client:
        await client.refresh([])  # fails at once if no broker can be reached
        name = f"{NAME_PREFIX}{system_random().randbytes(6).hex()}"
        trip = RoundTrip(client, SystemClock(), name, timeout_ms)
        await trip.run()
        return trip


def _show_json(trip: "RoundTrip") -> None:
    checks = [
        {"name": each.name, "is_passed": each.is_passed, "elapsed_ms": each.elapsed_ms, "detail": each.detail}
        for each in trip.results
    ]
    show_json({"is_passed": trip.is_passed, "topic": trip.name, "checks": checks})
