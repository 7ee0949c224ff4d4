"""The consumer groups of a shard: what members of either protocol ask of them, and what time does to them."""

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
from moldau.machines.groups.consumer.member_update import Change
from moldau.machines.groups.consumer.regexes import Matching, RegexMatcher, check_regex
from moldau.machines.groups.consumer.settings import ConsumerGroupSettings, Pace, pace
from moldau.machines.groups.consumer.soft_state import MembersDue, Told, Watch
from moldau.machines.groups.consumer.subscription_metadata import topics_hash
from moldau.machines.groups.draft import Asker, Draft
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

MEMBER_ID_REQUIRED_FROM: Final = 4  # the version of JoinGroup


def everything_is_seen(_: str) -> bool:
    """For those who may know of every topic."""
    return True


class ConsumerGroups:
    """Soft state: who was heard of when. The groups themselves are in the replicated state."""

    def __init__(
        self, state: GroupsState, classic: ClassicGroups, image: Callable[[], MetadataImage], matcher: RegexMatcher
    ) -> None:
        self._state = state
        self._classic = classic
        self._image = image
        self._matcher = matcher
        self._watches: dict[str, Watch] = {}

    def group(self, group_id: str) -> ConsumerGroup | None:
        return self._state.consumer.get(group_id)

    def group_ids(self) -> Iterator[str]:
        return iter(self._state.consumer)

    # ConsumerGroupHeartbeat

    def alive(
        self, request: heartbeat.Request, asker: Asker, now_ms: float, settings: ConsumerGroupSettings
    ) -> Decision[Record, heartbeat.Response] | None:
        """The answer to a member that is where it should be and says nothing new; None if there is more to it.

        This is the most frequent request of all: it moves a deadline, and nothing else. A member that is heard of and
        told nothing, because nothing can be written now, stays a member all the same.
        """
        group, watch = self._state.consumer.get(request.group_id), self._watches.get(request.group_id)
        member = None if group is None else group.members.get(request.member_id)
        if group is None or watch is None or member is None or watch.pace is None:
            return None
        if not (
            request.member_epoch == member.epoch > JOINING_EPOCH
            and request.instance_id in (None, member.instance_id)
            and member.classic is None
        ):
            return None
        watch.sessions[member.member_id] = now_ms + watch.pace.session_timeout_ms
        if not (
            member.epoch == group.epoch == group.assignment_epoch
            and member.state is MemberState.STABLE
            and heartbeat.is_bare(request)
            and member.client_id == asker.client_id
            and member.client_host == asker.client_host
        ):
            return None
        image = self._image()
        if watch.topics is not image.topics:
            _look_at(image.topics, group, watch)
        if watch.topics is not image.topics or not watch.has_pace_of(settings, image):
            return None
        if group.resolved and not watch.has_matched(image.topics, now_ms, settings):
            return None
        return _nothing_new(watch, member, _interval_ms(watch, watch.pace, settings, now_ms))

    def answer_heartbeat(
        self,
        draft: Draft,
        request: heartbeat.Request,
        asker: Asker,
        randomness: bytes,
        may_see: Callable[[str], bool],
    ) -> heartbeat.Response:
        """Whoever joins, stays or leaves; raises what it must be told."""
        heartbeat.check_request(request, asker.api_version, draft.settings)
        if request.member_epoch in (LEAVING_EPOCH, STATIC_LEAVING_EPOCH):
            return self._leave(draft, request)
        member_id = request.member_id or member_id_from(asker.client_id, randomness)
        image = self._known_image()
        group, upgrade = self._group_for(draft, request, image)
        heartbeat.check_room(group, member_id, request.instance_id, draft.settings.group_consumer_max_size)
        comer = heartbeat.comer(group, request, member_id)
        heartbeat.check_state(comer.before, request)
        if request.subscribed_topic_regex and request.subscribed_topic_regex not in group.resolved:
            check_regex(self._matcher, request.subscribed_topic_regex)
        # Nothing is refused from here on: now records are written, and what is soft may change.
        draft.records += upgrade
        watch = self._watches.setdefault(request.group_id, Watch(request.group_id))
        change = Change(group, watch, draft, Matching(self._matcher, image, may_see), comer)
        after, is_told = heartbeat.beat(change, comer.before, request, asker)
        if group is not self._state.consumer.get(request.group_id):
            self._take_over(draft, group, watch)
        beat = self._pace(watch, draft.settings, image)
        watch.heard_of(draft, member_id, beat.session_timeout_ms)
        interval_ms = _interval_ms(watch, beat, draft.settings, draft.now.ms)
        if after.state is not MemberState.STABLE:
            interval_ms = min(interval_ms, draft.settings.group_consumer_unsettled_heartbeat_interval_ms)
        return heartbeat.answer(after, interval_ms, is_told=is_told)

    def _known_image(self) -> MetadataImage:
        """Without metadata every topic would seem to be gone."""
        image = self._image()
        if image.offset == NO_OFFSET:
            raise CoordinatorLoadInProgress("The metadata of the cluster is not known yet.")
        return image

    def _group_for(
        self, draft: Draft, request: heartbeat.Request, image: MetadataImage
    ) -> tuple[ConsumerGroup, Sequence[Record]]:
        """The group, or the one that a joining member begins or makes of a classic one, with the records for that."""
        group_id = request.group_id
        group = self._state.consumer.get(group_id)
        if group is not None:
            return group, ()
        classic = self._classic.group(group_id)
        if request.member_epoch != JOINING_EPOCH:
            is_other = classic is not None and group_id in self._classic_ids()
            words = (
                f"Group {group_id} is not a consumer group." if is_other else f"Consumer group {group_id} not found."
            )
            raise GroupIdNotFound(words)
        if classic is None:
            return ConsumerGroup(group_id), ()
        if classic.phase is Phase.EMPTY:
            return ConsumerGroup(group_id), classic.tombstones() if group_id in self._state.classic else ()
        migration.check_upgrade(classic, draft.settings)
        return migration.upgraded(classic, draft, image)

    def _classic_ids(self) -> set[str]:
        return self._state.classic.keys() | self._classic.live.keys()

    def _take_over(self, draft: Draft, group: ConsumerGroup, watch: Watch) -> None:
        """The group was classic, or was not there: whoever waited for it is told to join again."""
        self._classic.dissolve(draft, group.group_id)
        for member in group.members.values():
            if member.classic is not None:
                watch.heard_of(draft, member.member_id, member.classic.session_timeout_ms)

    def _pace(self, watch: Watch, settings: ConsumerGroupSettings, image: MetadataImage) -> Pace:
        if watch.pace is None or not watch.has_pace_of(settings, image):
            own = image.configs.get(Resource(ResourceType.GROUP, watch.group_id), NOTHING_SET)
            watch.pace, watch.settings, watch.configs = pace(settings, own), settings, image.configs
        return watch.pace

    # Members go

    def _leave(self, draft: Draft, request: heartbeat.Request) -> heartbeat.Response:
        group = self._existing(request.group_id)
        if request.instance_id is None:
            member = group.member(request.member_id)
        else:
            member = group.check_instance(request.member_id, request.instance_id)
        if request.member_epoch == STATIC_LEAVING_EPOCH:
            member_removal.leave_for_a_while(group, draft, member)
        else:
            self._expel(draft, group, [member])
        return heartbeat.Response(member_id=request.member_id, member_epoch=request.member_epoch)

    def _existing(self, group_id: str) -> ConsumerGroup:
        group = self._state.consumer.get(group_id)
        if group is not None:
            return group
        is_other = group_id in self._classic_ids()
        raise GroupIdNotFound(
            f"Group {group_id} is not a consumer group." if is_other else f"Group {group_id} not found."
        )

    def _expel(self, draft: Draft, group: ConsumerGroup, members: Sequence[Member]) -> None:
        """These members are gone; those who stay may all be classic ones, and the group then is too."""
        gone = {member.member_id for member in members}
        stayers = {each: member for each, member in group.members.items() if each not in gone}
        if migration.may_downgrade(stayers.values(), draft.settings) and self._downgrade(draft, group, stayers):
            return
        watch = self._watches.setdefault(group.group_id, Watch(group.group_id))
        member_removal.remove(group, watch, draft, self._image(), members)
        if not stayers:
            self._forget(draft, group.group_id)

    def _downgrade(
        self,
        draft: Draft,
        group: ConsumerGroup,
        members: dict[str, Member],
        join: tuple[str, Ticket] | None = None,
    ) -> bool:
        """Whether the group is classic now. All members are asked to join; one may be waiting for that already."""
        classic = migration.downgraded(group, members, draft, self._image())
        if classic is None:
            return False
        draft.records += group.tombstones()
        self._forget(draft, group.group_id)
        if join is not None:
            member_id, ticket = join
            classic.joins[member_id] = ticket
        self._classic.adopt(draft, classic)
        return True

    def _forget(self, draft: Draft, group_id: str) -> None:
        if self._watches.pop(group_id, None) is not None:
            draft.cancel_timer(MembersDue(group_id))

    # Members that speak the classic protocol

    def join(
        self, draft: Draft, request: messages.JoinGroupRequest, asker: Asker, ticket: Ticket, randomness: bytes
    ) -> bool:
        """JoinGroup, if the group is a consumer group. An empty one makes way for a classic group."""
        group = self._state.consumer.get(request.group_id)
        if group is None:
            return False
        if not group.members and not request.member_id:
            draft.records += group.tombstones()
            self._forget(draft, request.group_id)
            return False
        try:
            self._join(draft, group, request, asker, ticket, randomness)
        except KafkaError as refusal:
            answer = messages.JoinGroupResponse(error_code=refusal.code, member_id=request.member_id)
            draft.answer(ticket, answer)
        return True

    def _join(
        self,
        draft: Draft,
        group: ConsumerGroup,
        request: messages.JoinGroupRequest,
        asker: Asker,
        ticket: Ticket,
        randomness: bytes,
    ) -> None:
        if not group.members:
            raise UnknownMemberId(f"Member {request.member_id} is not a member of group {group.group_id}.")
        instance_id = request.group_instance_id
        member_id = request.member_id or member_id_from(instance_id or asker.client_id, randomness)
        heartbeat.check_room(group, member_id, instance_id, draft.settings.group_consumer_max_size)
        classic_members.check_protocols(group, member_id, request)
        if request.member_id == NO_MEMBER_ID and instance_id is None and asker.api_version >= MEMBER_ID_REQUIRED_FROM:
            code = ErrorCode.MEMBER_ID_REQUIRED
            draft.answer(ticket, messages.JoinGroupResponse(error_code=code, member_id=member_id))
            return
        subscription = _subscription(request)
        comer = classic_members.comer(group, request, member_id)
        after = classic_members.described(comer.before, request, asker, subscription)
        image = self._known_image()
        if self._join_downgraded(draft, group, after, ticket):
            return
        watch = self._watches.setdefault(group.group_id, Watch(group.group_id))
        change = Change(group, watch, draft, Matching(self._matcher, image, everything_is_seen), comer)
        change.describe(after)
        after = change.reconcile(after, classic_members.owned_by(subscription, image))
        watch.revocations.pop(member_id, None)
        watch.heard_of(draft, member_id, request.session_timeout_ms)
        watch.expect_sync(draft, after)
        draft.answer(ticket, classic_members.joined(after))

    def _join_downgraded(self, draft: Draft, group: ConsumerGroup, after: Member, ticket: Ticket) -> bool:
        """Whether it takes the place of the last consumer, a static member; then the group is classic from now on."""
        there = group.static_member(after.instance_id)
        if there is None or there.is_classic:
            return False
        members = {each: member for each, member in group.members.items() if each != there.member_id}
        members[after.member_id] = after
        if not migration.may_downgrade(members.values(), draft.settings):
            return False
        return self._downgrade(draft, group, members, (after.member_id, ticket))

    def sync(self, draft: Draft, request: messages.SyncGroupRequest, ticket: Ticket) -> bool:
        """SyncGroup, if the group is a consumer group."""
        group = self._state.consumer.get(request.group_id)
        if group is None:
            return False
        try:
            member = classic_members.syncer(group, request)
            image = self._known_image()
            watch = self._watches.setdefault(group.group_id, Watch(group.group_id))
            draft.answer(ticket, classic_members.sync(group, watch, draft, member, request, image))
        except KafkaError as refusal:
            draft.answer(ticket, messages.SyncGroupResponse(error_code=refusal.code))
        return True

    def classic_heartbeat(self, draft: Draft, request: messages.HeartbeatRequest) -> Decision[Record, Any]:
        """Heartbeat to a group that is known to be a consumer group. Raises what the member must be told."""
        group = self._state.consumer[request.group_id]
        member = classic_members.speaker(group, request.member_id, request.group_instance_id, request.generation_id)
        assert member.classic is not None
        watch = self._watches.setdefault(group.group_id, Watch(group.group_id))
        watch.heard_of(draft, member.member_id, member.classic.session_timeout_ms)
        if classic_members.must_rejoin(group, member):
            watch.expect_join(draft, member)
            draft.answer(REQUESTER, RebalanceInProgress("The group is rebalancing: join again."))
        else:
            draft.answer(REQUESTER, None)
        return draft.decision()

    def classic_leave(
        self, draft: Draft, group_id: str, identities: Sequence[messages.LeaveGroupRequest.MemberIdentity]
    ) -> list[ErrorCode]:
        """LeaveGroup to a group that is known to be a consumer group: what became of each."""
        group = self._state.consumer[group_id]
        gone, errors = classic_members.leavers(group, identities)
        if gone:
            self._expel(draft, group, gone)
        return errors

    # Time

    def elected(self, draft: Draft) -> None:
        """Begin every session anew, for nobody knows how long ago a member was heard of."""
        image = self._image()
        for group_id, group in self._state.consumer.items():
            if not group.members:
                continue
            watch = self._watches[group_id] = Watch(group_id)
            timeout_ms = self._pace(watch, draft.settings, image).session_timeout_ms
            for member_id, member in group.members.items():
                classic = member.classic
                watch.heard_of(draft, member_id, timeout_ms if classic is None else classic.session_timeout_ms)
                watch.reconciled(draft, member)

    def timed_out(self, draft: Draft, event: Hashable) -> bool:
        """Whether the event was one of a consumer group's; then whoever is late is out."""
        if not isinstance(event, MembersDue):
            return False
        group, watch = self._state.consumer.get(event.group_id), self._watches.get(event.group_id)
        if group is None:
            self._watches.pop(event.group_id, None)
        elif watch is not None:
            late = [group.members[member_id] for member_id in watch.overdue(group.members, draft.now.ms)]
            if late:
                self._expel(draft, group, late)
            if self._watches.get(event.group_id) is watch:
                watch.arm_next(draft)
        return True

    # Admins

    def describe(self, group_ids: Iterable[str], settings: ConsumerGroupSettings) -> list[description.Described]:
        image = self._image()
        others = self._classic_ids()
        return [
            description.described(self._state.consumer[group_id], image, settings.group_consumer_assignors)
            if group_id in self._state.consumer
            else description.missing(group_id, is_other=group_id in others)
            for group_id in group_ids
        ]


def _look_at(topics: Mapping[str, TopicImage], group: ConsumerGroup, watch: Watch) -> None:
    """Topics have changed: note it if those that the group reads have not."""
    names = {name for name, count in group.topic_counts.items() if count > 0}
    names.update(*(each.topics for each in group.resolved.values()))
    if not group.has_partition_metadata and topics_hash(names, topics) == group.metadata_hash:
        watch.topics = topics


def _interval_ms(watch: Watch, beat: Pace, settings: ConsumerGroupSettings, now_ms: float) -> int:
    """How soon a member is to be heard of again: sooner while the group has just changed, to settle fast."""
    interval_ms, changed_ms = beat.heartbeat_interval_ms, watch.changed_ms
    if changed_ms is not None and now_ms - changed_ms < interval_ms:
        return min(interval_ms, settings.group_consumer_unsettled_heartbeat_interval_ms)
    return interval_ms


def _nothing_new(watch: Watch, member: Member, interval_ms: int) -> Decision[Record, heartbeat.Response]:
    """Made once, and then told again and again."""
    told = watch.told.get(member.member_id)
    if told is None or (told.epoch, told.interval_ms) != (member.epoch, interval_ms):
        answer = heartbeat.answer(member, interval_ms, is_told=False)
        told = watch.told[member.member_id] = Told(member.epoch, interval_ms, Decision(responses={REQUESTER: answer}))
    return told.decision


def _subscription(request: messages.JoinGroupRequest) -> messages.ConsumerProtocolSubscription:
    try:
        return read_subscription(request.protocols[0].metadata)
    except Malformed:
        raise InconsistentGroupProtocol("The embedded consumer protocol is malformed.") from None
