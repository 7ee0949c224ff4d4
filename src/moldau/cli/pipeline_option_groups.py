"""Option groups of pipeline jobs: how to run a job, and what it reads."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Final

import typer

from moldau.cli import pipeline_options as given
from moldau.cli.completion import complete_topics
from moldau.cli.connection_options import Connection
from moldau.cli.pipeline_offsets import OffsetRange, resolve_offsets
from moldau.cli.pipeline_options import RunOptions

if TYPE_CHECKING:
    from moldau.pipelines.flow import TopicSource

BATCH_ROWS: Final = 500_000

Topic = Annotated[
    str,
    typer.Option(
        "--topic", "-t", metavar="TOPIC", show_default=False, help="The topic to read.", autocompletion=complete_topics
    ),
]
Topics = Annotated[
    list[str],
    typer.Option(
        "--topic",
        "-t",
        metavar="TOPIC",
        show_default=False,
        help="A topic to read; may be repeated.",
        autocompletion=complete_topics,
    ),
]
To = Annotated[str, typer.Option("--to", metavar="TOPIC", show_default=False, help="The topic to write.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOptions:
    """Name and directory of a pipeline, and where Spark runs it."""

    name: given.Name = None
    folder: given.Root = None
    master: given.Master = None
    conf: given.Conf = None

    def options(self, name: str) -> RunOptions:
        """Return the options under the given name, or else this one."""
        return RunOptions(root=self.folder, name=self.name or name, master=self.master, conf=self.conf)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions(SessionOptions):
    """How to run a job that can be a stream."""

    once: given.Once = False
    checkpoint: given.Checkpoint = None
    eject: given.Eject = None
    json: given.JsonLines = False

    def options(self, name: str) -> RunOptions:
        plain = SessionOptions.options(self, name)
        return replace(plain, once=self.once, checkpoint=self.checkpoint, json=self.json, eject=self.eject)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """The range of offsets that a job reads, and its batch size."""

    start: given.From = "start"
    until: given.Until = None
    rows_per_batch: given.RowsPerBatch = BATCH_ROWS
    allow_data_loss: Annotated[
        bool, typer.Option("--allow-data-loss", help="Continue if records were deleted before they were read.")
    ] = False

    def look_up(self, connection: Connection, topics: Sequence[str]) -> OffsetRange:
        return resolve_offsets(connection, list(topics), self.start, self.until)

    def source(self, connection: Connection, topics: Sequence[str], places: OffsetRange, group: str) -> "TopicSource":
        from moldau.pipelines.flow import TopicSource

        loss: Mapping[str, str] = {"failOnDataLoss": "false"} if self.allow_data_loss else {}
        return TopicSource(
            bootstrap_servers=connection.servers,
            topics=tuple(topics),
            starting=places.starting,
            ending=places.ending,
            group=group,
            rows_per_batch_max=self.rows_per_batch,
            options={**connection.options, **loss},
        )
