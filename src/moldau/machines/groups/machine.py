"""The groups of one shard, a partition of `__consumer_offsets`: decided by requests, changed by records alone."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Final

from moldau.machines.decision import REQUESTER, Decision, Ticket, respond
from moldau.machines.groups import admin, offsets
from moldau.machines.groups.classic.groups import ClassicGroups
from moldau.machines.groups.consumer.groups import ConsumerGroups, everything_is_seen
from moldau.machines.groups.consumer.regexes import NoRegexes, RegexMatcher
from moldau.machines.groups.deleted_topics import GoneTopic
from moldau.machines.groups.draft import Asker, Draft, Now
from moldau.machines.groups.group import Group
from moldau.machines.groups.offset_cleanup import Upkeep
from moldau.machines.groups.records import Record, TransactionEnded
from moldau.machines.groups.settings import JOIN_BYTES_MAX, GroupSettings
from moldau.machines.groups.state import GroupsState
from moldau.machines.metadata.image import MetadataImage
from moldau.model.errors import ErrorCode, GroupIdNotFound, InvalidGroupId, KafkaError
from moldau.wire import messages

LEAVES_IN_BATCHES_FROM: Final = 3


def _nothing_is_known() -> None:
    """For shards without a cluster around them."""


class GroupsMachine:
    """What members, admins and time ask of a shard.

    `state` is replicated; everything else is soft and begins anew when the machine is made anew. A request that may
    have to wait for others (a join, a sync) brings a ticket, and is answered under it, at once or later.
    """

    def __init__(
        self,
        settings: GroupSettings,
        *,
        wall_offset_ms: float = 0.0,
        image: Callable[[], MetadataImage] = MetadataImage,
        matcher: RegexMatcher | None = None,
        newest_image: Callable[[], MetadataImage | None] = _nothing_is_known,
    ) -> None:
        """`wall_offset_ms` is by how much wall time is ahead of monotonic time, until a request tells it anew.

        `image` gives the committed metadata as it is now; consumer groups are assigned the partitions it has.
        `newest_image` may be newer: it has every topic that exists and that anything was committed for in this shard.
        None while that is not sure; then no topic is taken for gone.
        """
        self.settings = settings  # may be replaced while running
        self.state = GroupsState()
        self._classic = ClassicGroups(self.state)
        self._consumer = ConsumerGroups(self.state, self._classic, image, matcher or NoRegexes())
        self._upkeep = Upkeep(self.state, self.group, self.group_ids, newest_image)
        self._image = image
        self._newest_image = newest_image
        self._wall_offset_ms = wall_offset_ms

    def apply(self, record: Record, offset: int) -> None:  # noqa: ARG002
        self.state.apply(record)

    def group(self, group_id: str) -> Group | None:
        """The group, whatever protocol it speaks; None where nobody has heard of it."""
        return self._consumer.group(group_id) or self._classic.group(group_id)

    # Members of consumer groups

    def decide_consumer_heartbeat(
        self,
        request: messages.ConsumerGroupHeartbeatRequest,
        asker: Asker,
        *,
        now: Now,
        randomness: bytes,
        may_see: Callable[[str], bool] = everything_is_seen,
    ) -> Decision[Record, messages.ConsumerGroupHeartbeatResponse]:
        """Raises what the member must be told. `randomness` is 16 bytes, for the id of a member that brings none.

        `may_see` says whether whoever asks may know of a topic that its regular expression matches.
        """
        decision = self.decide_alive(request, asker, now.ms)
        if decision is not None:
            return decision
        draft = self._draft(now)
        draft.answer(REQUESTER, self._consumer.answer_heartbeat(draft, request, asker, randomness, may_see))
        return draft.decision()

    def decide_alive(
        self, request: messages.ConsumerGroupHeartbeatRequest, asker: Asker, now_ms: float
    ) -> Decision[Record, messages.ConsumerGroupHeartbeatResponse] | None:
        """Moves a deadline, for a member that is where it should be; None if there is more to be decided."""
        return self._consumer.alive(request, asker, now_ms, self.settings)

    # Members of classic groups

    def decide_join(
        self, request: messages.JoinGroupRequest, asker: Asker, *, ticket: Ticket, now: Now, randomness: bytes
    ) -> Decision[Record, messages.JoinGroupResponse]:
        """`randomness` is 16 bytes, for the id of a new member. The answer carries its error code."""
        draft = self._draft(now)
        error = self._refusal_of_join(request)
        if error is not ErrorCode.NONE:
            draft.answer(ticket, messages.JoinGroupResponse(error_code=error, member_id=request.member_id))
        elif not self._consumer.join(draft, request, asker, ticket, randomness):
            self._classic.join(draft, request, asker, ticket, randomness)
        return draft.decision()

    def _refusal_of_join(self, request: messages.JoinGroupRequest) -> ErrorCode:
        shortest_ms, longest_ms = self.settings.group_min_session_timeout_ms, self.settings.group_max_session_timeout_ms
        if not request.group_id:
            return ErrorCode.INVALID_GROUP_ID
        if not shortest_ms <= request.session_timeout_ms <= longest_ms:
            return ErrorCode.INVALID_SESSION_TIMEOUT
        if sum(len(each.metadata) for each in request.protocols) > JOIN_BYTES_MAX:
            return ErrorCode.UNKNOWN_SERVER_ERROR
        return ErrorCode.NONE

    def decide_sync(
        self, request: messages.SyncGroupRequest, *, ticket: Ticket, now: Now
    ) -> Decision[Record, messages.SyncGroupResponse]:
        """The answer carries its error code."""
        draft = self._draft(now)
        if not request.group_id:
            draft.answer(ticket, messages.SyncGroupResponse(error_code=ErrorCode.INVALID_GROUP_ID))
        elif not self._consumer.sync(draft, request, ticket):
            self._classic.sync(draft, request, ticket)
        return draft.decision()

    def decide_heartbeat(self, request: messages.HeartbeatRequest, now_ms: float) -> Decision[Record, None]:
        """Moves a deadline; raises what the member must be told."""
        if not request.group_id:
            raise InvalidGroupId("A group id is needed.")
        if request.group_id in self.state.consumer:
            return self._consumer.classic_heartbeat(self._draft_at(now_ms), request)
        return self._classic.heartbeat(request, now_ms)

    def decide_leave(
        self, request: messages.LeaveGroupRequest, *, api_version: int, now: Now
    ) -> Decision[Record, messages.LeaveGroupResponse]:
        """Answered at once, whatever the others do then. Before version 3 a member could only speak for itself."""
        if not request.group_id:
            raise InvalidGroupId("A group id is needed.")
        draft = self._draft(now)
        identities = request.members
        if api_version < LEAVES_IN_BATCHES_FROM:
            identities = [messages.LeaveGroupRequest.MemberIdentity(member_id=request.member_id)]
        if request.group_id in self.state.consumer:
            errors = self._consumer.classic_leave(draft, request.group_id, identities)
        else:
            errors = self._classic.leave(draft, request.group_id, identities)
        draft.answer(REQUESTER, _left(identities, errors, api_version))
        return draft.decision()

    # Offsets

    def decide_commit_offsets(
        self, request: messages.OffsetCommitRequest, *, api_version: int, now: Now
    ) -> Decision[Record, messages.OffsetCommitResponse]:
        """Raises what forbids the whole commit; the answer says what became of each partition. Topics have names."""
        group = self.group(request.group_id)
        offsets.check_commit(group, request, api_version)
        draft = self._draft(now)
        draft.answer(REQUESTER, offsets.commit(draft, request))
        if group is not None:
            group.keep_alive(request.member_id, now.ms)
        return draft.decision()

    def decide_commit_in_transaction(
        self, request: messages.TxnOffsetCommitRequest, *, now: Now
    ) -> Decision[Record, messages.TxnOffsetCommitResponse]:
        """Raises what forbids the whole commit. Whether the transaction is open is for the caller to know."""
        image = self._image()
        offsets.check_commit_in_transaction(self.group(request.group_id), request, image)
        draft = self._draft(now)
        draft.answer(REQUESTER, offsets.commit_in_transaction(draft, request, image))
        return draft.decision()

    def decide_end_transaction(self, ended: TransactionEnded) -> Decision[Record, None]:
        """A producer's transaction ends in this shard; its coordinator has decided how."""
        return respond(None, [ended])

    def fetch_offsets(
        self, request: messages.OffsetFetchRequest.OffsetFetchRequestGroup, *, require_stable: bool = False
    ) -> messages.OffsetFetchResponse.OffsetFetchResponseGroup:
        """What one group has committed; the answer carries the error code of the group."""
        group_id = request.group_id
        return offsets.fetch(
            self.state, self.group(group_id), request, self._newest_image(), require_stable=require_stable
        )

    def committed(self) -> Iterator[tuple[str, str, int, int]]:
        """Group, topic, partition and offset of everything that is committed, as far as the topics exist."""
        image = self._newest_image()
        for group_id, topics in self.state.offsets.items():
            for topic, partitions in offsets.present(topics, image):
                for index, value in partitions.items():
                    yield group_id, topic, index, value.offset

    def decide_delete_offsets(
        self, request: messages.OffsetDeleteRequest, *, now: Now
    ) -> Decision[Record, messages.OffsetDeleteResponse]:
        """Raises what forbids all of it; the answer says what became of each partition."""
        group = self._existing(request.group_id)
        group.check_delete_offsets()
        draft = self._draft(now)
        draft.answer(REQUESTER, offsets.delete(draft, self.state, group, request))
        return draft.decision()

    def decide_topics_deleted(self, topics: Sequence[GoneTopic], *, now: Now) -> Decision[Record, bool]:
        """Topics are gone from the cluster, and with them what was committed for them.

        The answer is whether that is all; otherwise there is more, which is forgotten when this is decided again.
        """
        draft = self._draft(now)
        draft.answer(REQUESTER, self._upkeep.forget_topics(draft, topics))
        return draft.decision()

    def decide_metadata_known(self, *, now: Now) -> Decision[Record, None]:
        """From now on it is sure which topics are gone: offsets that were loaded before are compared with the rest."""
        draft = self._draft(now)
        self._upkeep.go_on(draft)
        draft.answer(REQUESTER, None)
        return draft.decision()

    # Admins

    def list_groups(
        self, *, states: Sequence[str] = (), types: Sequence[str] = ()
    ) -> list[messages.ListGroupsResponse.ListedGroup]:
        """All groups, or those in one of these states and of one of these types, in whatever case they are written."""
        groups = (self.group(group_id) for group_id in self.group_ids())
        return admin.listed((group for group in groups if group is not None), states, types)

    def describe_group(self, group_id: str, *, api_version: int) -> messages.DescribeGroupsResponse.DescribedGroup:
        """A classic group with its members; of any other, that it is dead."""
        is_other = group_id in self.state.consumer
        return admin.described(
            group_id, None if is_other else self._classic.group(group_id), api_version, is_other=is_other
        )

    def describe_consumer_groups(
        self, group_ids: Sequence[str]
    ) -> list[messages.ConsumerGroupDescribeResponse.DescribedGroup]:
        """Consumer groups with their members; the answer for each carries its error code."""
        return self._consumer.describe(group_ids, self.settings)

    def decide_delete_groups(
        self, group_ids: Sequence[str], *, now: Now
    ) -> Decision[Record, list[messages.DeleteGroupsResponse.DeletableGroupResult]]:
        """Each group goes, with its offsets, or is refused by itself."""
        draft = self._draft(now)
        results = [
            messages.DeleteGroupsResponse.DeletableGroupResult(
                group_id=group_id, error_code=self._delete_group(draft, group_id)
            )
            for group_id in dict.fromkeys(group_ids)
        ]
        draft.answer(REQUESTER, results)
        return draft.decision()

    def _delete_group(self, draft: Draft, group_id: str) -> ErrorCode:
        try:
            group = self._existing(group_id)
            group.check_delete()
        except KafkaError as refusal:
            return refusal.code
        offsets.forget_all(draft, self.state, group_id)
        draft.records += group.tombstones()
        self._classic.dissolve(draft, group_id)
        return ErrorCode.NONE

    def group_ids(self) -> Iterator[str]:
        """Every group of the shard, once each."""
        yield from self._consumer.group_ids()
        yield from (group_id for group_id in self._classic.group_ids() if group_id not in self.state.consumer)

    def _existing(self, group_id: str) -> Group:
        if not group_id:
            raise InvalidGroupId("A group id is needed.")
        group = self.group(group_id)
        if group is None:
            raise GroupIdNotFound(f"There is no group {group_id}.")
        return group

    # Time

    def decide_elected(self, now_ms: float) -> Decision[Record, None]:
        draft = self._draft_at(now_ms)
        self._classic.elected(draft)
        self._consumer.elected(draft)
        self._upkeep.elected(draft)
        return draft.decision()

    def decide_timed_out(self, event: Hashable, now_ms: float) -> Decision[Record, None]:
        draft = self._draft_at(now_ms)
        parts = (self._classic, self._consumer, self._upkeep)
        if not any(part.timed_out(draft, event) for part in parts):
            raise AssertionError(f"nobody set a timer for {event}")
        return draft.decision()

    def _draft(self, now: Now) -> Draft:
        self._wall_offset_ms = now.wall_ms - now.ms
        return Draft(now, self.settings)

    def _draft_at(self, now_ms: float) -> Draft:
        """A timer knows monotonic time alone; what the wall clock says then follows from the last request."""
        return Draft(Now(now_ms, round(now_ms + self._wall_offset_ms)), self.settings)


def _left(
    identities: Sequence[messages.LeaveGroupRequest.MemberIdentity], errors: Sequence[ErrorCode], api_version: int
) -> messages.LeaveGroupResponse:
    """What became of each; before version 3 there is one, and its error is that of the answer."""
    if api_version < LEAVES_IN_BATCHES_FROM:
        return messages.LeaveGroupResponse(error_code=errors[0])
    return messages.LeaveGroupResponse(
        members=[
            messages.LeaveGroupResponse.MemberResponse(
                member_id=each.member_id, group_instance_id=each.group_instance_id, error_code=error
            )
            for each, error in zip(identities, errors, strict=True)
        ]
    )
