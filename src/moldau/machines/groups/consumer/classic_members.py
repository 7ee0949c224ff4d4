"""Members of a consumer group that use the classic protocol: JoinGroup, SyncGroup, Heartbeat, LeaveGroup.

To them the group looks like one that rebalances whenever their assignment changes; the generation is the member epoch.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from moldau.machines.groups.classic.group import NO_MEMBER_ID, protocols_of, rebalance_timeout_ms
from moldau.machines.groups.consumer.consumer_protocol import by_id, write_assignment
from moldau.machines.groups.consumer.group import ConsumerGroup
from moldau.machines.groups.consumer.member import ClassicTraits, Member, MemberState
from moldau.machines.groups.consumer.member_update import Sender, new_sender, returning_sender
from moldau.machines.groups.consumer.reconciliation import Owned
from moldau.machines.groups.consumer.soft_state import SoftState
from moldau.machines.groups.draft import Caller, Draft
from moldau.machines.metadata.image import MetadataImage
from moldau.model.errors import (
    ErrorCode,
    IllegalGeneration,
    InconsistentGroupProtocol,
    KafkaError,
    RebalanceInProgress,
    UnknownMemberId,
)
from moldau.wire import messages

CONSUMER: Final = "consumer"

Identity = messages.LeaveGroupRequest.MemberIdentity


# Join


def check_protocols(group: ConsumerGroup, member_id: str, request: messages.JoinGroupRequest) -> None:
    """Check that it shares an assignor with the other classic members, in case the group is downgraded."""
    is_known = any(group.protocol_counts[each.name] == group.classic_count for each in request.protocols)
    if request.protocol_type != CONSUMER or not is_known:
        raise InconsistentGroupProtocol(f"Member {member_id}'s protocols are not supported.")


def resolve_sender(group: ConsumerGroup, request: messages.JoinGroupRequest, member_id: str) -> Sender:
    """Resolve the member that joins. A static member without an id takes over its instance id."""
    found = _resolve_sender(group, request, member_id)
    if found.before.state is MemberState.UNKNOWN:  # written by a later version; it must rejoin with a new id
        raise UnknownMemberId(f"Member {member_id} is in an unknown state.")
    return found


def _resolve_sender(group: ConsumerGroup, request: messages.JoinGroupRequest, member_id: str) -> Sender:
    instance_id = request.group_instance_id
    if instance_id is None:
        member = group.members.get(member_id)
        return new_sender(member_id) if member is None else Sender(member)
    if request.member_id != NO_MEMBER_ID:
        return Sender(group.check_instance(member_id, instance_id))
    existing = group.static_member(instance_id)
    return new_sender(member_id) if existing is None else returning_sender(existing, member_id)


def updated_metadata(
    before: Member,
    request: messages.JoinGroupRequest,
    caller: Caller,
    subscription: messages.ConsumerProtocolSubscription,
) -> Member:
    """Return the member with the metadata of this join. Classic members subscribe by name only."""
    return replace(
        before,
        instance_id=before.instance_id if request.group_instance_id is None else request.group_instance_id,
        rack_id=subscription.rack_id or before.rack_id,
        client_id=caller.client_id,
        client_host=caller.client_host,
        topics=frozenset(subscription.topics),
        regex="",
        rebalance_timeout_ms=rebalance_timeout_ms(request),
        classic=ClassicTraits(request.session_timeout_ms, protocols_of(request)),
    )


def owned_by(subscription: messages.ConsumerProtocolSubscription, image: MetadataImage) -> Owned:
    """Return the partitions it owns while it joins; an eager member has revoked all of them."""
    return [(topic_id, sorted(indexes)) for topic_id, indexes in by_id(subscription.owned_partitions, image).items()]


def join_response(member: Member) -> messages.JoinGroupResponse:
    """Build the response. No member leads: the coordinator assigns."""
    return messages.JoinGroupResponse(
        member_id=member.member_id,
        generation_id=member.epoch,
        protocol_type=CONSUMER,
        protocol_name=_traits(member).protocols[0][0],
    )


# Sync and heartbeat


def validate_member(group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int) -> Member:
    """Return the classic member if it is in this generation; raises otherwise."""
    if instance_id is None:
        member = group.member(member_id)
    elif group.static_member(instance_id) is None:
        raise UnknownMemberId(f"Member with instance id {instance_id} is not a member of group {group.group_id}.")
    else:
        member = group.check_instance(member_id, instance_id)
    if member.classic is None:
        raise UnknownMemberId(f"Member {member.member_id} does not use the classic protocol.")
    if generation != member.epoch:
        raise IllegalGeneration(
            f"The request generation id {generation} is not equal to the member epoch {member.epoch} of member "
            f"{member.member_id}."
        )
    return member


def validate_sync(group: ConsumerGroup, request: messages.SyncGroupRequest) -> Member:
    """Return the classic member if its SyncGroup is valid; raises otherwise."""
    member = validate_member(group, request.member_id, request.group_instance_id, request.generation_id)
    _check_protocol(member, request)
    return member


def sync(
    group: ConsumerGroup,
    soft: SoftState,
    draft: Draft,
    member: Member,
    request: messages.SyncGroupRequest,
    image: MetadataImage,
) -> messages.SyncGroupResponse:
    """Return the member's current assignment in its protocol; raises if it must rejoin first."""
    traits = _traits(member)
    if group.epoch > member.epoch and member.state is not MemberState.UNREVOKED_PARTITIONS:
        soft.expect_join(draft, member)
        raise RebalanceInProgress(
            f"A new rebalance is triggered in group {group.group_id} and member {member.member_id} should rejoin to "
            "catch up."
        )
    soft.syncs.pop(member.member_id, None)
    soft.extend_session(draft, member.member_id, traits.session_timeout_ms)
    return messages.SyncGroupResponse(
        protocol_type=CONSUMER if request.protocol_type is None else request.protocol_type,
        protocol_name=traits.protocols[0][0] if request.protocol_name is None else request.protocol_name,
        assignment=write_assignment(member.assigned, image, traits.protocols[0][1]),
    )


def _check_protocol(member: Member, request: messages.SyncGroupRequest) -> None:
    name = _traits(member).protocols[0][0]
    if request.protocol_type not in (None, CONSUMER):
        raise InconsistentGroupProtocol(
            f"The protocol type {request.protocol_type} from member {member.member_id} request is not equal to the "
            f"group protocol type {CONSUMER}."
        )
    if request.protocol_name not in (None, name):
        raise InconsistentGroupProtocol(
            f"The protocol name {request.protocol_name} from member {member.member_id} request is not equal to the "
            f"protocol name {name} returned in the join response."
        )


def must_rejoin(group: ConsumerGroup, member: Member) -> bool:
    """Whether it must rejoin: a new epoch, partitions to revoke, or partitions that have become free."""
    if member.epoch < group.epoch or member.state is MemberState.UNREVOKED_PARTITIONS:
        return True
    return member.state is MemberState.UNRELEASED_PARTITIONS and not _is_waiting(group, member)


def _is_waiting(group: ConsumerGroup, member: Member) -> bool:
    """Whether another member still owns part of its target assignment."""
    return any(
        group.owner(topic_id, index) not in (None, member.member_id)
        for topic_id, indexes in group.target(member.member_id).items()
        for index in indexes
    )


# Leave


def leaving_members(group: ConsumerGroup, identities: Sequence[Identity]) -> tuple[list[Member], list[ErrorCode]]:
    """Return the members to remove and the error of each. An admin gives only the instance id of a static member."""
    removed: dict[str, Member] = {}
    errors = []
    for identity in identities:
        try:
            member = _leaving_member(group, identity)
            removed[member.member_id] = member
            errors.append(ErrorCode.NONE)
        except KafkaError as rejection:
            errors.append(rejection.code)
    return list(removed.values()), errors


def _leaving_member(group: ConsumerGroup, identity: Identity) -> Member:
    instance_id = identity.group_instance_id
    if instance_id is None:
        return group.member(identity.member_id)
    existing = group.static_member(instance_id)
    if existing is not None and identity.member_id == NO_MEMBER_ID:
        return existing
    return group.check_instance(identity.member_id, instance_id)


def _traits(member: Member) -> ClassicTraits:
    assert member.classic is not None, "not a classic member"
    return member.classic
