"""Processing of one member's heartbeat or join: group epoch, target assignment, reconciliation.

Three steps, for members of both protocols. (1) The member's metadata is written if it changed, and the group epoch is
bumped if the group's subscribed topics changed. (2) If the group epoch is ahead of the assignment epoch, the target
assignment of all members is computed and its differences are written. (3) This member is reconciled one step towards
its target. The records of a decision must read in that order: replaying any prefix leaves a consistent group.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from moldau.machines.groups.consumer.group import ConsumerGroup
from moldau.machines.groups.consumer.member import JOINING_EPOCH, Member
from moldau.machines.groups.consumer.partitions import Assignment
from moldau.machines.groups.consumer.reconciliation import Owned, ReconcileContext, Target, reconcile
from moldau.machines.groups.consumer.records import (
    current_assignment_record,
    epoch_record,
    member_record,
    partition_metadata_tombstone,
    removal_tombstones,
    target_record,
)
from moldau.machines.groups.consumer.regexes import Regexes, TopicMatcher
from moldau.machines.groups.consumer.soft_state import SoftState
from moldau.machines.groups.consumer.subscription_metadata import SubscribedTopics, topics_hash
from moldau.machines.groups.consumer.target_assignment import compute_target, preferred_assignor, write_target
from moldau.machines.groups.draft import Draft
from moldau.model.ids import NO_TIMESTAMP, TopicId


class Sender(NamedTuple):
    """The member as known so far, and the id that it replaces if it is a returning static member."""

    before: Member
    replaces: str | None = None  # previous member id of the instance


def new_sender(member_id: str) -> Sender:
    return Sender(Member(member_id))


def returning_sender(member: Member, member_id: str) -> Sender:
    """A returning static member: keeps its assignment and starts at the joining epoch."""
    before = replace(member, member_id=member_id, epoch=JOINING_EPOCH, previous_epoch=JOINING_EPOCH)
    return Sender(before, None if member.member_id == member_id else member.member_id)


class MemberUpdate:
    """A decision about a member of a group. Records are added to the draft as they arise."""

    def __init__(
        self, group: ConsumerGroup, soft: SoftState, draft: Draft, matching: TopicMatcher, sender: Sender
    ) -> None:
        self.group = group
        self.soft = soft
        self.draft = draft
        self._matching = matching
        self._image = matching.image
        self._sender = sender
        self._regexes = Regexes(group, soft, draft, matching)
        self._written: dict[str, Assignment] = {}  # target assignments already in the draft
        self.epoch = group.epoch
        self.has_new_subscription = False

    def update_metadata(self, after: Member) -> None:
        """Write the member's metadata if it changed, and bump the group epoch if subscriptions did."""
        self._replace()
        before, group_id = self._sender.before, self.group.group_id
        is_known = before.member_id in self.group.members or self._sender.replaces is not None
        if not is_known or not before.has_same_metadata(after):
            self.draft.records.append(member_record(group_id, after))
        self._regexes.update(before, after)
        self.has_new_subscription = before.topics != after.topics or before.regex != after.regex
        must_bump = self.group.epoch == 0 or before.topics != after.topics or self._regexes.is_changed
        if must_bump or self.soft.topics is not self._image.topics:
            self._compare_topics(after, must_bump=must_bump)

    def _replace(self) -> None:
        """Replace the previous static member within this decision."""
        old_id = self._sender.replaces
        if old_id is None:
            return
        group_id, before = self.group.group_id, self._sender.before
        self._written[before.member_id] = self.group.target(old_id)
        self.draft.records += removal_tombstones(group_id, old_id)
        self.draft.records.append(member_record(group_id, before))
        self.draft.records.append(target_record(group_id, before.member_id, self.group.target(old_id)))
        self.draft.records.append(current_assignment_record(group_id, before))
        self.soft.remove(old_id)

    def _compare_topics(self, after: Member, *, must_bump: bool) -> None:
        """Bump the epoch also if subscribed topics were created, deleted or got partitions."""
        new_hash = topics_hash(self._subscribed_names(after), self._image.topics)
        if must_bump or new_hash != self.group.metadata_hash:
            self.epoch += 1
            created_ms = self.group.creation_time_ms
            if self.group.epoch == 0 and created_ms == NO_TIMESTAMP:
                created_ms = self.draft.now.wall_ms
            self.draft.records.append(epoch_record(self.group.group_id, self.epoch, new_hash, created_ms))
            self.soft.changed_ms = self.draft.now.ms
        if self.group.has_partition_metadata:
            self.draft.records.append(partition_metadata_tombstone(self.group.group_id))
        self.soft.topics = self._image.topics

    def _subscribed_names(self, after: Member) -> set[str]:
        before = self._sender.before.topics
        others = {name for name, count in self.group.topic_counts.items() if count > (name in before)}
        return others.union(after.topics, *(each.topics for each in self._regexes.resolved.values()))

    def reconcile(self, after: Member, owned: Owned | None) -> Member:
        """Compute the target if it is outdated, and reconcile the member."""
        target = self._target(after)
        if after.is_reconciled_to(target.epoch) and not self.has_new_subscription:
            return after
        subscribed = SubscribedTopics(self._regexes.resolved, self._image.topics).of(after)
        context = ReconcileContext(subscribed, self._is_free, owned, self.has_new_subscription)
        reconciled = reconcile(after, target, context)
        if reconciled is not after:
            self.draft.records.append(current_assignment_record(self.group.group_id, reconciled))
            self.soft.track_revocation(self.draft, reconciled)
        return reconciled

    def _target(self, after: Member) -> Target:
        group, member_id = self.group, after.member_id
        if self.epoch <= group.assignment_epoch:
            return Target(group.assignment_epoch, self._written.get(member_id, group.target(member_id)))
        members = self._members_with(after)
        assignor = preferred_assignor(members.values(), self.draft.settings.group_consumer_assignors)
        new = compute_target(group, members, self._written, self._regexes.resolved, self._image, assignor)
        write_target(group, self.draft, self.epoch, new, self._written)
        return Target(self.epoch, new[member_id])

    def _members_with(self, after: Member) -> Mapping[str, Member]:
        members = dict(self.group.members)
        if self._sender.replaces is not None:
            del members[self._sender.replaces]
        members[after.member_id] = after
        return members

    def _is_free(self, topic_id: TopicId, index: int) -> bool:
        owner = self.group.owner(topic_id, index)
        return owner is None or owner in (self._sender.before.member_id, self._sender.replaces)
