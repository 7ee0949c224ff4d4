"""ConsumerGroupHeartbeat: validation, resolving the member, and the response."""

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
from moldau.machines.groups.consumer.member_update import MemberUpdate, Sender, new_sender, returning_sender
from moldau.machines.groups.consumer.partitions import CurrentAssignment, is_within
from moldau.machines.groups.consumer.reconciliation import Owned, as_owned
from moldau.machines.groups.consumer.settings import ConsumerGroupSettings
from moldau.machines.groups.draft import Caller
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

MEMBER_ID_REQUIRED_VERSION: Final = 1
UNSET: Final = -1
SUBSCRIPTION_CHARACTERS_MAX: Final = 1_000_000  # a subscription is one record


def check_request(request: Request, api_version: int, settings: ConsumerGroupSettings) -> None:
    """Validate the request regardless of the group."""
    epoch = request.member_epoch
    if api_version >= MEMBER_ID_REQUIRED_VERSION or epoch > JOINING_EPOCH or epoch == LEAVING_EPOCH:
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
        raise InvalidRequest("SubscribedTopicNames is too large.")
    known = settings.group_consumer_assignors
    if request.server_assignor is not None and request.server_assignor not in known:
        raise UnsupportedAssignor(
            f"ServerAssignor {request.server_assignor} is not supported. Supported assignors: {', '.join(known)}."
        )


def _check_not_blank(text: str | None, message: str) -> None:
    if text is not None and not text.strip():
        raise InvalidRequest(message)


def _check_joining(request: Request) -> None:
    if request.rebalance_timeout_ms == UNSET:
        raise InvalidRequest("RebalanceTimeoutMs must be provided in first request.")
    if request.topic_partitions is None or request.topic_partitions:
        raise InvalidRequest("TopicPartitions must be empty when (re-)joining.")
    if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
        raise InvalidRequest("Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.")


def check_room(group: ConsumerGroup, member_id: str, instance_id: str | None, size_max: int) -> None:
    """Check the group size. A member that replaces a static one needs no slot."""
    is_known = member_id in group.members or group.static_member(instance_id) is not None
    if not is_known and len(group.members) >= size_max:
        raise GroupMaxSizeReached(f"The consumer group has reached its maximum capacity of {size_max} members.")


def resolve_sender(group: ConsumerGroup, request: Request, member_id: str) -> Sender:
    """Resolve the member that sent this heartbeat; raises if it is unknown or fenced."""
    owned, instance_id = as_owned(_pairs(request)), request.instance_id
    if request.member_epoch != JOINING_EPOCH:
        member = group.member(member_id) if instance_id is None else group.check_instance(member_id, instance_id)
        check_epoch(member, request.member_epoch, owned)
        return Sender(member)
    existing = group.static_member(instance_id)
    if existing is None:
        known = group.members.get(member_id)
        return new_sender(member_id) if known is None else Sender(known)
    is_away = existing.epoch == STATIC_LEAVING_EPOCH
    if existing.member_id == member_id and not is_away:  # a retry: the response was lost, or it was fenced
        return Sender(existing)
    if not existing.is_classic and not is_away:
        raise UnreleasedInstanceId(
            f"Static member {member_id} with instance id {instance_id} cannot join the group because the instance id "
            f"is owned by {existing.member_id} member."
        )
    return returning_sender(existing, member_id)


def check_epoch(member: Member, epoch: int, owned: Owned | None) -> None:
    """Check the member epoch. The previous one is valid too, because the response may have been lost."""
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
    """A member in an unknown state (written by a later version) must rejoin."""
    if member.state is MemberState.UNKNOWN and (request.topic_partitions is None or request.topic_partitions):
        raise FencedMemberEpoch(
            "The consumer group member is in a unknown state. The member must abandon all its partitions and rejoin."
        )


def updated_metadata(before: Member, request: Request, caller: Caller) -> Member:
    """Return the member with the metadata of this request; omitted fields keep their values."""
    names, timeout_ms = request.subscribed_topic_names, request.rebalance_timeout_ms
    return replace(
        before,
        instance_id=before.instance_id if request.instance_id is None else request.instance_id,
        rack_id=before.rack_id if request.rack_id is None else request.rack_id,
        client_id=caller.client_id,
        client_host=caller.client_host,
        topics=before.topics if names is None else frozenset(names),
        regex=before.regex if request.subscribed_topic_regex is None else request.subscribed_topic_regex,
        rebalance_timeout_ms=before.rebalance_timeout_ms if timeout_ms == UNSET else timeout_ms,
        assignor=before.assignor if request.server_assignor is None else request.server_assignor,
        classic=None,
    )


def update_member(update: MemberUpdate, before: Member, request: Request, caller: Caller) -> tuple[Member, bool]:
    """Return the member after this heartbeat, and whether the response includes its assignment."""
    after = updated_metadata(before, request, caller)
    update.update_metadata(after)
    after = update.reconcile(after, as_owned(_pairs(request)))
    includes_assignment = request.member_epoch == JOINING_EPOCH or is_full(request) or after.assigned != before.assigned
    return after, includes_assignment


def is_full(request: Request) -> bool:
    """Whether the request has all fields, as sent after a lost response."""
    return (
        request.rebalance_timeout_ms != UNSET
        and (request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None)
        and request.topic_partitions is not None
    )


def is_keepalive(request: Request) -> bool:
    """Whether the request only extends the session."""
    return (
        request.subscribed_topic_names is None
        and request.topic_partitions is None
        and request.subscribed_topic_regex is None
        and request.server_assignor is None
        and request.rack_id is None
        and request.rebalance_timeout_ms == UNSET
    )


def build_response(member: Member, heartbeat_interval_ms: int, *, includes_assignment: bool) -> Response:
    return Response(
        member_id=member.member_id,
        member_epoch=member.epoch,
        heartbeat_interval_ms=heartbeat_interval_ms,
        assignment=assignment_of(member.assigned) if includes_assignment else None,
    )


def assignment_of(assignment: CurrentAssignment) -> Response.Assignment:
    return Response.Assignment(
        topic_partitions=[
            Response.TopicPartitions(topic_id=topic_id, partitions=sorted(assignment[topic_id]))
            for topic_id in sorted(assignment)
        ]
    )


def _pairs(request: Request) -> "list[tuple[bytes, list[int]]] | None":
    if request.topic_partitions is None:
        return None
    return [(each.topic_id, list(each.partitions)) for each in request.topic_partitions]
