"""Loads shards one after the other, so that all of them together burden the event loop no more than one."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol

from moldau.broker.drivers.time_slices import yield_to_requests
from moldau.model.errors import KafkaError
from moldau.model.ids import TopicPartition

logger = logging.getLogger(__name__)

RETRY_S: Final = 1.0  # after a disk error


class Loadable(Protocol):
    """A shard, as the loader sees it."""

    @property
    def name(self) -> TopicPartition: ...

    def expect_load(self) -> None:
        """It will be loaded soon: respond COORDINATOR_LOAD_IN_PROGRESS until then."""
        ...

    async def load(self) -> None:
        """Replay the log, then accept requests."""
        ...


class ShardLoader:
    """The shards that wait to be loaded, and the task that loads them."""

    def __init__(self, topic: str, on_failure: Callable[[str, BaseException], None]) -> None:
        self._topic = topic
        self._on_failure = on_failure
        self._waiting: dict[Loadable, None] = {}
        self._current: Loadable | None = None
        self._task: asyncio.Task[None] | None = None

    def add(self, shard: Loadable) -> None:
        shard.expect_load()
        self._waiting[shard] = None
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def remove(self, shard: Loadable) -> None:
        """Do not load the shard; a running load is ended by the shard itself."""
        self._waiting.pop(shard, None)
        if self._current is shard:
            self._current = None

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        try:
            while self._waiting:
                shard = next(iter(self._waiting))
                del self._waiting[shard]
                await self._load(shard)
                await yield_to_requests()
        except Exception as error:
            self._on_failure(f"Cannot load {self._topic}", error)
        finally:
            self._task = None

    async def _load(self, shard: Loadable) -> None:
        """Disk errors are retried; unreadable records are not."""
        self._current = shard
        try:
            await shard.load()
        except OSError as error:
            if self._current is None:
                return  # it was resigned meanwhile, perhaps with its files
            logger.error("%s: loading failed, will retry: %s", shard.name, error)
            self._waiting[shard] = None
            await asyncio.sleep(RETRY_S)
        except KafkaError as error:
            logger.error("%s: loading failed, its keys are not served: %s", shard.name, error)
