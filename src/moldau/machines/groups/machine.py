"""Groups machine: the groups of a shard (a partition of `__consumer_offsets`). Only records change its state."""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence, Set
from typing import Final

from moldau.machines.decision import REQUESTER, Decision, Ticket, respond
from moldau.machines.groups import admin, offsets
from moldau.machines.groups.classic.groups import ClassicGroups
from moldau.machines.groups.consumer.groups import ConsumerGroups, can_describe_all
from moldau.machines.groups.consumer.regexes import NoRegexes, RegexMatcher
from moldau.machines.groups.deleted_topics import DeletedTopic
from moldau.machines.groups.draft import Caller, Draft, Now
from moldau.machines.groups.group import Group
from moldau.machines.groups.offset_cleanup import OffsetCleanup
from moldau.machines.groups.records import Record, TransactionEnded
from moldau.machines.groups.settings import JOIN_BYTES_MAX, GroupSettings
from moldau.machines.groups.share import offsets as share_offsets
from moldau.machines.groups.share.groups import ShareGroups
from moldau.machines.groups.state import GroupsState
from moldau.machines.metadata.image import MetadataImage
from moldau.model.errors import ErrorCode, GroupIdNotFound, InvalidGroupId, KafkaError
from moldau.model.ids import TopicId
from moldau.wire import messages

BATCH_LEAVE_VERSION: Final = 3


def _no_image() -> None:
    """For shards without cluster metadata."""


class GroupsMachine:
    """Decisions for requests of members and admin clients, and for timers.

    Only `state` is replicated; everything else is soft and starts empty in a new machine. A request that may have to
    wait for others (a join, a sync) brings a ticket, and its response carries that ticket, now or in a later decision.
    """

    def __init__(
        self,
        settings: GroupSettings,
        *,
        wall_offset_ms: float = 0.0,
        image: Callable[[], MetadataImage] = MetadataImage,
        matcher: RegexMatcher | None = None,
        newest_image: Callable[[], MetadataImage | None] = _no_image,
    ) -> None:
        """`wall_offset_ms` is the offset of wall time to monotonic time, updated by each request.

        `image` returns the committed metadata, from which consumer groups are assigned partitions. `newest_image` may
        be newer: it has every existing topic with commits in this shard, or is None while that is not certain; until
        then no topic counts as deleted.
        """
        self.settings = settings  # may be replaced while running
        self.state = GroupsState()
        self._classic = ClassicGroups(self.state)
        self._consumer = ConsumerGroups(self.state, self._classic, image, matcher or NoRegexes())
        self._share = ShareGroups(self.state, self._is_not_share, image)
        self._offset_cleanup = OffsetCleanup(self.state, self.group, self.group_ids, newest_image)
        self._image = image
        self._newest_image = newest_image
        self._wall_offset_ms = wall_offset_ms

    def apply(self, record: Record, offset: int) -> None:  # noqa: ARG002
        self.state.apply(record)

    def group(self, group_id: str) -> Group | None:
        """Return the group of any type, or None."""
        return self._consumer.group(group_id) or self._share.group(group_id) or self._classic.group(group_id)

    def _is_not_share(self, group_id: str) -> bool:
        return group_id in self.state.consumer or self._classic.group(group_id) is not None

    # Members of consumer groups

    def decide_consumer_heartbeat(
        self,
        request: messages.ConsumerGroupHeartbeatRequest,
        caller: Caller,
        *,
        now: Now,
        randomness: bytes,
        can_describe: Callable[[str], bool] = can_describe_all,
    ) -> Decision[Record, messages.ConsumerGroupHeartbeatResponse]:
        """Raises the error to return. `randomness` is 16 bytes for the id of a member without one.

        `can_describe` tells whether the client may describe a topic that its regular expression matches.
        """
        decision = self.decide_keepalive(request, caller, now.ms)
        if decision is not None:
            return decision
        draft = self._draft(now)
        draft.respond(REQUESTER, self._consumer.handle_heartbeat(draft, request, caller, randomness, can_describe))
        return draft.decision()

    def decide_keepalive(
        self, request: messages.ConsumerGroupHeartbeatRequest, caller: Caller, now_ms: float
    ) -> Decision[Record, messages.ConsumerGroupHeartbeatResponse] | None:
        """Extend the session of a member without changes; None if there is more to decide."""
        return self._consumer.try_keepalive(request, caller, now_ms, self.settings)

    # Members of share groups

    def decide_share_heartbeat(
        self, request: messages.ShareGroupHeartbeatRequest, caller: Caller, *, now: Now
    ) -> Decision[Record, messages.ShareGroupHeartbeatResponse]:
        """Raises the error to return. The effects of the decision are requests to the share coordinator."""
        decision = self.decide_share_keepalive(request, caller, now.ms)
        if decision is not None:
            return decision
        draft = self._draft(now)
        draft.respond(REQUESTER, self._share.handle_heartbeat(draft, request, caller))
        return draft.decision()

    def decide_share_keepalive(
        self, request: messages.ShareGroupHeartbeatRequest, caller: Caller, now_ms: float
    ) -> Decision[Record, messages.ShareGroupHeartbeatResponse] | None:
        """Extend the session of a member without changes; None if there is more to decide."""
        return self._share.try_keepalive(request, caller, now_ms, self.settings)

    def decide_states_initialized(
        self, group_id: str, partitions: Mapping[TopicId, Set[int]], *, now: Now
    ) -> Decision[Record, None]:
        """The share coordinator has created the states of these share partitions: they may be assigned."""
        draft = self._draft(now)
        self._share.states_initialized(draft, group_id, partitions)
        draft.respond(REQUESTER, None)
        return draft.decision()

    def share_states(self, group_id: str) -> share_offsets.States:
        """Return the share partitions of a group that have a state; raises if there is no such group."""
        return share_offsets.initialized(self._share.existing(group_id))

    def decide_alter_share_offsets(
        self, group_id: str, partitions: Mapping[TopicId, Set[int]], *, now: Now
    ) -> Decision[Record, int]:
        """Prepare new start offsets for these share partitions; the response is the state epoch to write them with.

        A missing group is created, as in Kafka. Raises if the group has members.
        """
        draft = self._draft(now)
        group = self._share.existing_or_new(group_id)
        draft.respond(REQUESTER, share_offsets.alter(draft, group, partitions, self._image()))
        return draft.decision()

    def decide_begin_share_deletion(
        self, group_id: str, topic_ids: Sequence[TopicId] | None, *, now: Now
    ) -> Decision[Record, share_offsets.States]:
        """Mark the states of these topics, or of all, as deleting; the response are the states to delete.

        Raises if the group has members.
        """
        draft = self._draft(now)
        group = self._share.existing(group_id)
        draft.respond(REQUESTER, share_offsets.begin_deletion(draft, group, topic_ids, self._image()))
        return draft.decision()

    def decide_share_states_deleted(
        self, group_id: str, topic_ids: Sequence[TopicId], *, now: Now
    ) -> Decision[Record, None]:
        """The share coordinator has deleted the states of these topics."""
        draft = self._draft(now)
        group = self.state.share.get(group_id)
        if group is not None:
            share_offsets.complete_deletion(draft, group, topic_ids)
        draft.respond(REQUESTER, None)
        return draft.decision()

    def describe_share_groups(
        self, group_ids: Sequence[str]
    ) -> list[messages.ShareGroupDescribeResponse.DescribedGroup]:
        """Describe share groups with their members; each has its own error."""
        return self._share.describe(group_ids)

    # Members of classic groups

    def decide_join(
        self, request: messages.JoinGroupRequest, caller: Caller, *, ticket: Ticket, now: Now, randomness: bytes
    ) -> Decision[Record, messages.JoinGroupResponse]:
        """`randomness` is 16 bytes for the id of a new member. An error is part of the response."""
        draft = self._draft(now)
        error = self._validate_join(request)
        if error is not ErrorCode.NONE:
            draft.respond(ticket, messages.JoinGroupResponse(error_code=error, member_id=request.member_id))
        elif not self._consumer.join(draft, request, caller, ticket, randomness):
            self._classic.join(draft, request, caller, ticket, randomness)
        return draft.decision()

    def _validate_join(self, request: messages.JoinGroupRequest) -> ErrorCode:
        shortest_ms, longest_ms = self.settings.group_min_session_timeout_ms, self.settings.group_max_session_timeout_ms
        if not request.group_id:
            return ErrorCode.INVALID_GROUP_ID
        if not shortest_ms <= request.session_timeout_ms <= longest_ms:
            return ErrorCode.INVALID_SESSION_TIMEOUT
        if request.group_id in self.state.share:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if sum(len(each.metadata) for each in request.protocols) > JOIN_BYTES_MAX:
            return ErrorCode.UNKNOWN_SERVER_ERROR
        return ErrorCode.NONE

    def decide_sync(
        self, request: messages.SyncGroupRequest, *, ticket: Ticket, now: Now
    ) -> Decision[Record, messages.SyncGroupResponse]:
        """An error is part of the response."""
        draft = self._draft(now)
        if not request.group_id:
            draft.respond(ticket, messages.SyncGroupResponse(error_code=ErrorCode.INVALID_GROUP_ID))
        elif not self._consumer.sync(draft, request, ticket):
            self._classic.sync(draft, request, ticket)
        return draft.decision()

    def decide_heartbeat(self, request: messages.HeartbeatRequest, now_ms: float) -> Decision[Record, None]:
        """Extend the session; raises the error to return."""
        if not request.group_id:
            raise InvalidGroupId("The group id is empty.")
        if request.group_id in self.state.consumer:
            return self._consumer.classic_heartbeat(self._draft_at(now_ms), request)
        return self._classic.heartbeat(request, now_ms)

    def decide_leave(
        self, request: messages.LeaveGroupRequest, *, api_version: int, now: Now
    ) -> Decision[Record, messages.LeaveGroupResponse]:
        """Remove members; does not wait for the rebalance. Before version 3 a member could only remove itself."""
        if not request.group_id:
            raise InvalidGroupId("The group id is empty.")
        draft = self._draft(now)
        identities = request.members
        if api_version < BATCH_LEAVE_VERSION:
            identities = [messages.LeaveGroupRequest.MemberIdentity(member_id=request.member_id)]
        if request.group_id in self.state.consumer:
            errors = self._consumer.classic_leave(draft, request.group_id, identities)
        else:
            errors = self._classic.leave(draft, request.group_id, identities)
        draft.respond(REQUESTER, _leave_response(identities, errors, api_version))
        return draft.decision()

    # Offsets

    def decide_commit_offsets(
        self, request: messages.OffsetCommitRequest, *, api_version: int, now: Now
    ) -> Decision[Record, messages.OffsetCommitResponse]:
        """Raises an error for the whole commit; the response has one per partition. Topics are given by name."""
        group = self.group(request.group_id)
        offsets.check_commit(group, request, api_version)
        draft = self._draft(now)
        draft.respond(REQUESTER, offsets.commit(draft, request))
        if group is not None:
            group.keep_alive(request.member_id, now.ms)
        return draft.decision()

    def decide_commit_in_transaction(
        self, request: messages.TxnOffsetCommitRequest, *, now: Now
    ) -> Decision[Record, messages.TxnOffsetCommitResponse]:
        """Raises an error for the whole commit. The caller verifies that the transaction is open."""
        image = self._image()
        offsets.check_commit_in_transaction(self.group(request.group_id), request, image)
        draft = self._draft(now)
        draft.respond(REQUESTER, offsets.commit_in_transaction(draft, request, image))
        return draft.decision()

    def decide_end_transaction(self, ended: TransactionEnded) -> Decision[Record, None]:
        """End a producer's transaction in this shard, as decided by its coordinator."""
        return respond(None, [ended])

    def fetch_offsets(
        self, request: messages.OffsetFetchRequest.OffsetFetchRequestGroup, *, require_stable: bool = False
    ) -> messages.OffsetFetchResponse.OffsetFetchResponseGroup:
        """Return a group's committed offsets; an error is part of the response."""
        group_id = request.group_id
        return offsets.fetch(
            self.state, self.group(group_id), request, self._newest_image(), require_stable=require_stable
        )

    def committed(self) -> Iterator[tuple[str, str, int, int]]:
        """Yield group, topic, partition and offset of everything committed for existing topics."""
        image = self._newest_image()
        for group_id, topics in self.state.offsets.items():
            for topic, partitions in offsets.existing_offsets(topics, image):
                for index, value in partitions.items():
                    yield group_id, topic, index, value.offset

    def decide_delete_offsets(
        self, request: messages.OffsetDeleteRequest, *, now: Now
    ) -> Decision[Record, messages.OffsetDeleteResponse]:
        """Raises an error for the whole request; the response has one per partition."""
        group = self._get_group(request.group_id)
        group.check_delete_offsets()
        draft = self._draft(now)
        draft.respond(REQUESTER, offsets.delete(draft, self.state, group, request))
        return draft.decision()

    def decide_topics_deleted(self, topics: Sequence[DeletedTopic], *, now: Now) -> Decision[Record, bool]:
        """Delete the offsets of deleted topics, a bounded number at a time; share groups forget the topics.

        Returns whether none are left; otherwise call it again.
        """
        draft = self._draft(now)
        are_offsets_deleted = self._offset_cleanup.delete_topics(draft, topics)
        are_states_forgotten = self._share.topics_deleted(draft, {each.topic_id for each in topics})
        draft.respond(REQUESTER, are_offsets_deleted and are_states_forgotten)
        return draft.decision()

    def decide_metadata_loaded(self, *, now: Now) -> Decision[Record, None]:
        """The metadata is loaded, so deleted topics are known: check the offsets that were loaded earlier."""
        draft = self._draft(now)
        self._offset_cleanup.resume(draft)
        draft.respond(REQUESTER, None)
        return draft.decision()

    # Admin requests

    def list_groups(
        self, *, states: Sequence[str] = (), types: Sequence[str] = ()
    ) -> list[messages.ListGroupsResponse.ListedGroup]:
        """List all groups, or those in these states and of these types (case-insensitive)."""
        groups = (self.group(group_id) for group_id in self.group_ids())
        return admin.list_groups((group for group in groups if group is not None), states, types)

    def describe_group(self, group_id: str, *, api_version: int) -> messages.DescribeGroupsResponse.DescribedGroup:
        """Describe a classic group with its members; any other is returned as Dead."""
        is_other_type = group_id in self.state.consumer or group_id in self.state.share
        return admin.describe_group(
            group_id, None if is_other_type else self._classic.group(group_id), api_version, is_other_type=is_other_type
        )

    def describe_consumer_groups(
        self, group_ids: Sequence[str]
    ) -> list[messages.ConsumerGroupDescribeResponse.DescribedGroup]:
        """Describe consumer groups with their members; each has its own error."""
        return self._consumer.describe(group_ids, self.settings)

    def decide_delete_groups(
        self, group_ids: Sequence[str], *, now: Now
    ) -> Decision[Record, list[messages.DeleteGroupsResponse.DeletableGroupResult]]:
        """Delete groups with their offsets; each has its own error."""
        draft = self._draft(now)
        results = [
            messages.DeleteGroupsResponse.DeletableGroupResult(
                group_id=group_id, error_code=self._delete_group(draft, group_id)
            )
            for group_id in dict.fromkeys(group_ids)
        ]
        draft.respond(REQUESTER, results)
        return draft.decision()

    def _delete_group(self, draft: Draft, group_id: str) -> ErrorCode:
        try:
            group = self._get_group(group_id)
            group.check_delete()
        except KafkaError as error:
            return error.code
        offsets.delete_all(draft, self.state, group_id)
        draft.records += group.tombstones()
        self._classic.dissolve(draft, group_id)
        self._share.discard(draft, group_id)
        return ErrorCode.NONE

    def group_ids(self) -> Iterator[str]:
        """Yield every group of the shard once."""
        yield from self._consumer.group_ids()
        yield from self._share.group_ids()
        modern = self.state.consumer.keys() | self.state.share.keys()
        yield from (group_id for group_id in self._classic.group_ids() if group_id not in modern)

    def _get_group(self, group_id: str) -> Group:
        if not group_id:
            raise InvalidGroupId("The group id is empty.")
        group = self.group(group_id)
        if group is None:
            raise GroupIdNotFound(f"Group {group_id} not found.")
        return group

    # Timers

    def decide_elected(self, now_ms: float) -> Decision[Record, None]:
        draft = self._draft_at(now_ms)
        self._classic.elected(draft)
        self._consumer.elected(draft)
        self._share.elected(draft)
        self._offset_cleanup.elected(draft)
        return draft.decision()

    def decide_timed_out(self, event: Hashable, now_ms: float) -> Decision[Record, None]:
        draft = self._draft_at(now_ms)
        parts = (self._classic, self._consumer, self._share, self._offset_cleanup)
        if not any(part.timed_out(draft, event) for part in parts):
            raise AssertionError(f"unknown timer {event}")
        return draft.decision()

    def _draft(self, now: Now) -> Draft:
        self._wall_offset_ms = now.wall_ms - now.ms
        return Draft(now, self.settings)

    def _draft_at(self, now_ms: float) -> Draft:
        """Derive wall time for a timer from the last request: timers only carry monotonic time."""
        return Draft(Now(now_ms, round(now_ms + self._wall_offset_ms)), self.settings)


def _leave_response(
    identities: Sequence[messages.LeaveGroupRequest.MemberIdentity], errors: Sequence[ErrorCode], api_version: int
) -> messages.LeaveGroupResponse:
    """Build the response; before version 3 its only error is the top-level one."""
    if api_version < BATCH_LEAVE_VERSION:
        return messages.LeaveGroupResponse(error_code=errors[0])
    return messages.LeaveGroupResponse(
        members=[
            messages.LeaveGroupResponse.MemberResponse(
                member_id=each.member_id, group_instance_id=each.group_instance_id, error_code=error
            )
            for each, error in zip(identities, errors, strict=True)
        ]
    )
