"""`archive`: a topic as Parquet files, each record once, with all that is needed to restore it.

<root>/run=<query>/batch=<number>/partition=<p>/*.parquet   the records; a replayed batch replaces its own folder
<root>/_topic.json                                          partitions, settings, and where consumer groups were
<root>/_incoming/                                           batches being written; readers pass over it
"""

import inspect
import json
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, Final, Self, TypeAlias

from moldau.client.blocking import BlockingClient
from moldau.client.groups import Groups
from moldau.client.words import ConfigSource, Resource, ResourceKind
from moldau.model.ids import TopicPartition
from moldau.pipelines.flow import Flow, SqlStep, TopicSource, offsets_text
from moldau.pipelines.folders import Run
from moldau.pipelines.lakes import read_text, replace_folder, write_text
from moldau.pipelines.persistent import PersistentQuery
from moldau.pipelines.requirements import PipelineError
from moldau.pipelines.running import Conditions, run_queries, run_work

Connect: TypeAlias = Callable[[], BlockingClient]

TOPIC_FILE: Final = "_topic.json"
RECORDS: Final = "select key, value, headers, timestamp, timestampType, offset, partition from input"
SCHEMA: Final = (
    "key binary, value binary, headers array<struct<key: string, value: binary>>, timestamp timestamp, "
    "timestampType int, offset bigint, run string, batch bigint, partition int"
)
_GROUPS_EVERY_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedTopic:
    """What an archive knows of its topic beside the records. Offsets of groups are by partition, as text."""

    topic: str
    topic_id: str
    partitions: int
    configs: Mapping[str, str] = field(default_factory=dict)
    groups: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    at_ms: int = 0

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


@dataclass(frozen=True, slots=True)
class ArchiveSink:
    """A folder with a folder for each batch, in which rows lie by a column. `after` a batch is in its place, call."""

    root: str
    by: str
    after: Callable[[Any], None] = nothing

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
        archive_batch(frame, batch, self.root, run, self.by)
        self.after(frame.sparkSession)


def records_of(spark: Any, root: str) -> Any:
    """The archive as a DataFrame."""
    return spark.read.schema(SCHEMA).parquet(root)


def archived_ends(spark: Any, root: str) -> dict[int, int]:
    """Partition → the offset after the last record that is in the archive."""
    ends = records_of(spark, root).groupBy("partition").agg({"offset": "max"}).collect()
    return {row["partition"]: row["max(offset)"] + 1 for row in ends}


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

    def flow(self, source: TopicSource, after: Callable[[Any], None] = nothing) -> Flow:
        sink = ArchiveSink(self.root, "partition", after)
        return Flow(job="archive", name=self.name, source=source, steps=(SqlStep(RECORDS),), sink=sink)

    def run(self, conditions: Conditions, run: Run) -> None:
        if self.source.is_bounded:
            run_work(self._write, conditions, run)
        else:
            run_queries([lambda spark: [self._start(spark, conditions)]], conditions, run, finish=self._note_topic)

    def _write(self, spark: Any) -> None:
        self.flow(self._prepared(spark, is_resumed=False)).write(spark)
        self._note_topic(spark)

    def _start(self, spark: Any, conditions: Conditions) -> Any:
        source = self._prepared(spark, is_resumed=conditions.folder.has_checkpoint)
        flow = self.flow(source, after=Seldom(self._note_topic))
        return PersistentQuery(partial(flow.start, spark, conditions.checkpoint_place, once=conditions.once))

    def _prepared(self, spark: Any, *, is_resumed: bool) -> TopicSource:
        """Check that the archive is of this topic, and go on where it ends."""
        text = read_text(spark, f"{self.root}/{TOPIC_FILE}")
        if text is None:
            if is_resumed:
                raise PipelineError(f"{self.root} is gone, but {self.name} would go on in the middle; choose --name")
            self._note_topic(spark)
            return self.source
        known = ArchivedTopic.of_text(text)
        with self.connect() as client:
            there = client.describe_topic(self.topic)
        if known.topic != self.topic or known.topic_id != there.topic_id.hex():
            raise PipelineError(
                f"{self.root} is the archive of another topic {known.topic} (id {known.topic_id}); choose another --to"
            )
        if is_resumed:
            return self.source  # the checkpoint knows
        ends = archived_ends(spark, self.root)
        return continued(self.source, ends, [each.index for each in there.partitions])

    def _note_topic(self, spark: Any) -> None:
        with self.connect() as client:
            topic = look_at(client, self.topic, int(time.time() * 1000))
        write_text(spark, f"{self.root}/{TOPIC_FILE}", topic.to_text())


def continued(source: TopicSource, ends: Mapping[int, int], partitions: list[int]) -> TopicSource:
    """The source from where an archive ends; from where it was told to begin, for partitions that are new to it."""
    if not ends:
        return source
    topic = source.topics[0]
    asked = {} if source.starting == "earliest" else json.loads(source.starting)[topic]
    starts = {
        TopicPartition(topic, each): ends[each] if each in ends else asked.get(str(each), -2) for each in partitions
    }
    limits = {} if source.ending is None else json.loads(source.ending)[topic]
    finishes = {place: max(limits.get(str(place.partition), 0), start) for place, start in starts.items()}
    ending = None if source.ending is None else offsets_text(finishes)
    return replace(source, starting=offsets_text(starts), ending=ending)


class Seldom:
    """Calls at most once a minute."""

    def __init__(self, call: Callable[[Any], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._call, self._clock = call, clock
        self._next_s = clock() + _GROUPS_EVERY_S

    def __call__(self, spark: Any) -> None:
        if self._clock() >= self._next_s:
            self._next_s = self._clock() + _GROUPS_EVERY_S
            self._call(spark)
