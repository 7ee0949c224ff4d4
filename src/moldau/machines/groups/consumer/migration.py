"""Online migration of a group: upgrade when a consumer joins, downgrade when the last consumer leaves."""

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
from moldau.machines.groups.consumer.partitions import Assignment, assigned_since
from moldau.machines.groups.consumer.records import (
    current_assignment_record,
    epoch_record,
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
    """Check that a classic group with members may be upgraded."""
    rejection = f"Cannot upgrade classic group {classic.group_id} to consumer group because"
    if not settings.may_upgrade:
        raise GroupIdNotFound(f"{rejection} online upgrade is disabled.")
    if classic.protocol_type != CONSUMER:
        raise GroupIdNotFound(f"{rejection} the group does not use the consumer embedded protocol.")
    if len(classic.members) > settings.group_consumer_max_size:
        raise GroupIdNotFound(f"{rejection} the group size exceeds the consumer group maximum size.")
    if (
        sum(len(metadata) for member in classic.members.values() for _, metadata in member.protocols)
        > DECISION_BYTES_MAX
    ):
        raise GroupIdNotFound(f"{rejection} the metadata of its members does not fit into one batch.")


def upgrade_group(classic: ClassicGroup, draft: Draft, image: MetadataImage) -> tuple[ConsumerGroup, list[Record]]:
    """Return the consumer group that replaces a classic one, and the records for it.

    All members keep their assignment; the member epoch is the generation of the classic group.
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
        *(current_assignment_record(group_id, member) for member in members),
    ]
    made: dict[str, ConsumerGroup] = {}
    for record in records:
        apply_consumer_record(made, record)
    return made[group_id], [*classic.tombstones(), *records]


def _upgraded_members(classic: ClassicGroup, image: MetadataImage) -> list[Member]:
    taken: set[tuple[TopicId, int]] = set()
    # A leader could have assigned a partition twice; a consumer group allows one owner only.
    assigned = {each.member_id: _claim(_assigned(classic, each, image), taken) for each in classic.members.values()}
    return [
        _upgraded_member(classic, each, assigned[each.member_id], taken, image) for each in classic.members.values()
    ]


def _claim(partitions: Assignment, taken: set[tuple[TopicId, int]]) -> Assignment:
    """Return the partitions without an owner and mark them as taken."""
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
    # A cooperative member keeps reading its owned partitions while it joins and syncs. Partitions that the leader took
    # from it become free when it rejoins without them; it may not have received the change yet.
    revoking = _claim(by_id(subscription.owned_partitions, image), taken)
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
        assigned=assigned_since(assigned, classic.generation),
        revoking=assigned_since(revoking, classic.generation),
    )


def _assigned(classic: ClassicGroup, member: ClassicMember, image: MetadataImage) -> Mapping[TopicId, frozenset[int]]:
    """Return the leader's assignment to it; empty for a member that has just joined."""
    if not member.assignment:
        return {}
    assignment = read_assignment(member.assignment)
    # Unlike Java's, a librdkafka leader returns each member's user data, which is ignored.
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


def can_downgrade(members: Collection[Member], settings: GroupSettings) -> bool:
    """Whether these members can form a classic group: no consumer is left."""
    return (
        bool(members)
        and all(member.is_classic for member in members)
        and settings.may_downgrade
        and len(members) <= settings.group_max_size
    )


def downgrade_group(
    group: ConsumerGroup, members: Mapping[str, Member], draft: Draft, image: MetadataImage
) -> ClassicGroup | None:
    """Return the classic group of these members; None if they share no assignor.

    Each is assigned its current assignment, not its target: no partition may be read while another member owns it.
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
    assert member.classic is not None, "not a classic member"
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
