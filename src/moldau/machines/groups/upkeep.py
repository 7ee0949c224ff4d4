"""Offsets that outlived their time, their group or their topic are forgotten, some at a time."""

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from moldau.machines.groups.draft import Draft
from moldau.machines.groups.group import Group
from moldau.machines.groups.offsets import expired
from moldau.machines.groups.records import offset_record
from moldau.machines.groups.settings import OFFSETS_PER_SLICE
from moldau.machines.groups.state import GroupsState
from moldau.model.units import MINUTE_MS


@dataclass(frozen=True, slots=True)
class UpkeepDue:
    """It is time to look for offsets to forget."""


@dataclass(frozen=True, slots=True)
class UpkeepGoesOn:
    """Work that was interrupted, so that others get their turn, goes on."""


class Upkeep:
    """Soft state: which groups are still to be looked at, and which topics are gone."""

    def __init__(
        self,
        state: GroupsState,
        group: Callable[[str], Group | None],
        group_ids: Callable[[], Iterable[str]],
    ) -> None:
        self._state = state
        self._group = group
        self._group_ids = group_ids
        self._unseen: deque[str] = deque()  # groups
        self._gone: dict[str, int] = {}  # topics, and until when, in wall time, a commit meant the one that is gone

    def begin(self, draft: Draft) -> None:
        draft.set_timer(UpkeepDue(), draft.settings.offsets_retention_check_interval_ms)

    def timed_out(self, draft: Draft, event: Hashable) -> bool:
        """Whether the event was one of this work's; then some of it is done."""
        match event:
            case UpkeepDue():
                self._unseen = deque(self._group_ids())
                self.begin(draft)
            case UpkeepGoesOn():
                pass
            case _:
                return False
        self._do_some(draft)
        return True

    def forget_topics(self, draft: Draft, topics: Iterable[str]) -> None:
        """Topics are gone; topics of the same names that are created later are others."""
        self._gone.update(dict.fromkeys(topics, draft.now.wall_ms))
        self._do_some(draft)

    def _do_some(self, draft: Draft) -> None:
        """Records that are not written in this turn are found again in the next."""
        left = self._forget_some(draft, OFFSETS_PER_SLICE)
        while self._unseen and left > 0:
            left -= self._expire(draft, self._unseen[0], left)
        if self._gone or self._unseen:
            draft.set_timer(UpkeepGoesOn(), 0)

    def _forget_some(self, draft: Draft, limit: int) -> int:
        """Forget offsets of topics that are gone; how many more could have been forgotten."""
        victims = list(islice(self._orphans(), limit))
        draft.records += [offset_record(group_id, topic, index, None) for group_id, topic, index in victims]
        if len(victims) < limit:
            self._gone.clear()
        return limit - len(victims)

    def _orphans(self) -> Iterator[tuple[str, str, int]]:
        for topic, until_ms in self._gone.items():
            for group_id, topics in self._state.offsets.items():
                for index, committed in topics.get(topic, {}).items():
                    if committed.commit_timestamp <= until_ms:
                        yield group_id, topic, index
            yield from self._state.pending.of_topic(topic, until_ms)

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
