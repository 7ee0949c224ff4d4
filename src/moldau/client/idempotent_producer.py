"""Records that come without a producer id get one of the client's own, with a sequence for each partition: so a batch
may be sent again though nobody knows whether it arrived."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from moldau.client.types import Produced, ProducerIdentity
from moldau.model.errors import ClusterAuthorizationFailed, UnsupportedVersion
from moldau.model.ids import TopicPartition
from moldau.records.builder import NewRecord, build_batch
from moldau.records.compression import Compression
from moldau.records.header import read_header
from moldau.records.record import Record

if TYPE_CHECKING:
    from moldau.client.async_client import AsyncClient

SEQUENCES: Final = 1 << 31

Send = Callable[[bytearray], Awaitable[Produced]]


@dataclass(slots=True)
class _Lane:
    """One partition, to which one batch goes at a time: so sequences arrive in their order."""

    next_sequence: int = 0
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass(slots=True)
class _Life:
    """One producer id. It ends with a batch of unknown fate: then the next sequence is unknown too."""

    identity: ProducerIdentity
    is_over: bool = False
    lanes: dict[TopicPartition, _Lane] = field(default_factory=dict)  # as many as partitions are written to


class Numbering:
    """Sends records as batches of a producer id, where the cluster gives one."""

    def __init__(self, client: "AsyncClient") -> None:
        self._client = client
        self._life: _Life | None = None
        self._is_refused = False
        self._beginning = asyncio.Lock()

    async def produce(
        self, place: TopicPartition, records: Sequence[Record | NewRecord], compression: Compression, send: Send
    ) -> Produced:
        while (life := await self._current()) is not None:
            lane = life.lanes.setdefault(place, _Lane())
            await self._client.in_time(lane.turn.acquire(), f"the batches before it did not reach {place} in time")
            try:
                if not life.is_over:  # or else another batch failed meanwhile
                    return await self._send(life, lane, records, compression, send)
            finally:
                lane.turn.release()
        return await send(build_batch(records, compression=compression))

    async def _send(
        self, life: _Life, lane: _Lane, records: Sequence[Record | NewRecord], compression: Compression, send: Send
    ) -> Produced:
        batch = build_batch(
            records,
            compression=compression,
            producer_id=life.identity.producer_id,
            producer_epoch=life.identity.epoch,
            base_sequence=lane.next_sequence,
        )
        try:
            produced = await send(batch)
        except BaseException:
            life.is_over = True
            raise
        lane.next_sequence = (lane.next_sequence + read_header(batch).last_offset_delta + 1) % SEQUENCES
        return produced

    async def _current(self) -> _Life | None:
        await self._client.in_time(self._beginning.acquire(), "no producer id was given in time")
        try:
            if not self._is_refused and (self._life is None or self._life.is_over):
                self._life = _Life(await self._client.init_producer_id())
        except (UnsupportedVersion, ClusterAuthorizationFailed):
            self._is_refused, self._life = True, None
        finally:
            self._beginning.release()
        return self._life
