"""ConsumerGroupHeartbeat: members come, stay, change what they read, and learn what they should have."""

from dataclasses import replace
from typing import Final

from moldau.machines.groups.consumer.group import ConsumerGroup
from moldau.machines.groups.consumer.member import (
    JOINING_EPOCH,
    LEAVING_EPOCH,
    STATIC_LEAVING_EPOCH,
    Member,
    MemberState,
)
from moldau.machines.groups.consumer.member_update import Change, Comer, newcomer, returned
from moldau.machines.groups.consumer.partitions import Holding, is_within
from moldau.machines.groups.consumer.reconciliation import Owned, as_owned
from moldau.machines.groups.consumer.settings import ConsumerGroupSettings
from moldau.machines.groups.draft import Asker
from moldau.model.errors import (
    FencedMemberEpoch,
    GroupMaxSizeReached,
    InvalidRequest,
    UnreleasedInstanceId,
    UnsupportedAssignor,
)
from moldau.wire import messages

Request = messages.ConsumerGroupHeartbeatRequest
Response = messages.ConsumerGroupHeartbeatResponse

MEMBER_ID_NEEDED_FROM: Final = 1
UNSET: Final = -1
SUBSCRIPTION_CHARACTERS_MAX: Final = 1_000_000  # it is one record


def check_request(request: Request, api_version: int, settings: ConsumerGroupSettings) -> None:
    """Whether the request makes sense at all, whatever the group."""
    epoch = request.member_epoch
    if api_version >= MEMBER_ID_NEEDED_FROM or epoch > JOINING_EPOCH or epoch == LEAVING_EPOCH:
        _check_not_blank(request.member_id, "MemberId can't be empty.")
    _check_not_blank(request.group_id, "GroupId can't be empty.")
    _check_not_blank(request.instance_id, "InstanceId can't be empty.")
    _check_not_blank(request.rack_id, "RackId can't be empty.")
    if epoch == JOINING_EPOCH:
        _check_joining(request)
    elif epoch == STATIC_LEAVING_EPOCH and request.instance_id is None:
        raise InvalidRequest("InstanceId can't be null.")
    elif epoch < STATIC_LEAVING_EPOCH:
        raise InvalidRequest("MemberEpoch is invalid.")
    names = request.subscribed_topic_names
    if names is not None and sum(map(len, names)) > SUBSCRIPTION_CHARACTERS_MAX:
        raise InvalidRequest("SubscribedTopicNames are too many.")
    known = settings.group_consumer_assignors
    if request.server_assignor is not None and request.server_assignor not in known:
        raise UnsupportedAssignor(
            f"ServerAssignor {request.server_assignor} is not supported. Supported assignors: {', '.join(known)}."
        )


def _check_not_blank(text: str | None, complaint: str) -> None:
    if text is not None and not text.strip():
        raise InvalidRequest(complaint)


def _check_joining(request: Request) -> None:
    if request.rebalance_timeout_ms == UNSET:
        raise InvalidRequest("RebalanceTimeoutMs must be provided in first request.")
    if request.topic_partitions is None or request.topic_partitions:
        raise InvalidRequest("TopicPartitions must be empty when (re-)joining.")
    if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
        raise InvalidRequest("Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.")


def check_room(group: ConsumerGroup, member_id: str, instance_id: str | None, size_max: int) -> None:
    """Whether one more fits in. Who takes the place of a static member needs none."""
    is_known = member_id in group.members or group.static_member(instance_id) is not None
    if not is_known and len(group.members) >= size_max:
        raise GroupMaxSizeReached(f"The consumer group has reached its maximum capacity of {size_max} members.")


def comer(group: ConsumerGroup, request: Request, member_id: str) -> Comer:
    """Who sends this heartbeat; raises if it is nobody, or not who it says."""
    owned, instance_id = as_owned(_pairs(request)), request.instance_id
    if request.member_epoch != JOINING_EPOCH:
        member = group.member(member_id) if instance_id is None else group.check_instance(member_id, instance_id)
        check_epoch(member, request.member_epoch, owned)
        return Comer(member)
    there = group.static_member(instance_id)
    if there is None:
        known = group.members.get(member_id)
        return newcomer(member_id) if known is None else Comer(known)
    is_away = there.epoch == STATIC_LEAVING_EPOCH
    if there.member_id == member_id and not is_away:  # it asks again, because the answer was lost or it was fenced
        return Comer(there)
    if not there.is_classic and not is_away:
        raise UnreleasedInstanceId(
            f"Static member {member_id} with instance id {instance_id} cannot join the group because the instance id "
            f"is owned by {there.member_id} member."
        )
    return returned(there, member_id)


def check_epoch(member: Member, epoch: int, owned: Owned | None) -> None:
    """Whether the member is where the group has it. One epoch behind is enough if the answer may have been lost."""
    if epoch == member.epoch:
        return
    is_behind = epoch < member.epoch
    if is_behind and epoch == member.previous_epoch and owned is not None and is_within(owned, member.assigned):
        return
    raise FencedMemberEpoch(
        f"The consumer group member has a {'smaller' if is_behind else 'greater'} member epoch ({epoch}) than the one "
        f"known by the group coordinator ({member.epoch}). The member must abandon all its partitions and rejoin."
    )


def check_state(member: Member, request: Request) -> None:
    """A member in a state that is not known here can only begin anew."""
    if member.state is MemberState.UNKNOWN and (request.topic_partitions is None or request.topic_partitions):
        raise FencedMemberEpoch(
            "The consumer group member is in a unknown state. The member must abandon all its partitions and rejoin."
        )


def described(before: Member, request: Request, asker: Asker) -> Member:
    """The member with what it says of itself now; what it leaves out stays as it was."""
    names, timeout_ms = request.subscribed_topic_names, request.rebalance_timeout_ms
    return replace(
        before,
        instance_id=before.instance_id if request.instance_id is None else request.instance_id,
        rack_id=before.rack_id if request.rack_id is None else request.rack_id,
        client_id=asker.client_id,
        client_host=asker.client_host,
        topics=before.topics if names is None else frozenset(names),
        regex=before.regex if request.subscribed_topic_regex is None else request.subscribed_topic_regex,
        rebalance_timeout_ms=before.rebalance_timeout_ms if timeout_ms == UNSET else timeout_ms,
        assignor=before.assignor if request.server_assignor is None else request.server_assignor,
        classic=None,
    )


def beat(change: Change, before: Member, request: Request, asker: Asker) -> tuple[Member, bool]:
    """The member after this heartbeat, and whether it must be told what it has."""
    after = described(before, request, asker)
    change.describe(after)
    after = change.reconcile(after, as_owned(_pairs(request)))
    is_told = request.member_epoch == JOINING_EPOCH or is_full(request) or after.assigned != before.assigned
    return after, is_told


def is_full(request: Request) -> bool:
    """Whether the member tells everything of itself, as it does when an answer may have been lost."""
    return (
        request.rebalance_timeout_ms != UNSET
        and (request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None)
        and request.topic_partitions is not None
    )


def is_bare(request: Request) -> bool:
    """Whether the member only says who it is and that it is there."""
    return (
        request.subscribed_topic_names is None
        and request.topic_partitions is None
        and request.subscribed_topic_regex is None
        and request.server_assignor is None
        and request.rack_id is None
        and request.rebalance_timeout_ms == UNSET
    )


def answer(member: Member, heartbeat_interval_ms: int, *, is_told: bool) -> Response:
    return Response(
        member_id=member.member_id,
        member_epoch=member.epoch,
        heartbeat_interval_ms=heartbeat_interval_ms,
        assignment=assignment_of(member.assigned) if is_told else None,
    )


def assignment_of(holding: Holding) -> Response.Assignment:
    return Response.Assignment(
        topic_partitions=[
            Response.TopicPartitions(topic_id=topic_id, partitions=sorted(holding[topic_id]))
            for topic_id in sorted(holding)
        ]
    )


def _pairs(request: Request) -> "list[tuple[bytes, list[int]]] | None":
    if request.topic_partitions is None:
        return None
    return [(each.topic_id, list(each.partitions)) for each in request.topic_partitions]
