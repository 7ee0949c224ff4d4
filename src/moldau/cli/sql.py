"""`moldau sql`: a query over topics, on Spark."""

import asyncio
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from moldau.cli import pipeline_options as given
from moldau.cli.errors import Complaint
from moldau.cli.options import BOOTSTRAP_DEFAULT, Bootstrap, Json
from moldau.cli.output import note, show_json_line, show_table

if TYPE_CHECKING:
    from moldau.model.ids import TopicPartition

ROWS_MAX: Final = 1000

app = typer.Typer()


@app.command()
def sql(
    query: Annotated[str, typer.Argument(show_default=False, metavar="QUERY")],
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Show no more rows than this.")] = ROWS_MAX,
    master: given.Master = None,
    conf: given.Conf = None,
    bootstrap_servers: Bootstrap = BOOTSTRAP_DEFAULT,
    json: Json = False,
) -> None:
    """Ask topics in SQL: select page, count(*) from clicks group by page. JSON fields are columns.

    A topic is a table of its committed records as of now. The fields are those of its newest records; each row has
    _key, _topic, _partition, _offset and _timestamp too. Where values are no JSON, they are in the column value.
    """
    from moldau.pipelines.tables import named_topics

    ends = asyncio.run(_extents(bootstrap_servers))
    topics = named_topics(query, {place.topic for place in ends})
    if not topics:
        raise Complaint("the query names no topic that is there; put names with dots or dashes in backquotes")
    with given.complaining():
        columns, rows = _ask(query, topics, ends, bootstrap_servers, master, conf, limit)
    if json:
        for row in rows:
            show_json_line(dict(zip(columns, map(_plain, row), strict=True)))
    else:
        show_table(columns, [[_plain(each) for each in row] for row in rows])
    if len(rows) == limit:
        note(f"there may be more than {limit} rows: see --limit")


def _ask(
    query: str,
    topics: list[str],
    ends: "dict[TopicPartition, tuple[int, int]]",
    bootstrap: str,
    master: str | None,
    conf: list[str] | None,
    limit: int,
) -> tuple[list[str], list[Any]]:
    from moldau.cli.options import pairs
    from moldau.pipelines.reasons import short_reason
    from moldau.pipelines.requirements import PipelineError, require_spark
    from moldau.pipelines.running import hush
    from moldau.pipelines.tables import Tables, sample_starts

    require_spark()
    from pyspark_moldau import session

    hush()
    settings = {"spark.log.level": "ERROR", **pairs(conf, "--conf")}
    spark = session("moldau-sql", master=master, settings=settings)
    try:
        for topic in topics:
            own = {place: extent for place, extent in ends.items() if place.topic == topic}
            Tables(bootstrap_servers=bootstrap).make(spark, topic, sample_starts(own))
        answer = spark.sql(query)
        return list(answer.columns), [tuple(row) for row in answer.limit(limit).collect()]
    except Exception as error:
        raise PipelineError(short_reason(str(error))) from error


async def _extents(bootstrap: str) -> "dict[TopicPartition, tuple[int, int]]":
    from moldau.cli.connecting import connect_asynchronously
    from moldau.cli.positions import extents
    from moldau.client.words import Isolation
    from moldau.model.ids import TopicPartition

    async with connect_asynchronously(bootstrap) as client:
        views = [view for view in await client.describe_topics() if view.error is None and not view.is_internal]
        places = [TopicPartition(view.name, each.index) for view in views for each in view.partitions]
        known = await extents(client, places, Isolation.READ_COMMITTED)
        return {place: (each.start, each.end) for place, each in known.items()}


def _plain(value: Any) -> Any:
    """As JSON and tables have it."""
    match value:
        case datetime() | date():
            return value.isoformat()
        case Decimal():
            return str(value)
        case bytes() | bytearray():
            return bytes(value).decode(errors="replace")
        case dict():
            return {str(name): _plain(each) for name, each in value.items()}
        case list() | tuple():
            fields = getattr(value, "asDict", None)
            return _plain(fields()) if fields is not None else [_plain(each) for each in value]
        case _:
            return value
