"""One fetcher for each leader that this node follows, and one more for topics that want every message on disk."""

import asyncio

from moldau.broker.partitions.follower_role import FollowerRole
from moldau.broker.partitions.partition import FLUSH_EVERY_MESSAGE
from moldau.broker.replicas.fetcher import FetcherDependencies, ReplicaFetcher

Key = tuple[int, bool]  # the leader; whether what is fetched has to be synced before the next fetch


class FetcherPool:
    """A fetcher comes with the first partition that needs it and goes with the last."""

    def __init__(self, means: FetcherDependencies) -> None:
        self._means = means
        self._fetchers: dict[Key, ReplicaFetcher] = {}
        self._of: dict[FollowerRole, Key] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._fetchers)

    def add(self, following: FollowerRole) -> None:
        is_synced = following.partition.log.settings.flush_messages == FLUSH_EVERY_MESSAGE
        key = following.machine.leader, is_synced
        fetcher = self._fetchers.get(key)
        if fetcher is None:
            purpose = "replicas, synced" if is_synced else "replicas"
            fetcher = self._fetchers[key] = ReplicaFetcher(following.machine.leader, purpose, self._means)
        self._of[following] = key
        fetcher.add(following)

    def remove(self, following: FollowerRole) -> None:
        key = self._of.pop(following, None)
        if key is not None:
            self._fetchers[key].remove(following)

    def sweep(self) -> None:
        """Let go of fetchers that have nothing left to fetch."""
        for key, fetcher in list(self._fetchers.items()):
            if not len(fetcher):
                del self._fetchers[key]
                task = asyncio.get_running_loop().create_task(fetcher.close())
                self._closing.add(task)
                task.add_done_callback(self._closing.discard)

    def nudge(self) -> None:
        """Something was decided that they may have waited for."""
        for fetcher in self._fetchers.values():
            fetcher.nudge()

    async def close(self) -> None:
        await asyncio.gather(*(each.close() for each in self._fetchers.values()), *self._closing)
        self._fetchers.clear()
