"""`restore`: writes an archive back to a topic, up to a point in time: same partitions, order and contents.

Each chunk is one transaction, whose id and version record the progress: an interrupted restore resumes with the same
chunks. The new offsets differ from the old ones, because gaps close and transaction markers take
offsets; the offset map translates them.

<folder>/restore.json         the request and the number of the next chunk
<folder>/restore-chunks.json  the chunks, computed once
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
PROGRESS: Final = "restore.json"
CHUNKS: Final = "restore-chunks.json"
# librdkafka's maximum: the topic's own max.message.bytes, which is restored too, decides what is too large.
_ROW_BYTES_MAX: Final = 1_000_000_000
# Settings that could delete restored records, change their timestamps, or reject them are applied at the end.
_LATER: Final = (
    "cleanup.policy",
    "message.timestamp.before.max.ms",
    "message.timestamp.difference.max.ms",  # its name before Kafka 4.0
    "message.timestamp.type",
)
_HELD_BACK: Final = frozenset((*_LATER, "retention.bytes", "retention.ms"))
_KEPT: Final = {"retention.ms": "-1", "retention.bytes": "-1"}
_CONTENT: Final = (
    "xxhash64(position, unix_millis(timestamp), key is null, key, value is null, value, size(headers), "
    "transform(headers, each -> struct(each.key, each.value is null, each.value)))"
)


def ignore_status(line: str) -> None:
    """Discard a status line."""


@dataclass(frozen=True, slots=True)
class Until:
    """The end of a restore: a time, offsets by partition, one offset for all, or (all None) the archive's end."""

    time_ms: int | None = None
    offset: int | None = None
    offsets: Mapping[int, int] | None = None

    def condition(self) -> str:
        """SQL for the first row to exclude; all later rows of its partition are excluded too."""
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
    """The result. `differences` is None if verification was not requested."""

    topic: str
    rows: int
    map: OffsetMap
    differences: list[str] | None
    groups: Mapping[str, Mapping[str, int]]
    notes: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Restore:
    """The job. `groups` names the groups whose offsets are translated; ("all",) means all known readers.

    `options` are client options for source and sink.
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
    on_status: Callable[[str], None] = ignore_status

    def run(self, spark: Any) -> Restored:
        archived = self._archived(spark)
        found = self._wanted(spark)
        memory = self._prepare(archived, found)
        # The archive may grow between attempts; the first attempt fixes the range.
        extents = {int(partition): (start, end) for partition, (start, end) in memory["extents"].items()}
        wanted = found.where(_within(extents))
        chunks = self._chunks(memory["writer"]) or []
        for number in range(memory["next"], len(chunks)):
            self._write(wanted, chunks[number], memory["writer"], number)
            memory["next"] = number + 1
            self._remember(memory)
            self.on_status(f"{number + 1} of {len(chunks)} chunks restored")
        return self._finish(spark, wanted, archived)

    def _archived(self, spark: Any) -> ArchivedTopic:
        text = read_text(spark, f"{self.root}/{TOPIC_FILE}")
        if text is None:
            raise PipelineError(f"{self.root} is not an archive: {TOPIC_FILE} is missing")
        archived = ArchivedTopic.of_text(text)
        # The metadata may be a minute older than the records, and partitions may have been added since.
        last = records_of(spark, self.root).agg({"partition": "max"}).first()[0]
        return replace(archived, partitions=max(archived.partitions, 0 if last is None else last + 1))

    def _wanted(self, spark: Any) -> Any:
        """Return the records of each partition before its first excluded one."""
        records = records_of(spark, self.root)
        cuts = records.where(self.until.condition()).groupBy("partition").agg({"offset": "min"}).collect()
        for row in cuts:
            partition, cut = row["partition"], row["min(offset)"]
            records = records.where(f"not (partition = {partition} and offset >= {cut})")
        return records

    def _prepare(self, archived: ArchivedTopic, wanted: Any) -> dict[str, Any]:
        """Create the topic, or return the progress of an earlier attempt."""
        path = self.folder / PROGRESS
        memory = json.loads(path.read_text()) if path.exists() else None
        request = {"archive": self.root, "topic": self.topic, "until": repr(self.until), "rows": self.rows_per_chunk}
        with self.connect() as client:
            there = _topic_id(client, self.topic)
            is_ours = memory is not None and memory["asked"] == request and memory["topic_id"] == there
            if memory is not None and is_ours and self._chunks(memory["writer"]) is not None:
                return dict(memory)
            if there is not None:
                raise PipelineError(f"topic {self.topic} exists; restore to another with --to, or delete it first")
            created = self.create(client, archived)
        writer, buckets = f"restore-{uuid.uuid4().hex}", buckets_of(wanted, self.rows_per_chunk // archived.partitions)
        self._keep_chunks(writer, chunks_of(buckets, self.rows_per_chunk))
        extents = extents_of(buckets)
        memory = {"asked": request, "topic_id": created, "writer": writer, "extents": extents, "next": 0}
        self._remember(memory)
        return memory

    def create(self, client: BlockingClient, archived: ArchivedTopic) -> str:
        """Create the topic with settings that keep all records during the restore; return its id."""
        configs = {name: value for name, value in archived.configs.items() if name not in _HELD_BACK}
        client.create_topic(
            self.topic,
            partitions=archived.partitions,
            replication_factor=self.replication_factor,
            configs={**configs, **_KEPT},
        )
        return client.describe_topic(self.topic).topic_id.hex()

    def _chunks(self, writer: str) -> list[Chunk] | None:
        """Read the chunks of the first attempt. There may be many, so they have a file of their own."""
        path = self.folder / CHUNKS
        kept = json.loads(path.read_text()) if path.exists() else {}
        if kept.get("writer") != writer:
            return None
        return [Chunk({int(each): (start, end) for each, (start, end) in chunk.items()}) for chunk in kept["chunks"]]

    def _keep_chunks(self, writer: str, chunks: list[Chunk]) -> None:
        shape = {"writer": writer, "chunks": [each.ranges for each in chunks]}
        (self.folder / CHUNKS).write_text(json.dumps(shape))

    def _remember(self, memory: Mapping[str, Any]) -> None:
        fresh = self.folder / f"{PROGRESS}.new"
        fresh.write_text(json.dumps(memory))
        fresh.replace(self.folder / PROGRESS)

    def _write(self, wanted: Any, chunk: Chunk, writer: str, number: int) -> None:
        """Write one chunk. All rows of a partition are in one task, in order, and tasks are published in order."""
        rows = wanted.where(_within(chunk.ranges)).repartition("partition").sortWithinPartitions("partition", "offset")
        chosen = rows.select("key", "value", "headers", "timestamp", "partition")
        chosen.write.format(FORMAT).options(**self.write_options(writer, number)).mode("append").save()

    def write_options(self, writer: str, number: int) -> dict[str, str]:
        """Return the sink options of one transaction."""
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
        (self.folder / PROGRESS).unlink(missing_ok=True)
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
        """Translate the current offsets if the old topic exists, else those stored in the archive."""
        if not self.groups:
            return {}
        is_elsewhere = archived.topic != self.topic and _topic_id(client, archived.topic) == archived.topic_id
        known = committed(client, archived.topic) if is_elsewhere else dict(archived.groups)
        readers = [group for group in known if group not in archived.archivers]
        chosen = readers if self.groups == ("all",) else list(self.groups)
        unknown = [group for group in chosen if group not in known]
        if unknown:
            raise PipelineError(
                f"no offsets stored for {', '.join(unknown)}; groups with offsets: {', '.join(known) or 'none'}"
            )
        result: dict[str, dict[str, int]] = {}
        busy: list[str] = []
        for group in chosen:
            offsets = {int(partition): offset for partition, offset in known[group].items()}
            fresh = {each: moved.moved(each, offset) for each, offset in offsets.items() if each in moved.new_ends}
            places = {TopicPartition(self.topic, each): offset for each, offset in fresh.items()}
            try:
                client.run(Groups(client.asynchronous).commit(group, places))
            except UnknownMemberId:  # the coordinator's error while the group has live members
                busy.append(group)
            result[group] = {str(each): offset for each, offset in fresh.items()}
        if busy:
            raise PipelineError(
                f"the records are restored to {self.topic}, but the offsets of {', '.join(busy)} cannot be set while "
                "the groups have live members: stop them and run the same restore again to finish"
            )
        return result

    def settle(self, client: BlockingClient, archived: ArchivedTopic) -> list[str]:
        """Apply the deferred settings, except retention: records with old timestamps would be deleted at once."""
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
    responses = client.list_offsets(dict.fromkeys(places, LATEST), isolation=Isolation.READ_COMMITTED)
    for response in responses.values():
        if response.error is not None:
            raise response.error  # without the end offset, group offsets cannot be translated
    return {place.partition: response.offset for place, response in responses.items()}


def buckets_of(records: Any, rows_max: int) -> list[Bucket]:
    """Cut records at multiples of `rows_max` offsets into non-empty buckets."""
    from pyspark.sql.functions import expr

    found = (
        records.groupBy("partition", expr(f"offset div {max(rows_max, 1)} as bucket"))
        .agg(expr("min(offset) as first"), expr("max(offset) as last"), expr("count(*) as rows"))
        .collect()
    )
    return [Bucket(row["partition"], row["first"], row["last"] + 1, row["rows"]) for row in found]


def _within(ranges: Mapping[int, tuple[int, int]]) -> str:
    """Return a SQL condition: the offset is in the range of its partition."""
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
    """Find the ranges that moved by a constant distance; only these are collected on the driver."""
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
