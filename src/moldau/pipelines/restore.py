"""`restore`: the records of an archive back in a topic, up to a moment: same partitions, same order, same contents.

A chunk is one transaction, and what is written says how far it came: a restore that was broken off goes on, with the
chunks that it had. The new offsets differ from the old ones, because gaps close and transactions take offsets of their
own: hence the map.

<folder>/restore.json         what is restored, and which chunk is the next
<folder>/restore-chunks.json  the chunks, cut once
"""

import json
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from moldau.client.blocking_client import BlockingClient
from moldau.client.groups import Groups
from moldau.client.types import LATEST, Isolation, Resource, ResourceKind
from moldau.model.errors import UnknownMemberId, UnknownTopicOrPartition
from moldau.model.ids import TopicPartition
from moldau.pipelines.archive import TOPIC_FILE, ArchivedTopic, Connect, committed, records_of
from moldau.pipelines.flow import FORMAT
from moldau.pipelines.hadoop_files import read_text
from moldau.pipelines.offset_maps import (
    Bucket,
    Chunk,
    OffsetMap,
    Piece,
    Sum,
    chunks_of,
    differences,
    extents_of,
    map_of,
)
from moldau.pipelines.requirements import PipelineError

ROWS_PER_CHUNK: Final = 500_000
MEMORY: Final = "restore.json"
CHUNKS: Final = "restore-chunks.json"
# As large as librdkafka lets a row be: whether one is too large is for the topic to say, whose settings come back too.
_ROW_BYTES_MAX: Final = 1_000_000_000
# While records come back, nothing may remove them, change their times, or find them too old.
_LATER: Final = (
    "cleanup.policy",
    "message.timestamp.before.max.ms",
    "message.timestamp.difference.max.ms",  # as Kafka called it before 4.0
    "message.timestamp.type",
)
_HELD_BACK: Final = frozenset((*_LATER, "retention.bytes", "retention.ms"))
_KEPT: Final = {"retention.ms": "-1", "retention.bytes": "-1"}
_CONTENT: Final = (
    "xxhash64(position, unix_millis(timestamp), key is null, key, value is null, value, size(headers), "
    "transform(headers, each -> struct(each.key, each.value is null, each.value)))"
)


def unheard(line: str) -> None:
    """Nobody looks."""


@dataclass(frozen=True, slots=True)
class Until:
    """Where to end: at a time, at offsets by partition, at one offset for all, or (all None) at the archive's end."""

    time_ms: int | None = None
    offset: int | None = None
    offsets: Mapping[int, int] | None = None

    def condition(self) -> str:
        """For a row to be left out, and all that follow it in its partition."""
        if self.time_ms is not None:
            return f"unix_millis(timestamp) >= {self.time_ms}"
        if self.offset is not None:
            return f"offset >= {self.offset}"
        if self.offsets is not None:
            cases = " ".join(f"when {partition} then {offset}" for partition, offset in sorted(self.offsets.items()))
            return f"offset >= case partition {cases} else 0 end"
        return "false"


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What came of it. `differences` is None if nobody asked for a comparison."""

    topic: str
    rows: int
    map: OffsetMap
    differences: list[str] | None
    groups: Mapping[str, Mapping[str, int]]
    notes: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Restore:
    """The job. `groups` names those whose offsets move with the records; ("all",) means all readers that are known.

    `options` are for source and sink: how their clients reach the cluster.
    """

    root: str
    topic: str
    bootstrap_servers: str
    folder: Path
    connect: Connect
    options: Mapping[str, str] = field(default_factory=dict)
    until: Until = Until()
    groups: tuple[str, ...] = ()
    is_verified: bool = False
    rows_per_chunk: int = ROWS_PER_CHUNK
    replication_factor: int = -1
    tell: Callable[[str], None] = unheard

    def run(self, spark: Any) -> Restored:
        archived = self._archived(spark)
        found = self._wanted(spark)
        memory = self._prepare(archived, found)
        # An archive may grow between two tries; what is restored was settled by the first.
        extents = {int(partition): (start, end) for partition, (start, end) in memory["extents"].items()}
        wanted = found.where(_within(extents))
        chunks = self._chunks(memory["writer"]) or []
        for number in range(memory["next"], len(chunks)):
            self._write(wanted, chunks[number], memory["writer"], number)
            memory["next"] = number + 1
            self._remember(memory)
            self.tell(f"{number + 1} of {len(chunks)} parts are back")
        return self._finish(spark, wanted, archived)

    def _archived(self, spark: Any) -> ArchivedTopic:
        text = read_text(spark, f"{self.root}/{TOPIC_FILE}")
        if text is None:
            raise PipelineError(f"{self.root} is no archive: it has no {TOPIC_FILE}")
        archived = ArchivedTopic.of_text(text)
        # What is noted of the topic may be a minute older than the records, and partitions may have come since.
        last = records_of(spark, self.root).agg({"partition": "max"}).first()[0]
        return replace(archived, partitions=max(archived.partitions, 0 if last is None else last + 1))

    def _wanted(self, spark: Any) -> Any:
        """The records of each partition before the first that is too late."""
        records = records_of(spark, self.root)
        cuts = records.where(self.until.condition()).groupBy("partition").agg({"offset": "min"}).collect()
        for row in cuts:
            partition, cut = row["partition"], row["min(offset)"]
            records = records.where(f"not (partition = {partition} and offset >= {cut})")
        return records

    def _prepare(self, archived: ArchivedTopic, wanted: Any) -> dict[str, Any]:
        """The topic, and how far an earlier try has come with it."""
        path = self.folder / MEMORY
        memory = json.loads(path.read_text()) if path.exists() else None
        asked = {"archive": self.root, "topic": self.topic, "until": repr(self.until), "rows": self.rows_per_chunk}
        with self.connect() as client:
            there = _topic_id(client, self.topic)
            is_ours = memory is not None and memory["asked"] == asked and memory["topic_id"] == there
            if memory is not None and is_ours and self._chunks(memory["writer"]) is not None:
                return dict(memory)
            if there is not None:
                raise PipelineError(f"topic {self.topic} exists; restore to another with --to, or delete it first")
            created = self.create(client, archived)
        writer, buckets = f"restore-{uuid.uuid4().hex}", buckets_of(wanted, self.rows_per_chunk // archived.partitions)
        self._keep_chunks(writer, chunks_of(buckets, self.rows_per_chunk))
        extents = extents_of(buckets)
        memory = {"asked": asked, "topic_id": created, "writer": writer, "extents": extents, "next": 0}
        self._remember(memory)
        return memory

    def create(self, client: BlockingClient, archived: ArchivedTopic) -> str:
        """The topic, with the settings under which its records come back; its id."""
        configs = {name: value for name, value in archived.configs.items() if name not in _HELD_BACK}
        client.create_topic(
            self.topic,
            partitions=archived.partitions,
            replication_factor=self.replication_factor,
            configs={**configs, **_KEPT},
        )
        return client.describe_topic(self.topic).topic_id.hex()

    def _chunks(self, writer: str) -> list[Chunk] | None:
        """As they were cut when the writer began. There may be many: they are not written again with each of them."""
        path = self.folder / CHUNKS
        kept = json.loads(path.read_text()) if path.exists() else {}
        if kept.get("writer") != writer:
            return None
        return [Chunk({int(each): (start, end) for each, (start, end) in chunk.items()}) for chunk in kept["chunks"]]

    def _keep_chunks(self, writer: str, chunks: list[Chunk]) -> None:
        shape = {"writer": writer, "chunks": [each.ranges for each in chunks]}
        (self.folder / CHUNKS).write_text(json.dumps(shape))

    def _remember(self, memory: Mapping[str, Any]) -> None:
        fresh = self.folder / f"{MEMORY}.new"
        fresh.write_text(json.dumps(memory))
        fresh.replace(self.folder / MEMORY)

    def _write(self, wanted: Any, chunk: Chunk, writer: str, number: int) -> None:
        """One transaction. All rows of a partition are in one task, in order, and tasks are published in order."""
        rows = wanted.where(_within(chunk.ranges)).repartition("partition").sortWithinPartitions("partition", "offset")
        chosen = rows.select("key", "value", "headers", "timestamp", "partition")
        chosen.write.format(FORMAT).options(**self.write_options(writer, number)).mode("append").save()

    def write_options(self, writer: str, number: int) -> dict[str, str]:
        """Of one transaction."""
        return {
            "kafka.max.request.size": str(_ROW_BYTES_MAX),
            **self.options,
            "kafka.bootstrap.servers": self.bootstrap_servers,
            "topic": self.topic,
            "includeHeaders": "true",
            "includeTimestamp": "true",
            "txnAppId": writer,
            "txnVersion": str(number),
            "stagingLocation": str(self.folder / "staging"),
        }

    def _finish(self, spark: Any, wanted: Any, archived: ArchivedTopic) -> Restored:
        back = self._read_back(spark)
        old, new = _numbered(wanted), _numbered(back)
        with self.connect() as client:
            ends = ends_of(client, self.topic)
        rows = wanted.count()
        moved = map_of(_pieces(old, new), ends)
        found = differences(_sums(old), _sums(new)) if self.is_verified else None
        if found:
            return Restored(topic=self.topic, rows=rows, map=moved, differences=found, groups={}, notes=[])
        with self.connect() as client:
            groups = self.move_groups(client, archived, moved)
            notes = self.settle(client, archived)
        (self.folder / MEMORY).unlink(missing_ok=True)
        (self.folder / CHUNKS).unlink(missing_ok=True)
        return Restored(topic=self.topic, rows=rows, map=moved, differences=found, groups=groups, notes=notes)

    def _read_back(self, spark: Any) -> Any:
        return spark.read.format(FORMAT).options(**self.read_options()).load()

    def read_options(self) -> dict[str, str]:
        return {
            **self.options,
            "kafka.bootstrap.servers": self.bootstrap_servers,
            "subscribe": self.topic,
            "kafka.isolation.level": "read_committed",
            "includeHeaders": "true",
        }

    def move_groups(
        self, client: BlockingClient, archived: ArchivedTopic, moved: OffsetMap
    ) -> dict[str, dict[str, int]]:
        """From where the groups are now if the old topic is still there, else from where the archive saw them."""
        if not self.groups:
            return {}
        is_elsewhere = archived.topic != self.topic and _topic_id(client, archived.topic) == archived.topic_id
        known = committed(client, archived.topic) if is_elsewhere else dict(archived.groups)
        readers = [group for group in known if group not in archived.archivers]
        chosen = readers if self.groups == ("all",) else list(self.groups)
        unknown = [group for group in chosen if group not in known]
        if unknown:
            raise PipelineError(f"no offsets of {', '.join(unknown)} are known; there are {', '.join(known) or 'none'}")
        result: dict[str, dict[str, int]] = {}
        busy: list[str] = []
        for group in chosen:
            offsets = {int(partition): offset for partition, offset in known[group].items()}
            fresh = {each: moved.moved(each, offset) for each, offset in offsets.items() if each in moved.new_ends}
            places = {TopicPartition(self.topic, each): offset for each, offset in fresh.items()}
            try:
                client.run(Groups(client.asynchronous).commit(group, places))
            except UnknownMemberId:  # so a coordinator says that others are members, and we are not
                busy.append(group)
            result[group] = {str(each): offset for each, offset in fresh.items()}
        if busy:
            raise PipelineError(
                f"the records are back in {self.topic}, but the offsets of {', '.join(busy)} cannot be moved while "
                "they have live members: stop those, and run the same restore again, which then does the rest"
            )
        return result

    def settle(self, client: BlockingClient, archived: ArchivedTopic) -> list[str]:
        """The settings that had to wait. Retention stays off: by their old times, the records might go at once."""
        later = {name: archived.configs[name] for name in _LATER if name in archived.configs}
        if later:
            client.alter_configs(Resource(ResourceKind.TOPIC, self.topic), later)
        was = archived.configs.get("retention.ms")
        said = f"it was {was}" if was else "it had the cluster's default"
        return [f"retention.ms of {self.topic} is -1 ({said}), so that old records are not deleted at once"]


def _topic_id(client: BlockingClient, topic: str) -> str | None:
    try:
        return client.describe_topic(topic).topic_id.hex()
    except UnknownTopicOrPartition:
        return None


def ends_of(client: BlockingClient, topic: str) -> dict[int, int]:
    places = [TopicPartition(topic, each.index) for each in client.describe_topic(topic).partitions]
    answers = client.list_offsets(dict.fromkeys(places, LATEST), isolation=Isolation.READ_COMMITTED)
    for answer in answers.values():
        if answer.error is not None:
            raise answer.error  # an end that nobody tells is no offset for a group to go on from
    return {place.partition: answer.offset for place, answer in answers.items()}


def buckets_of(records: Any, rows_max: int) -> list[Bucket]:
    """Cut by offsets that are easy to tell, into buckets of at most so many records; none that is empty."""
    from pyspark.sql.functions import expr

    found = (
        records.groupBy("partition", expr(f"offset div {max(rows_max, 1)} as bucket"))
        .agg(expr("min(offset) as first"), expr("max(offset) as last"), expr("count(*) as rows"))
        .collect()
    )
    return [Bucket(row["partition"], row["first"], row["last"] + 1, row["rows"]) for row in found]


def _within(ranges: Mapping[int, tuple[int, int]]) -> str:
    """A condition: the offset is in the range of its partition."""
    parts = [
        f"(partition = {partition} and offset >= {start} and offset < {end})"
        for partition, (start, end) in ranges.items()
    ]
    return " or ".join(parts) or "false"


def _numbered(records: Any) -> Any:
    return records.selectExpr("*", "row_number() over (partition by partition order by offset) as position")


def _sums(numbered: Any) -> dict[int, Sum]:
    from pyspark.sql.functions import expr

    rows = (
        numbered.selectExpr("partition", f"{_CONTENT} as content")
        .groupBy("partition")
        .agg(
            expr("count(*) as rows"),
            expr("sum(cast(content as decimal(38, 0))) as total"),
            expr("bit_xor(content) as mixed"),
        )
        .collect()
    )
    return {row["partition"]: Sum(row["rows"], int(row["total"]), row["mixed"]) for row in rows}


def _pieces(old: Any, new: Any) -> list[Piece]:
    """Neighbours that moved by the same distance are one piece; only where pieces begin comes to the driver."""
    from pyspark.sql.functions import expr

    moves = (
        old.selectExpr("partition", "position", "offset as old")
        .join(new.selectExpr("partition", "position", "offset as new"), ["partition", "position"])
        .selectExpr("*", "new - old as distance")
    )
    marked = moves.selectExpr(
        "*", "lag(distance) over (partition by partition order by position) is distinct from distance as begins"
    ).selectExpr("*", "sum(int(begins)) over (partition by partition order by position) as piece")
    rows = (
        marked.groupBy("partition", "piece")
        .agg(expr("min(old) as first"), expr("max(old) as last"), expr("min(new) as new"))
        .collect()
    )
    return [Piece(row["partition"], row["first"], row["last"], row["new"]) for row in rows]
