"""`moldau bench`: the commands. What they measure is imported when they run."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moldau.cli.errors import Complaint
from moldau.cli.options import BOOTSTRAP_VARIABLE, Json
from moldau.cli.output import note, show_json

if TYPE_CHECKING:
    from moldau.cli.bench.session import Plan
    from moldau.cli.bench.targets import Measured, Verdict

app = typer.Typer(
    help="Measure throughput, latency and cost, beside the least that any program would have to do.",
    no_args_is_help=True,
)


class Client(StrEnum):
    """Who sends the load."""

    RAW = "raw"
    LIBRDKAFKA = "librdkafka"


Where = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-servers",
        "--bootstrap-server",
        "-b",
        envvar=BOOTSTRAP_VARIABLE,
        metavar="HOST:PORT,…",
        show_default=False,
        help="A cluster to load, of any Kafka. Without it, a broker of our own is started.",
    ),
]
Embedded = Annotated[
    bool, typer.Option("--embedded", help=f"Start a broker of our own, even if {BOOTSTRAP_VARIABLE} is set.")
]
Folder = Annotated[
    Path | None,
    typer.Option("--folder", exists=True, file_okay=False, help="Where data goes for the time being. [temporary]"),
]
Rounds = Annotated[int, typer.Option("--rounds", "-n", min=1, max=1000, help="How often each load is measured.")]
Connections = Annotated[int, typer.Option("--connections", min=1, max=256, help="Each has a partition of its own.")]
By = Annotated[Client, typer.Option("--client", help="Prepared bytes on plain sockets, or librdkafka.")]
Strict = Annotated[bool, typer.Option("--strict", help="End with code 1 if a target was not met.")]
Rate = Annotated[float, typer.Option("--rate", min=0.01, max=10_000, help="Megabytes a second.")]
Seconds = Annotated[float, typer.Option("--seconds", min=0.1, max=600, help="How long a round lasts.")]
InFlight = Annotated[int, typer.Option("--in-flight", min=1, max=1000, help="Requests on their way per connection.")]
ValueBytes = Annotated[int, typer.Option("--value-bytes", min=0, max=1_000_000, help="Size of a record's value.")]
Records = Annotated[int, typer.Option("--records", min=1, max=100_000_000, help="Records of a round, with librdkafka.")]
BatchRecords = Annotated[int, typer.Option("--batch", min=1, max=100_000, help="Records in a batch.")]


@app.command("all")
def measure_all(
    bootstrap_servers: Where = None,
    embedded: Embedded = False,
    folder: Folder = None,
    rounds: Rounds = 9,
    connections: Connections = 4,
    with_compaction: Annotated[bool, typer.Option("--compaction/--no-compaction", help="Takes minutes.")] = True,
    strict: Strict = False,
    json: Json = False,
) -> None:
    """Everything that has a target, and whether it is met."""
    from moldau.cli.bench.reports import progress
    from moldau.cli.bench.suite import measure_everything

    plan = _plan(bootstrap_servers, embedded, folder, rounds, connections)
    with progress() as tell:
        outcome = measure_everything(plan, tell, with_compaction=with_compaction)
    _show(outcome.measured, outcome.verdicts, json, stall_p99_ms=outcome.stall_p99_ms)
    _judge(outcome.verdicts, strict)


@app.command()
def replicated(
    folder: Folder = None,
    rounds: Rounds = 5,
    connections: Connections = 4,
    strict: Strict = False,
    json: Json = False,
) -> None:
    """Three brokers of our own and three replicas, beside a plain pipeline of three processes.

    Throughput is measured with so many connections for each of the three, latency with so many in all.
    """
    from moldau.cli.bench.replicating import measure_replicated
    from moldau.cli.bench.reports import progress
    from moldau.cli.bench.targets import replicated_verdicts

    with progress() as tell:
        measured = measure_replicated(_plan(None, True, folder, rounds, connections), tell)
    found = replicated_verdicts(measured)
    _show(measured, found, json)
    _judge(found, strict)


@app.command()
def quick(
    folder: Folder = None,
    rounds: Rounds = 5,
    connections: Connections = 4,
    save: Annotated[bool, typer.Option("--save", help="Keep these figures as those to compare with.")] = False,
    json: Json = False,
) -> None:
    """In a minute: CPU per request and loop stalls, beside the committed figures."""
    from moldau.cli.bench import figures
    from moldau.cli.bench.bench import SCRIPTS
    from moldau.cli.bench.reports import progress, report, show_comparisons, show_throughput
    from moldau.cli.bench.suite import measure_quickly

    if not SCRIPTS.is_dir():
        raise Complaint("the baselines are not in this installation; run it from a source tree")
    with progress() as tell:
        outcome, found = measure_quickly(_plan(None, True, folder, rounds, connections), tell)
    comparisons = figures.compare(found, figures.load(SCRIPTS))
    if json:
        show_json({**report(outcome.measured, []), "figures": found.as_json(), "changes": _as_rows(comparisons)})
    else:
        show_throughput(outcome.measured)
        print()
        show_comparisons(comparisons)
    if save:
        note(f"saved to {figures.save(found, SCRIPTS)}")


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
    """Batches as fast as they are acknowledged."""
    plan = _plan(bootstrap_servers, embedded, folder, rounds, connections)
    if client is Client.LIBRDKAFKA:
        _throughput_of_librdkafka(plan, records, value_bytes, json)
        return
    from moldau.cli.bench import cases
    from moldau.cli.bench.producing import run_produce
    from moldau.cli.bench.reports import progress
    from moldau.cli.bench.session import session
    from moldau.cli.bench.targets import verdicts

    wanted = [cases.produce_case(batch, value_bytes)] if batch is not None else cases.PRODUCE_CASES
    with progress() as tell, session(plan, tell) as bench:
        measured = run_produce(bench, [cases.with_in_flight(each, in_flight) for each in wanted])
    _show(measured, verdicts(measured), json)


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
    """A megabyte a request from logs that are in memory."""
    plan = _plan(bootstrap_servers, embedded, folder, rounds, connections)
    if client is Client.LIBRDKAFKA:
        _throughput_of_librdkafka(plan, records, value_bytes, json)
        return
    from moldau.cli.bench import cases
    from moldau.cli.bench.fetching import run_fetch
    from moldau.cli.bench.reports import progress
    from moldau.cli.bench.session import session
    from moldau.cli.bench.targets import verdicts

    with progress() as tell, session(plan, tell) as bench:
        measured = run_fetch(bench, cases.FETCHES)
    _show(measured, verdicts(measured), json)


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
    """How long acknowledgements take at a fixed rate."""
    from moldau.cli.bench.latency import LatencyCase, run_latency
    from moldau.cli.bench.librdkafka import RecordsCase, require_librdkafka, run_acknowledgements
    from moldau.cli.bench.reports import progress
    from moldau.cli.bench.requests import Shape
    from moldau.cli.bench.session import session
    from moldau.cli.bench.targets import MB, verdicts

    if client is Client.LIBRDKAFKA:
        require_librdkafka()
    with progress() as tell, session(_plan(bootstrap_servers, embedded, folder, rounds, connections), tell) as bench:
        if client is Client.LIBRDKAFKA:
            per_s = rate * MB / max(value_bytes, 1)
            measured = run_acknowledgements(bench, RecordsCase(int(per_s * seconds), value_bytes, connections), per_s)
        else:
            measured = run_latency(bench, LatencyCase(Shape(batch, value_bytes), rate * MB, seconds))
    _show(measured, verdicts(measured), json)


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
    """How long records take from a producer's hand to a waiting consumer's."""
    from moldau.cli.bench.end_to_end import run_end_to_end
    from moldau.cli.bench.latency import LatencyCase
    from moldau.cli.bench.reports import progress
    from moldau.cli.bench.requests import Shape
    from moldau.cli.bench.session import session
    from moldau.cli.bench.targets import MB

    plan = _plan(bootstrap_servers, embedded, folder, rounds, 1)
    with progress() as tell, session(plan, tell) as bench:
        measured = run_end_to_end(bench, LatencyCase(Shape(batch, value_bytes), rate * MB, seconds))
    _show(measured, [], json)


@app.command()
def compaction(
    folder: Folder = None,
    rounds: Rounds = 9,
    connections: Connections = 4,
    rate: Rate = 20.0,
    seconds: Seconds = 2.0,
    log_mib: Annotated[int, typer.Option("--log-mib", min=64, max=1024, help="Size of the log, in MiB.")] = 1024,
    strict: Strict = False,
    json: Json = False,
) -> None:
    """Latency of acknowledgements while a large log is compacted."""
    from moldau.cli.bench.latency import LatencyCase
    from moldau.cli.bench.reports import progress
    from moldau.cli.bench.requests import Shape
    from moldau.cli.bench.suite import measure_compaction
    from moldau.cli.bench.targets import MB, verdicts
    from moldau.model.units import MiB

    case = LatencyCase(Shape(149, 100), rate * MB, seconds)
    with progress() as tell:
        measured = measure_compaction(_plan(None, True, folder, rounds, connections), case, log_mib * MiB, tell)
    _show(measured, verdicts(measured), json)
    _judge(verdicts(measured), strict)


@app.command()
def transactions(
    bootstrap_servers: Where = None,
    embedded: Embedded = False,
    folder: Folder = None,
    rounds: Rounds = 9,
    connections: Connections = 4,
    strict: Strict = False,
    json: Json = False,
) -> None:
    """What a transaction costs, 1,000 of them open at once, and reading what is committed beside reading all."""
    from moldau.cli.bench.reports import progress
    from moldau.cli.bench.session import session
    from moldau.cli.bench.targets import transaction_verdicts
    from moldau.cli.bench.transactions import run_transactions

    plan = _plan(bootstrap_servers, embedded, folder, rounds, connections)
    with progress() as tell, session(plan, tell) as bench:
        found = run_transactions(bench)
    _show(found.rounds, transaction_verdicts(found), json)
    _judge(transaction_verdicts(found), strict)


@app.command()
def groups(
    folder: Folder = None,
    rounds: Rounds = 3,
    commits: Annotated[int, typer.Option("--commits", min=1, max=100_000_000, help="To be loaded at the start.")] = (
        5_000_000
    ),
    strict: Strict = False,
    json: Json = False,
) -> None:
    """What heartbeats cost, 200 members who come at once, and a start with many committed offsets."""
    from moldau.cli.bench.groups import Size, measure_groups
    from moldau.cli.bench.reports import progress
    from moldau.cli.bench.targets import group_verdicts

    with progress() as tell:
        found = measure_groups(_plan(None, True, folder, rounds, 1), tell, Size(commits=commits))
    _show(found.rounds, group_verdicts(found), json)
    _judge(group_verdicts(found), strict)


@app.command()
def footprint(folder: Folder = None, strict: Strict = False, json: Json = False) -> None:
    """Memory when idle, with 2,000 connections, with 1,000 partitions; and how long a start takes."""
    from moldau.cli.bench import suite
    from moldau.cli.bench.reports import progress
    from moldau.cli.bench.targets import footprint_verdicts

    with progress() as tell:
        verdicts = footprint_verdicts(suite.footprint(_plan(None, True, folder, 1, 1), tell))
    _show({}, verdicts, json)
    _judge(verdicts, strict)


@app.command()
def spark(
    folder: Folder = None,
    rounds: Rounds = 5,
    records: Annotated[
        int, typer.Option("--records", min=20_000, max=100_000_000, help="Of 100 B; and half as many of 1 KiB.")
    ] = 2_000_000,
    official: Annotated[
        Path | None,
        typer.Option("--official", metavar="FOLDER", help="Jars of Spark's own Kafka connector, to measure it too."),
    ] = None,
    strict: Strict = False,
    json: Json = False,
) -> None:
    """Broker and Spark together on two cores: reads, exactly-once writes, and an archive."""
    from moldau.cli.bench.reports import progress, report, show_floors, show_rates, show_verdicts
    from moldau.cli.bench.spark.suite import SparkPlan, measure_spark, spark_floors, spark_verdicts

    with progress() as tell:
        measured = measure_spark(_plan(None, True, folder, rounds, 1), SparkPlan(records, official_jars=official), tell)
    found, floors = spark_verdicts(measured), spark_floors(measured)
    if json:
        show_json(report(measured, found, floors={text: each.as_json() for text, each in floors.items()}))
    else:
        show_rates(measured)
        show_verdicts(found)
        show_floors(floors)
    _judge(found, strict)


def _plan(where: str | None, embedded: bool, folder: Path | None, rounds: int, connections: int) -> "Plan":
    from moldau.cli.bench.session import Plan

    return Plan(None if embedded else where, folder, rounds, connections)


def _throughput_of_librdkafka(plan: "Plan", records: int, value_bytes: int, json: bool) -> None:
    """Produced and read back in one go, whichever was asked for."""
    from moldau.cli.bench.librdkafka import RecordsCase, require_librdkafka, run_throughput
    from moldau.cli.bench.reports import progress
    from moldau.cli.bench.session import session

    require_librdkafka()
    with progress() as tell, session(plan, tell) as bench:
        measured = run_throughput(bench, RecordsCase(records, value_bytes, plan.connections))
    _show(measured, [], json)


def _show(measured: "Measured", verdicts: "list[Verdict]", json: bool, stall_p99_ms: float | None = None) -> None:
    from moldau.cli.bench.reports import report, show_latencies, show_throughput, show_verdicts

    if json:
        show_json({**report(measured, verdicts), "loop_stall_p99_ms": stall_p99_ms})
        return
    show_throughput(measured)
    show_latencies(measured)
    if stall_p99_ms is not None:
        print(f"loop stall p99: at most {stall_p99_ms:g} ms")
    show_verdicts(verdicts)


def _judge(verdicts: "list[Verdict]", strict: bool) -> None:
    missed = [each.text for each in verdicts if not each.is_met]
    if strict and missed:
        raise Complaint(f"{len(missed)} targets were not met: {'; '.join(missed)}")


def _as_rows(comparisons: Any) -> list[dict[str, Any]]:
    from dataclasses import asdict

    return [asdict(each) for each in comparisons]
