"""Cleanup of expired and orphaned offsets, a bounded number per decision.

Two searches share the steps. Expiration runs every offsets.retention.check.interval.ms over all groups. The comparison
with the metadata runs after each election too: topics may have been deleted while this shard had no leader. An offset
is only deleted if everything pending for the same key may be deleted too, because the tombstone removes both. The
queues are soft state; a new machine searches again from the start.
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Final

from moldau.machines.groups.deleted_topics import DeletedTopic, is_deleted
from moldau.machines.groups.draft import Draft
from moldau.machines.groups.group import Group, GroupType
from moldau.machines.groups.offsets import expired
from moldau.machines.groups.pending_offsets import OffsetKey
from moldau.machines.groups.records import offset_record
from moldau.machines.groups.settings import OFFSETS_PER_CLEANUP_STEP
from moldau.machines.groups.state import GroupsState, Offsets
from moldau.machines.metadata.image import MetadataImage
from moldau.model.units import MINUTE_MS, SECOND_MS
from moldau.wire import messages

# After a failed write the shard reloads; a pause keeps it from repeating the same write in a loop.
FIRST_STEP_DELAY_MS: Final = 5.0 * SECOND_MS


@dataclass(frozen=True, slots=True)
class CleanupDue:
    """Time to search for offsets to delete."""


@dataclass(frozen=True, slots=True)
class CleanupContinued:
    """A search continues after other requests had their turn."""


class OffsetCleanup:
    """Soft state: the groups not yet searched. A new machine searches again."""

    def __init__(
        self,
        state: GroupsState,
        group: Callable[[str], Group | None],
        group_ids: Callable[[], Iterable[str]],
        newest_image: Callable[[], MetadataImage | None],
    ) -> None:
        self._state = state
        self._group = group
        self._group_ids = group_ids
        self._newest_image = newest_image
        self._groups_to_expire: deque[str] = deque()  # groups with possibly expired offsets
        self._groups_to_compare: deque[str] = deque()  # groups with offsets of possibly deleted topics

    def elected(self, draft: Draft) -> None:
        """Compare offsets with the metadata: topics may have been deleted before this shard could react."""
        self._start(draft)
        self.resume(draft, FIRST_STEP_DELAY_MS)

    def timed_out(self, draft: Draft, event: Hashable) -> bool:
        """Run a step if the event belongs to this cleanup; return whether it does."""
        match event:
            case CleanupDue():
                self._start(draft)
                self._groups_to_expire = deque(self._group_ids())
            case CleanupContinued():
                pass
            case _:
                return False
        self._run_step(draft)
        return True

    def _start(self, draft: Draft) -> None:
        draft.set_timer(CleanupDue(), draft.settings.offsets_retention_check_interval_ms)
        self._groups_to_compare = deque(dict.fromkeys([*self._state.offsets, *self._state.pending.group_ids()]))

    def resume(self, draft: Draft, delay_ms: float = 0) -> None:
        """Schedule the next step if there is work and the metadata is known."""
        if self._groups_to_expire or (self._groups_to_compare and self._newest_image() is not None):
            draft.set_timer(CleanupContinued(), delay_ms)

    def delete_topics(self, draft: Draft, topics: Iterable[DeletedTopic]) -> bool:
        """Delete some offsets of deleted topics; return whether none are left."""
        found = list(islice(self._offsets_of(topics), OFFSETS_PER_CLEANUP_STEP))
        self._delete(draft, dict.fromkeys(found))
        return len(found) < OFFSETS_PER_CLEANUP_STEP

    def _run_step(self, draft: Draft) -> None:
        """Run a bounded step. Records that are not written now are found again in the next one."""
        left = OFFSETS_PER_CLEANUP_STEP
        image = self._newest_image()
        while image is not None and self._groups_to_compare and left > 0:
            left -= self._compare(draft, self._groups_to_compare[0], image, left)
        while self._groups_to_expire and left > 0:
            left -= self._expire(draft, self._groups_to_expire[0], left)
        self.resume(draft)

    def _delete(self, draft: Draft, keys: Iterable[OffsetKey]) -> None:
        draft.records += [offset_record(group_id, topic, index, None) for group_id, topic, index in keys]

    def _offsets_of(self, topics: Iterable[DeletedTopic]) -> Iterator[OffsetKey]:
        """Yield the keys committed for deleted topics, settled or pending; may repeat a key."""
        for deleted in topics:
            for group_id, offsets in self._state.offsets.items():
                for index, committed in offsets.get(deleted.name, {}).items():
                    if deleted.covers(committed) and self._can_delete((group_id, deleted.name, index), deleted.covers):
                        yield group_id, deleted.name, index
            for group_id in self._state.pending.group_ids():
                for topic, index in self._state.pending.partitions(group_id):
                    if topic == deleted.name and self._can_delete((group_id, topic, index), deleted.covers):
                        yield group_id, topic, index

    def _can_delete(self, key: OffsetKey, is_deleted: Callable[[messages.OffsetCommitValue], bool]) -> bool:
        """Whether the key can be deleted alone: a tombstone also removes everything pending for it."""
        committed = self._state.offset(*key)
        return (committed is None or is_deleted(committed)) and all(map(is_deleted, self._state.pending.at(key)))

    def _compare(self, draft: Draft, group_id: str, image: MetadataImage, limit: int) -> int:
        """Delete a group's offsets of topics that are not in the metadata. Returns the amount of work."""
        offsets, topic_partitions = self._state.offsets.get(group_id, {}), self._state.pending.partitions(group_id)
        found = list(islice(self._find_orphans(group_id, offsets, topic_partitions, image), limit))
        self._delete(draft, dict.fromkeys(found))
        if len(found) < limit:
            self._groups_to_compare.popleft()
        return sum(map(len, offsets.values())) + len(topic_partitions) + 1

    def _find_orphans(
        self, group_id: str, offsets: Offsets, topic_partitions: Iterable[tuple[str, int]], image: MetadataImage
    ) -> Iterator[OffsetKey]:
        for name, partitions in offsets.items():
            topic = image.topics.get(name)
            for index, committed in partitions.items():
                if is_deleted(committed, topic) and self._can_delete(
                    (group_id, name, index), partial(is_deleted, topic=topic)
                ):
                    yield group_id, name, index
        for name, index in topic_partitions:
            if self._can_delete((group_id, name, index), partial(is_deleted, topic=image.topics.get(name))):
                yield group_id, name, index

    def _expire(self, draft: Draft, group_id: str, limit: int) -> int:
        """Delete a group's expired offsets, and an empty group without offsets. Returns the amount of work."""
        group = self._group(group_id)
        if group is None or self._state.pending.has_any(group_id):  # an open transaction is about to change it
            self._groups_to_expire.popleft()
            return 1
        offsets = self._state.offsets.get(group_id, {})
        count = sum(map(len, offsets.values()))
        due = expired(offsets, group, draft.settings.offsets_retention_minutes * MINUTE_MS, draft.now.wall_ms)
        found = list(islice(due, limit))
        draft.records += [offset_record(group_id, topic, index, None) for topic, index in found]
        # A share group is kept until it is deleted: its start offsets are at the share coordinator.
        if len(found) == count and group.is_empty and group.group_type is not GroupType.SHARE:
            draft.records += group.tombstones()
        if len(found) < limit:
            self._groups_to_expire.popleft()
        return count + 1
