"""ShareGroupHeartbeat: validation, and the decision about one member.

Four steps. (1) The member's metadata is written if it changed, and the group epoch is bumped if the group's subscribed
topics changed. (2) Partitions that the group reads for the first time are marked as initializing, and the share
coordinator is asked to create their states. (3) If the group epoch is ahead of the assignment epoch, the target
assignment of all members is computed from the initialized partitions. (4) The member takes its target at once: members
share partitions, so nothing has to be revoked first.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from moldau.machines.groups.consumer.assignors.subscribers import Subscriber
from moldau.machines.groups.consumer.partitions import NO_PARTITIONS, Assignment
from moldau.machines.groups.consumer.subscription_metadata import ids_of, topics_hash
from moldau.machines.groups.draft import Caller, Draft
from moldau.machines.groups.share.assignor import assign_simple
from moldau.machines.groups.share.effects import InitializeStates
from moldau.machines.groups.share.group import ShareGroup
from moldau.machines.groups.share.member import JOINING_EPOCH, LEAVING_EPOCH, ShareMember
from moldau.machines.groups.share.records import (
    current_assignment_record,
    epoch_record,
    member_record,
    state_partitions_record,
    target_epoch_record,
    target_record,
)
from moldau.machines.groups.share.soft_state import ShareSoftState
from moldau.machines.metadata.image import MetadataImage
from moldau.model.errors import FencedMemberEpoch, GroupMaxSizeReached, InvalidRequest
from moldau.model.ids import TopicId
from moldau.wire import messages

Request = messages.ShareGroupHeartbeatRequest
Response = messages.ShareGroupHeartbeatResponse

SUBSCRIPTION_CHARACTERS_MAX: Final = 1_000_000  # a subscription is one record


def check_request(request: Request) -> None:
    """Validate the request regardless of the group."""
    for name, text in (("MemberId", request.member_id), ("GroupId", request.group_id), ("RackId", request.rack_id)):
        if text is not None and not text.strip():
            raise InvalidRequest(f"{name} can't be empty.")
    if request.member_epoch < LEAVING_EPOCH:
        raise InvalidRequest(f"MemberEpoch is {request.member_epoch}, but must be greater than or equal to -1.")
    names = request.subscribed_topic_names
    if request.member_epoch == JOINING_EPOCH and not names:
        raise InvalidRequest("SubscribedTopicNames must be set in first request.")
    if names is not None and sum(map(len, names)) > SUBSCRIPTION_CHARACTERS_MAX:
        raise InvalidRequest("SubscribedTopicNames is too large.")


def check_room(group: ShareGroup, member_id: str, size_max: int) -> None:
    if member_id not in group.members and len(group.members) >= size_max:
        raise GroupMaxSizeReached(f"The share group has reached its maximum capacity of {size_max} members.")


def resolve_sender(group: ShareGroup, request: Request) -> ShareMember:
    """Return the member that sent this heartbeat; raises if it is unknown or fenced."""
    if request.member_epoch == JOINING_EPOCH:
        return group.members.get(request.member_id) or ShareMember(request.member_id)
    member = group.member(request.member_id)
    epoch = request.member_epoch
    if epoch > member.epoch or (epoch < member.epoch and epoch != member.previous_epoch):
        relation = "greater" if epoch > member.epoch else "smaller"
        raise FencedMemberEpoch(
            f"The share group member has a {relation} member epoch ({epoch}) than the one known by the group "
            f"coordinator ({member.epoch}). The member must abandon all its partitions and rejoin."
        )
    return member


class ShareHeartbeat:
    """A decision about a member of a group. Records are added to the draft as they arise."""

    def __init__(self, group: ShareGroup, soft: ShareSoftState, draft: Draft, image: MetadataImage) -> None:
        self._group = group
        self._soft = soft
        self._draft = draft
        self._image = image
        self._epoch = group.epoch

    def update(self, before: ShareMember, request: Request, caller: Caller) -> ShareMember:
        """Return the member after this heartbeat."""
        names = request.subscribed_topic_names
        after = replace(
            before,
            rack_id=before.rack_id if request.rack_id is None else request.rack_id,
            client_id=caller.client_id,
            client_host=caller.client_host,
            topics=before.topics if names is None else frozenset(names),
        )
        group_id = self._group.group_id
        is_new = before.member_id not in self._group.members
        if is_new or not before.has_same_metadata(after):
            self._draft.records.append(member_record(group_id, after))
        members = {**self._group.members, after.member_id: after}
        self._compare_topics(members, must_bump=is_new or before.topics != after.topics)
        self._initialize_states(members)
        target = self._target(members).get(after.member_id, NO_PARTITIONS)
        subscribed = ids_of(after.topics, self._image.topics)
        after = after.advance(
            max(self._epoch, self._group.assignment_epoch),
            {topic_id: indexes for topic_id, indexes in target.items() if topic_id in subscribed},
        )
        if is_new or (after.epoch, after.assigned) != (before.epoch, before.assigned):
            self._draft.records.append(current_assignment_record(group_id, after))
        return after

    def _compare_topics(self, members: Mapping[str, ShareMember], *, must_bump: bool) -> None:
        """Bump the epoch if subscriptions changed, or if subscribed topics were created, deleted or got partitions."""
        if not must_bump and self._soft.topics is self._image.topics:
            return
        names = frozenset[str]().union(*(member.topics for member in members.values()))
        new_hash = topics_hash(names, self._image.topics)
        if must_bump or new_hash != self._group.metadata_hash:
            self._epoch += 1
            self._draft.records.append(epoch_record(self._group.group_id, self._epoch, new_hash))
            self._soft.changed_ms = self._draft.now.ms
        self._soft.topics = self._image.topics

    def _initialize_states(self, members: Mapping[str, ShareMember]) -> None:
        """Begin the initialization of new partitions, and repeat requests that got no confirmation in time."""
        group, draft, soft = self._group, self._draft, self._soft
        states = group.states
        for name in sorted(frozenset[str]().union(*(member.topics for member in members.values()))):
            topic = self._image.topics.get(name)
            missing = states.missing(topic.topic_id, len(topic.partitions)) if topic is not None else frozenset()
            if topic is not None and missing:
                states = states.begin(topic.topic_id, name, missing)
        is_changed = states is not group.states
        if is_changed:
            draft.records.append(state_partitions_record(group.group_id, states))
        if states.initializing and (is_changed or soft.is_initialization_due(draft.now.ms, draft.settings)):
            soft.initialized_ms = draft.now.ms
            wanted = {topic_id: state.partitions for topic_id, state in states.initializing.items()}
            draft.effects.append(InitializeStates(group.group_id, self._epoch, wanted))

    def _target(self, members: Mapping[str, ShareMember]) -> Mapping[str, Assignment]:
        group = self._group
        if self._epoch <= group.assignment_epoch:
            return group.targets
        targets = compute_target(group, members, self._image)
        for member_id, partitions in targets.items():
            old = group.targets.get(member_id)
            if old is None or old != partitions:
                self._draft.records.append(target_record(group.group_id, member_id, partitions))
        self._draft.records.append(target_epoch_record(group.group_id, self._epoch))
        return targets


def compute_target(
    group: ShareGroup, members: Mapping[str, ShareMember], image: MetadataImage
) -> Mapping[str, Assignment]:
    """Assign the initialized partitions of the subscribed topics."""
    subscribers = [
        Subscriber(member_id, ids_of(member.topics, image.topics), group.target(member_id))
        for member_id, member in members.items()
    ]
    counts: dict[TopicId, int] = {}
    for topic_id in frozenset[TopicId]().union(*(each.topic_ids for each in subscribers)):
        total = len(image.topics_by_id[topic_id].partitions)
        # Kafka numbers partitions without gaps, and new ones are initialized together: the first ones are ready.
        counts[topic_id] = next(
            (index for index in range(total) if not group.states.is_initialized(topic_id, index)), total
        )
    return assign_simple(subscribers, counts)


def build_response(member: ShareMember, heartbeat_interval_ms: int, *, includes_assignment: bool) -> Response:
    assigned = member.assigned
    return Response(
        member_id=member.member_id,
        member_epoch=member.epoch,
        heartbeat_interval_ms=heartbeat_interval_ms,
        assignment=Response.Assignment(
            topic_partitions=[
                Response.TopicPartitions(topic_id=topic_id, partitions=sorted(assigned[topic_id]))
                for topic_id in sorted(assigned)
            ]
        )
        if includes_assignment
        else None,
    )
