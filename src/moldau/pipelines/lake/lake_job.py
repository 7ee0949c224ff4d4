"""`lake`: a topic as a table that any engine reads; each record exactly once, or the latest record of each key.

<table>/_moldau/schema      the columns of the values, shared by the tasks
<table>/_moldau/staging/    files between tasks and driver: rows of upserts, dead letters
<checkpoint>/lake-start.json   where the first batch starts: Spark stores only its end
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from moldau.client.blocking_client import BlockingClient
from moldau.pipelines.archive import begun, continued, query_of
from moldau.pipelines.flow import Flow, TopicSource
from moldau.pipelines.hadoop_files import local_path, read_text, write_text
from moldau.pipelines.job_runner import RunConfig, run_queries, run_work
from moldau.pipelines.lake.lake_sink import DeadLetters, LakeSink, never
from moldau.pipelines.lake.lake_table import LakeTable
from moldau.pipelines.lake.layout import OFFSET, OWN, PARTITION, Layout, Mode, ValueFormat, note_layout
from moldau.pipelines.lake.shared_schema import SharedSchema
from moldau.pipelines.requirements import PipelineError
from moldau.pipelines.restarted_query import RestartingQuery
from moldau.pipelines.run_folder import Run

START_FILE: Final = "lake-start.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeTopicSource(TopicSource):
    """A topic source whose rows describe the data files that its tasks wrote."""

    target: Mapping[str, str] = field(default_factory=dict)

    def read(self, spark: Any) -> Any:
        from moldau.pipelines.lake.lake_source import LakeSource

        spark.dataSource.register(LakeSource)
        reader = spark.read if self.is_bounded else spark.readStream
        return reader.format(LakeSource.name()).options(**self.read_options(), **self.target).load()


@dataclass(frozen=True, slots=True, kw_only=True)
class Lake:
    """The job: keep a table equal to a topic."""

    name: str
    source: TopicSource
    table: LakeTable
    folder: Path
    layout: Layout
    connect: Callable[[], BlockingClient]
    columns: str = ""
    letters: DeadLetters | None = None
    after: Callable[[Any], None] = never

    @property
    def topic(self) -> str:
        return self.source.topics[0]

    @property
    def shared(self) -> SharedSchema:
        return SharedSchema(str(self.folder / OWN / "schema"))

    @property
    def staging(self) -> Path:
        return self.folder / OWN / "staging" / self.name

    def run(self, config: RunConfig, run: Run) -> None:
        if self.source.is_bounded:
            run_work(self._write, config, run)
        else:
            run_queries([lambda spark: [self._start(spark, config)]], config, run)

    def flow(self, source: TopicSource) -> Flow:
        from moldau.pipelines.lake.lake_source import DATA, LAYOUT, SCHEMA_FILE, STAGING

        target = {
            DATA: str(self.table.data_folder),
            STAGING: str(self.staging),
            SCHEMA_FILE: self.shared.path,
            LAYOUT: self.layout.to_text(),
        }
        own = {each.name: getattr(source, each.name) for each in fields(source)}
        sink = LakeSink(
            table=self.table,
            layout=self.layout,
            staging=self.staging,
            shared=self.shared,
            letters=self.letters,
            after=self.after,
            bounded_writer=self._bounded_writer,
        )
        return Flow(job="lake", name=self.name, source=LakeTopicSource(**own, target=target), sink=sink)

    def _write(self, spark: Any) -> None:
        self._prepare(spark)
        self.flow(self.source).write(spark)

    @property
    def _bounded_writer(self) -> str:
        """Return the writer of a bounded run: the same for the same range of offsets."""
        limits = json.dumps([self.topic, self.source.starting, self.source.ending])
        return f"until-{hashlib.sha256(limits.encode()).hexdigest()[:32]}"

    def _start(self, spark: Any, config: RunConfig) -> Any:
        self._prepare(spark)
        checkpoint = config.checkpoint_place.rstrip("/")
        source = self._begun(spark, checkpoint)
        flow = self.flow(source)
        return RestartingQuery(partial(flow.start, spark, config.checkpoint_place, once=config.once))

    def _prepare(self, spark: Any) -> None:
        """Create folders and the table; note the columns that the table has."""
        if local_path(spark, str(self.folder)) is None:
            raise PipelineError(f"{self.folder} is not a local or mounted folder")
        shutil.rmtree(self.staging, ignore_errors=True)
        self.staging.mkdir(parents=True)
        note_layout(self.folder, self.layout)
        self._note_columns()
        if self.table.schema() is None:
            self.table.create(self.layout.schema(self._values_schema()))
        self.table.data_folder.mkdir(parents=True, exist_ok=True)

    def _note_columns(self) -> None:
        if self.columns:
            self.shared.extend(columns_of(self.columns))
        there = self.table.schema()
        if there is not None and self.layout.value is not ValueFormat.RAW:
            own = {each.name for each in self.layout.record_fields()}
            self.shared.extend(pa.schema([_plain(each) for each in there if each.name not in own]))

    def _values_schema(self) -> pa.Schema:
        return pa.schema([("value", pa.binary())]) if self.layout.is_raw else self.shared.read()

    def _begun(self, spark: Any, checkpoint: str) -> TopicSource:
        """Return the source with the start of its first run; a new checkpoint starts where the table ends."""
        with self.connect() as client:
            partitions = [each.index for each in client.describe_topic(self.topic).partitions]
        place = f"{checkpoint}/{START_FILE}"
        if query_of(spark, checkpoint) is not None:
            text = read_text(spark, place)
            return self.source if text is None else begun(self.source, text, partitions)
        ends = self._ends() if self.layout.mode is Mode.APPEND else {}
        source = continued(self.source, ends, partitions)
        write_text(spark, place, source.starting)
        return source

    def _ends(self) -> dict[int, int]:
        """Return the offset after the last record in the table, by partition."""
        ends: dict[int, int] = {}
        for rows in self.table.scan():
            found = rows.group_by([PARTITION]).aggregate([(OFFSET, "max")]).to_pylist()
            for each in found:
                partition = each[PARTITION]
                ends[partition] = max(ends.get(partition, 0), each[f"{OFFSET}_max"] + 1)
        return ends


def columns_of(text: str) -> pa.Schema:
    """Return the columns of a DDL text such as `price double, at timestamp`."""
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    from moldau.pipelines.lake.column_types import stored_fields

    try:
        schema = to_arrow_schema(StructType.fromDDL(text), timezone="UTC")
    except Exception as error:
        raise PipelineError(f"--columns {text}: {str(error).splitlines()[0]}") from error
    return pa.schema(stored_fields(schema))


def _plain(column: pa.Field) -> pa.Field:
    from moldau.pipelines.lake.column_types import stored_fields

    return stored_fields([pa.field(column.name, column.type)])[0]
