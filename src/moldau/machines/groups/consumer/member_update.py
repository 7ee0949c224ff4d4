"""One member of a consumer group changes, or only shows itself: what follows for the group, its target and the member.

The group's epoch grows when what its members read changes; then the target is reckoned anew; then the member takes the
next step towards it. Members of both protocols go this way.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from moldau.machines.groups.consumer.group import ConsumerGroup
from moldau.machines.groups.consumer.member import JOINING_EPOCH, Member
from moldau.machines.groups.consumer.partitions import Assignment
from moldau.machines.groups.consumer.reconciliation import Owned, Surroundings, Target, reconcile
from moldau.machines.groups.consumer.records import (
    epoch_record,
    holding_record,
    member_record,
    removal_records,
    target_record,
    topics_end_record,
)
from moldau.machines.groups.consumer.regexes import Matching, Regexes
from moldau.machines.groups.consumer.soft_state import Watch
from moldau.machines.groups.consumer.subscription_metadata import Reading, topics_hash
from moldau.machines.groups.consumer.target_assignment import preferred_assignor, reckon_target, write_target
from moldau.machines.groups.draft import Draft
from moldau.model.ids import NO_TIMESTAMP, TopicId


class Comer(NamedTuple):
    """Who changes: as the group knows it until now, and whose place it takes if it is a static member come back."""

    before: Member
    replaces: str | None = None  # the id that the instance had


def newcomer(member_id: str) -> Comer:
    return Comer(Member(member_id))


def returned(member: Member, member_id: str) -> Comer:
    """A static member is back: it takes over what was its own, and begins at the joining epoch."""
    before = replace(member, member_id=member_id, epoch=JOINING_EPOCH, previous_epoch=JOINING_EPOCH)
    return Comer(before, None if member.member_id == member_id else member.member_id)


class Change:
    """One decision about one member of one group. Records go to the draft as they arise."""

    def __init__(self, group: ConsumerGroup, watch: Watch, draft: Draft, matching: Matching, comer: Comer) -> None:
        self.group = group
        self.watch = watch
        self.draft = draft
        self._matching = matching
        self._image = matching.image
        self._comer = comer
        self._regexes = Regexes(group, watch, draft, matching)
        self._written: dict[str, Assignment] = {}  # targets that went into the draft already
        self.epoch = group.epoch
        self.is_subscription_new = False

    def describe(self, after: Member) -> None:
        """What the member says of itself goes to the log if it is new, and the group's epoch grows if it matters."""
        self._replace()
        before, group_id = self._comer.before, self.group.group_id
        is_known = before.member_id in self.group.members or self._comer.replaces is not None
        if not is_known or not before.describes_same(after):
            self.draft.records.append(member_record(group_id, after))
        self._regexes.update(before, after)
        self.is_subscription_new = before.topics != after.topics or before.regex != after.regex
        must_grow = self.group.epoch == 0 or before.topics != after.topics or self._regexes.is_changed
        if must_grow or self.watch.topics is not self._image.topics:
            self._compare_topics(after, must_grow=must_grow)

    def _replace(self) -> None:
        """The member that was there before goes, and its place is taken in the same breath."""
        old_id = self._comer.replaces
        if old_id is None:
            return
        group_id, before = self.group.group_id, self._comer.before
        self._written[before.member_id] = self.group.target(old_id)
        self.draft.records += removal_records(group_id, old_id)
        self.draft.records.append(member_record(group_id, before))
        self.draft.records.append(target_record(group_id, before.member_id, self.group.target(old_id)))
        self.draft.records.append(holding_record(group_id, before))
        self.watch.forget(old_id)

    def _compare_topics(self, after: Member, *, must_grow: bool) -> None:
        """The epoch also grows when topics that the group reads came, went or grew."""
        new_hash = topics_hash(self._names_read(after), self._image.topics)
        if must_grow or new_hash != self.group.metadata_hash:
            self.epoch += 1
            created_ms = self.group.creation_time_ms
            if self.group.epoch == 0 and created_ms == NO_TIMESTAMP:
                created_ms = self.draft.now.wall_ms
            self.draft.records.append(epoch_record(self.group.group_id, self.epoch, new_hash, created_ms))
            self.watch.changed_ms = self.draft.now.ms
        if self.group.has_partition_metadata:
            self.draft.records.append(topics_end_record(self.group.group_id))
        self.watch.topics = self._image.topics

    def _names_read(self, after: Member) -> set[str]:
        before = self._comer.before.topics
        others = {name for name, count in self.group.topic_counts.items() if count > (name in before)}
        return others.union(after.topics, *(each.topics for each in self._regexes.resolved.values()))

    def reconcile(self, after: Member, owned: Owned | None) -> Member:
        """Reckon the target if it is out of date, and lead the member towards it."""
        target = self._target(after)
        if after.is_reconciled_to(target.epoch) and not self.is_subscription_new:
            return after
        readable = Reading(self._regexes.resolved, self._image.topics).by(after)
        around = Surroundings(readable, self._is_free, owned, self.is_subscription_new)
        led = reconcile(after, target, around)
        if led is not after:
            self.draft.records.append(holding_record(self.group.group_id, led))
            self.watch.reconciled(self.draft, led)
        return led

    def _target(self, after: Member) -> Target:
        group, member_id = self.group, after.member_id
        if self.epoch <= group.assignment_epoch:
            return Target(group.assignment_epoch, self._written.get(member_id, group.target(member_id)))
        members = self._members_with(after)
        assignor = preferred_assignor(members.values(), self.draft.settings.group_consumer_assignors)
        new = reckon_target(group, members, self._written, self._regexes.resolved, self._image, assignor)
        write_target(group, self.draft, self.epoch, new, self._written)
        return Target(self.epoch, new[member_id])

    def _members_with(self, after: Member) -> Mapping[str, Member]:
        members = dict(self.group.members)
        if self._comer.replaces is not None:
            del members[self._comer.replaces]
        members[after.member_id] = after
        return members

    def _is_free(self, topic_id: TopicId, index: int) -> bool:
        owner = self.group.owner(topic_id, index)
        return owner is None or owner in (self._comer.before.member_id, self._comer.replaces)
