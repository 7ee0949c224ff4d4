"""Shards are loaded one after the other; those that fail are tried again, unless nobody wants them any more."""

import asyncio
from collections.abc import Callable

from moldau.broker.coordinators.shard_loader import RETRY_S, ShardLoader
from moldau.model.ids import TopicPartition
from moldau_dev.simulation.loop import SimulatedLoop


class Trying:
    """A shard whose first loads fail."""

    def __init__(self, failures: int, meanwhile: Callable[["Trying"], None] = lambda _: None) -> None:
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


def test_a_shard_whose_disk_refuses_is_tried_again() -> None:
    async def main() -> None:
        loading, shard, other = _loading(), Trying(2), Trying(0)
        loading.add(shard)
        loading.add(other)
        await asyncio.sleep(4 * RETRY_S)
        assert (shard.loads, other.loads) == (3, 1)
        await loading.close()

    SimulatedLoop().run(main())


def test_a_shard_that_is_given_up_while_it_is_loaded_is_not_tried_again() -> None:
    async def main() -> None:
        loading = _loading()
        shard = Trying(9, loading.remove)
        loading.add(shard)
        await asyncio.sleep(4 * RETRY_S)
        assert shard.loads == 1
        other = Trying(0)
        loading.add(other)
        await asyncio.sleep(RETRY_S)
        assert other.loads == 1
        await loading.close()

    SimulatedLoop().run(main())
