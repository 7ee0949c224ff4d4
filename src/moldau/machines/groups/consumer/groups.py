"""The consumer groups of a shard: requests of members of both protocols, and timers.

A heartbeat takes one of two paths. A stable member in the current epoch without changes takes `try_keepalive`: it
extends its session and gets a cached response without writing a record. Everything else takes `handle_heartbeat`:
resolve the member, update its subscription (bumping the group epoch if it changed), compute a new target assignment if
the epoch is ahead of it, and reconcile the member one step towards its target (see reconciliation.py).

Validation comes first: nothing is written and no soft state changes before the last check that can reject a request.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from moldau.machines.decision import REQUESTER, Decision, Ticket
from moldau.machines.groups.classic.group import NO_MEMBER_ID, Phase
from moldau.machines.groups.classic.groups import ClassicGroups
from moldau.machines.groups.consumer import classic_members, description, heartbeat, member_removal, migration
from moldau.machines.groups.consumer.consumer_protocol import read_subscription
from moldau.machines.groups.consumer.group import ConsumerGroup
from moldau.machines.groups.consumer.member import (
    JOINING_EPOCH,
    LEAVING_EPOCH,
    STATIC_LEAVING_EPOCH,
    Member,
    MemberState,
)
from moldau.machines.groups.consumer.member_update import MemberUpdate
from moldau.machines.groups.consumer.regexes import RegexMatcher, TopicMatcher, check_regex
from moldau.machines.groups.consumer.settings import ConsumerGroupSettings, HeartbeatConfig, heartbeat_config
from moldau.machines.groups.consumer.soft_state import CachedResponse, MembersDue, SoftState
from moldau.machines.groups.consumer.subscription_metadata import topics_hash
from moldau.machines.groups.draft import Caller, Draft
from moldau.machines.groups.ids import member_id_from
from moldau.machines.groups.records import Record
from moldau.machines.groups.state import GroupsState
from moldau.machines.metadata.image import NOTHING_SET, MetadataImage, Resource, ResourceType, TopicImage
from moldau.model.errors import (
    CoordinatorLoadInProgress,
    ErrorCode,
    GroupIdNotFound,
    InconsistentGroupProtocol,
    KafkaError,
    RebalanceInProgress,
    UnknownMemberId,
)
from moldau.model.ids import NO_OFFSET
from moldau.wire import messages
from moldau.wire.primitives import Malformed

MEMBER_ID_REQUIRED_VERSION: Final = 4  # the version of JoinGroup


def can_describe_all(_: str) -> bool:
    """For callers without topic ACLs."""
    return True


class ConsumerGroups:
    """Soft state of the groups. The groups themselves are in the replicated state."""

    def __init__(
        self, state: GroupsState, classic: ClassicGroups, image: Callable[[], MetadataImage], matcher: RegexMatcher
    ) -> None:
        self._state = state
        self._classic = classic
        self._image = image
        self._matcher = matcher
        self._soft_states: dict[str, SoftState] = {}

    def group(self, group_id: str) -> ConsumerGroup | None:
        return self._state.consumer.get(group_id)

    def group_ids(self) -> Iterator[str]:
        return iter(self._state.consumer)

    # ConsumerGroupHeartbeat

    def try_keepalive(
        self, request: heartbeat.Request, caller: Caller, now_ms: float, settings: ConsumerGroupSettings
    ) -> Decision[Record, heartbeat.Response] | None:
        """Respond to a stable member without changes; None if there is more to decide.

        This is the most frequent request: it only extends the session. The session is also extended when more is to be
        decided, so that a member stays alive while nothing can be written.
        """
        group, soft = self._state.consumer.get(request.group_id), self._soft_states.get(request.group_id)
        member = None if group is None else group.members.get(request.member_id)
        if group is None or soft is None or member is None or soft.heartbeat_config is None:
            return None
        if not (
            request.member_epoch == member.epoch > JOINING_EPOCH
            and request.instance_id in (None, member.instance_id)
            and member.classic is None
        ):
            return None
        soft.sessions[member.member_id] = now_ms + soft.heartbeat_config.session_timeout_ms
        if not (
            member.epoch == group.epoch == group.assignment_epoch
            and member.state is MemberState.STABLE
            and heartbeat.is_keepalive(request)
            and member.client_id == caller.client_id
            and member.client_host == caller.client_host
        ):
            return None
        image = self._image()
        if soft.topics is not image.topics:
            _refresh_topics(image.topics, group, soft)
        if soft.topics is not image.topics or not soft.has_config_of(settings, image):
            return None
        if group.resolved and not soft.has_matched(image.topics, now_ms, settings):
            return None
        return _cached_response(soft, member, _interval_ms(soft, soft.heartbeat_config, settings, now_ms))

    def handle_heartbeat(
        self,
        draft: Draft,
        request: heartbeat.Request,
        caller: Caller,
        randomness: bytes,
        can_describe: Callable[[str], bool],
    ) -> heartbeat.Response:
        """Handle a join, heartbeat or leave; raises the error to return."""
        heartbeat.check_request(request, caller.api_version, draft.settings)
        if request.member_epoch in (LEAVING_EPOCH, STATIC_LEAVING_EPOCH):
            return self._leave(draft, request)
        member_id = request.member_id or member_id_from(caller.client_id, randomness)
        image = self._loaded_image()
        group, upgrade = self._group_for(draft, request, image)
        heartbeat.check_room(group, member_id, request.instance_id, draft.settings.group_consumer_max_size)
        sender = heartbeat.resolve_sender(group, request, member_id)
        heartbeat.check_state(sender.before, request)
        if request.subscribed_topic_regex and request.subscribed_topic_regex not in group.resolved:
            check_regex(self._matcher, request.subscribed_topic_regex)
        # Validation is complete: from here on records are written and soft state changes.
        draft.records += upgrade
        soft = self._soft_states.setdefault(request.group_id, SoftState(request.group_id))
        update = MemberUpdate(group, soft, draft, TopicMatcher(self._matcher, image, can_describe), sender)
        after, includes_assignment = heartbeat.update_member(update, sender.before, request, caller)
        if group is not self._state.consumer.get(request.group_id):
            self._replace_classic(draft, group, soft)
        config = self._heartbeat_config(soft, draft.settings, image)
        soft.extend_session(draft, member_id, config.session_timeout_ms)
        interval_ms = _interval_ms(soft, config, draft.settings, draft.now.ms)
        if after.state is not MemberState.STABLE:
            interval_ms = min(interval_ms, draft.settings.group_consumer_unsettled_heartbeat_interval_ms)
        return heartbeat.build_response(after, interval_ms, includes_assignment=includes_assignment)

    def _loaded_image(self) -> MetadataImage:
        """Return the image. Without metadata every topic would look deleted."""
        image = self._image()
        if image.offset == NO_OFFSET:
            raise CoordinatorLoadInProgress("The cluster metadata is not loaded yet.")
        return image

    def _group_for(
        self, draft: Draft, request: heartbeat.Request, image: MetadataImage
    ) -> tuple[ConsumerGroup, Sequence[Record]]:
        """Return the group, creating it or upgrading a classic one for a joining member, with the records for that."""
        group_id = request.group_id
        group = self._state.consumer.get(group_id)
        if group is not None:
            return group, ()
        classic = self._classic.group(group_id)
        if request.member_epoch != JOINING_EPOCH or group_id in self._state.share:
            is_other_type = group_id in self._other_ids()
            message = (
                f"Group {group_id} is not a consumer group."
                if is_other_type
                else f"Consumer group {group_id} not found."
            )
            raise GroupIdNotFound(message)
        if classic is None:
            return ConsumerGroup(group_id), ()
        if classic.phase is Phase.EMPTY:
            return ConsumerGroup(group_id), classic.tombstones() if group_id in self._state.classic else ()
        migration.check_upgrade(classic, draft.settings)
        return migration.upgrade_group(classic, draft, image)

    def _other_ids(self) -> set[str]:
        return self._state.classic.keys() | self._classic.live.keys() | self._state.share.keys()

    def _replace_classic(self, draft: Draft, group: ConsumerGroup, soft: SoftState) -> None:
        """Replace a classic or missing group: waiting classic requests fail and must rejoin."""
        self._classic.dissolve(draft, group.group_id)
        for member in group.members.values():
            if member.classic is not None:
                soft.extend_session(draft, member.member_id, member.classic.session_timeout_ms)

    def _heartbeat_config(
        self, soft: SoftState, settings: ConsumerGroupSettings, image: MetadataImage
    ) -> HeartbeatConfig:
        if soft.heartbeat_config is None or not soft.has_config_of(settings, image):
            own = image.configs.get(Resource(ResourceType.GROUP, soft.group_id), NOTHING_SET)
            soft.heartbeat_config, soft.settings, soft.configs = (
                heartbeat_config(settings, own),
                settings,
                image.configs,
            )
        return soft.heartbeat_config

    # Removal

    def _leave(self, draft: Draft, request: heartbeat.Request) -> heartbeat.Response:
        group = self._get_group(request.group_id)
        if request.instance_id is None:
            member = group.member(request.member_id)
        else:
            member = group.check_instance(request.member_id, request.instance_id)
        if request.member_epoch == STATIC_LEAVING_EPOCH:
            member_removal.leave_static(group, draft, member)
        else:
            self._evict(draft, group, [member])
        return heartbeat.Response(member_id=request.member_id, member_epoch=request.member_epoch)

    def _get_group(self, group_id: str) -> ConsumerGroup:
        group = self._state.consumer.get(group_id)
        if group is not None:
            return group
        is_other_type = group_id in self._other_ids()
        raise GroupIdNotFound(
            f"Group {group_id} is not a consumer group." if is_other_type else f"Group {group_id} not found."
        )

    def _evict(self, draft: Draft, group: ConsumerGroup, members: Sequence[Member]) -> None:
        """Remove members; downgrade the group if only classic members remain."""
        removed = {member.member_id for member in members}
        remaining = {each: member for each, member in group.members.items() if each not in removed}
        if migration.can_downgrade(remaining.values(), draft.settings) and self._downgrade(draft, group, remaining):
            return
        soft = self._soft_states.setdefault(group.group_id, SoftState(group.group_id))
        member_removal.remove(group, soft, draft, self._image(), members)
        if not remaining:
            self._discard(draft, group.group_id)

    def _downgrade(
        self,
        draft: Draft,
        group: ConsumerGroup,
        members: dict[str, Member],
        join: tuple[str, Ticket] | None = None,
    ) -> bool:
        """Downgrade the group; return whether that was possible. One of the members may have a join waiting."""
        classic = migration.downgrade_group(group, members, draft, self._image())
        if classic is None:
            return False
        draft.records += group.tombstones()
        self._discard(draft, group.group_id)
        if join is not None:
            member_id, ticket = join
            classic.joins[member_id] = ticket
        self._classic.add_downgraded(draft, classic)
        return True

    def _discard(self, draft: Draft, group_id: str) -> None:
        if self._soft_states.pop(group_id, None) is not None:
            draft.cancel_timer(MembersDue(group_id))

    # Members of the classic protocol

    def join(
        self, draft: Draft, request: messages.JoinGroupRequest, caller: Caller, ticket: Ticket, randomness: bytes
    ) -> bool:
        """JoinGroup, if this is a consumer group. An empty one is replaced by a classic group."""
        group = self._state.consumer.get(request.group_id)
        if group is None:
            return False
        if not group.members and not request.member_id:
            draft.records += group.tombstones()
            self._discard(draft, request.group_id)
            return False
        try:
            self._join(draft, group, request, caller, ticket, randomness)
        except KafkaError as rejection:
            response = messages.JoinGroupResponse(error_code=rejection.code, member_id=request.member_id)
            draft.respond(ticket, response)
        return True

    def _join(
        self,
        draft: Draft,
        group: ConsumerGroup,
        request: messages.JoinGroupRequest,
        caller: Caller,
        ticket: Ticket,
        randomness: bytes,
    ) -> None:
        if not group.members:
            raise UnknownMemberId(f"Member {request.member_id} is not a member of group {group.group_id}.")
        instance_id = request.group_instance_id
        member_id = request.member_id or member_id_from(instance_id or caller.client_id, randomness)
        heartbeat.check_room(group, member_id, instance_id, draft.settings.group_consumer_max_size)
        classic_members.check_protocols(group, member_id, request)
        if (
            request.member_id == NO_MEMBER_ID
            and instance_id is None
            and caller.api_version >= MEMBER_ID_REQUIRED_VERSION
        ):
            code = ErrorCode.MEMBER_ID_REQUIRED
            draft.respond(ticket, messages.JoinGroupResponse(error_code=code, member_id=member_id))
            return
        subscription = _subscription(request)
        sender = classic_members.resolve_sender(group, request, member_id)
        after = classic_members.updated_metadata(sender.before, request, caller, subscription)
        image = self._loaded_image()
        if self._join_downgraded(draft, group, after, ticket):
            return
        soft = self._soft_states.setdefault(group.group_id, SoftState(group.group_id))
        update = MemberUpdate(group, soft, draft, TopicMatcher(self._matcher, image, can_describe_all), sender)
        update.update_metadata(after)
        after = update.reconcile(after, classic_members.owned_by(subscription, image))
        soft.revocations.pop(member_id, None)
        soft.extend_session(draft, member_id, request.session_timeout_ms)
        soft.expect_sync(draft, after)
        draft.respond(ticket, classic_members.join_response(after))

    def _join_downgraded(self, draft: Draft, group: ConsumerGroup, after: Member, ticket: Ticket) -> bool:
        """Downgrade the group if this join replaces its last consumer, a static member; return whether it did."""
        existing = group.static_member(after.instance_id)
        if existing is None or existing.is_classic:
            return False
        members = {each: member for each, member in group.members.items() if each != existing.member_id}
        members[after.member_id] = after
        if not migration.can_downgrade(members.values(), draft.settings):
            return False
        return self._downgrade(draft, group, members, (after.member_id, ticket))

    def sync(self, draft: Draft, request: messages.SyncGroupRequest, ticket: Ticket) -> bool:
        """SyncGroup, if this is a consumer group."""
        group = self._state.consumer.get(request.group_id)
        if group is None:
            return False
        try:
            member = classic_members.validate_sync(group, request)
            image = self._loaded_image()
            soft = self._soft_states.setdefault(group.group_id, SoftState(group.group_id))
            draft.respond(ticket, classic_members.sync(group, soft, draft, member, request, image))
        except KafkaError as rejection:
            draft.respond(ticket, messages.SyncGroupResponse(error_code=rejection.code))
        return True

    def classic_heartbeat(self, draft: Draft, request: messages.HeartbeatRequest) -> Decision[Record, Any]:
        """Heartbeat of a classic member. Raises the error to return."""
        group = self._state.consumer[request.group_id]
        member = classic_members.validate_member(
            group, request.member_id, request.group_instance_id, request.generation_id
        )
        assert member.classic is not None
        soft = self._soft_states.setdefault(group.group_id, SoftState(group.group_id))
        soft.extend_session(draft, member.member_id, member.classic.session_timeout_ms)
        if classic_members.must_rejoin(group, member):
            soft.expect_join(draft, member)
            draft.respond(REQUESTER, RebalanceInProgress("The group is rebalancing; rejoin."))
        else:
            draft.respond(REQUESTER, None)
        return draft.decision()

    def classic_leave(
        self, draft: Draft, group_id: str, identities: Sequence[messages.LeaveGroupRequest.MemberIdentity]
    ) -> list[ErrorCode]:
        """LeaveGroup of classic members: returns the error of each."""
        group = self._state.consumer[group_id]
        removed, errors = classic_members.leaving_members(group, identities)
        if removed:
            self._evict(draft, group, removed)
        return errors

    # Timers

    def elected(self, draft: Draft) -> None:
        """Restart every session: the last heartbeat times are lost."""
        image = self._image()
        for group_id, group in self._state.consumer.items():
            if not group.members:
                continue
            soft = self._soft_states[group_id] = SoftState(group_id)
            timeout_ms = self._heartbeat_config(soft, draft.settings, image).session_timeout_ms
            for member_id, member in group.members.items():
                classic = member.classic
                soft.extend_session(draft, member_id, timeout_ms if classic is None else classic.session_timeout_ms)
                soft.track_revocation(draft, member)

    def timed_out(self, draft: Draft, event: Hashable) -> bool:
        """Evict late members if the event belongs to a consumer group; return whether it does."""
        if not isinstance(event, MembersDue):
            return False
        group, soft = self._state.consumer.get(event.group_id), self._soft_states.get(event.group_id)
        if group is None:
            self._soft_states.pop(event.group_id, None)
        elif soft is not None:
            late = [group.members[member_id] for member_id in soft.expired_members(group.members, draft.now.ms)]
            if late:
                self._evict(draft, group, late)
            if self._soft_states.get(event.group_id) is soft:
                soft.arm_next(draft)
        return True

    # Admin requests

    def describe(self, group_ids: Iterable[str], settings: ConsumerGroupSettings) -> list[description.Described]:
        image = self._image()
        others = self._other_ids()
        return [
            description.describe_group(self._state.consumer[group_id], image, settings.group_consumer_assignors)
            if group_id in self._state.consumer
            else description.describe_missing(group_id, is_other_type=group_id in others)
            for group_id in group_ids
        ]


def _refresh_topics(topics: Mapping[str, TopicImage], group: ConsumerGroup, soft: SoftState) -> None:
    """The topics changed: accept the new ones if the group's subscribed topics are unchanged."""
    names = {name for name, count in group.topic_counts.items() if count > 0}
    names.update(*(each.topics for each in group.resolved.values()))
    if not group.has_partition_metadata and topics_hash(names, topics) == group.metadata_hash:
        soft.topics = topics


def _interval_ms(soft: SoftState, config: HeartbeatConfig, settings: ConsumerGroupSettings, now_ms: float) -> int:
    """Return the heartbeat interval: shorter after a change of the group, to reconcile faster."""
    interval_ms, changed_ms = config.heartbeat_interval_ms, soft.changed_ms
    if changed_ms is not None and now_ms - changed_ms < interval_ms:
        return min(interval_ms, settings.group_consumer_unsettled_heartbeat_interval_ms)
    return interval_ms


def _cached_response(soft: SoftState, member: Member, interval_ms: int) -> Decision[Record, heartbeat.Response]:
    """Return the cached response, built once per epoch and interval."""
    cached = soft.cached.get(member.member_id)
    if cached is None or (cached.epoch, cached.interval_ms) != (member.epoch, interval_ms):
        response = heartbeat.build_response(member, interval_ms, includes_assignment=False)
        cached = soft.cached[member.member_id] = CachedResponse(
            member.epoch, interval_ms, Decision(responses={REQUESTER: response})
        )
    return cached.decision


def _subscription(request: messages.JoinGroupRequest) -> messages.ConsumerProtocolSubscription:
    try:
        return read_subscription(request.protocols[0].metadata)
    except Malformed:
        raise InconsistentGroupProtocol("The embedded consumer protocol is malformed.") from None
