"""Producer ids for this broker's clients, from blocks that the controller allocates."""

import asyncio
from collections.abc import Awaitable, Callable

from moldau.machines.metadata.producer_ids import ProducerIdBlock


class ProducerIds:
    """One block at a time. Unused ids are lost at shutdown: ids are cheap, duplicates are not."""

    def __init__(self, allocate: Callable[[], Awaitable[ProducerIdBlock]]) -> None:
        self._allocate = allocate
        self._next = 0
        self._end = 0
        self._lock = asyncio.Lock()

    async def next(self) -> int:
        async with self._lock:
            if self._next == self._end:
                block = await self._allocate()
                self._next, self._end = block.first, block.first + block.length
            producer_id = self._next
            self._next += 1
            return producer_id
