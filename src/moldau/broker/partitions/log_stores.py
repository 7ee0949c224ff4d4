"""The logs of this node in all its log dirs. Each log dir has its own checkpoints and clean-shutdown marker.

A new log goes to the log dir with the fewest partitions, unless the metadata name one. A replica that the metadata
assign to a log dir that is not here is not replaced by an empty log:

    a log dir could not be opened   the replica is offline until the next start
    all log dirs are open           its log dir was removed or formatted again: the replica is lost, like a corrupt one
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from moldau.broker.partitions.log_store import LogStore
from moldau.broker.partitions.partition import Partition
from moldau.broker.runtime.log_dirs import LogDirs, path_of
from moldau.machines.metadata.image import MetadataImage
from moldau.model.errors import StorageFailed
from moldau.model.ids import NO_DIRECTORY, UNASSIGNED_DIRECTORY, TopicId, TopicPartition
from moldau.storage.files import SyncFailed
from moldau.storage.log import Log
from moldau.storage.log_dir import encode_id
from moldau.storage.settings import LogSettings

logger = logging.getLogger(__name__)

PREFERENCES_MAX: Final = 10_000


class ReplicaPlace(NamedTuple):
    """The state of a replica in the metadata."""

    directory: bytes  # the id of its log dir, or a reserved one
    may_have_records: bool  # it existed before this run, and other brokers count on its records

    @property
    def is_assigned(self) -> bool:
        return self.directory not in (NO_DIRECTORY, UNASSIGNED_DIRECTORY)


@dataclass(frozen=True, slots=True)
class LogStores:
    """Chooses the log dir of each log, and passes on what concerns it."""

    by_path: Mapping[str, LogStore]
    log_dirs: LogDirs
    cordoned: Callable[[], Sequence[str]]  # paths that get no new logs
    places: dict[TopicPartition, LogStore]  # of open logs
    counts: Counter[str]  # of open logs, by path
    preferred: dict[TopicPartition, str]  # the log dirs requested for logs that do not exist yet

    @classmethod
    def of(cls, stores: Iterable[LogStore], log_dirs: LogDirs, cordoned: Callable[[], Sequence[str]]) -> "LogStores":
        return cls({each.path: each for each in stores}, log_dirs, cordoned, {}, Counter(), {})

    # -- opening and closing

    def offline_cause(self, name: TopicPartition, place: ReplicaPlace) -> str | None:
        """Why a log cannot be opened before the next start, if that is so."""
        unopened = self.log_dirs.unopened
        if not unopened or not place.is_assigned or self._is_here(name, place):
            return None
        return f"its log dir is not available: {', '.join(f'{path} ({cause})' for path, cause in unopened.items())}"

    def open(
        self,
        name: TopicPartition,
        topic_id: TopicId,
        settings: LogSettings,
        place: ReplicaPlace,
        *,
        allows_data_loss: bool = False,
    ) -> tuple[Log, int]:
        """Open the partition's log, or create it where it belongs. Also return its checkpointed high watermark."""
        if not allows_data_loss and not self._is_here(name, place):
            self._check_new(place)
        store = self._store_for(name, place)
        opened = store.open(name, topic_id, settings, allows_data_loss=allows_data_loss)
        self._put(name, store)
        return opened

    def _is_here(self, name: TopicPartition, place: ReplicaPlace) -> bool:
        return any(each.knows(name) for each in self.by_path.values()) or place.directory in self.log_dirs.ids.values()

    def _check_new(self, place: ReplicaPlace) -> None:
        if place.is_assigned:
            raise StorageFailed(f"none of log.dirs has the directory id {encode_id(place.directory)} of its log dir")
        if place.may_have_records and self.log_dirs.unopened:
            raise StorageFailed(f"it may be in a log dir that is not available: {', '.join(self.log_dirs.unopened)}")

    def _store_for(self, name: TopicPartition, place: ReplicaPlace) -> LogStore:
        having = [each for each in self.by_path.values() if each.knows(name)]
        assigned = [each for path, each in self.by_path.items() if self.log_dirs.ids[path] == place.directory]
        if len(having) > 1:  # a move between log dirs was interrupted when it was complete
            kept = next((each for each in having if each in assigned), having[0])
            for each in having:
                if each is not kept:
                    logger.warning("%s is in several log dirs; %s is used", name, kept.path)
                    each.mark_stray(name)
            return kept
        preferred = [self.by_path[self.preferred.pop(name)]] if name in self.preferred and not having else []
        return (having or preferred or assigned or [self._least_used()])[0]

    def _least_used(self) -> LogStore:
        """The log dir with the fewest partitions; one that is online and not cordoned if possible."""
        cordoned = self.cordoned()
        return min(
            self.by_path.values(),
            key=lambda each: (not self.log_dirs.is_online(each.path), each.path in cordoned, self.counts[each.path]),
        )

    def _put(self, name: TopicPartition, store: LogStore) -> None:
        self._drop(name)
        self.places[name] = store
        self.counts[store.path] += 1

    def _drop(self, name: TopicPartition) -> None:
        store = self.places.pop(name, None)
        if store is not None:
            self.counts[store.path] -= 1

    async def remove_leftovers(self, names: Sequence[TopicPartition], topic_id: TopicId) -> None:
        """Before logs are created: remove what is left of earlier logs of the same names."""
        for each in self.by_path.values():
            await each.remove_leftovers(names, topic_id)

    def _of(self, partition: Partition) -> LogStore:
        return self.by_path[path_of(partition.log.folder)]

    def close_damaged(self, partition: Partition, damaged_offset: int) -> None:
        """Close a log in use; the next `open` scans the corrupt segment and all later ones."""
        self._of(partition).close_damaged(partition, damaged_offset)
        self._drop(partition.name)

    def mark_stray(self, name: TopicPartition) -> None:
        """The log cannot be used: rename it, so that the next `open` creates a new one."""
        for each in self.by_path.values():
            if each.knows(name):
                each.mark_stray(name)

    async def discard(self, name: TopicPartition, topic_id: TopicId) -> None:
        """Delete a log that could not be opened, with its topic."""
        for each in self.by_path.values():
            await each.discard(name, topic_id)

    async def delete(self, partition: Partition) -> None:
        """Rename it at once; delete the files later."""
        self._drop(partition.name)
        await self._of(partition).delete(partition)

    # -- moves

    def prefer(self, name: TopicPartition, path: str) -> None:
        """A log of this name is to be created in this log dir. Forgotten with the oldest of too many."""
        self.preferred.pop(name, None)
        self.preferred[name] = path
        if len(self.preferred) > PREFERENCES_MAX:
            del self.preferred[next(iter(self.preferred))]

    def create_future(self, partition: Partition, path: str) -> Log:
        """Create the log to which a log is copied."""
        return self.by_path[path].create_future(partition)

    def put_in_place(self, partition: Partition, future: Log, path: str, *, is_synced: bool) -> None:
        """The copy is complete and becomes the log."""
        store = self.by_path[path]
        store.put_in_place(partition.name, future, is_synced=is_synced)
        self._of(partition).moved(partition)
        self._put(partition.name, store)

    async def abandon_move(self, future: Log) -> None:
        """The copy is not needed."""
        await self.by_path[path_of(future.folder)].remove(future)

    async def delete_moved(self, partition: Partition, old: Log) -> None:
        """The log was copied to another log dir: delete it in this one."""
        await self.by_path[path_of(old.folder)].delete_moved(partition, old)

    def interrupted_moves(self) -> list[tuple[TopicPartition, str]]:
        """The moves of an earlier run with their log dirs; their copies are deleted."""
        return [(name, path) for path, each in self.by_path.items() for name in each.remove_futures()]

    def sweep(self, image: MetadataImage, node_id: int, kept: Iterable[str] = ()) -> None:
        """After the first image: delete leftovers of deleted topics, and rename stray logs."""
        for each in self.by_path.values():
            each.sweep(image, node_id, kept)

    async def sync(self) -> None:
        """Flush created and deleted directories. Without a free descriptor the next call does so."""
        for each in self.by_path.values():
            try:
                await each.sync()
            except OSError as error:
                logger.warning("%s: syncing the log dir failed, will retry: %s", each.path, error)
            except SyncFailed as error:
                if not self._is_dispensable(each):
                    raise
                logger.debug("%s not synced: %s", each.path, error)

    # -- checkpoints

    async def write_checkpoint(self, name: str, collect: Callable[[], Mapping[TopicPartition, int]]) -> None:
        """Write the offsets of open logs, and of those that were not opened yet, to the log dir of each.

        A log dir that is offline does not keep the others from theirs.
        """
        results = await asyncio.gather(
            *(self._write(each, name, collect) for each in self.by_path.values()), return_exceptions=True
        )
        for store, result in zip(self.by_path.values(), results, strict=True):
            if isinstance(result, OSError) and self._is_dispensable(store):
                logger.debug("%s/%s not written: %s", store.path, name, result)
            elif isinstance(result, BaseException):
                raise result

    async def _write(self, store: LogStore, name: str, collect: Callable[[], Mapping[TopicPartition, int]]) -> None:
        def own() -> Mapping[TopicPartition, int]:
            offsets = {each: offset for each, offset in collect().items() if self.places.get(each) is store}
            return {**store.remembered(name), **offsets}

        await store.write_checkpoint(name, own)

    def _is_dispensable(self, store: LogStore) -> bool:
        """Whether the failure of this log dir must not affect the others."""
        return self.log_dirs.is_several and not self.log_dirs.is_online(store.path)

    def is_dispensable(self, partition: Partition) -> bool:
        """Whether the log failed because its log dir did, while other log dirs of the broker work."""
        return self._is_dispensable(self._of(partition))

    def may_be_in(self, name: TopicPartition, path: str) -> bool:
        """Whether a log that is not open may be in this directory."""
        having = [each.path for each in self.by_path.values() if each.knows(name)]
        return path in having or not having

    def is_written(self, path: str) -> bool:
        """Whether all logs of this directory could be closed and checkpointed."""
        store = self.by_path.get(path)
        return store is None or not self._is_dispensable(store)

    def take_cleaned_offset(self, name: TopicPartition) -> int:
        """The checkpointed cleaner offset, returned once: a later log of this name is another one."""
        store = self.places.get(name)
        return 0 if store is None else store.take_cleaned_offset(name)

    def unlink(self, path: str) -> None:
        next(iter(self.by_path.values())).unlink(path)

    async def close(self) -> None:
        """Pending deletions are left to the next start."""
        for each in self.by_path.values():
            await each.close()
