"""The share groups of a shard: heartbeats, timers, the states of share partitions, and admin requests."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from typing import Final

from moldau.machines.decision import Decision, respond
from moldau.machines.groups.consumer.subscription_metadata import topics_hash
from moldau.machines.groups.draft import Caller, Draft
from moldau.machines.groups.records import Record
from moldau.machines.groups.settings import GroupSettings
from moldau.machines.groups.share import description, heartbeat
from moldau.machines.groups.share.group import ShareGroup
from moldau.machines.groups.share.member import JOINING_EPOCH, LEAVING_EPOCH, ShareMember
from moldau.machines.groups.share.records import epoch_record, removal_tombstones, state_partitions_record
from moldau.machines.groups.share.soft_state import ShareMembersDue, ShareSoftState
from moldau.machines.groups.state import GroupsState
from moldau.machines.metadata.image import MetadataImage
from moldau.model.errors import CoordinatorLoadInProgress, GroupIdNotFound
from moldau.model.ids import NO_OFFSET, TopicId

GROUPS_PER_CLEANUP_STEP: Final = 100
"""Share groups that a deleted topic is removed from in one decision."""

FIRST_HEARTBEAT_INTERVALS: Final = 3  # until a new coordinator removes members without a heartbeat


class ShareGroups:
    """Soft state of the groups. The groups themselves are in the replicated state."""

    def __init__(
        self, state: GroupsState, is_other_type: Callable[[str], bool], image: Callable[[], MetadataImage]
    ) -> None:
        self._state = state
        self._is_other_type = is_other_type
        self._image = image
        self._soft_states: dict[str, ShareSoftState] = {}

    def group(self, group_id: str) -> ShareGroup | None:
        return self._state.share.get(group_id)

    def group_ids(self) -> Iterator[str]:
        return iter(self._state.share)

    def existing(self, group_id: str) -> ShareGroup:
        """Return the share group; raises `GroupIdNotFound` if it is missing or of another type."""
        group = self._state.share.get(group_id)
        if group is None:
            raise GroupIdNotFound(
                f"Group {group_id} is not a share group."
                if self._is_other_type(group_id)
                else f"Group {group_id} not found."
            )
        return group

    def existing_or_new(self, group_id: str) -> ShareGroup:
        """Return the share group, or an empty one if no group has this id; raises if one of another type has it."""
        if group_id in self._state.share or self._is_other_type(group_id):
            return self.existing(group_id)
        return ShareGroup(group_id)

    # ShareGroupHeartbeat

    def try_keepalive(
        self, request: heartbeat.Request, caller: Caller, now_ms: float, settings: GroupSettings
    ) -> Decision[Record, heartbeat.Response] | None:
        """Extend the session of a member without changes and respond; None if there is more to decide.

        The session is also extended when more is to be decided: a member stays alive while nothing can be written.
        """
        group, soft = self._state.share.get(request.group_id), self._soft_states.get(request.group_id)
        member = None if group is None else group.members.get(request.member_id)
        if group is None or soft is None or member is None or request.member_epoch != member.epoch:
            return None
        image = self._image()
        config = soft.config(settings, image)
        soft.sessions[member.member_id] = now_ms + config.session_timeout_ms
        is_settled = member.epoch == group.epoch == group.assignment_epoch and not group.states.initializing
        is_unchanged = request.subscribed_topic_names is None and request.rack_id is None
        is_same_client = (member.client_id, member.client_host) == (caller.client_id, caller.client_host)
        if not (is_settled and is_unchanged and is_same_client and soft.topics is image.topics):
            return None
        interval_ms = _interval_ms(group, soft, config.heartbeat_interval_ms, settings, now_ms)
        return respond(heartbeat.build_response(member, interval_ms, includes_assignment=False))

    def handle_heartbeat(self, draft: Draft, request: heartbeat.Request, caller: Caller) -> heartbeat.Response:
        """Handle a join, heartbeat or leave; raises the error to return."""
        heartbeat.check_request(request)
        if request.member_epoch == LEAVING_EPOCH:
            return self._leave(draft, request)
        image = self._image()
        if image.offset == NO_OFFSET:  # without metadata every topic would look deleted
            raise CoordinatorLoadInProgress("The cluster metadata is not loaded yet.")
        group = self._group_for(request)
        heartbeat.check_room(group, request.member_id, draft.settings.group_share_max_size)
        before = heartbeat.resolve_sender(group, request)
        # Validation is complete: from here on records are written and soft state changes.
        soft = self._soft_states.setdefault(request.group_id, ShareSoftState(request.group_id))
        after = heartbeat.ShareHeartbeat(group, soft, draft, image).update(before, request, caller)
        config = soft.config(draft.settings, image)
        soft.extend_session(draft, after.member_id, config.session_timeout_ms)
        is_full = request.member_epoch == JOINING_EPOCH or request.subscribed_topic_names is not None
        return heartbeat.build_response(
            after,
            _interval_ms(group, soft, config.heartbeat_interval_ms, draft.settings, draft.now.ms),
            includes_assignment=is_full or after.assigned != before.assigned,
        )

    def _group_for(self, request: heartbeat.Request) -> ShareGroup:
        is_joining = request.member_epoch == JOINING_EPOCH
        return self.existing_or_new(request.group_id) if is_joining else self.existing(request.group_id)

    # Removal

    def _leave(self, draft: Draft, request: heartbeat.Request) -> heartbeat.Response:
        group = self.existing(request.group_id)
        self._remove(draft, group, [group.member(request.member_id)])
        return heartbeat.Response(member_id=request.member_id, member_epoch=LEAVING_EPOCH)

    def _remove(self, draft: Draft, group: ShareGroup, removed: Sequence[ShareMember]) -> None:
        """Remove members: the group epoch is bumped once, and the next heartbeat computes the target."""
        soft = self._soft_states.setdefault(group.group_id, ShareSoftState(group.group_id))
        for member in removed:
            draft.records += removal_tombstones(group.group_id, member.member_id)
            soft.sessions.pop(member.member_id, None)
        left = {member.member_id for member in removed}
        names = frozenset[str]().union(*(each.topics for key, each in group.members.items() if key not in left))
        draft.records.append(epoch_record(group.group_id, group.epoch + 1, topics_hash(names, self._image().topics)))
        soft.changed_ms = draft.now.ms

    def discard(self, draft: Draft, group_id: str) -> None:
        """Forget the soft state of a deleted group."""
        if self._soft_states.pop(group_id, None) is not None:
            draft.cancel_timer(ShareMembersDue(group_id))

    # States of share partitions

    def states_initialized(self, draft: Draft, group_id: str, partitions: Mapping[TopicId, Set[int]]) -> None:
        """Make partitions assignable whose states are durable, unless their topic was deleted meanwhile."""
        group = self._state.share.get(group_id)
        if group is None:
            return
        states = group.states
        for topic_id, indexes in partitions.items():
            pending = states.initializing.get(topic_id)
            done = frozenset[int]() if pending is None else pending.partitions & indexes
            if pending is not None and done:
                states = states.complete(topic_id, pending.name, done)
        if states is group.states:
            return
        draft.records.append(state_partitions_record(group_id, states))
        draft.records.append(epoch_record(group_id, group.epoch + 1, group.metadata_hash))
        self._soft_states.setdefault(group_id, ShareSoftState(group_id)).changed_ms = draft.now.ms

    def topics_deleted(self, draft: Draft, topic_ids: Set[TopicId]) -> bool:
        """Forget deleted topics; return whether no group is left that knows one. The share coordinator deletes the
        states by itself.
        """
        affected = [each for each in self._state.share.values() if not topic_ids.isdisjoint(each.states.topic_ids())]
        for group in affected[:GROUPS_PER_CLEANUP_STEP]:
            draft.records.append(state_partitions_record(group.group_id, group.states.forget(topic_ids)))
        return len(affected) <= GROUPS_PER_CLEANUP_STEP

    # Timers

    def elected(self, draft: Draft) -> None:
        """Restart every session: the last heartbeat times are lost.

        A member that left meanwhile does not repeat that, and would keep its partitions from others for a whole session
        timeout. So the first heartbeat is due earlier. A live member that is removed joins again and loses nothing.
        """
        image = self._image()
        for group_id, group in self._state.share.items():
            if group.members:
                soft = self._soft_states[group_id] = ShareSoftState(group_id)
                config = soft.config(draft.settings, image)
                timeout_ms = min(config.session_timeout_ms, FIRST_HEARTBEAT_INTERVALS * config.heartbeat_interval_ms)
                for member_id in group.members:
                    soft.extend_session(draft, member_id, timeout_ms)

    def timed_out(self, draft: Draft, event: Hashable) -> bool:
        """Remove late members if the event belongs to a share group; return whether it does."""
        if not isinstance(event, ShareMembersDue):
            return False
        group, soft = self._state.share.get(event.group_id), self._soft_states.get(event.group_id)
        if group is not None and soft is not None:
            late = [group.members[each] for each in soft.expired_members(group.members, draft.now.ms)]
            if late:
                self._remove(draft, group, late)
            soft.arm_next(draft)
        return True

    # Admin requests

    def describe(self, group_ids: Iterable[str]) -> list[description.Described]:
        image = self._image()
        return [
            description.describe_group(self._state.share[group_id], image)
            if group_id in self._state.share
            else description.describe_missing(group_id, is_other_type=self._is_other_type(group_id))
            for group_id in group_ids
        ]


def _interval_ms(
    group: ShareGroup, soft: ShareSoftState, interval_ms: int, settings: GroupSettings, now_ms: float
) -> int:
    """Return the heartbeat interval: shorter after a change of the group, so that members get partitions sooner."""
    is_recent = soft.changed_ms is not None and now_ms - soft.changed_ms < interval_ms
    if is_recent or group.states.initializing:
        return min(interval_ms, settings.group_consumer_unsettled_heartbeat_interval_ms)
    return interval_ms
