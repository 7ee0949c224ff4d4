"""Shards are loaded sequentially; failed loads are retried until the shard is unloaded."""

import asyncio
from collections.abc import Callable

from moldau.broker.coordinators.shard_loader import RETRY_S, ShardLoader
from moldau.model.ids import TopicPartition
from moldau_dev.simulation.loop import SimulatedLoop


class FailingShard:
    """A shard whose first loads fail."""

    def __init__(self, failures: int, meanwhile: Callable[["FailingShard"], None] = lambda _: None) -> None:
        self.name = TopicPartition("t", 0)
        self.loads = 0
        self._failures = failures
        self._meanwhile = meanwhile

    def expect_load(self) -> None: ...

    async def load(self) -> None:
        self.loads += 1
        await asyncio.sleep(0.1)
        self._meanwhile(self)
        if self.loads <= self._failures:
            raise FileNotFoundError("it is not there")


def _loading() -> ShardLoader:
    def fail(what: str, error: BaseException) -> None:
        raise AssertionError(what) from error

    return ShardLoader("t", fail)


def test_failed_load_is_retried() -> None:
    async def main() -> None:
        loading, shard, other = _loading(), FailingShard(2), FailingShard(0)
        loading.add(shard)
        loading.add(other)
        await asyncio.sleep(4 * RETRY_S)
        assert (shard.loads, other.loads) == (3, 1)
        await loading.close()

    SimulatedLoop().run(main())


def test_shard_unloaded_while_loading_is_not_retried() -> None:
    async def main() -> None:
        loading = _loading()
        shard = FailingShard(9, loading.remove)
        loading.add(shard)
        await asyncio.sleep(4 * RETRY_S)
        assert shard.loads == 1
        other = FailingShard(0)
        loading.add(other)
        await asyncio.sleep(RETRY_S)
        assert other.loads == 1
        await loading.close()

    SimulatedLoop().run(main())
