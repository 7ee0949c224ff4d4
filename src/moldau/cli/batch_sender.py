"""The producer of `moldau produce`: a buffer and a batch in flight per partition, which keeps order and sequences."""

import asyncio
from dataclasses import dataclass, field
from typing import Final

from moldau.client.async_client import AsyncClient
from moldau.client.partitioner import StickyPartitioner, partition_for_key
from moldau.client.types import ProducerIdentity
from moldau.model.ids import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE
from moldau.model.ports import Clock, Random
from moldau.records.builder import NewRecord, build_batch
from moldau.records.compression import Compression

SEQUENCE_END: Final = 2**31
RECORD_OVERHEAD_BYTES: Final = 20


@dataclass(slots=True)
class PartitionBuffer:
    """One partition: the batch that is being filled, and the one in flight."""

    partition: int
    records: list[NewRecord] = field(default_factory=list)
    pending_bytes: int = 0
    next_sequence: int = 0
    sent_records: int = 0
    first_offset: int | None = None
    last_offset: int | None = None
    in_flight: "asyncio.Task[None] | None" = None


class Sender:
    """Buffers records and sends a partition's batch when it is full or when `flush` is called."""

    def __init__(
        self,
        client: AsyncClient,
        clock: Clock,
        random: Random,
        topic: str,
        partitions: int,
        *,
        identity: ProducerIdentity | None,
        acks: int,
        compression: Compression,
        batch_bytes: int,
    ) -> None:
        self.sent_bytes = 0
        self._client = client
        self._clock = clock
        self._topic = topic
        self._partitions = partitions
        self._identity = identity
        self._acks = acks
        self._compression = compression
        self._batch_bytes = batch_bytes
        self._sticky = StickyPartitioner(random, partitions, self._partitions_with_leader)
        self._lanes: dict[int, PartitionBuffer] = {}

    @property
    def buffers(self) -> list[PartitionBuffer]:
        return [self._lanes[each] for each in sorted(self._lanes)]

    async def add(self, record: NewRecord, partition: int | None = None) -> None:
        """Buffer a record; wait if its partition's buffer is full and the previous batch still in flight."""
        _, key, value, headers = record
        if partition is None:
            partition = self._sticky.current if key is None else partition_for_key(key, self._partitions)
        buffer = self._lanes.setdefault(partition, PartitionBuffer(partition))
        size = RECORD_OVERHEAD_BYTES + len(key or b"") + len(value or b"")
        size += sum(len(name) + len(text or b"") for name, text in headers)
        if buffer.records and buffer.pending_bytes + size > self._batch_bytes:
            await self._dispatch(buffer)
        buffer.records.append(record)
        buffer.pending_bytes += size

    async def flush(self) -> None:
        """Send all buffered records and wait until they are acknowledged."""
        for buffer in self.buffers:
            if buffer.records:
                await self._dispatch(buffer)
        for buffer in self.buffers:
            await _await_in_flight(buffer)

    async def cancel(self) -> None:
        tasks = [buffer.in_flight for buffer in self.buffers if buffer.in_flight is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _partitions_with_leader(self) -> list[int]:
        metadata = self._client.metadata
        topic = metadata.topics.get(self._topic)
        return [each.index for each in topic.partitions if each.leader in metadata.brokers] if topic is not None else []

    async def _dispatch(self, buffer: PartitionBuffer) -> None:
        await _await_in_flight(buffer)
        records, buffer.records, buffer.pending_bytes = buffer.records, [], 0
        if buffer.partition == self._sticky.current:
            self._sticky.on_batch_sent()
        buffer.in_flight = asyncio.get_running_loop().create_task(self._send(buffer, records))

    async def _send(self, buffer: PartitionBuffer, records: list[NewRecord]) -> None:
        producer_id, epoch = self._identity or (NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
        batch = build_batch(
            records,
            compression=self._compression,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=NO_SEQUENCE if self._identity is None else buffer.next_sequence,
        )
        produced = await self._client.produce(self._topic, buffer.partition, batch, acks=self._acks)
        buffer.next_sequence = (buffer.next_sequence + len(records)) % SEQUENCE_END
        buffer.sent_records += len(records)
        self.sent_bytes += len(batch)
        if produced.base_offset >= 0:
            buffer.first_offset = produced.base_offset if buffer.first_offset is None else buffer.first_offset
            buffer.last_offset = produced.base_offset + len(records) - 1


async def _await_in_flight(buffer: PartitionBuffer) -> None:
    if buffer.in_flight is not None:
        task, buffer.in_flight = buffer.in_flight, None
        await task


class RateLimit:
    """Spaces records evenly; after a pause of the input it catches up by at most one second."""

    def __init__(self, clock: Clock, per_second: float) -> None:
        self._clock = clock
        self._step_ms = 1000 / per_second
        self._due_ms = clock.monotonic_ms()

    def wait_ms(self) -> float:
        """Return how long to wait before the next record."""
        now_ms = self._clock.monotonic_ms()
        self._due_ms = max(self._due_ms, now_ms - 1000) + self._step_ms
        return max(0.0, self._due_ms - self._step_ms - now_ms)
