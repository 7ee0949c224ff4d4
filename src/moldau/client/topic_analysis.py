"""An analysis of a topic: sizes of its partitions, and a bounded sample of its newest batches, records and keys."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from moldau.client.async_client import AsyncClient
from moldau.client.log_dirs import describe_log_dirs
from moldau.client.positions import Extent, extents
from moldau.client.types import Isolation
from moldau.client.visibility import visible_batches
from moldau.model.errors import ClusterAuthorizationFailed, UnsupportedVersion
from moldau.model.ids import TopicPartition
from moldau.model.units import SECOND_MS, MiB
from moldau.records.compression import Compression
from moldau.records.header import HEADER_BYTES
from moldau.records.record import Record, iterate_records, records_body

SAMPLE_BYTES_MAX: Final = 64 * MiB  # of all partitions
FETCH_BYTES: Final = MiB
FETCH_WAIT_MS: Final = 500


class SampleBatch(NamedTuple):
    """A batch with its size as stored, and the size of its records when decompressed."""

    size_bytes: int
    codec: int
    body_bytes: int
    records: list[Record]


@dataclass(slots=True)
class Sample:
    """Whole batches of one or more partitions."""

    batches: int = 0
    batch_bytes: int = 0
    compressed_bytes: int = 0  # of the records, without headers of batches
    uncompressed_bytes: int = 0
    codecs: Counter[str] = field(default_factory=Counter)  # batches by codec
    record_bytes: list[int] = field(default_factory=list)  # key and value of each record
    keys: Counter[bytes] = field(default_factory=Counter)
    without_key: int = 0
    tombstones: int = 0

    def add(self, batch: SampleBatch) -> None:
        self.batches += 1
        self.batch_bytes += batch.size_bytes
        self.compressed_bytes += batch.size_bytes - HEADER_BYTES
        self.uncompressed_bytes += batch.body_bytes
        self.codecs[Compression(batch.codec).name.lower()] += 1
        for record in batch.records:
            self._add_record(record)

    def _add_record(self, record: Record) -> None:
        self.record_bytes.append(len(record.key or b"") + len(record.value or b""))
        if record.key is None:
            self.without_key += 1
        else:
            self.keys[record.key] += 1
        self.tombstones += record.value is None

    @property
    def records(self) -> int:
        return len(self.record_bytes)

    @property
    def compression_ratio(self) -> float | None:
        """Uncompressed bytes per compressed byte; None without records."""
        return self.uncompressed_bytes / self.compressed_bytes if self.compressed_bytes else None

    def record_bytes_at(self, share: float) -> int | None:
        """Return a quantile of the record sizes; None without records."""
        ordered = sorted(self.record_bytes)
        return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else None


@dataclass(frozen=True, slots=True)
class PartitionAnalysis:
    """One partition. Times are None if it has no records, the size if the brokers do not tell it."""

    partition: int
    extent: Extent
    size_bytes: int | None
    oldest_ms: int | None
    newest_ms: int | None

    @property
    def offsets(self) -> int:
        """The number of records, and of those that compaction or a transaction marker took the place of."""
        return self.extent.end - self.extent.start

    @property
    def per_second(self) -> float | None:
        """Records per second from the oldest to the newest record."""
        if self.oldest_ms is None or self.newest_ms is None or self.newest_ms <= self.oldest_ms:
            return None
        return self.offsets * SECOND_MS / (self.newest_ms - self.oldest_ms)


@dataclass(frozen=True, slots=True)
class TopicAnalysis:
    """All partitions, and the sample of all of them."""

    partitions: tuple[PartitionAnalysis, ...]
    sample: Sample


async def analyze_topic(client: AsyncClient, topic: str, sample_records: int) -> TopicAnalysis:
    """Analyze a topic with about this many of its newest records, the same number from each partition."""
    view = await client.describe_topic(topic)
    places = [TopicPartition(topic, each.index) for each in view.partitions]
    known = await extents(client, places, Isolation.READ_UNCOMMITTED)
    leaders = {each.index: int(each.leader) for each in view.partitions}
    sizes = await _sizes(client, topic, leaders)
    filled = sum(each.end > each.start for each in known.values()) or 1
    wanted = max(1, sample_records // filled)
    total = Sample()
    analyses = []
    for place in places:
        oldest_ms, newest_ms = await _read(client, place, known[place], wanted, SAMPLE_BYTES_MAX // filled, total)
        analyses.append(
            PartitionAnalysis(place.partition, known[place], sizes.get(place.partition), oldest_ms, newest_ms)
        )
    return TopicAnalysis(tuple(analyses), total)


async def _sizes(client: AsyncClient, topic: str, leaders: Mapping[int, int]) -> dict[int, int]:
    """Return the size of the leader's replica by partition, where a broker tells it."""
    try:
        found = await describe_log_dirs(client, {each for each in leaders.values() if each >= 0}, [topic])
    except (ClusterAuthorizationFailed, UnsupportedVersion):
        return {}
    return {
        each.partition.partition: each.size_bytes
        for log_dir in found.found
        for each in log_dir.replicas
        if not each.is_future and leaders[each.partition.partition] == log_dir.broker
    }


async def _read(
    client: AsyncClient, place: TopicPartition, extent: Extent, records_max: int, bytes_max: int, sample: Sample
) -> tuple[int | None, int | None]:
    """Add the newest records to the sample; return the timestamps of the oldest record and of the newest one."""
    if extent.end == extent.start:
        return None, None
    oldest, _ = await _fetch(client, place, extent.start)
    times = [record.timestamp for batch in oldest for record in batch.records]
    oldest_ms = times[0] if times else None
    position, bytes_left = max(extent.start, extent.end - records_max), bytes_max
    while position < extent.end and bytes_left > 0:
        batches, following = await _fetch(client, place, position)
        for batch in batches:
            sample.add(batch)
            times.extend(record.timestamp for record in batch.records)
        bytes_left -= sum(each.size_bytes for each in batches)
        if following <= position:  # the end is a batch that is not readable yet
            break
        position = following
    return oldest_ms, max(times, default=None)


async def _fetch(client: AsyncClient, place: TopicPartition, offset: int) -> tuple[list[SampleBatch], int]:
    """Fetch the batches from an offset on, without control batches; return them and the offset behind them."""
    fetched = await client.fetch(place.topic, place.partition, offset, max_bytes=FETCH_BYTES, max_wait_ms=FETCH_WAIT_MS)
    batches, following = [], offset
    for header, batch, is_visible in visible_batches(fetched.records, (), Isolation.READ_UNCOMMITTED):
        following = header.next_offset
        if is_visible:
            body_bytes = len(records_body(batch, header))
            batches.append(SampleBatch(header.size_bytes, header.compression, body_bytes, list(iterate_records(batch))))
    return batches, following
