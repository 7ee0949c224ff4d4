"""Flushes truncated logs: nothing is appended after a truncation before it is durable, with the recovery point."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from moldau.broker.partitions.log_flusher import LogFlusher
from moldau.broker.partitions.partition import Partition

logger = logging.getLogger(__name__)

RETRY_MS: Final = 1000.0  # after a disk error


class TruncationSync:
    """Flushes the truncations of one moment together, as after a leader change."""

    def __init__(
        self,
        flusher: LogFlusher,
        checkpoint: Callable[[], Awaitable[None]],
        failed: Callable[[str, BaseException], None],
    ) -> None:
        self._flusher = flusher
        self._checkpoint = checkpoint
        self._failed = failed
        self._truncated: dict[Partition, None] = {}
        self._task: asyncio.Task[None] | None = None

    def add(self, partition: Partition) -> None:
        partition.has_unflushed_truncation = True
        self._truncated[partition] = None
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        try:
            while self._truncated:
                await asyncio.sleep(0)
                try:
                    flushed = await self._bring_to_disk(list(self._truncated))
                except OSError as error:
                    logger.error("Flushing truncated logs failed, will retry: %s", error)
                    await asyncio.sleep(RETRY_MS / 1000)
                    continue
                for partition in flushed:
                    del self._truncated[partition]
                    self._release(partition)
                if self._truncated and not flushed:
                    await asyncio.sleep(RETRY_MS / 1000)
        except Exception as error:
            self._failed("Flushing truncated logs failed", error)
        finally:
            self._task = None

    async def _bring_to_disk(self, truncated: list[Partition]) -> list[Partition]:
        """Return those that were flushed: a disk that fails does not hold up the logs of others."""
        await asyncio.gather(*(self._flusher.sync_now(each) for each in truncated if each.role.is_open))
        flushed = [each for each in truncated if not (each.role.is_open and each.log.has_unsynced_truncation)]
        if flushed:
            await self._checkpoint()
        return flushed

    def _release(self, partition: Partition) -> None:
        partition.has_unflushed_truncation = False
        if partition.role.following is not None:
            partition.role.following.on_ready()
