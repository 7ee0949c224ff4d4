"""Removal of members of a consumer group: leave, static leave, or timeout."""

from collections.abc import Sequence
from dataclasses import replace

from moldau.machines.groups.consumer.group import ConsumerGroup
from moldau.machines.groups.consumer.member import STATIC_LEAVING_EPOCH, Member
from moldau.machines.groups.consumer.partitions import NO_CURRENT_ASSIGNMENT
from moldau.machines.groups.consumer.records import (
    current_assignment_record,
    epoch_record,
    regex_tombstone,
    removal_tombstones,
)
from moldau.machines.groups.consumer.regexes import regexes_without
from moldau.machines.groups.consumer.soft_state import SoftState
from moldau.machines.groups.consumer.subscription_metadata import subscribed_names, topics_hash
from moldau.machines.groups.draft import Draft
from moldau.machines.metadata.image import MetadataImage


def leave_static(group: ConsumerGroup, draft: Draft, member: Member) -> None:
    """Let a static member leave and return within its session. It keeps its assignment but frees revoked partitions."""
    left = replace(member, epoch=STATIC_LEAVING_EPOCH, revoking=NO_CURRENT_ASSIGNMENT)
    draft.records.append(current_assignment_record(group.group_id, left))


def remove(
    group: ConsumerGroup, soft: SoftState, draft: Draft, image: MetadataImage, removed: Sequence[Member]
) -> None:
    """Remove members at once: the group epoch is bumped once, and the next heartbeat computes the target."""
    group_id = group.group_id
    for member in removed:
        draft.records += removal_tombstones(group_id, member.member_id)
        soft.remove(member.member_id)
    resolved = regexes_without(group, removed)
    draft.records += [regex_tombstone(group_id, regex) for regex in sorted(group.resolved) if regex not in resolved]
    left = {member.member_id for member in removed}
    remaining = [member for member in group.members.values() if member.member_id not in left]
    names = frozenset[str]().union(*(subscribed_names(member, resolved) for member in remaining))
    new_hash = topics_hash(names, image.topics)
    draft.records.append(epoch_record(group_id, group.epoch + 1, new_hash, group.creation_time_ms))
    soft.changed_ms = draft.now.ms
