"""A machine's log on a partition of an internal topic: a decision is one batch of keyed records.

Replay does what compaction will do: it reads the whole log, keeps the newest value of each key, and yields only those.
So replaying a log that was not compacted yet costs little more than a compacted one. A worker process condenses a long
log first, range by range (condensed_log.py), so that the event loop only reads the condensed batches.
"""

import logging
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Generic, Protocol, TypeVar

from moldau.broker.coordinators.condensed_log import Condensed, CondensingJob, condense
from moldau.broker.coordinators.key_compaction import NewestValues
from moldau.broker.drivers.time_slices import Slices
from moldau.broker.partitions.partition import Partition
from moldau.model.errors import CorruptMessage, NotLeaderOrFollower, StorageFailed
from moldau.model.ports import Clock, Executor
from moldau.model.units import MiB
from moldau.records.builder import build_batch
from moldau.records.compression import Compression
from moldau.records.header import read_header
from moldau.storage.corrupt_range import unreadable_from
from moldau.storage.log_range import LogRange

logger = logging.getLogger(__name__)

Record = TypeVar("Record")

BATCHES_PER_CHECK: Final = 1
CONDENSED_FROM_BYTES: Final = 8 * MiB  # a shorter log is read in slices before a process would have started
RANGE_BYTES: Final = 16 * MiB  # between two leadership checks


class RecordCoding(Protocol[Record]):
    """Encodes and decodes a machine's records."""

    def encode(self, record: Record) -> tuple[bytes, bytes | None]:
        """Key and value; None is a tombstone."""
        ...

    def decode(self, key: bytes, value: bytes | None) -> Record | None:
        """None for a record that this machine ignores."""
        ...


class BatchCoding(Protocol[Record]):
    """Encodes decisions of transactions, and decodes records of open transactions."""

    def build(self, records: Sequence[Record], now_ms: int, compression: Compression) -> bytearray:
        """One decision as a batch."""
        ...

    def decode_pending(self, producer_id: int, producer_epoch: int, key: bytes, value: bytes) -> Record | None:
        """None for a record that this machine ignores."""
        ...


class PartitionLog(Generic[Record]):
    """See the module. The partition itself checks whether this node may append."""

    def __init__(
        self,
        partition: Partition,
        coding: RecordCoding[Record],
        clock: Clock,
        executor: Executor,
        compression: Compression = Compression.NONE,
        *,
        read_bytes: int = MiB,
        batches: BatchCoding[Record] | None = None,
        condensed_from_bytes: int = CONDENSED_FROM_BYTES,
    ) -> None:
        """`batches` is for machines with transactional decisions."""
        self._partition = partition
        self._coding = coding
        self._clock = clock
        self._executor = executor
        self._compression = compression
        self._read_bytes = read_bytes
        self._batches = batches
        self._condensed_from_bytes = condensed_from_bytes
        self._committed: Callable[[int], None] | None = None

    @property
    def end_offset(self) -> int:
        return self._partition.log.end_offset

    @property
    def high_watermark(self) -> int:
        return self._partition.high_watermark

    # Writing

    def append(self, decisions: Sequence[Sequence[Record]]) -> None:
        partition = self._partition
        if not partition.role.is_leader:
            raise NotLeaderOrFollower(f"{partition.name} is no longer led by this broker.")
        now_ms = self._clock.wall_ms()
        build = self._build if self._batches is None else self._batches.build
        for records in decisions:
            batch = memoryview(build(records, now_ms, self._compression))
            partition.append(batch, read_header(batch), now_ms)

    def _build(self, records: Sequence[Record], now_ms: int, compression: Compression) -> bytearray:
        encode = self._coding.encode
        return build_batch([(now_ms, *encode(record), ()) for record in records], compression=compression)

    def watch(self, committed: Callable[[int], None]) -> None:
        self._committed = committed
        self._partition.waiters.watchers[self] = None

    def close(self) -> None:
        """Stop watching the partition."""
        self._partition.waiters.watchers.pop(self, None)

    def on_bytes_available(self, count: int) -> None:  # noqa: ARG002 - the protocol of `FetchWatcher`
        if self._committed is not None:
            self._committed(self._partition.high_watermark)

    def wake(self) -> None:
        """The driver is closed together with the partition."""

    # Reading

    async def replay(self) -> AsyncGenerator[Iterable[tuple[int, Record]], None]:
        log, layout_version = self._partition.log, None
        is_condensed = log.size_bytes >= self._condensed_from_bytes
        while True:
            if layout_version != log.layout_version:
                # Compaction has replaced segments: earlier reads may not fit later ones, so start again. This ends,
                # because nothing is appended before the replay is complete.
                newest, offset, layout_version = (
                    NewestValues(str(self._partition.name)),
                    log.start_offset,
                    log.layout_version,
                )
            log_range = log.log_range(offset, RANGE_BYTES) if is_condensed else None
            with self._giving_up_if_corrupt(offset):
                if log_range is not None and log_range.size_bytes >= self._condensed_from_bytes:
                    condensed = await self._condense(log_range)
                    if condensed is not None:
                        await self._read_batches(condensed.batches, newest)
                        offset = condensed.next_offset
                    else:
                        is_condensed = layout_version != log.layout_version
                elif (found := log.read(offset, self._read_bytes)) is not None:
                    offset = await self._read_batches(await self._executor.run(found.read), newest)
                else:
                    break
            yield ()  # so that the driver checks its leadership
        yield self._decode(newest)

    @contextmanager
    def _giving_up_if_corrupt(self, offset: int) -> Iterator[None]:
        """A corrupt log cannot be loaded. If there are other replicas, give up this one from `offset` on: another one
        leads and becomes the coordinator, and this one is fetched again."""
        partition = self._partition
        try:
            yield
        except (CorruptMessage, StorageFailed) as error:
            if partition.role.is_leader and not partition.role.leads_alone:
                partition.corruption.mark(unreadable_from(offset, error))
            raise

    async def _condense(self, log_range: LogRange) -> Condensed | None:
        """None on failure: then the log is read here, which reports the error."""
        job = CondensingJob(str(self._partition.name), log_range)
        try:
            return await self._executor.work_on_files(condense, job, is_urgent=True)
        except OSError as error:
            logger.warning("%s: loading without a worker process: %s", self._partition.name, error)
            return None

    async def _read_batches(self, batches: bytes, newest: NewestValues) -> int:
        """Read a chunk in slices; return the offset after it."""
        position, offset = 0, -1
        slices = Slices(self._clock)
        while position < len(batches):
            position, offset = newest.add(batches, position, BATCHES_PER_CHECK)
            if slices.is_over():
                await slices.yield_to_requests()
        return offset

    def _decode(self, newest: NewestValues) -> Iterator[tuple[int, Record]]:
        decode = self._coding.decode
        for offset, key, value in newest:
            record = decode(key, value)
            if record is not None:
                yield offset, record
        if self._batches is not None:
            for offset, producer_id, producer_epoch, key, value in newest.pending():
                record = self._batches.decode_pending(producer_id, producer_epoch, key, value)
                if record is not None:
                    yield offset, record
