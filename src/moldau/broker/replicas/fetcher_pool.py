"""One fetcher per leader that this node follows, and one more for topics that require flushed records."""

import asyncio

from moldau.broker.partitions.follower_role import FollowerRole
from moldau.broker.partitions.partition import FLUSH_EVERY_MESSAGE
from moldau.broker.replicas.fetcher import FetcherDependencies, ReplicaFetcher

Key = tuple[int, bool]  # the leader; whether fetched records are flushed before the next fetch


class FetcherPool:
    """A fetcher is created with its first partition and closed with its last."""

    def __init__(self, dependencies: FetcherDependencies) -> None:
        self._dependencies = dependencies
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
            fetcher = self._fetchers[key] = ReplicaFetcher(following.machine.leader, purpose, self._dependencies)
        self._of[following] = key
        fetcher.add(following)

    def remove(self, following: FollowerRole) -> None:
        key = self._of.pop(following, None)
        if key is not None:
            self._fetchers[key].remove(following)

    def sweep(self) -> None:
        """Close fetchers without partitions."""
        for key, fetcher in list(self._fetchers.items()):
            if not len(fetcher):
                del self._fetchers[key]
                task = asyncio.get_running_loop().create_task(fetcher.close())
                self._closing.add(task)
                task.add_done_callback(self._closing.discard)

    def wake(self) -> None:
        """Retry fetchers that may have waited for a metadata change."""
        for fetcher in self._fetchers.values():
            fetcher.wake()

    async def close(self) -> None:
        await asyncio.gather(*(each.close() for each in self._fetchers.values()), *self._closing)
        self._fetchers.clear()
