"""Members of a consumer group go: for good, for a while as static members do, or because their time was over."""

from collections.abc import Sequence
from dataclasses import replace

from moldau.machines.groups.consumer.group import ConsumerGroup
from moldau.machines.groups.consumer.member import STATIC_LEAVING_EPOCH, Member
from moldau.machines.groups.consumer.partitions import NOTHING_HELD
from moldau.machines.groups.consumer.records import epoch_record, holding_record, regex_end_record, removal_records
from moldau.machines.groups.consumer.regexes import without
from moldau.machines.groups.consumer.soft_state import Watch
from moldau.machines.groups.consumer.subscription_metadata import names_read_by, topics_hash
from moldau.machines.groups.draft import Draft
from moldau.machines.metadata.image import MetadataImage


def leave_for_a_while(group: ConsumerGroup, draft: Draft, member: Member) -> None:
    """A static member will be back within its session. It keeps what it has; what it was giving up is free now."""
    gone = replace(member, epoch=STATIC_LEAVING_EPOCH, revoking=NOTHING_HELD)
    draft.records.append(holding_record(group.group_id, gone))


def remove(group: ConsumerGroup, watch: Watch, draft: Draft, image: MetadataImage, leavers: Sequence[Member]) -> None:
    """These members are gone, all at once: the epoch grows by one, and the next heartbeat shares anew."""
    group_id = group.group_id
    for member in leavers:
        draft.records += removal_records(group_id, member.member_id)
        watch.forget(member.member_id)
    resolved = without(group, leavers)
    draft.records += [regex_end_record(group_id, regex) for regex in sorted(group.resolved) if regex not in resolved]
    gone = {member.member_id for member in leavers}
    stayers = [member for member in group.members.values() if member.member_id not in gone]
    names = frozenset[str]().union(*(names_read_by(member, resolved) for member in stayers))
    new_hash = topics_hash(names, image.topics)
    draft.records.append(epoch_record(group_id, group.epoch + 1, new_hash, group.creation_time_ms))
    watch.changed_ms = draft.now.ms
