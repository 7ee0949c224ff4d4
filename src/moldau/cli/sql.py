"""`moldau sql`: query topics with Spark SQL, once or as a stream."""

import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from datetime import date, datetime
from itertools import count
from math import isfinite
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from moldau.cli import pipeline_options as given
from moldau.cli.connection_options import Connection
from moldau.cli.errors import CommandError, is_debugging, usage_error
from moldau.cli.interrupts import run_async
from moldau.cli.option_groups import expand_option_groups
from moldau.cli.options import Json, pairs
from moldau.cli.output import note, show_json_line, show_table
from moldau.cli.standard_streams import divert_standard_error

if TYPE_CHECKING:
    from moldau.client.async_client import AsyncClient
    from moldau.model.ids import TopicPartition
    from moldau.pipelines.job_runner import Signals
    from moldau.pipelines.streaming_query import Rows
    from moldau.pipelines.tables import Tables

Result = TypeVar("Result")

ROWS_MAX: Final = 1000

app = typer.Typer()


@app.command()
@expand_option_groups
def sql(
    query: Annotated[str, typer.Argument(show_default=False, metavar="QUERY")],
    connection: Connection,
    stream: Annotated[bool, typer.Option("--stream", help="Keep running and show new results.")] = False,
    start: Annotated[
        str, typer.Option("--from", "-f", metavar="WHERE", help="start, end, -10, @2026-01-01T00:00:00 or an offset.")
    ] = "start",
    until: Annotated[
        str | None,
        typer.Option("--until", "-u", metavar="WHERE", help="Read up to: end (as of now), @TIME, an offset."),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit", "-n", min=1, show_default=str(ROWS_MAX), help="Maximum number of rows; a stream ends there."
        ),
    ] = None,
    master: given.Master = None,
    conf: given.Conf = None,
    json: Json = False,
) -> None:
    """Query topics with SQL: select page, count(*) from clicks group by page. JSON fields are columns.

    A topic is a table of its committed records as of now. The columns are the fields of its newest records, and _key,
    _topic, _partition, _offset and _timestamp. Values that are not JSON are in the column value. With --stream, new
    rows are shown as they arrive or, if the query aggregates, the whole table whenever it changes.
    """
    from moldau.pipelines.streaming_query import ROWS_PER_BATCH
    from moldau.pipelines.tables import Tables, sample_starts

    if stream and until is not None:
        raise usage_error("--until and --stream cannot be combined; see --limit")
    servers = connection.connect_with_own_client()
    with given.translate_pipeline_errors():
        ends = run_async(_extents(servers, query))
    topics = list(dict.fromkeys(place.topic for place in ends))
    if not topics:
        raise CommandError("the query names no topic; put names with dots or dashes in backquotes")
    places = [_place_of(connection, topic, start, until) for topic in topics]
    tables = Tables(
        bootstrap_servers=servers,
        starting={topic: starting for topic, starting, _ in places},
        ending={topic: ending for topic, _, ending in places if ending is not None},
        options=connection.options,
        streamed_rows_max=ROWS_PER_BATCH if stream else None,
    )
    samples = {topic: sample_starts({at: each for at, each in ends.items() if at.topic == topic}) for topic in topics}
    query_run = QueryRun(query, tables, samples, limit, master, pairs(conf, "--conf"), is_json=json)
    with given.translate_pipeline_errors():
        query_run.stream() if stream else query_run.run()


def _place_of(connection: Connection, topic: str, start: str, until: str | None) -> tuple[str, str, str | None]:
    from moldau.cli.pipeline_offsets import resolve_offsets

    places = resolve_offsets(connection, [topic], start, until)
    return topic, places.starting, places.ending


class QueryRun:
    """A query, and how to show its result."""

    def __init__(
        self,
        query: str,
        tables: "Tables",
        samples: dict[str, str],
        limit: int | None,
        master: str | None,
        settings: dict[str, str],
        *,
        is_json: bool,
    ) -> None:
        self._query, self._tables, self._samples, self._limit = query, tables, samples, limit
        self._master, self._settings, self._is_json = master, settings, is_json
        self._height = 0  # of the printed table, which the next one replaces

    def run(self) -> None:
        columns, rows = self._with_session(self._collect)
        self._show(columns, rows)
        if len(rows) == (self._limit or ROWS_MAX):
            note(f"showing {self._limit or ROWS_MAX} rows, there may be more: see --limit")

    def stream(self) -> None:
        self._with_session(self._stream)

    def _with_session(self, work: "Callable[[Any, Signals], Result]") -> "Result":
        """Run `work` in a Spark session. Ctrl-C ends a stream and is not an error.

        Spark's JVM prints a dozen lines while it starts, before its log level can be set. They are dropped unless it
        fails to start, or --debug is given.
        """
        from moldau.pipelines.job_runner import Stopped, with_session

        def begin(spark: Any, signals: "Signals") -> "Result":
            show_errors()
            return work(spark, signals)

        try:
            with divert_standard_error() if not is_debugging() else nullcontext(lambda: None) as show_errors:
                return with_session("moldau-sql", self._master, self._settings, begin)
        except Stopped as stopped:
            raise typer.Exit(130 if stopped.args == (signal.SIGINT,) else 0) from None

    def _collect(self, spark: Any, signals: "Signals") -> tuple[list[str], list[Any]]:
        from moldau.pipelines.streaming_query import one_line_errors
        from moldau.pipelines.timestamps import portable, with_zones

        signals.check()
        with one_line_errors():
            result = self._frame(spark)
            rows = portable(result.limit(self._limit or ROWS_MAX)).collect()
            return list(result.columns), list(with_zones(rows, result.schema))

    def _stream(self, spark: Any, signals: "Signals") -> None:
        from moldau.pipelines.streaming_query import StreamedQuery, one_line_errors

        # JSON has the rows that changed; a terminal shows the whole table.
        modes = ("append", "update", "complete") if self._is_json else ("append", "complete")
        with one_line_errors():
            StreamedQuery(self._show_more, modes, self._limit).run(self._frame(spark), signals)

    def _frame(self, spark: Any) -> Any:
        for topic, sample in self._samples.items():
            self._tables.make(spark, topic, sample)
        return spark.sql(self._query)

    def _show_more(self, rows: "Rows") -> None:
        is_replaced = rows.is_whole and not self._is_json and sys.stdout.isatty()
        if is_replaced and 0 < self._height < shutil.get_terminal_size().lines:
            print(f"\x1b[{self._height}A\x1b[J", end="")
        self._show(rows.columns, rows.rows)
        self._height = len(rows.rows) + 1
        if rows.is_cut and self._limit is None:
            note(f"showing {len(rows.rows)} rows of the table, there are more: see --limit")
        if not self._is_json and not is_replaced:
            print()
        sys.stdout.flush()

    def _show(self, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        if self._is_json:
            names = numbered(columns)
            for row in rows:
                show_json_line(dict(zip(names, map(_as_json, row), strict=True)))
        else:
            show_table(columns, [[_as_json(each) for each in row] for row in rows])


async def _extents(bootstrap: str, query: str) -> "dict[TopicPartition, tuple[int, int]]":
    from moldau.cli.cluster_client import connect_async

    async with connect_async(bootstrap) as client:
        return await named_extents(client, query)


async def named_extents(client: "AsyncClient", query: str) -> "dict[TopicPartition, tuple[int, int]]":
    """Return the extents of the topics in the query; others may be offline."""
    from moldau.cli.query_check import check_query
    from moldau.client.positions import extents
    from moldau.client.types import Isolation
    from moldau.model.ids import TopicPartition
    from moldau.pipelines.tables import named_topics

    views = {view.name: view for view in await client.describe_topics() if view.error is None and not view.is_internal}
    check_query(query, views)
    named = named_topics(query, views)
    places = [TopicPartition(name, each.index) for name in named for each in views[name].partitions]
    known = await extents(client, places, Isolation.READ_COMMITTED)
    return {place: (each.start, each.end) for place, each in known.items()}


def numbered(columns: Sequence[str]) -> list[str]:
    """Make column names unique, as a JSON object needs them: the second `page` becomes `page_2`."""
    names: list[str] = []
    for column in columns:
        further = (f"{column}_{number}" for number in count(2))
        free = (each for each in further if each not in names and each not in columns)
        names.append(next(free) if column in names else column)
    return names


def _as_json(value: Any) -> Any:
    """Convert to a JSON value. NaN, intervals and all that JSON has no type for become text."""
    match value:
        case float() if not isfinite(value):
            return str(value)
        case None | bool() | int() | float() | str():
            return value
        case datetime() | date():
            return value.isoformat()
        case bytes() | bytearray():
            return bytes(value).decode(errors="replace")
        case dict():
            return {str(name): _as_json(each) for name, each in value.items()}
        case list() | tuple():
            fields = getattr(value, "asDict", None)
            return _as_json(fields()) if fields is not None else [_as_json(each) for each in value]
        case _:
            return str(value)
