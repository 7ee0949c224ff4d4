"""`moldau bench`: the commands. Each imports its benchmark when it runs."""

from typing import TYPE_CHECKING, Annotated

import typer

from moldau.cli.bench.options import (
    BatchRecords,
    By,
    Client,
    Connections,
    Embedded,
    Folder,
    InFlight,
    Rate,
    Records,
    Rounds,
    Seconds,
    ValueBytes,
    Where,
    plan_of,
)
from moldau.cli.options import Json

if TYPE_CHECKING:
    from moldau.cli.bench.session import Plan

app = typer.Typer(
    help="Measure throughput, latency and CPU, next to a minimal program that moves the same bytes.",
    no_args_is_help=True,
)


@app.command()
def produce(
    bootstrap_servers: Where = None,
    embedded: Embedded = False,
    folder: Folder = None,
    rounds: Rounds = 9,
    connections: Connections = 4,
    in_flight: InFlight = 5,
    batch: Annotated[
        int | None,
        typer.Option("--batch", min=1, max=100_000, show_default=False, help="Records in a batch. [several cases]"),
    ] = None,
    value_bytes: ValueBytes = 100,
    client: By = Client.RAW,
    records: Records = 1_000_000,
    json: Json = False,
) -> None:
    """Measure produce throughput: batches are sent as fast as they are acknowledged."""
    plan = plan_of(bootstrap_servers, embedded, folder, rounds, connections)
    if client is Client.LIBRDKAFKA:
        _throughput_of_librdkafka(plan, records, value_bytes, json)
        return
    from moldau.cli.bench import cases
    from moldau.cli.bench.produce_load import run_produce
    from moldau.cli.bench.reports import progress, show
    from moldau.cli.bench.session import session
    from moldau.cli.bench.targets import verdicts

    wanted = [cases.produce_case(batch, value_bytes)] if batch is not None else cases.PRODUCE_CASES
    with progress() as tell, session(plan, tell) as bench:
        measured = run_produce(bench, [cases.with_in_flight(each, in_flight) for each in wanted])
    show(measured, verdicts(measured), as_json=json)


@app.command()
def fetch(
    bootstrap_servers: Where = None,
    embedded: Embedded = False,
    folder: Folder = None,
    rounds: Rounds = 9,
    connections: Connections = 4,
    client: By = Client.RAW,
    records: Records = 1_000_000,
    value_bytes: ValueBytes = 100,
    json: Json = False,
) -> None:
    """Measure fetch throughput: one megabyte per request, from logs in the page cache."""
    plan = plan_of(bootstrap_servers, embedded, folder, rounds, connections)
    if client is Client.LIBRDKAFKA:
        _throughput_of_librdkafka(plan, records, value_bytes, json)
        return
    from moldau.cli.bench import cases
    from moldau.cli.bench.fetch_load import run_fetch
    from moldau.cli.bench.reports import progress, show
    from moldau.cli.bench.session import session
    from moldau.cli.bench.targets import verdicts

    with progress() as tell, session(plan, tell) as bench:
        measured = run_fetch(bench, cases.FETCHES)
    show(measured, verdicts(measured), as_json=json)


@app.command()
def latency(
    bootstrap_servers: Where = None,
    embedded: Embedded = False,
    folder: Folder = None,
    rounds: Rounds = 9,
    connections: Connections = 4,
    rate: Rate = 20.0,
    seconds: Seconds = 4.0,
    batch: BatchRecords = 149,
    value_bytes: ValueBytes = 100,
    client: By = Client.RAW,
    json: Json = False,
) -> None:
    """Measure the latency of acknowledgements at a fixed rate."""
    from moldau.cli.bench.latency import LatencyCase, run_latency
    from moldau.cli.bench.librdkafka import RecordsCase, require_librdkafka, run_acknowledgements
    from moldau.cli.bench.reports import progress, show
    from moldau.cli.bench.requests import Shape
    from moldau.cli.bench.session import session
    from moldau.cli.bench.targets import MB, verdicts

    if client is Client.LIBRDKAFKA:
        require_librdkafka()
    with progress() as tell, session(plan_of(bootstrap_servers, embedded, folder, rounds, connections), tell) as bench:
        if client is Client.LIBRDKAFKA:
            per_s = rate * MB / max(value_bytes, 1)
            measured = run_acknowledgements(bench, RecordsCase(int(per_s * seconds), value_bytes, connections), per_s)
        else:
            measured = run_latency(bench, LatencyCase(Shape(batch, value_bytes), rate * MB, seconds))
    show(measured, verdicts(measured), as_json=json)


@app.command()
def end_to_end(
    bootstrap_servers: Where = None,
    embedded: Embedded = False,
    folder: Folder = None,
    rounds: Rounds = 5,
    rate: Rate = 5.0,
    seconds: Seconds = 2.0,
    batch: BatchRecords = 149,
    value_bytes: ValueBytes = 100,
    json: Json = False,
) -> None:
    """Measure the latency from producer to a waiting consumer at a fixed rate."""
    from moldau.cli.bench.end_to_end import run_end_to_end
    from moldau.cli.bench.latency import LatencyCase
    from moldau.cli.bench.reports import progress, show
    from moldau.cli.bench.requests import Shape
    from moldau.cli.bench.session import session
    from moldau.cli.bench.targets import MB

    plan = plan_of(bootstrap_servers, embedded, folder, rounds, 1)
    with progress() as tell, session(plan, tell) as bench:
        measured = run_end_to_end(bench, LatencyCase(Shape(batch, value_bytes), rate * MB, seconds))
    show(measured, [], as_json=json)


def _throughput_of_librdkafka(plan: "Plan", records: int, value_bytes: int, json: bool) -> None:
    """Measure produce and fetch together: both commands show both."""
    from moldau.cli.bench.librdkafka import RecordsCase, require_librdkafka, run_throughput
    from moldau.cli.bench.reports import progress, show
    from moldau.cli.bench.session import session

    require_librdkafka()
    with progress() as tell, session(plan, tell) as bench:
        measured = run_throughput(bench, RecordsCase(records, value_bytes, plan.connections))
    show(measured, [], as_json=json)
