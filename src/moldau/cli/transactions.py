"""`moldau txn`: list, describe, producers, abort, find-hanging."""

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from moldau.cli.completion import complete_topics
from moldau.cli.errors import CommandError, usage_error
from moldau.cli.interrupts import run_async
from moldau.cli.options import BOOTSTRAP_DEFAULT, Bootstrap, Json
from moldau.cli.output import note, show_json, show_table
from moldau.cli.partial_results import RESPONSES_WAIT_MS, fail_if_unresponsive

if TYPE_CHECKING:
    from moldau.client.transactions import ActiveProducer, DescribedTransaction, HangingTransaction, Transactions
    from moldau.model.ids import TopicPartition

MINUTE_MS: Final = 60_000
MINUTES_MAX: Final = 100 * 365 * 24 * 60

app = typer.Typer(help="Show transactions, and abort hanging ones.", no_args_is_help=True)

Place = Annotated[str, typer.Argument(metavar="TOPIC:PARTITION", show_default=False)]
PRODUCER_COLUMNS: Final = ("topic", "partition", "producer", "epoch", "sequence", "last written", "open since offset")


@app.command("list")
def list_transactions(
    states: Annotated[
        list[str] | None, typer.Option("--state", metavar="STATE", help="Ongoing, CompleteCommit …; may be repeated.")
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            "--open-for", metavar="MINUTES", min=0, max=MINUTES_MAX, help="Only transactions open for longer."
        ),
    ] = None,
    pattern: Annotated[
        str | None, typer.Option("--pattern", metavar="REGEX", help="Only ids that match in full.")
    ] = None,
    bootstrap_servers: Bootstrap = BOOTSTRAP_DEFAULT,
    json: Json = False,
) -> None:
    """List the transactional ids, their producer ids and states."""

    async def work(transactions: "Transactions") -> None:
        open_for_ms = None if minutes is None else int(minutes * MINUTE_MS)
        from moldau.client.transactions import OPEN_STATES

        # An id keeps the start time of its last transaction after that has ended.
        chosen = states or (() if minutes is None else OPEN_STATES)
        found, silent = await transactions.list_reachable(
            RESPONSES_WAIT_MS, states=chosen, open_for_ms=open_for_ms, pattern=pattern
        )
        rows = [(each.transactional_id, each.coordinator, each.producer_id, each.state) for each in found]
        columns = ("transactional id", "coordinator", "producer", "state")
        _show(columns, rows, json, numbers=("coordinator", "producer"))
        fail_if_unresponsive(silent, "transactional ids")

    _run(bootstrap_servers, work)


@app.command()
def describe(
    transactional_id: Annotated[str, typer.Argument(metavar="TRANSACTIONAL_ID", show_default=False)],
    bootstrap_servers: Bootstrap = BOOTSTRAP_DEFAULT,
    json: Json = False,
) -> None:
    """Show a transactional id: coordinator, producer, state and partitions of its transaction."""

    async def work(transactions: "Transactions") -> None:
        fields = _fields(await _described(transactions, transactional_id))
        if json:
            show_json(fields)
        else:
            show_table(("", ""), [(name.replace("_", " "), value) for name, value in fields.items()])

    _run(bootstrap_servers, work)


@app.command()
def producers(place: Place, bootstrap_servers: Bootstrap = BOOTSTRAP_DEFAULT, json: Json = False) -> None:
    """List the idempotent and transactional producers of a partition, from its leader's state."""

    async def work(transactions: "Transactions") -> None:
        found = await transactions.producers([_place(place)])
        _show(PRODUCER_COLUMNS, [_row(each) for each in found], json, numbers=PRODUCER_COLUMNS[1:])

    _run(bootstrap_servers, work)


@app.command()
def abort(
    transactional_id: Annotated[
        str | None,
        typer.Argument(
            metavar="[TRANSACTIONAL_ID]", show_default=False, help="Abort its transaction and fence its producer."
        ),
    ] = None,
    place: Annotated[
        str | None,
        typer.Option("--partition", metavar="TOPIC:PARTITION", help="The partition of a hanging transaction."),
    ] = None,
    start_offset: Annotated[
        int | None, typer.Option("--start-offset", metavar="OFFSET", help="Its first offset there.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Skip the prompt.")] = False,
    bootstrap_servers: Bootstrap = BOOTSTRAP_DEFAULT,
) -> None:
    """Abort the open transaction of an id or, with --partition and --start-offset, one found by find-hanging."""
    if (transactional_id is None) == (place is None) or (place is None) != (start_offset is None):
        raise usage_error("give a TRANSACTIONAL_ID, or --partition and --start-offset")

    async def work(transactions: "Transactions") -> None:
        if transactional_id is not None:
            await _terminate(transactions, transactional_id, yes)
        elif place is not None and start_offset is not None:
            await _abort_at(transactions, _place(place), start_offset, yes)

    _run(bootstrap_servers, work)


@app.command("find-hanging")
def find_hanging(
    minutes: Annotated[
        float,
        typer.Option(
            "--max-timeout",
            metavar="MINUTES",
            min=0,
            max=MINUTES_MAX,
            help="The cluster's transaction.max.timeout.ms, in minutes.",
        ),
    ] = 15,
    broker: Annotated[
        int | None, typer.Option("--broker", metavar="ID", help="Only partitions led by this broker.")
    ] = None,
    topic: Annotated[
        str | None, typer.Option("--topic", "-t", help="Only partitions of this topic.", autocompletion=complete_topics)
    ] = None,
    bootstrap_servers: Bootstrap = BOOTSTRAP_DEFAULT,
    json: Json = False,
) -> None:
    """Find transactions that no coordinator will end: read_committed consumers wait for them forever."""
    from moldau.node.ports.clock import SystemClock

    async def work(transactions: "Transactions") -> None:
        now_ms = SystemClock().wall_ms()
        found = await transactions.hanging(now_ms, int(minutes * MINUTE_MS), broker=broker, topic=topic)
        rows = [(*_row(each.producer), each.transactional_id) for each in found]
        _show((*PRODUCER_COLUMNS, "transactional id"), rows, json, numbers=PRODUCER_COLUMNS[1:])
        if found and not json:
            note(_abort_hint(found[0]))

    _run(bootstrap_servers, work)


async def _terminate(transactions: "Transactions", transactional_id: str, yes: bool) -> None:
    described = await _described(transactions, transactional_id)
    if not yes:
        partitions = len(described.partitions)
        note(f"{transactional_id}: {described.state}, {partitions} partitions")
        typer.confirm("The producer will be fenced. Abort?", abort=True, err=True)
    identity = await transactions.terminate(transactional_id)
    note(f"aborted; producer {identity.producer_id} is at epoch {identity.epoch} now")


async def _abort_at(transactions: "Transactions", place: "TopicPartition", start_offset: int, yes: bool) -> None:
    producer = await transactions.open_at(place, start_offset)
    if producer is None:
        raise CommandError(f"no open transaction on {place} starts at offset {start_offset}")
    if not yes:
        typer.confirm(
            f"Records of producer {producer.identity.producer_id} in {place} from here on will be dropped. Abort?",
            abort=True,
            err=True,
        )
    await transactions.abort(producer)
    note(f"aborted the transaction of producer {producer.identity.producer_id} on {place}")


async def _described(transactions: "Transactions", transactional_id: str) -> "DescribedTransaction":
    from moldau.model.errors import ErrorCode, KafkaError

    try:
        return await transactions.describe(transactional_id)
    except KafkaError as error:
        if error.code != ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            raise
    raise CommandError(f"there is no transactional id {transactional_id}; moldau txn list shows them")


def _fields(described: "DescribedTransaction") -> dict[str, Any]:
    from moldau.client.transactions import OPEN_STATES

    return {
        "transactional_id": described.transactional_id,
        "coordinator": described.coordinator,
        "producer": described.identity.producer_id,
        "epoch": described.identity.epoch,
        "state": described.state,
        "timeout_ms": described.timeout_ms,
        "open_since": _time(described.start_ms if described.state in OPEN_STATES else None),
        "partitions": [str(each) for each in described.partitions],
    }


def _row(producer: "ActiveProducer") -> tuple[Any, ...]:
    return (
        producer.topic_partition.topic,
        producer.topic_partition.partition,
        producer.identity.producer_id,
        producer.identity.epoch,
        producer.last_sequence,
        _time(producer.last_timestamp_ms),
        producer.transaction_start_offset,
    )


def _abort_hint(found: "HangingTransaction") -> str:
    producer = found.producer
    where = f"--partition {producer.topic_partition.topic}:{producer.topic_partition.partition}"
    return f"to abort the first: moldau txn abort {where} --start-offset {producer.transaction_start_offset}"


def _time(timestamp_ms: int | None) -> str | None:
    from datetime import UTC, datetime

    if timestamp_ms is None:
        return None
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds")


def _place(text: str) -> "TopicPartition":
    from moldau.model.ids import TopicPartition

    topic, colon, index = text.rpartition(":")
    if not colon or not index.isdecimal():
        raise usage_error(f"{text}: write TOPIC:PARTITION")
    return TopicPartition(topic, int(index))


def _show(columns: tuple[str, ...], rows: list[tuple[Any, ...]], json: bool, *, numbers: tuple[str, ...]) -> None:
    if json:
        names = [column.replace(" ", "_") for column in columns]
        show_json([dict(zip(names, row, strict=True)) for row in rows])
    else:
        show_table(columns, rows, numbers=numbers)


def _run(bootstrap_servers: str, work: Any) -> None:
    from moldau.cli.cluster_client import connect_async
    from moldau.client.transactions import Transactions

    async def connected() -> None:
        async with connect_async(bootstrap_servers) as client:
            await work(Transactions(client))

    run_async(connected())
