"""Shards are loaded one after the other, so that all of them together take no more of the loop than one does."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol

from moldau.broker.drivers.time_slices import yield_to_requests
from moldau.model.errors import KafkaError
from moldau.model.ids import TopicPartition

logger = logging.getLogger(__name__)

RETRY_S: Final = 1.0  # after a failure of the disk


class Loadable(Protocol):
    """A shard as its loading sees it."""

    @property
    def name(self) -> TopicPartition: ...

    def expect_load(self) -> None:
        """It will be loaded soon: whoever asks meanwhile is told so."""
        ...

    async def load(self) -> None:
        """Replay the log, then speak for it."""
        ...


class ShardLoading:
    """The shards that wait to be loaded, and the task that does it while there are any."""

    def __init__(self, topic: str, on_failure: Callable[[str, BaseException], None]) -> None:
        self._topic = topic
        self._on_failure = on_failure
        self._waiting: dict[Loadable, None] = {}
        self._under_way: Loadable | None = None
        self._task: asyncio.Task[None] | None = None

    def add(self, shard: Loadable) -> None:
        shard.expect_load()
        self._waiting[shard] = None
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def remove(self, shard: Loadable) -> None:
        """It is not to be loaded any more; a load that is under way is ended by the shard itself."""
        self._waiting.pop(shard, None)
        if self._under_way is shard:
            self._under_way = None

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
            self._on_failure(f"{self._topic} could not be loaded", error)
        finally:
            self._task = None

    async def _load(self, shard: Loadable) -> None:
        """A disk that refuses may not do so for long; records that cannot be read stay so."""
        self._under_way = shard
        try:
            await shard.load()
        except OSError as error:
            if self._under_way is None:
                return  # it was given up meanwhile, perhaps with its files
            logger.error("%s cannot be loaded and will be tried again: %s", shard.name, error)
            self._waiting[shard] = None
            await asyncio.sleep(RETRY_S)
        except KafkaError as error:
            logger.error("%s cannot be loaded, what is kept in it is not served: %s", shard.name, error)
