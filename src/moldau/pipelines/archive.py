"""`archive`: copies a topic to Parquet files exactly once, with everything that `restore` needs.

<root>/run=<query>/batch=<number>/partition=<p>/*.parquet   the records; a replayed batch replaces its own folder
<root>/_topic.json                                          partitions, settings, and offsets of consumer groups
<root>/_incoming/                                           staging folder; readers skip names with an underscore
<checkpoint>/archive-start.json                             the starting offsets of the checkpoint's query

A folder has one writer at a time, but writers change: streams of several names and bounded runs may take turns. So a
query writes only the records that the folder lacks when the query starts.
"""

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from typing import Any, Final, Self, TypeAlias

from moldau.client.blocking_client import BlockingClient
from moldau.client.groups import Groups
from moldau.client.types import ConfigSource, Resource, ResourceKind
from moldau.model.errors import KafkaError
from moldau.model.ids import TopicPartition
from moldau.pipelines.archive_files import ParquetFileSink, ParquetFileSource, StagingFolder
from moldau.pipelines.archive_sink import OFFSET_MAX, RECORD, ArchiveSink, Contents, by_partition, do_nothing
from moldau.pipelines.error_summary import short_reason
from moldau.pipelines.flow import Flow, SqlStep, TopicSource, offsets_text
from moldau.pipelines.hadoop_files import read_text, write_text
from moldau.pipelines.job_runner import RunConfig, run_queries, run_work
from moldau.pipelines.requirements import PipelineError
from moldau.pipelines.restarted_query import RestartingQuery
from moldau.pipelines.run_folder import Run

log = logging.getLogger("moldau.pipelines")

Connect: TypeAlias = Callable[[], BlockingClient]

TOPIC_FILE: Final = "_topic.json"
START_FILE: Final = "archive-start.json"
EARLIEST: Final = "earliest"
RECORDS: Final = "select key, value, headers, timestamp, timestampType, offset, partition from input"
SCHEMA: Final = f"{RECORD}, run string, batch bigint, partition int"
_GROUPS_EVERY_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedTopic:
    """The metadata in an archive. Group offsets are keyed by the partition number as text.

    `archivers` are the groups through which archive jobs report their own progress; they are not readers to restore.
    """

    topic: str
    topic_id: str
    partitions: int
    configs: Mapping[str, str] = field(default_factory=dict)
    groups: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    at_ms: int = 0
    archivers: Sequence[str] = field(default_factory=list)

    def to_text(self) -> str:
        return json.dumps(asdict(self), indent=2) + "\n"

    @classmethod
    def of_text(cls, text: str) -> Self:
        return cls(**json.loads(text))


def describe_topic(client: BlockingClient, topic: str, at_ms: int) -> ArchivedTopic:
    """Return the current metadata of a topic."""
    view = client.describe_topic(topic)
    entries = client.describe_configs(Resource(ResourceKind.TOPIC, topic))
    return ArchivedTopic(
        topic=topic,
        topic_id=view.topic_id.hex(),
        partitions=len(view.partitions),
        configs={each.name: each.value or "" for each in entries if each.source == ConfigSource.TOPIC},
        groups=committed(client, topic),
        at_ms=at_ms,
    )


def committed(client: BlockingClient, topic: str) -> dict[str, dict[str, int]]:
    """Return the committed offsets: group → partition → offset."""
    groups = Groups(client.asynchronous)
    found: dict[str, dict[str, int]] = {}
    for listed in client.run(groups.all()):
        offsets = client.run(groups.offsets(listed.group))
        mine = {str(place.partition): offset for place, offset in sorted(offsets.items()) if place.topic == topic}
        if mine:
            found[listed.group] = mine
    return found


def records_of(spark: Any, root: str) -> Any:
    """Return the archived records as a DataFrame."""
    return spark.read.schema(SCHEMA).parquet(root)


def contents_of(spark: Any, root: str, query: str | None) -> Contents:
    """Return what other queries wrote to the archive; `query` is the id of this one, None if it is new."""
    from pyspark.sql.functions import expr

    records = records_of(spark, root)
    own = records.where(f"run = '{query or ''}'")
    last = own.agg(expr("max(batch) as last")).first()["last"]
    firsts = own.where(f"batch = {-1 if last is None else last}").groupBy("partition").agg(expr("min(offset) as first"))
    first = by_partition({row["partition"]: row["first"] for row in firsts.collect()}, OFFSET_MAX)
    others = records.where(f"run != '{query or ''}'").groupBy("partition")
    found = others.agg(
        expr("max(offset) + 1 as end"),
        expr(f"max(offset) filter (where offset < {first}) + 1 as floor"),
        expr(f"min(offset) filter (where offset > {first}) as ceiling"),
    ).collect()
    return Contents(
        ends={row["partition"]: row["end"] for row in found},
        last_batch=-1 if last is None else last,
        floors={row["partition"]: row["floor"] for row in found if row["floor"] is not None},
        ceilings={row["partition"]: row["ceiling"] for row in found if row["ceiling"] is not None},
    )


def query_of(spark: Any, checkpoint: str) -> str | None:
    """Return the query id stored in a checkpoint, on any file system; None without a checkpoint."""
    text = read_text(spark, f"{checkpoint}/metadata")
    return None if text is None else str(json.loads(text)["id"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """The job: append a topic to a folder, starting at the end of the folder's contents."""

    name: str
    root: str
    source: TopicSource
    connect: Connect

    @property
    def topic(self) -> str:
        return self.source.topics[0]

    def flow(
        self, source: TopicSource, after: Callable[[Any], None] = do_nothing, held: Contents | None = None
    ) -> Flow:
        sink = ArchiveSink(self.root, "partition", after, held)
        return Flow(job="archive", name=self.name, source=source, steps=(SqlStep(RECORDS),), sink=sink)

    def _parquet_flow(
        self, spark: Any, source: TopicSource, after: Callable[[Any], None] = do_nothing, held: Contents | None = None
    ) -> Flow:
        """Return a flow whose tasks write the Parquet files directly, if the folder is local."""
        incoming = StagingFolder.if_local(spark, self.root)
        if incoming is None:
            return self.flow(source, after, held)
        parquet = ParquetFileSource(
            **{each.name: getattr(source, each.name) for each in fields(source)}, incoming=incoming
        )
        sink = ParquetFileSink(self.root, "partition", after, held, incoming=incoming)
        return Flow(job="archive", name=self.name, source=parquet, sink=sink)

    def run(self, config: RunConfig, run: Run) -> None:
        if self.source.is_bounded:
            run_work(self._write, config, run)
        else:
            run_queries([lambda spark: [self._start(spark, config)]], config, run, finish=self._note_topic)

    def _write(self, spark: Any) -> None:
        partitions = self._checked(spark, is_resumed=False)
        ends = contents_of(spark, self.root, None).ends
        self._parquet_flow(spark, continued(self.source, ends, partitions)).write(spark)
        self._note_topic(spark)

    def _start(self, spark: Any, config: RunConfig) -> Any:
        checkpoint = config.checkpoint_place.rstrip("/")
        query = query_of(spark, checkpoint)
        partitions = self._checked(spark, is_resumed=query is not None)
        held = contents_of(spark, self.root, query)
        source = self._begun(spark, f"{checkpoint}/{START_FILE}", held, partitions, is_resumed=query is not None)
        flow = self._parquet_flow(spark, source, RateLimiter(self._note_topic), held)
        return RestartingQuery(partial(flow.start, spark, config.checkpoint_place, once=config.once))

    def _checked(self, spark: Any, *, is_resumed: bool) -> list[int]:
        """Return the topic's partitions; reject an archive of another topic."""
        text = read_text(spark, f"{self.root}/{TOPIC_FILE}")
        if text is None:
            if is_resumed:
                raise PipelineError(
                    f"{self.root} is missing, but the checkpoint of {self.name} is ahead of it; choose another --name"
                )
            self._note_topic(spark)
        with self.connect() as client:
            there = client.describe_topic(self.topic)
        known = None if text is None else ArchivedTopic.of_text(text)
        if known is not None and (known.topic, known.topic_id) != (self.topic, there.topic_id.hex()):
            raise PipelineError(
                f"{self.root} archives another topic: {known.topic} (id {known.topic_id}); choose another --to"
            )
        return [each.index for each in there.partitions]

    def _begun(self, spark: Any, place: str, held: Contents, partitions: list[int], *, is_resumed: bool) -> TopicSource:
        """Start where the archive ends, and keep that start until the first batch is committed.

        Spark stores only the end of the first batch: with a later start, a replay would hold fewer records.
        """
        if not is_resumed:
            source = continued(self.source, held.ends, partitions)
            write_text(spark, place, source.starting)
            return source
        text = read_text(spark, place)
        return self.source if text is None else begun(self.source, text, partitions)

    def _note_topic(self, spark: Any) -> None:
        place = f"{self.root}/{TOPIC_FILE}"
        text = read_text(spark, place)
        earlier = [] if text is None else ArchivedTopic.of_text(text).archivers
        own = [] if self.source.is_bounded or self.source.group is None else [self.source.group]
        with self.connect() as client:
            topic = describe_topic(client, self.topic, int(time.time() * 1000))
        write_text(spark, place, replace(topic, archivers=sorted({*earlier, *own})).to_text())


def continued(source: TopicSource, ends: Mapping[int, int], partitions: list[int]) -> TopicSource:
    """Start at the end of the archive; partitions that it lacks start at the requested offsets."""
    if not ends:
        return source
    topic = source.topics[0]
    requested = {} if source.starting == EARLIEST else json.loads(source.starting)[topic]
    starts = {
        TopicPartition(topic, each): ends[each] if each in ends else requested.get(str(each), -2) for each in partitions
    }
    limits = {} if source.ending is None else json.loads(source.ending)[topic]
    finishes = {place: max(limits.get(str(place.partition), 0), start) for place, start in starts.items()}
    ending = None if source.ending is None else offsets_text(finishes)
    return replace(source, starting=offsets_text(starts), ending=ending)


def begun(source: TopicSource, starting: str, partitions: list[int]) -> TopicSource:
    """Restore the original starting offsets; partitions added since start at their earliest record."""
    if starting == EARLIEST:
        return replace(source, starting=starting)
    starts = json.loads(starting)[source.topics[0]]
    return continued(source, {int(each): offset for each, offset in starts.items()}, partitions)


class RateLimiter:
    """Calls a function at most once a minute; a failed call is logged and repeated a minute later."""

    def __init__(self, call: Callable[[Any], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._call, self._clock = call, clock
        self._next_s = clock() + _GROUPS_EVERY_S

    def __call__(self, spark: Any) -> None:
        if self._clock() >= self._next_s:
            self._next_s = self._clock() + _GROUPS_EVERY_S
            try:
                self._call(spark)
            except (KafkaError, OSError) as error:
                log.warning("archive metadata not updated, retrying in a minute: %s", short_reason(str(error)))
