"""Records into batches, batches to their leaders: one lane per partition, so that order and sequences hold."""

import asyncio
from dataclasses import dataclass, field
from typing import Final

from moldau.client.async_client import AsyncClient
from moldau.client.partitioner import StickyPartition, partition_of
from moldau.client.types import ProducerIdentity
from moldau.model.ids import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE
from moldau.model.ports import Clock, Random
from moldau.records.builder import NewRecord, build_batch
from moldau.records.compression import Compression

SEQUENCE_END: Final = 2**31
RECORD_OVERHEAD_BYTES: Final = 20


@dataclass(slots=True)
class Lane:
    """What goes to one partition: the batch being filled, and the one on its way."""

    partition: int
    records: list[NewRecord] = field(default_factory=list)
    pending_bytes: int = 0
    next_sequence: int = 0
    sent_records: int = 0
    first_offset: int | None = None
    last_offset: int | None = None
    under_way: "asyncio.Task[None] | None" = None


class Sender:
    """Gathers records and sends a partition's batch when it is full or when `flush` is called."""

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
        self._sticky = StickyPartition(random, partitions, self._led)
        self._lanes: dict[int, Lane] = {}

    @property
    def lanes(self) -> list[Lane]:
        return [self._lanes[each] for each in sorted(self._lanes)]

    async def add(self, record: NewRecord, partition: int | None = None) -> None:
        """Take a record; waits while its partition's last batch is on its way and the next one is full."""
        _, key, value, headers = record
        if partition is None:
            partition = self._sticky.current if key is None else partition_of(key, self._partitions)
        lane = self._lanes.setdefault(partition, Lane(partition))
        size = RECORD_OVERHEAD_BYTES + len(key or b"") + len(value or b"")
        size += sum(len(name) + len(text or b"") for name, text in headers)
        if lane.records and lane.pending_bytes + size > self._batch_bytes:
            await self._dispatch(lane)
        lane.records.append(record)
        lane.pending_bytes += size

    async def flush(self) -> None:
        """Send what there is and wait until all of it is acknowledged."""
        for lane in self.lanes:
            if lane.records:
                await self._dispatch(lane)
        for lane in self.lanes:
            await _settle(lane)

    async def cancel(self) -> None:
        tasks = [lane.under_way for lane in self.lanes if lane.under_way is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _led(self) -> list[int]:
        metadata = self._client.metadata
        topic = metadata.topics.get(self._topic)
        return [each.index for each in topic.partitions if each.leader in metadata.brokers] if topic is not None else []

    async def _dispatch(self, lane: Lane) -> None:
        await _settle(lane)
        records, lane.records, lane.pending_bytes = lane.records, [], 0
        if lane.partition == self._sticky.current:
            self._sticky.batch_left()
        lane.under_way = asyncio.get_running_loop().create_task(self._send(lane, records))

    async def _send(self, lane: Lane, records: list[NewRecord]) -> None:
        producer_id, epoch = self._identity or (NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
        batch = build_batch(
            records,
            compression=self._compression,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=NO_SEQUENCE if self._identity is None else lane.next_sequence,
        )
        produced = await self._client.produce(self._topic, lane.partition, batch, acks=self._acks)
        lane.next_sequence = (lane.next_sequence + len(records)) % SEQUENCE_END
        lane.sent_records += len(records)
        self.sent_bytes += len(batch)
        if produced.base_offset >= 0:
            lane.first_offset = produced.base_offset if lane.first_offset is None else lane.first_offset
            lane.last_offset = produced.base_offset + len(records) - 1


async def _settle(lane: Lane) -> None:
    if lane.under_way is not None:
        task, lane.under_way = lane.under_way, None
        await task


class Pace:
    """So many records a second, evenly, without falling behind for a moment's pause."""

    def __init__(self, clock: Clock, per_second: float) -> None:
        self._clock = clock
        self._step_ms = 1000 / per_second
        self._due_ms = clock.monotonic_ms()

    def wait_ms(self) -> float:
        """How long to wait before the next record."""
        now_ms = self._clock.monotonic_ms()
        self._due_ms = max(self._due_ms, now_ms - 1000) + self._step_ms
        return max(0.0, self._due_ms - self._step_ms - now_ms)
