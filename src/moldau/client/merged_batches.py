"""Merges records of concurrent requests: while a batch of a partition is in flight, later records wait for another one.

A batch costs the gateway and the brokers about the same with one record as with a hundred. There is one future per
request and partition, none per record, and a request that arrives alone is sent at once.

    request A ──► in flight ─────────────► acknowledged
    request B, C, D ──► wait ────────────► one batch ──► acknowledged

Only requests with the same acks, compression and timeout share a batch. If a merged batch is rejected and nothing was
stored, its requests are sent one by one, so that each gets the error of its own records.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from moldau.client.async_client import AsyncClient
from moldau.client.errors import RETRIABLE
from moldau.model.errors import KafkaError, RequestTimedOut
from moldau.model.ports import Clock
from moldau.records.builder import NewRecord
from moldau.records.compression import Compression

MERGED_RECORDS_MAX: Final = 10_000
MERGED_BYTES_MAX: Final = 512 * 1024  # brokers accept 1 MiB by default


class Lane(NamedTuple):
    """Properties that all requests of one batch share."""

    topic: str
    partition: int
    acks: int
    compression: Compression
    timeout_ms: int


@dataclass(slots=True)
class _Waiting:
    """The records of one request, and the future of their first offset."""

    records: Sequence[NewRecord]
    size: int
    arrived_ms: float
    base_offset: "asyncio.Future[int]"


@dataclass(slots=True)
class MergedBatches:
    """The lanes of one client. A lane exists while records wait or are in flight."""

    client: AsyncClient
    clock: Clock
    _lanes: dict[Lane, list[_Waiting]] = field(default_factory=dict)
    _tasks: set["asyncio.Task[None]"] = field(default_factory=set)

    def produce(self, lane: Lane, records: Sequence[NewRecord]) -> "asyncio.Future[int]":
        """Send records, or add them to the next batch; the result is the offset of the first one, or -1."""
        loop = asyncio.get_running_loop()
        size = sum(len(key or b"") + len(value or b"") for _, key, value, _ in records)
        waiting = _Waiting(records, size, self.clock.monotonic_ms(), loop.create_future())
        if lane in self._lanes:
            self._lanes[lane].append(waiting)
        else:
            self._lanes[lane] = [waiting]
            task = loop.create_task(self._send_all(lane))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return waiting.base_offset

    async def _send_all(self, lane: Lane) -> None:
        """Send batch after batch until no records wait."""
        while queue := self._lanes[lane]:
            chosen = _first_batch(queue)
            self._lanes[lane] = queue[len(chosen) :]
            await self._send(lane, [each for each in chosen if not self._expire(lane, each)])
        del self._lanes[lane]

    def _expire(self, lane: Lane, waiting: _Waiting) -> bool:
        """Fail records that have waited for too long; they were never sent."""
        if self.clock.monotonic_ms() - waiting.arrived_ms < lane.timeout_ms:
            return False
        if not waiting.base_offset.done():
            message = f"{lane.topic}-{lane.partition}: earlier batches took longer than {lane.timeout_ms} ms"
            waiting.base_offset.set_exception(NotSent(message))
        return True

    async def _send(self, lane: Lane, chosen: Sequence[_Waiting]) -> None:
        if not chosen:
            return
        records = chosen[0].records if len(chosen) == 1 else [each for one in chosen for each in one.records]
        try:
            produced = await self.client.produce(
                lane.topic,
                lane.partition,
                records,
                acks=lane.acks,
                compression=lane.compression,
                total_timeout_ms=lane.timeout_ms,
            )
        except Exception as error:
            if len(chosen) > 1 and _is_rejected(error):
                for each in chosen:
                    await self._send(lane, [each])
                return
            for each in chosen:
                _fail(each, error)
            return
        offset = produced.base_offset
        for each in chosen:
            if not each.base_offset.done():
                each.base_offset.set_result(offset)
            offset += len(each.records) if offset >= 0 else 0


class NotSent(RequestTimedOut):
    """Records that waited behind others until their time was over; nothing of them is stored."""


def _first_batch(queue: Sequence[_Waiting]) -> Sequence[_Waiting]:
    count, size = 0, 0
    for number, each in enumerate(queue):
        count, size = count + len(each.records), size + each.size
        if number and (count > MERGED_RECORDS_MAX or size > MERGED_BYTES_MAX):
            return queue[:number]
    return queue


def _is_rejected(error: Exception) -> bool:
    """Return whether a batch is certainly not stored and would be rejected again."""
    return isinstance(error, KafkaError) and error.code not in RETRIABLE


def _fail(waiting: _Waiting, error: Exception) -> None:
    if not waiting.base_offset.done():  # the request was not cancelled
        waiting.base_offset.set_exception(error)
