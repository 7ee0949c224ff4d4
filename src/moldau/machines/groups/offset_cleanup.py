"""Offsets that outlived their time, their group or their topic are forgotten, some at a time."""

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Final

from moldau.machines.groups.deleted_topics import GoneTopic, is_gone
from moldau.machines.groups.draft import Draft
from moldau.machines.groups.group import Group
from moldau.machines.groups.offsets import expired
from moldau.machines.groups.pending_offsets import OffsetKey
from moldau.machines.groups.records import offset_record
from moldau.machines.groups.settings import OFFSETS_PER_SLICE
from moldau.machines.groups.state import GroupsState, Offsets
from moldau.machines.metadata.image import MetadataImage
from moldau.model.units import MINUTE_MS, SECOND_MS
from moldau.wire import messages

# After a refusal of the disk the shard is loaded anew: it should not write at once what was refused, and so on.
ELECTED_MS: Final = 5.0 * SECOND_MS


@dataclass(frozen=True, slots=True)
class UpkeepDue:
    """It is time to look for offsets to forget."""


@dataclass(frozen=True, slots=True)
class UpkeepGoesOn:
    """Work that was interrupted, so that others get their turn, goes on."""


class Upkeep:
    """Soft state: which groups are still to be looked at. What a machine that is gone left undone is found again."""

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
        self._unseen: deque[str] = deque()  # groups whose offsets may have expired
        self._uncompared: deque[str] = deque()  # groups with offsets of which the topics may be gone

    def elected(self, draft: Draft) -> None:
        """Topics may have been deleted while nobody told this shard, or before what that meant was written."""
        self._begin(draft)
        self.go_on(draft, ELECTED_MS)

    def timed_out(self, draft: Draft, event: Hashable) -> bool:
        """Whether the event was one of this work's; then some of it is done."""
        match event:
            case UpkeepDue():
                self._begin(draft)
                self._unseen = deque(self._group_ids())
            case UpkeepGoesOn():
                pass
            case _:
                return False
        self._do_some(draft)
        return True

    def _begin(self, draft: Draft) -> None:
        draft.set_timer(UpkeepDue(), draft.settings.offsets_retention_check_interval_ms)
        self._uncompared = deque(dict.fromkeys([*self._state.offsets, *self._state.pending.group_ids()]))

    def go_on(self, draft: Draft, delay_ms: float = 0) -> None:
        """Where there is something to do, and it is known what."""
        if self._unseen or (self._uncompared and self._newest_image() is not None):
            draft.set_timer(UpkeepGoesOn(), delay_ms)

    def forget_topics(self, draft: Draft, topics: Iterable[GoneTopic]) -> bool:
        """Some offsets of topics that are gone; whether there are no more."""
        found = list(islice(self._offsets_of(topics), OFFSETS_PER_SLICE))
        self._forget(draft, dict.fromkeys(found))
        return len(found) < OFFSETS_PER_SLICE

    def _do_some(self, draft: Draft) -> None:
        """Records that are not written in this turn are found again in the next."""
        left = OFFSETS_PER_SLICE
        image = self._newest_image()
        while image is not None and self._uncompared and left > 0:
            left -= self._compare(draft, self._uncompared[0], image, left)
        while self._unseen and left > 0:
            left -= self._expire(draft, self._unseen[0], left)
        self.go_on(draft)

    def _forget(self, draft: Draft, keys: Iterable[OffsetKey]) -> None:
        draft.records += [offset_record(group_id, topic, index, None) for group_id, topic, index in keys]

    def _offsets_of(self, topics: Iterable[GoneTopic]) -> Iterator[OffsetKey]:
        """What was committed for topics that are gone, settled or pending; some of it twice."""
        for gone in topics:
            for group_id, offsets in self._state.offsets.items():
                for index, committed in offsets.get(gone.name, {}).items():
                    if gone.has(committed) and self._may_go((group_id, gone.name, index), gone.has):
                        yield group_id, gone.name, index
            for group_id in self._state.pending.group_ids():
                for topic, index in self._state.pending.places(group_id):
                    if topic == gone.name and self._may_go((group_id, topic, index), gone.has):
                        yield group_id, topic, index

    def _may_go(self, key: OffsetKey, is_gone: Callable[[messages.OffsetCommitValue], bool]) -> bool:
        """Whether nothing else goes with it: what makes an offset forgotten ends all that is pending in its place."""
        committed = self._state.offset(*key)
        return (committed is None or is_gone(committed)) and all(map(is_gone, self._state.pending.at(key)))

    def _compare(self, draft: Draft, group_id: str, image: MetadataImage, limit: int) -> int:
        """Forget what a group committed for topics that are not in the metadata any more. How much work that was."""
        offsets, places = self._state.offsets.get(group_id, {}), self._state.pending.places(group_id)
        found = list(islice(self._orphans(group_id, offsets, places, image), limit))
        self._forget(draft, dict.fromkeys(found))
        if len(found) < limit:
            self._uncompared.popleft()
        return sum(map(len, offsets.values())) + len(places) + 1

    def _orphans(
        self, group_id: str, offsets: Offsets, places: Iterable[tuple[str, int]], image: MetadataImage
    ) -> Iterator[OffsetKey]:
        for name, partitions in offsets.items():
            topic = image.topics.get(name)
            for index, committed in partitions.items():
                if is_gone(committed, topic) and self._may_go((group_id, name, index), partial(is_gone, topic=topic)):
                    yield group_id, name, index
        for name, index in places:
            if self._may_go((group_id, name, index), partial(is_gone, topic=image.topics.get(name))):
                yield group_id, name, index

    def _expire(self, draft: Draft, group_id: str, limit: int) -> int:
        """Forget what a group need not keep, and an empty group that has nothing left. How much work that was."""
        group = self._group(group_id)
        if group is None or self._state.pending.has_any(group_id):  # an open transaction is about to change it
            self._unseen.popleft()
            return 1
        offsets = self._state.offsets.get(group_id, {})
        count = sum(map(len, offsets.values()))
        due = expired(offsets, group, draft.settings.offsets_retention_minutes * MINUTE_MS, draft.now.wall_ms)
        victims = list(islice(due, limit))
        draft.records += [offset_record(group_id, topic, index, None) for topic, index in victims]
        if len(victims) == count and group.is_empty:
            draft.records += group.tombstones()
        if len(victims) < limit:
            self._unseen.popleft()
        return count + 1
