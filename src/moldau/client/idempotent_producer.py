"""Idempotent produce: records get the client's producer id and a sequence per partition, so that a batch with an
unknown outcome can be retried.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from moldau.client.types import ProduceResult, ProducerIdentity
from moldau.model.errors import ClusterAuthorizationFailed, UnsupportedVersion
from moldau.model.ids import TopicPartition
from moldau.records.builder import NewRecord, build_batch
from moldau.records.compression import Compression
from moldau.records.header import read_header
from moldau.records.record import Record

if TYPE_CHECKING:
    from moldau.client.async_client import AsyncClient

SEQUENCES: Final = 1 << 31

Send = Callable[[bytearray], Awaitable[ProduceResult]]


@dataclass(slots=True)
class _PartitionState:
    """The state of a partition, which gets one batch at a time, so that sequences arrive in order."""

    next_sequence: int = 0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass(slots=True)
class _ProducerSession:
    """One producer id. A batch with an unknown outcome ends it, because the next sequence is then unknown."""

    identity: ProducerIdentity
    is_over: bool = False
    partitions: dict[TopicPartition, _PartitionState] = field(
        default_factory=dict
    )  # as many as partitions are written to


class IdempotentProducer:
    """Sends records as batches with a producer id, if the cluster grants one."""

    def __init__(self, client: "AsyncClient") -> None:
        self._client = client
        self._session: _ProducerSession | None = None
        self._is_rejected = False
        self._init_lock = asyncio.Lock()

    async def produce(
        self,
        topic_partition: TopicPartition,
        records: Sequence[Record | NewRecord],
        compression: Compression,
        send: Send,
    ) -> ProduceResult:
        while (session := await self._current()) is not None:
            state = session.partitions.setdefault(topic_partition, _PartitionState())
            await self._client.before_deadline(
                state.lock.acquire(), f"timed out waiting for earlier batches of {topic_partition}"
            )
            try:
                if not session.is_over:  # otherwise another batch failed meanwhile
                    return await self._send(session, state, records, compression, send)
            finally:
                state.lock.release()
        return await send(build_batch(records, compression=compression))

    async def _send(
        self,
        session: _ProducerSession,
        state: _PartitionState,
        records: Sequence[Record | NewRecord],
        compression: Compression,
        send: Send,
    ) -> ProduceResult:
        batch = build_batch(
            records,
            compression=compression,
            producer_id=session.identity.producer_id,
            producer_epoch=session.identity.epoch,
            base_sequence=state.next_sequence,
        )
        try:
            produced = await send(batch)
        except BaseException:
            session.is_over = True
            raise
        state.next_sequence = (state.next_sequence + read_header(batch).last_offset_delta + 1) % SEQUENCES
        return produced

    async def _current(self) -> _ProducerSession | None:
        await self._client.before_deadline(self._init_lock.acquire(), "timed out waiting for a producer id")
        try:
            if not self._is_rejected and (self._session is None or self._session.is_over):
                self._session = _ProducerSession(await self._client.init_producer_id())
        except (UnsupportedVersion, ClusterAuthorizationFailed):
            self._is_rejected, self._session = True, None
        finally:
            self._init_lock.release()
        return self._session
