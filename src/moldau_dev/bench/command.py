"""The commands of `python -m moldau_dev.bench`. Each imports what it measures when it runs."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moldau.cli.bench.options import (
    Connections,
    Embedded,
    Folder,
    Rate,
    Rounds,
    Seconds,
    Where,
    plan_of,
)
from moldau.cli.errors import CommandError
from moldau.cli.options import Json
from moldau.cli.output import note, show_json

if TYPE_CHECKING:
    from moldau.cli.bench.targets import Verdict

app = typer.Typer(help="Measure everything that has a target.", no_args_is_help=True)

Strict = Annotated[bool, typer.Option("--strict", help="End with code 1 if a target was not met.")]


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
    from moldau.cli.bench.reports import progress, show
    from moldau_dev.bench.suite import measure_everything

    plan = plan_of(bootstrap_servers, embedded, folder, rounds, connections)
    with progress() as tell:
        outcome = measure_everything(plan, tell, with_compaction=with_compaction)
    show(outcome.measured, outcome.verdicts, as_json=json, stall_p99_ms=outcome.stall_p99_ms)
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
    from moldau.cli.bench.reports import progress, show
    from moldau_dev.bench.replication_load import measure_replicated
    from moldau_dev.bench.targets import replicated_verdicts

    with progress() as tell:
        measured = measure_replicated(plan_of(None, True, folder, rounds, connections), tell)
    found = replicated_verdicts(measured)
    show(measured, found, as_json=json)
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
    from moldau.cli.bench.bench import SCRIPTS
    from moldau.cli.bench.reports import progress, report, show_throughput
    from moldau_dev.bench import figures
    from moldau_dev.bench.reports import show_comparisons
    from moldau_dev.bench.suite import measure_quickly

    if not SCRIPTS.is_dir():
        raise CommandError("the baselines are not in this installation; run it from a source tree")
    with progress() as tell:
        outcome, found = measure_quickly(plan_of(None, True, folder, rounds, connections), tell)
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
    from moldau.cli.bench.reports import progress, show
    from moldau.cli.bench.requests import Shape
    from moldau.cli.bench.targets import MB
    from moldau.model.units import MiB
    from moldau_dev.bench.suite import measure_compaction
    from moldau_dev.bench.targets import verdicts

    case = LatencyCase(Shape(149, 100), rate * MB, seconds)
    with progress() as tell:
        measured = measure_compaction(plan_of(None, True, folder, rounds, connections), case, log_mib * MiB, tell)
    show(measured, verdicts(measured), as_json=json)
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
    """Cost of a transaction, of 1,000 open at once, and of reading committed records beside reading all."""
    from moldau.cli.bench.reports import progress, show
    from moldau.cli.bench.session import session
    from moldau_dev.bench.targets import transaction_verdicts
    from moldau_dev.bench.transactions import run_transactions

    plan = plan_of(bootstrap_servers, embedded, folder, rounds, connections)
    with progress() as tell, session(plan, tell) as bench:
        found = run_transactions(bench)
    show(found.rounds, transaction_verdicts(found), as_json=json)
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
    """Cost of heartbeats, of 200 members joining at once, and of a start with many committed offsets."""
    from moldau.cli.bench.reports import progress, show
    from moldau_dev.bench.groups import Size, measure_groups
    from moldau_dev.bench.targets import group_verdicts

    with progress() as tell:
        found = measure_groups(plan_of(None, True, folder, rounds, 1), tell, Size(commits=commits))
    show(found.rounds, group_verdicts(found), as_json=json)
    _judge(group_verdicts(found), strict)


@app.command()
def security(rounds: Rounds = 5, json: Json = False) -> None:
    """CPU of a broker per request and per MiB: open, and with TLS, SASL, ACLs and quotas."""
    from moldau.cli.bench.reports import progress
    from moldau_dev.bench.reports import show_security
    from moldau_dev.bench.security import measure_security

    with progress() as tell:
        rows = measure_security(rounds, tell)
    if json:
        show_json([dataclasses.asdict(row) for row in rows])
    else:
        show_security(rows)


@app.command()
def tls(rounds: Rounds = 7, json: Json = False) -> None:
    """Produce of 64 KiB and fetch of 1 MiB over TLS 1.3, beside a plain copy by Python's ssl (0.6 of it or more)."""
    from moldau.cli.bench.reports import progress
    from moldau_dev.bench.reports import show_tls
    from moldau_dev.bench.tls import measure_tls

    with progress() as tell:
        rows = measure_tls(rounds, tell)
    show_json([dataclasses.asdict(row) for row in rows]) if json else show_tls(rows)


@app.command()
def logins(rounds: Rounds = 5, json: Json = False) -> None:
    """The p99 of a neighbour during 1,000 SCRAM logins, beside quiet rounds (2 times it or less)."""
    from moldau.cli.bench.reports import progress
    from moldau_dev.bench.neighbours import measure_logins
    from moldau_dev.bench.reports import show_spreads

    with progress() as tell:
        found = measure_logins(rounds, tell)
    show_json(dataclasses.asdict(found)) if json else show_spreads(found)


@app.command()
def throttled(
    rounds: Rounds = 1,
    seconds: Annotated[float, typer.Option("--seconds", min=1, max=600, help="Of each round.")] = 30,
    json: Json = False,
) -> None:
    """A client at ten times its quota: what it gets (1 ± 0.05 of it), and a neighbour's p99 (1.2 times or less)."""
    from moldau.cli.bench.reports import progress
    from moldau_dev.bench.neighbours import measure_throttling
    from moldau_dev.bench.reports import show_spreads

    with progress() as tell:
        found = measure_throttling(rounds, seconds, tell)
    show_json(dataclasses.asdict(found)) if json else show_spreads(found)


@app.command()
def footprint(folder: Folder = None, strict: Strict = False, json: Json = False) -> None:
    """Memory when idle, with 2,000 connections, with 1,000 partitions; and how long a start takes."""
    from moldau.cli.bench.reports import progress, show
    from moldau_dev.bench import suite
    from moldau_dev.bench.targets import footprint_verdicts

    with progress() as tell:
        verdicts = footprint_verdicts(suite.footprint(plan_of(None, True, folder, 1, 1), tell))
    show({}, verdicts, as_json=json)
    _judge(verdicts, strict)


@app.command()
def kafka(
    folder: Folder = None,
    rows: Annotated[str, typer.Option("--rows", metavar="WORDS", help="Rows with one of these words, by commas.")] = "",
    seconds: Annotated[float, typer.Option("--seconds", min=0.2, max=60.0, help="Of one round of a row.")] = 2.0,
    rounds: Rounds = 5,
    save: Annotated[Path | None, typer.Option("--save", metavar="FILE", help="Write the figures as JSON.")] = None,
    strict: Strict = False,
    json: Json = False,
) -> None:
    """Apache Kafka beside Moldau: the same loads, in turn, one stopped while the other is measured."""
    import json as codec

    from moldau.cli.bench.reports import progress
    from moldau_dev.bench.kafka import report as reports
    from moldau_dev.bench.kafka.rows import chosen
    from moldau_dev.bench.kafka.runner import Effort, compare

    effort = Effort(seconds, rounds)
    with progress() as tell:
        compared = compare(chosen(rows), effort, tell, folder)
    found = reports.as_json(compared, effort)
    if json:
        show_json(found)
    else:
        reports.show(compared)
    if save is not None:
        save.write_text(codec.dumps(found, indent=1) + "\n")
        note(f"saved to {save}")
    behind = [f"{each.row}: {each.measure}" for each in reports.lines(compared) if each.is_ahead is False]
    if strict and behind:
        raise CommandError(f"behind in {len(behind)} rows: {'; '.join(behind)}")


WithKafka = Annotated[bool, typer.Option("--kafka/--no-kafka", help="Apache Kafka beside it.")]


@app.command()
def f1(
    folder: Folder = None,
    seconds: Annotated[float, typer.Option("--seconds", min=0.2, max=600.0, help="Of one round of a row.")] = 3.0,
    rounds: Rounds = 3,
    with_kafka: WithKafka = True,
    strict: Strict = False,
    json: Json = False,
) -> None:
    """F1: 800,000 records/s of one broker and 500,000/s of three replicas, and p99 at 80 % of that."""
    from moldau_dev.bench.kafka.promised import F1

    _promised(F1, seconds, rounds, folder, with_kafka=with_kafka, strict=strict, json=json)


@app.command()
def f2(
    folder: Folder = None,
    seconds: Annotated[float, typer.Option("--seconds", min=0.2, max=900.0, help="Of one round of a row.")] = 10.0,
    rounds: Rounds = 3,
    with_kafka: WithKafka = True,
    strict: Strict = False,
    json: Json = False,
) -> None:
    """F2: 115 MB/s in while five groups read 575 MB/s, with retention behind; a peak of 350,000 records/s."""
    from moldau_dev.bench.kafka.promised import F2

    _promised(F2, seconds, rounds, folder, with_kafka=with_kafka, strict=strict, json=json)


def _promised(
    rows: Any, seconds: float, rounds: int, folder: Path | None, *, with_kafka: bool, strict: bool, json: bool
) -> None:
    from moldau.cli.bench.reports import progress
    from moldau_dev.bench.kafka import report as reports
    from moldau_dev.bench.kafka.promised import TARGETS, cores, is_met
    from moldau_dev.bench.kafka.runner import Effort, compare

    effort = Effort(seconds, rounds, warm_up_rounds_max=2)
    with progress() as tell:
        compared = compare(rows, effort, tell, folder, with_kafka=with_kafka)
    if json:
        show_json(reports.as_json(compared, effort))
    else:
        reports.show(compared)
        reports.show_cores(cores(compared))
    found = {row: is_met(compared, row, p99_ms=p99_ms, per_s=per_s) for row, p99_ms, per_s in TARGETS}
    for row, met in found.items():
        if met is not None:
            note(f"{row}: {'met' if met else 'NOT met'}")
    if strict and False in found.values():
        raise CommandError("a promised figure was not met")


@app.command()
def growth(
    folder: Folder = None,
    svg: Annotated[Path | None, typer.Option("--svg", metavar="FILE", help="Draw the curves into a file.")] = None,
    topics: Annotated[int, typer.Option("--topics", min=10, max=9_800, help="The largest number of topics.")] = 9_800,
    consumers: Annotated[
        int, typer.Option("--consumers", min=10, max=50_000, help="The largest number of idle consumers.")
    ] = 7_000,
    strict: Strict = False,
    json: Json = False,
) -> None:
    """Cost of one request beside more and more partitions, topics and consumers."""
    from moldau.cli.bench.reports import progress
    from moldau_dev.bench.growth.plot import draw
    from moldau_dev.bench.growth.suite import Sizes, measure_growth
    from moldau_dev.bench.reports import show_curves

    with progress() as tell:
        curves = measure_growth(Sizes().up_to(topics, consumers), tell, folder)
    if json:
        show_json([dataclasses.asdict(each) for each in curves])
    else:
        show_curves(curves)
    if svg is not None:
        svg.write_text(draw(curves))
        note(f"drawn into {svg}")
    missed = [each.name for each in curves if not each.is_met]
    if strict and missed:
        raise CommandError(f"{len(missed)} limits were exceeded: {'; '.join(missed)}")


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
    from moldau.cli.bench.reports import progress, report, show_verdicts
    from moldau_dev.bench.reports import show_floors, show_rates
    from moldau_dev.bench.spark.suite import SparkPlan, measure_spark, spark_floors, spark_verdicts

    with progress() as tell:
        measured = measure_spark(
            plan_of(None, True, folder, rounds, 1), SparkPlan(records, official_jars=official), tell
        )
    found, floors = spark_verdicts(measured), spark_floors(measured)
    if json:
        show_json(report(measured, found, floors={text: each.as_json() for text, each in floors.items()}))
    else:
        show_rates(measured)
        show_verdicts(found)
        show_floors(floors)
    _judge(found, strict)


def _judge(verdicts: "list[Verdict]", strict: bool) -> None:
    missed = [each.text for each in verdicts if not each.is_met]
    if strict and missed:
        raise CommandError(f"{len(missed)} targets were not met: {'; '.join(missed)}")


def _as_rows(comparisons: Any) -> list[dict[str, Any]]:
    from dataclasses import asdict

    return [asdict(each) for each in comparisons]
