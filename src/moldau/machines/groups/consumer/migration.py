"""A group changes its protocol while it lives: from classic when a consumer joins, back when the last of them goes."""

from collections.abc import Collection, Mapping
from typing import Final

from moldau.machines.groups.classic.group import ClassicGroup, Phase
from moldau.machines.groups.classic.group import Member as ClassicMember
from moldau.machines.groups.consumer.classic_members import CONSUMER
from moldau.machines.groups.consumer.consumer_protocol import (
    by_id,
    read_assignment,
    read_subscription,
    write_assignment,
)
from moldau.machines.groups.consumer.group import ConsumerGroup
from moldau.machines.groups.consumer.member import ClassicTraits, Member, MemberState
from moldau.machines.groups.consumer.partitions import Assignment, held_since
from moldau.machines.groups.consumer.records import (
    epoch_record,
    holding_record,
    member_record,
    target_epoch_record,
    target_record,
)
from moldau.machines.groups.consumer.replay import apply_consumer_record
from moldau.machines.groups.consumer.subscription_metadata import NO_TOPICS_HASH
from moldau.machines.groups.draft import Draft
from moldau.machines.groups.records import Record
from moldau.machines.groups.settings import DECISION_BYTES_MAX, GroupSettings
from moldau.machines.metadata.image import MetadataImage
from moldau.model.errors import GroupIdNotFound
from moldau.model.ids import TopicId
from moldau.wire.primitives import Malformed

COOPERATIVE_STICKY: Final = "cooperative-sticky"

# Upgrade


def check_upgrade(classic: ClassicGroup, settings: GroupSettings) -> None:
    """Whether a classic group with members may become a consumer group."""
    refusal = f"Cannot upgrade classic group {classic.group_id} to consumer group because"
    if not settings.may_upgrade:
        raise GroupIdNotFound(f"{refusal} online upgrade is disabled.")
    if classic.protocol_type != CONSUMER:
        raise GroupIdNotFound(f"{refusal} the group does not use the consumer embedded protocol.")
    if len(classic.members) > settings.group_consumer_max_size:
        raise GroupIdNotFound(f"{refusal} the group size exceeds the consumer group maximum size.")
    if sum(len(said) for member in classic.members.values() for _, said in member.protocols) > DECISION_BYTES_MAX:
        raise GroupIdNotFound(f"{refusal} its members say more of themselves than can be written at once.")


def upgraded(classic: ClassicGroup, draft: Draft, image: MetadataImage) -> tuple[ConsumerGroup, list[Record]]:
    """The consumer group that a classic one becomes, and the records that make it so.

    All its members keep what they have and are in the epoch that was the generation of the classic group.
    """
    try:
        members = _upgraded_members(classic, image)
    except Malformed:
        raise GroupIdNotFound(
            f"Cannot upgrade classic group {classic.group_id} to consumer group because the embedded consumer protocol "
            "is malformed."
        ) from None
    group_id, epoch, wall_ms = classic.group_id, classic.generation, draft.now.wall_ms
    records = [
        *(member_record(group_id, member) for member in members),
        epoch_record(group_id, epoch, NO_TOPICS_HASH, wall_ms),
        *(target_record(group_id, member.member_id, _partitions(member)) for member in members),
        target_epoch_record(group_id, epoch, wall_ms),
        *(holding_record(group_id, member) for member in members),
    ]
    made: dict[str, ConsumerGroup] = {}
    for record in records:
        apply_consumer_record(made, record)
    return made[group_id], [*classic.tombstones(), *records]


def _upgraded_members(classic: ClassicGroup, image: MetadataImage) -> list[Member]:
    taken: set[tuple[TopicId, int]] = set()
    # A leader could have assigned a partition twice; here it can have one holder only.
    assigned = {each.member_id: _claimed(_assigned(classic, each, image), taken) for each in classic.members.values()}
    return [
        _upgraded_member(classic, each, assigned[each.member_id], taken, image) for each in classic.members.values()
    ]


def _claimed(partitions: Assignment, taken: set[tuple[TopicId, int]]) -> Assignment:
    """Those that are nobody's yet; from now on they are taken."""
    mine = {
        topic_id: frozenset(index for index in indexes if (topic_id, index) not in taken)
        for topic_id, indexes in partitions.items()
    }
    taken.update((topic_id, index) for topic_id, indexes in mine.items() for index in indexes)
    return {topic_id: indexes for topic_id, indexes in mine.items() if indexes}


def _upgraded_member(
    classic: ClassicGroup,
    member: ClassicMember,
    assigned: Assignment,
    taken: set[tuple[TopicId, int]],
    image: MetadataImage,
) -> Member:
    metadata = member.metadata(classic.protocol) or member.protocols[0][1]
    subscription = read_subscription(metadata)
    # A cooperative member reads on, while it joins and syncs, what it had. What its leader has taken from it is free
    # when it joins again without that, and it may not even have been told.
    revoking = _claimed(by_id(subscription.owned_partitions, image), taken)
    return Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=subscription.rack_id or None,
        client_id=member.client_id,
        client_host=member.client_host,
        topics=frozenset(subscription.topics),
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        classic=ClassicTraits(member.session_timeout_ms, member.protocols),
        epoch=classic.generation,
        previous_epoch=classic.generation,
        state=MemberState.UNREVOKED_PARTITIONS if revoking else MemberState.STABLE,
        assigned=held_since(assigned, classic.generation),
        revoking=held_since(revoking, classic.generation),
    )


def _assigned(classic: ClassicGroup, member: ClassicMember, image: MetadataImage) -> Mapping[TopicId, frozenset[int]]:
    """What its leader assigned to it; one that has just joined has nothing yet."""
    if not member.assignment:
        return {}
    assignment = read_assignment(member.assignment)
    # Unlike Java's, a leader with librdkafka returns to each member what that had told it, and nobody reads it.
    if assignment.user_data and classic.protocol != COOPERATIVE_STICKY:
        raise GroupIdNotFound(
            f"Cannot upgrade classic group {classic.group_id} to consumer group because an unsupported custom assignor "
            "is in use. Please refer to the documentation or switch to a default assignor before re-attempting the "
            "upgrade."
        )
    return by_id(assignment.assigned_partitions, image)


def _partitions(member: Member) -> Assignment:
    return {topic_id: frozenset(held) for topic_id, held in member.assigned.items()}


# Downgrade


def may_downgrade(members: Collection[Member], settings: GroupSettings) -> bool:
    """Whether a group of these members may be classic: nobody is left who would not understand."""
    return (
        bool(members)
        and all(member.is_classic for member in members)
        and settings.may_downgrade
        and len(members) <= settings.group_max_size
    )


def downgraded(
    group: ConsumerGroup, members: Mapping[str, Member], draft: Draft, image: MetadataImage
) -> ClassicGroup | None:
    """The classic group that these members make; None where they have no assignor in common.

    Each is assigned what it holds, not what it was meant to get: nobody may read a partition that another still has.
    """
    classic = ClassicGroup(group.group_id)
    classic.generation = group.epoch
    classic.protocol_type = CONSUMER
    for member in members.values():
        classic.add(_downgraded_member(member, draft, image))
    if len(classic.members) not in classic.support.values():
        return None
    classic.protocol = classic.elected_protocol()
    classic.phase = Phase.STABLE
    return classic


def _downgraded_member(member: Member, draft: Draft, image: MetadataImage) -> ClassicMember:
    assert member.classic is not None, "only classic members stay"
    traits = member.classic
    return ClassicMember(
        member_id=member.member_id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        session_timeout_ms=traits.session_timeout_ms,
        protocols=traits.protocols,
        deadline_ms=draft.now.ms + traits.session_timeout_ms,
        assignment=write_assignment(member.assigned, image, traits.protocols[0][1]),
    )
