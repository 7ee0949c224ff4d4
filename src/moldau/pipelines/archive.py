"""`archive`: a topic as Parquet files, each record once, with all that is needed to restore it.

<root>/run=<query>/batch=<number>/partition=<p>/*.parquet   the records; a replayed batch replaces its own folder
<root>/_topic.json                                          partitions, settings, and where consumer groups were
<root>/_incoming/                                           batches being written; readers pass over it
<checkpoint>/archive-start.json                             where the query of the checkpoint began

A folder has one writer at a time, but not always the same one: streams of several names and bounded runs take turns. So
a query writes only what the folder does not hold when it begins.
"""

import inspect
import json
import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, Final, Self, TypeAlias

from moldau.client.blocking import BlockingClient
from moldau.client.groups import Groups
from moldau.client.words import ConfigSource, Resource, ResourceKind
from moldau.model.errors import KafkaError
from moldau.model.ids import TopicPartition
from moldau.pipelines.flow import Flow, SqlStep, TopicSource, offsets_text
from moldau.pipelines.folders import Run
from moldau.pipelines.lakes import read_text, replace_folder, write_text
from moldau.pipelines.persistent import PersistentQuery
from moldau.pipelines.reasons import short_reason
from moldau.pipelines.requirements import PipelineError
from moldau.pipelines.running import Conditions, run_queries, run_work

log = logging.getLogger("moldau.pipelines")

Connect: TypeAlias = Callable[[], BlockingClient]

TOPIC_FILE: Final = "_topic.json"
START_FILE: Final = "archive-start.json"
EARLIEST: Final = "earliest"
OFFSET_MAX: Final = 2**63 - 1
RECORDS: Final = "select key, value, headers, timestamp, timestampType, offset, partition from input"
SCHEMA: Final = (
    "key binary, value binary, headers array<struct<key: string, value: binary>>, timestamp timestamp, "
    "timestampType int, offset bigint, run string, batch bigint, partition int"
)
_GROUPS_EVERY_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedTopic:
    """What an archive knows of its topic beside the records. Offsets of groups are by partition, as text.

    `archivers` are the groups in which those who wrote it show their progress: they are no readers of the topic.
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


def look_at(client: BlockingClient, topic: str, at_ms: int) -> ArchivedTopic:
    """The topic as it is now."""
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
    """Group → partition → offset."""
    groups = Groups(client.asynchronous)
    found: dict[str, dict[str, int]] = {}
    for listed in client.run(groups.all()):
        offsets = client.run(groups.offsets(listed.group))
        mine = {str(place.partition): offset for place, offset in sorted(offsets.items()) if place.topic == topic}
        if mine:
            found[listed.group] = mine
    return found


def archive_batch(frame: Any, batch: int, root: str, run: str, by: str) -> None:
    """All rows of a batch, whole or not at all, in the place of whatever an earlier try has left there."""
    incoming = f"{root}/_incoming/{run}-{batch}"
    frame.write.mode("overwrite").partitionBy(by).parquet(incoming)
    replace_folder(frame.sparkSession, incoming, f"{root}/run={run}/batch={batch}")


def nothing(spark: Any) -> None:
    """Nobody waits for a batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What others have written to a folder before a query begins, by partition: it is not written again.

    The last batch of the query itself may come again, for nobody knows whether it was noted, and replaces its first
    copy. Others may have gone on before and after it: then its place is between them.
    """

    ends: Mapping[int, int] = field(default_factory=dict)  # after the last record of others
    last_batch: int = -1  # of the query
    floors: Mapping[int, int] = field(default_factory=dict)  # after the last record of others before that batch
    ceilings: Mapping[int, int] = field(default_factory=dict)  # the first record of others after it

    def lacks(self, batch: int) -> str:
        """A condition: the record of this batch is not in the folder, unless by an earlier try."""
        if batch > self.last_batch:
            return f"offset >= {by_partition(self.ends, 0)}"
        if batch < self.last_batch:
            raise PipelineError(
                f"batch {batch} comes again, but the archive has batch {self.last_batch} of the same query: its "
                "checkpoint is an old copy; choose another --name"
            )
        return f"offset >= {by_partition(self.floors, 0)} and offset < {by_partition(self.ceilings, OFFSET_MAX)}"


def by_partition(offsets: Mapping[int, int], otherwise: int) -> str:
    """The offset for a row's partition, as SQL has it."""
    cases = " ".join(f"when {partition} then {offset}" for partition, offset in sorted(offsets.items()))
    return f"case partition {cases} else {otherwise} end" if cases else str(otherwise)


@dataclass(frozen=True, slots=True)
class ArchiveSink:
    """A folder with a folder for each batch, in which rows lie by a column. `after` a batch is in its place, call.

    What others have written, `held`, is not written again; None: there are no others.
    """

    root: str
    by: str
    after: Callable[[Any], None] = nothing
    held: Contents | None = None

    def stream(self, frame: Any) -> Any:
        return frame.writeStream.foreachBatch(self._take)

    def write(self, frame: Any) -> None:
        archive_batch(frame, 0, self.root, uuid.uuid4().hex, self.by)
        self.after(frame.sparkSession)

    def code(self, *, is_bounded: bool) -> str:
        functions = f"{inspect.getsource(replace_folder)}\n\n{inspect.getsource(archive_batch)}"
        head = f"from typing import Any\n\n\n{functions}\n\n"
        if is_bounded:
            return f"{head}import uuid\n\narchive_batch(frame, 0, {self.root!r}, uuid.uuid4().hex, {self.by!r})\n"
        return (
            f"{head}def take(frame, batch):\n"
            '    run = frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")\n'
            f"    archive_batch(frame, batch, {self.root!r}, run, {self.by!r})\n\n\n"
            "writer = frame.writeStream.foreachBatch(take)\n"
        )

    def _take(self, frame: Any, batch: int) -> None:
        # A new checkpoint is a new query: it must not take the folders of an older one for its own.
        run = frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        if not run:
            raise RuntimeError("Spark does not say which query this batch belongs to.")
        rows = frame if self.held is None else frame.where(self.held.lacks(batch))
        archive_batch(rows, batch, self.root, run, self.by)
        self.after(frame.sparkSession)


def records_of(spark: Any, root: str) -> Any:
    """The archive as a DataFrame."""
    return spark.read.schema(SCHEMA).parquet(root)


def contents_of(spark: Any, root: str, query: str | None) -> Contents:
    """What the archive holds that is not of the query with this id; None: of a new one."""
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
    """The id of the query that goes on from a checkpoint, wherever that is; None if there is none yet."""
    text = read_text(spark, f"{checkpoint}/metadata")
    return None if text is None else str(json.loads(text)["id"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """The job: a topic into a folder, from where the folder ends."""

    name: str
    root: str
    source: TopicSource
    connect: Connect

    @property
    def topic(self) -> str:
        return self.source.topics[0]

    def flow(self, source: TopicSource, after: Callable[[Any], None] = nothing, held: Contents | None = None) -> Flow:
        sink = ArchiveSink(self.root, "partition", after, held)
        return Flow(job="archive", name=self.name, source=source, steps=(SqlStep(RECORDS),), sink=sink)

    def run(self, conditions: Conditions, run: Run) -> None:
        if self.source.is_bounded:
            run_work(self._write, conditions, run)
        else:
            run_queries([lambda spark: [self._start(spark, conditions)]], conditions, run, finish=self._note_topic)

    def _write(self, spark: Any) -> None:
        partitions = self._checked(spark, is_resumed=False)
        ends = contents_of(spark, self.root, None).ends
        self.flow(continued(self.source, ends, partitions)).write(spark)
        self._note_topic(spark)

    def _start(self, spark: Any, conditions: Conditions) -> Any:
        checkpoint = conditions.checkpoint_place.rstrip("/")
        query = query_of(spark, checkpoint)
        partitions = self._checked(spark, is_resumed=query is not None)
        held = contents_of(spark, self.root, query)
        source = self._begun(spark, f"{checkpoint}/{START_FILE}", held, partitions, is_resumed=query is not None)
        flow = self.flow(source, Seldom(self._note_topic), held)
        return PersistentQuery(partial(flow.start, spark, conditions.checkpoint_place, once=conditions.once))

    def _checked(self, spark: Any, *, is_resumed: bool) -> list[int]:
        """The topic's partitions, if the archive is of this topic, or a new one."""
        text = read_text(spark, f"{self.root}/{TOPIC_FILE}")
        if text is None:
            if is_resumed:
                raise PipelineError(f"{self.root} is gone, but {self.name} would go on in the middle; choose --name")
            self._note_topic(spark)
        with self.connect() as client:
            there = client.describe_topic(self.topic)
        known = None if text is None else ArchivedTopic.of_text(text)
        if known is not None and (known.topic, known.topic_id) != (self.topic, there.topic_id.hex()):
            raise PipelineError(
                f"{self.root} is the archive of another topic {known.topic} (id {known.topic_id}); choose another --to"
            )
        return [each.index for each in there.partitions]

    def _begun(self, spark: Any, place: str, held: Contents, partitions: list[int], *, is_resumed: bool) -> TopicSource:
        """A query begins where the archive ends, and at the same place again until its first batch is done.

        Of that batch Spark notes the end only: with a later start, less of it would come again than it had before.
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
            topic = look_at(client, self.topic, int(time.time() * 1000))
        write_text(spark, place, replace(topic, archivers=sorted({*earlier, *own})).to_text())


def continued(source: TopicSource, ends: Mapping[int, int], partitions: list[int]) -> TopicSource:
    """The source from where an archive ends; from where it was told to begin, for partitions that are new to it."""
    if not ends:
        return source
    topic = source.topics[0]
    asked = {} if source.starting == EARLIEST else json.loads(source.starting)[topic]
    starts = {
        TopicPartition(topic, each): ends[each] if each in ends else asked.get(str(each), -2) for each in partitions
    }
    limits = {} if source.ending is None else json.loads(source.ending)[topic]
    finishes = {place: max(limits.get(str(place.partition), 0), start) for place, start in starts.items()}
    ending = None if source.ending is None else offsets_text(finishes)
    return replace(source, starting=offsets_text(starts), ending=ending)


def begun(source: TopicSource, starting: str, partitions: list[int]) -> TopicSource:
    """The source from where it once began; from the earliest record of partitions that came later."""
    if starting == EARLIEST:
        return replace(source, starting=starting)
    starts = json.loads(starting)[source.topics[0]]
    return continued(source, {int(each): offset for each, offset in starts.items()}, partitions)


class Seldom:
    """Calls at most once a minute. A cluster that does not answer just then is no reason to end: the next may."""

    def __init__(self, call: Callable[[Any], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._call, self._clock = call, clock
        self._next_s = clock() + _GROUPS_EVERY_S

    def __call__(self, spark: Any) -> None:
        if self._clock() >= self._next_s:
            self._next_s = self._clock() + _GROUPS_EVERY_S
            try:
                self._call(spark)
            except (KafkaError, OSError) as error:
                log.warning("settings and groups could not be noted: %s", short_reason(str(error)))
