"""Members of a consumer group that still speak the classic protocol: they join, sync and send heartbeats as ever.

To them the group looks like one that rebalances whenever their share changes; their generation is their member epoch.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from moldau.machines.groups.classic.group import NO_MEMBER_ID, protocols_of, rebalance_timeout_ms
from moldau.machines.groups.consumer.consumer_protocol import by_id, write_assignment
from moldau.machines.groups.consumer.group import ConsumerGroup
from moldau.machines.groups.consumer.member import ClassicTraits, Member, MemberState
from moldau.machines.groups.consumer.member_update import Comer, newcomer, returned
from moldau.machines.groups.consumer.reconciliation import Owned
from moldau.machines.groups.consumer.soft_state import Watch
from moldau.machines.groups.draft import Asker, Draft
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


# Joining


def check_protocols(group: ConsumerGroup, member_id: str, request: messages.JoinGroupRequest) -> None:
    """Whether it can get on with the other classic members, should the group become classic again."""
    is_known = any(group.protocol_counts[each.name] == group.classic_count for each in request.protocols)
    if request.protocol_type != CONSUMER or not is_known:
        raise InconsistentGroupProtocol(f"Member {member_id}'s protocols are not supported.")


def comer(group: ConsumerGroup, request: messages.JoinGroupRequest, member_id: str) -> Comer:
    """Who joins. A static member without an id takes over its instance, whoever had it."""
    found = _comer(group, request, member_id)
    if found.before.state is MemberState.UNKNOWN:  # of a later version; it begins anew as somebody else
        raise UnknownMemberId(f"Member {member_id} is in an unknown state.")
    return found


def _comer(group: ConsumerGroup, request: messages.JoinGroupRequest, member_id: str) -> Comer:
    instance_id = request.group_instance_id
    if instance_id is None:
        member = group.members.get(member_id)
        return newcomer(member_id) if member is None else Comer(member)
    if request.member_id != NO_MEMBER_ID:
        return Comer(group.check_instance(member_id, instance_id))
    there = group.static_member(instance_id)
    return newcomer(member_id) if there is None else returned(there, member_id)


def described(
    before: Member,
    request: messages.JoinGroupRequest,
    asker: Asker,
    subscription: messages.ConsumerProtocolSubscription,
) -> Member:
    """The member with what it says of itself now. It subscribes by name alone."""
    return replace(
        before,
        instance_id=before.instance_id if request.group_instance_id is None else request.group_instance_id,
        rack_id=subscription.rack_id or before.rack_id,
        client_id=asker.client_id,
        client_host=asker.client_host,
        topics=frozenset(subscription.topics),
        regex="",
        rebalance_timeout_ms=rebalance_timeout_ms(request),
        classic=ClassicTraits(request.session_timeout_ms, protocols_of(request)),
    )


def owned_by(subscription: messages.ConsumerProtocolSubscription, image: MetadataImage) -> Owned:
    """What it works on while it joins; one that gives up everything first says nothing here."""
    return [(topic_id, sorted(indexes)) for topic_id, indexes in by_id(subscription.owned_partitions, image).items()]


def joined(member: Member) -> messages.JoinGroupResponse:
    """Nobody leads: the coordinator assigns."""
    return messages.JoinGroupResponse(
        member_id=member.member_id,
        generation_id=member.epoch,
        protocol_type=CONSUMER,
        protocol_name=_traits(member).protocols[0][0],
    )


# Syncing and heartbeats


def speaker(group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int) -> Member:
    """The classic member that speaks, if it is in the generation it says."""
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


def syncer(group: ConsumerGroup, request: messages.SyncGroupRequest) -> Member:
    """Who wants its assignment; raises if it is nobody, or not who it says."""
    member = speaker(group, request.member_id, request.group_instance_id, request.generation_id)
    _check_protocol(member, request)
    return member


def sync(
    group: ConsumerGroup,
    watch: Watch,
    draft: Draft,
    member: Member,
    request: messages.SyncGroupRequest,
    image: MetadataImage,
) -> messages.SyncGroupResponse:
    """What the member has now, in the words of its protocol; raises if it must join again first."""
    traits = _traits(member)
    if group.epoch > member.epoch and member.state is not MemberState.UNREVOKED_PARTITIONS:
        watch.expect_join(draft, member)
        raise RebalanceInProgress(
            f"A new rebalance is triggered in group {group.group_id} and member {member.member_id} should rejoin to "
            "catch up."
        )
    watch.syncs.pop(member.member_id, None)
    watch.heard_of(draft, member.member_id, traits.session_timeout_ms)
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
    """Whether there is something for it: a newer epoch, something to give up, or something that has become free."""
    if member.epoch < group.epoch or member.state is MemberState.UNREVOKED_PARTITIONS:
        return True
    return member.state is MemberState.UNRELEASED_PARTITIONS and not _is_waiting(group, member)


def _is_waiting(group: ConsumerGroup, member: Member) -> bool:
    """Whether somebody else still holds what it is meant to have."""
    return any(
        group.owner(topic_id, index) not in (None, member.member_id)
        for topic_id, indexes in group.target(member.member_id).items()
        for index in indexes
    )


# Leaving


def leavers(group: ConsumerGroup, identities: Sequence[Identity]) -> tuple[list[Member], list[ErrorCode]]:
    """Who of those that are named goes, and what each is told. An admin names a static member by its instance alone."""
    gone: dict[str, Member] = {}
    errors = []
    for identity in identities:
        try:
            member = _leaver(group, identity)
            gone[member.member_id] = member
            errors.append(ErrorCode.NONE)
        except KafkaError as refusal:
            errors.append(refusal.code)
    return list(gone.values()), errors


def _leaver(group: ConsumerGroup, identity: Identity) -> Member:
    instance_id = identity.group_instance_id
    if instance_id is None:
        return group.member(identity.member_id)
    there = group.static_member(instance_id)
    if there is not None and identity.member_id == NO_MEMBER_ID:
        return there
    return group.check_instance(identity.member_id, instance_id)


def _traits(member: Member) -> ClassicTraits:
    assert member.classic is not None, "only classic members come here"
    return member.classic
