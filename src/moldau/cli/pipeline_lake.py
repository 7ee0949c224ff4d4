"""`moldau pipeline run lake` and `moldau pipeline maintain`: a topic as a Delta, Iceberg or Parquet table."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from moldau.cli.completion import complete_topics
from moldau.cli.connection_options import Connection
from moldau.cli.errors import usage_error
from moldau.cli.option_groups import expand_option_groups
from moldau.cli.options import Json, pairs
from moldau.cli.output import note, show_json, show_table
from moldau.cli.pipeline_option_groups import JobOptions, ReadOptions
from moldau.cli.pipeline_options import translate_pipeline_errors
from moldau.model.units import MiB

if TYPE_CHECKING:
    from moldau.pipelines.lake.lake_table import LakeTable
    from moldau.pipelines.lake.layout import Layout
    from moldau.pipelines.lake.maintenance import Maintenance

FORMATS: Final = ("delta", "iceberg", "parquet")
_UNIT_S: Final = {"milliseconds": 0.001, "seconds": 1, "minutes": 60, "hours": 3600, "days": 86_400, "weeks": 604_800}

Format = Annotated[
    str, typer.Option("--to", metavar="FORMAT", show_default=False, help=f"Table format: {', '.join(FORMATS)}.")
]
TablePlace = Annotated[
    str,
    typer.Option("--table", metavar="PATH", show_default=False, help="Folder of the table; with --catalog, its name."),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOptions:
    """Where a table is, how large its files are, and how it is maintained."""

    to: Format
    table: TablePlace
    catalog: Annotated[
        str | None,
        typer.Option(
            "--catalog", metavar="URI", help="Iceberg catalog: sqlite:///…, http(s)://… (REST), thrift://… (Hive)."
        ),
    ] = None
    catalog_option: Annotated[
        list[str] | None,
        typer.Option("--catalog-option", metavar="KEY=VALUE", help="A setting of the catalog; may be repeated."),
    ] = None
    file_size: Annotated[int, typer.Option("--file-size", min=1, metavar="MIB", help="Target size of data files.")] = (
        128
    )
    keep: Annotated[
        str, typer.Option("--keep", metavar="SPAN", help="Maintenance keeps the table's versions this long.")
    ] = "7 days"
    orphan_age: Annotated[
        str, typer.Option("--orphan-age", metavar="SPAN", help="Maintenance deletes unknown files of this age.")
    ] = "1 day"

    def open(self, layout: "Layout") -> "LakeTable":
        from moldau.pipelines.lake.tables import TableFormat, open_table

        if self.to not in FORMATS:
            raise usage_error(f"--to {self.to} is not a table format; choose {', '.join(FORMATS)}")
        with translate_pipeline_errors():
            options = pairs(self.catalog_option, "--catalog-option")
            return open_table(TableFormat(self.to), self.table, layout, self.catalog, options)

    def folder(self, table: "LakeTable") -> Path:
        """Return the folder for what the tasks share."""
        from moldau.pipelines.lake.tables import folder_of

        with translate_pipeline_errors():
            return folder_of(self.table, self.catalog) or table.data_folder.parent

    def maintenance(self) -> "Maintenance":
        from moldau.pipelines.lake.maintenance import Maintenance

        keep_s, orphan_s = span_s(self.keep, "--keep"), span_s(self.orphan_age, "--orphan-age")
        return Maintenance(file_bytes=self.file_size * MiB, keep_s=keep_s, orphan_s=orphan_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowOptions:
    """The columns of a table, its partitions, and which rows it has."""

    value: Annotated[
        str, typer.Option("--value", metavar="FORMAT", help="raw: one binary column; json, registry: columns.")
    ] = "raw"
    registry: Annotated[
        str | None,
        typer.Option("--registry", metavar="URL", help="Schema registry of Avro, Protobuf and JSON Schema values."),
    ] = None
    columns: Annotated[
        str, typer.Option("--columns", metavar="DDL", help="Types of fields, such as 'price double, at timestamp'.")
    ] = ""
    time: Annotated[
        str | None,
        typer.Option("--time", metavar="FIELD", help="Event time: ISO 8601 or milliseconds. Default: the timestamp."),
    ] = None
    partition_by: Annotated[
        list[str] | None,
        typer.Option("--partition-by", metavar="COLUMN", help="day or hour of the event time, or a field; repeatable."),
    ] = None
    mode: Annotated[
        str, typer.Option("--mode", metavar="MODE", help="append: every record; upsert: the latest of each key.")
    ] = "append"
    new_fields: Annotated[
        str, typer.Option("--new-fields", metavar="POLICY", help="Fields without a column: add, ignore or stop.")
    ] = "add"

    def layout(self, place: TableOptions) -> "Layout":
        from moldau.pipelines.lake.layout import Layout, Mode, ValueFormat
        from moldau.pipelines.lake.values import NewFields

        if (self.value == "registry") != bool(self.registry):
            raise usage_error("--value registry and --registry URL belong together")
        if self.time is not None and self.value == "raw":
            raise usage_error(f"--time {self.time} names a field of the value, but --value is raw; add --value json")
        return Layout(
            value=_member(ValueFormat, self.value, "--value"),
            mode=_member(Mode, self.mode, "--mode"),
            new_fields=_member(NewFields, self.new_fields, "--new-fields").value,
            time=self.time,
            registry=self.registry or "",
            by=tuple(self.partition_by or ()),
            has_hidden_partitions=place.to == "iceberg",
            file_bytes=place.file_size * MiB,
        )


@expand_option_groups
def lake(
    topic: Annotated[
        str, typer.Argument(metavar="TOPIC", show_default=False, autocompletion=complete_topics, help="Topic to read.")
    ],
    place: TableOptions,
    reading: ReadOptions,
    running: JobOptions,
    connection: Connection,
    shape: RowOptions,
    dead_letters: Annotated[
        str | None,
        typer.Option("--dead-letters", metavar="TOPIC", help="Topic for records that do not fit the table."),
    ] = None,
    maintain_every: Annotated[
        str | None, typer.Option("--maintain-every", metavar="SPAN", help="Maintain the table at this interval.")
    ] = None,
) -> None:
    """Keep a Delta, Iceberg or Parquet table equal to a topic, exactly once."""
    from moldau.cli.cluster_client import connect
    from moldau.pipelines.lake.lake_job import Lake
    from moldau.pipelines.lake.lake_sink import DeadLetters
    from moldau.pipelines.run_folder import new_run

    if dead_letters == topic:
        raise usage_error(f"--dead-letters {topic} is read too: the job would never end")
    options, servers = running.options(f"lake-{topic}"), connection.connect_with_own_client()
    if options.eject is not None:
        raise usage_error("--eject is not supported by lake: its tasks write the files, not Spark")
    layout = shape.layout(place)
    table = place.open(layout)
    letters = {**connection.options, "kafka.bootstrap.servers": connection.servers, "topic": dead_letters or ""}
    with translate_pipeline_errors():
        job = Lake(
            name=options.name,
            source=reading.source(connection, [topic], reading.look_up(connection, [topic]), options.name),
            table=table,
            folder=place.folder(table),
            layout=layout,
            connect=lambda: connect(servers),
            columns=shape.columns,
            letters=DeadLetters(source_topic=topic, options=letters) if dead_letters else None,
            **_scheduled(table, place, maintain_every),
        )
        identity = {"topic": topic, "to": place.to, "table": place.table, "mode": shape.mode}
        job.run(options.run_config(), new_run("lake", identity, options.master or "local[*]"))
    note(f"{options.name} is done: {place.table}")


@expand_option_groups
def maintain(place: TableOptions, json: Json = False) -> None:
    """Combine small files of a table, expire its old versions, and delete files that no version refers to."""
    from dataclasses import replace

    from moldau.pipelines.lake.layout import Layout, stored_layout

    with translate_pipeline_errors():
        folder = place.folder(place.open(Layout(has_hidden_partitions=place.to == "iceberg")))
        layout = replace(stored_layout(folder), file_bytes=place.file_size * MiB)
        done = place.maintenance().run(place.open(layout))
    found = {
        "files_before": done.compaction.removed,
        "files_after": done.compaction.added,
        "versions_expired": done.expired,
        "orphans_deleted": done.orphans,
    }
    if json:
        show_json(found)
    else:
        show_table(("", ""), [(name.replace("_", " "), count) for name, count in found.items()])


def _member(kinds: Any, text: str, option: str) -> Any:
    try:
        return kinds(text)
    except ValueError:
        raise usage_error(f"{option} {text}: choose {', '.join(each.value for each in kinds)}") from None


def _scheduled(table: "LakeTable", place: TableOptions, every: str | None) -> dict[str, Callable[[Any], None]]:
    from moldau.pipelines.lake.maintenance import ScheduledMaintenance

    settings = place.maintenance()
    return {} if every is None else {"after": ScheduledMaintenance(table, settings, span_s(every, "--maintain-every"))}


def span_s(text: str, option: str) -> float:
    """Parse a duration to seconds."""
    from moldau.pipelines.fields import span_of

    with translate_pipeline_errors():
        count, _, unit = span_of(text, option, may_be_none=True).partition(" ")
    return int(count) * _UNIT_S[unit]
