"""A shard of groups with its own clock: requests in, timers fired, responses kept by ticket."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

from moldau.machines.decision import REQUESTER, CancelTimer, Decision, SetTimer, Ticket
from moldau.machines.groups import Caller, GroupSettings, GroupsMachine, Now, Record, record_version
from moldau.machines.groups.classic.group import ClassicGroup
from moldau.machines.groups.deleted_topics import DeletedTopic
from moldau.machines.groups.records import PendingOffset, TransactionEnded
from moldau.model.errors import ErrorCode, KafkaError
from moldau.model.ids import NO_TOPIC_ID
from moldau.wire import messages
from moldau.wire.data_records import decode_group_record, encode_coordinator_key, encode_data, encode_versioned

SESSION_MS = 10_000
REBALANCE_MS = 60_000
WALL_AHEAD_MS = 1_700_000_000_000


def written(record: Record) -> tuple[bytes, bytes | None]:
    """Return a record as it is stored in the log."""
    assert not isinstance(record, PendingOffset | TransactionEnded)  # these have no key of their own
    key, value = record
    return encode_coordinator_key(key), None if value is None else encode_versioned(value, record_version(value))


def subscription(*topics: str) -> bytes:
    """Return the subscription of a consumer."""
    return (0).to_bytes(2, "big") + encode_data(messages.ConsumerProtocolSubscription(topics=topics), 0)


class Scene:
    """Runs decisions as a driver does. A second machine replays what is written, and must reach the same state."""

    def __init__(self, settings: GroupSettings | None = None) -> None:
        self.settings = settings or GroupSettings()
        self.now_ms = 1_000.0
        self.log: list[tuple[bytes, bytes | None]] = []
        self.responses: dict[Ticket, Any] = {}
        self.waiting: set[Ticket] = set()
        self.timers: dict[Hashable, float] = {}
        self.records_most = 0  # in one decision
        self._tickets = 0
        self._ids = 0
        self.elect()

    def elect(self) -> None:
        """Let a new machine take over from the log. Waiting requests are forgotten."""
        self.machine = replayed(self.log, self.settings)
        self.shadow = replayed(self.log, self.settings)
        self.timers.clear()
        self.waiting.clear()
        self.run(lambda: self.machine.decide_elected(self.now_ms))

    @property
    def now(self) -> Now:
        return Now(self.now_ms, self.wall_ms)

    @property
    def wall_ms(self) -> int:
        return WALL_AHEAD_MS + round(self.now_ms)

    def group(self, group_id: str = "g") -> ClassicGroup:
        group = self.machine._classic.group(group_id)
        assert group is not None
        return group

    # The driver's part

    def run(self, decide: Callable[[], Decision[Record, Any]], ticket: Ticket | None = None) -> Any:
        """Return the response of `decide`; requests with tickets find theirs in `responses`."""
        try:
            decision = decide()
        finally:
            assert self.machine.state == self.shadow.state  # deciding changes no replicated state
        if ticket is not None:
            self.waiting.add(ticket)
        self.records_most = max(self.records_most, len(decision.records))
        for record in decision.records:
            self._append(record)
        assert self.machine.state == self.shadow.state  # the replayed records lead to the same state
        for change in decision.timers:
            self.timers.pop(change.event, None)
            if isinstance(change, SetTimer):
                self.timers[change.event] = self.now_ms + max(change.delay_ms, 0.0)
            else:
                assert isinstance(change, CancelTimer)
        for ticket, response in decision.responses.items():
            if ticket != REQUESTER:
                assert ticket in self.waiting, "a second response, or no request"
                self.waiting.remove(ticket)
                self.responses[ticket] = response
        return decision.responses.get(REQUESTER)

    def _append(self, record: Record) -> None:
        self.machine.apply(record, len(self.log))
        if isinstance(record, PendingOffset | TransactionEnded):
            self.shadow.apply(record, len(self.log))
            return
        self.log.append(written(record))
        key, value = self.log[-1]
        self.shadow.apply(decode_group_record(key, value), len(self.log) - 1)

    def pass_time(self, ms: float) -> None:
        """Fire due timers in order."""
        end_ms = self.now_ms + ms
        while self.timers:
            event = min(self.timers, key=self.timers.__getitem__)
            if self.timers[event] > end_ms:
                break
            self.now_ms = max(self.now_ms, self.timers.pop(event))
            self.run(lambda event=event: self.machine.decide_timed_out(event, self.now_ms))  # type: ignore[misc]
        self.now_ms = end_ms

    def new_ticket(self) -> Ticket:
        self._tickets += 1
        return Ticket(self._tickets)

    def random_bytes(self) -> bytes:
        self._ids += 1
        return self._ids.to_bytes(16, "big")

    # Members

    def send_join(
        self,
        member_id: str = "",
        *,
        group_id: str = "g",
        instance_id: str | None = None,
        protocols: Sequence[tuple[str, bytes]] = (("range", b"r"),),
        protocol_type: str = "consumer",
        session_ms: int = SESSION_MS,
        rebalance_ms: int = REBALANCE_MS,
        version: int = 9,
        client_id: str = "client",
    ) -> Ticket:
        """Send a join; its response will be in `responses`."""
        offered = [messages.JoinGroupRequest.JoinGroupRequestProtocol(name=n, metadata=m) for n, m in protocols]
        request = messages.JoinGroupRequest(
            group_id=group_id,
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=rebalance_ms,
            member_id=member_id,
            group_instance_id=instance_id,
            protocol_type=protocol_type,
            protocols=offered,
        )
        ticket, caller, randomness = self.new_ticket(), Caller(client_id, "/10.0.0.1", version), self.random_bytes()
        self.run(
            lambda: self.machine.decide_join(request, caller, ticket=ticket, now=self.now, randomness=randomness),
            ticket,
        )
        return ticket

    def new_id(self, **options: Any) -> str:
        """Return the id that is assigned to a new member."""
        response = self.responses[self.send_join(**options)]
        assert response.error_code == ErrorCode.MEMBER_ID_REQUIRED
        return str(response.member_id)

    def enter(self, **options: Any) -> tuple[str, Ticket]:
        """Send both joins of a new member; return its id and the ticket of the waiting join."""
        member_id = self.new_id(**options)
        return member_id, self.send_join(member_id, **options)

    def send_sync(
        self,
        member_id: str,
        generation: int,
        assignments: Iterable[tuple[str, bytes]] = (),
        *,
        group_id: str = "g",
        instance_id: str | None = None,
        protocol_type: str | None = "consumer",
        protocol_name: str | None = "range",
    ) -> Ticket:
        request = messages.SyncGroupRequest(
            group_id=group_id,
            generation_id=generation,
            member_id=member_id,
            group_instance_id=instance_id,
            protocol_type=protocol_type,
            protocol_name=protocol_name,
            assignments=[
                messages.SyncGroupRequest.SyncGroupRequestAssignment(member_id=each, assignment=assignment)
                for each, assignment in assignments
            ],
        )
        ticket = self.new_ticket()
        self.run(lambda: self.machine.decide_sync(request, ticket=ticket, now=self.now), ticket)
        return ticket

    def heartbeat(
        self, member_id: str, generation: int, *, group_id: str = "g", instance_id: str | None = None
    ) -> ErrorCode:
        request = messages.HeartbeatRequest(
            group_id=group_id, member_id=member_id, generation_id=generation, group_instance_id=instance_id
        )
        return self.code_of(lambda: self.machine.decide_heartbeat(request, self.now_ms))

    def leave(self, *members: tuple[str, str | None], group_id: str = "g") -> list[int]:
        identities = [
            messages.LeaveGroupRequest.MemberIdentity(member_id=each, group_instance_id=instance_id)
            for each, instance_id in members
        ]
        request = messages.LeaveGroupRequest(group_id=group_id, members=identities)
        response = self.run(lambda: self.machine.decide_leave(request, api_version=5, now=self.now))
        return [each.error_code for each in response.members]

    def settle(self, *instance_ids: str | None, **options: Any) -> list[str]:
        """Settle a group with the given number of members; return their ids, the leader's first."""
        members = {}
        for instance_id in instance_ids or (None,):
            if instance_id is None:
                member_id, ticket = self.enter(**options)
            else:
                ticket, member_id = self.send_join(instance_id=instance_id, **options), ""
            members[ticket] = member_id
        while self.waiting & members.keys():
            self.pass_time(500)
        return self.sync_all({each: self.responses[each] for each in members}, options.get("group_id", "g"))

    def sync_all(self, join_response: dict[Ticket, messages.JoinGroupResponse], group_id: str = "g") -> list[str]:
        """Let all members sync; the leader assigns each its own id. Return the ids, the leader's first."""
        ids = [response.member_id for response in join_response.values()]
        (leader,) = {response.leader for response in join_response.values()}
        (generation,) = {response.generation_id for response in join_response.values()}
        followers = [each for each in ids if each != leader]
        for each in followers:
            self.send_sync(each, generation, group_id=group_id, protocol_type=None, protocol_name=None)
        assignments = [(each, each.encode()) for each in self.group(group_id).members]
        last = self.send_sync(
            leader, generation, assignments, group_id=group_id, protocol_type=None, protocol_name=None
        )
        assert self.responses[last].error_code == ErrorCode.NONE
        return [leader, *followers]

    # Offsets

    def commit(
        self,
        offset: int,
        *,
        group_id: str = "g",
        member_id: str = "",
        generation: int = -1,
        instance_id: str | None = None,
        topic: str = "t",
        topic_id: bytes = NO_TOPIC_ID,
        partition: int = 0,
        note: str | None = "",
        retention_ms: int = -1,
        version: int = 9,
    ) -> ErrorCode:
        """Commit one offset; return the error of the request or of the partition."""
        wanted = messages.OffsetCommitRequest.OffsetCommitRequestPartition(
            partition_index=partition, committed_offset=offset, committed_leader_epoch=3, committed_metadata=note
        )
        request = messages.OffsetCommitRequest(
            group_id=group_id,
            generation_id_or_member_epoch=generation,
            member_id=member_id,
            group_instance_id=instance_id,
            retention_time_ms=retention_ms,
            topics=[
                messages.OffsetCommitRequest.OffsetCommitRequestTopic(
                    name=topic, topic_id=topic_id, partitions=[wanted]
                )
            ],
        )
        try:
            response = self.run(lambda: self.machine.decide_commit_offsets(request, api_version=version, now=self.now))
        except KafkaError as error:
            return error.code
        return ErrorCode(response.topics[0].partitions[0].error_code)

    def commit_in_transaction(
        self,
        offset: int,
        *,
        group_id: str = "g",
        producer_id: int = 1,
        member_id: str = "",
        generation: int = -1,
        instance_id: str | None = None,
        topic: str = "t",
        note: str | None = "",
    ) -> ErrorCode:
        """Commit one offset in a transaction; return the error of the request or of the partition."""
        wanted = messages.TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(
            partition_index=0, committed_offset=offset, committed_leader_epoch=3, committed_metadata=note
        )
        request = messages.TxnOffsetCommitRequest(
            transactional_id="x",
            group_id=group_id,
            producer_id=producer_id,
            producer_epoch=0,
            generation_id=generation,
            member_id=member_id,
            group_instance_id=instance_id,
            topics=[messages.TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(name=topic, partitions=[wanted])],
        )
        try:
            response = self.run(lambda: self.machine.decide_commit_in_transaction(request, now=self.now))
        except KafkaError as error:
            return error.code
        return ErrorCode(response.topics[0].partitions[0].error_code)

    def end_transaction(self, producer_id: int = 1, *, is_commit: bool = True) -> None:
        self.run(lambda: self.machine.decide_end_transaction(TransactionEnded(producer_id, 0, 0, is_commit)))

    def committed(self, topic: str = "t", partition: int = 0, group_id: str = "g") -> int | None:
        found = self.machine.state.offset(group_id, topic, partition)
        return None if found is None else found.offset

    def delete_offsets(self, topic: str = "t", partition: int = 0, group_id: str = "g") -> ErrorCode:
        each = messages.OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=partition)
        wanted = messages.OffsetDeleteRequest.OffsetDeleteRequestTopic(name=topic, partitions=[each])
        request = messages.OffsetDeleteRequest(group_id=group_id, topics=[wanted])
        try:
            response = self.run(lambda: self.machine.decide_delete_offsets(request, now=self.now))
        except KafkaError as error:
            return error.code
        return ErrorCode(response.topics[0].partitions[0].error_code)

    def delete_group(self, group_id: str = "g") -> ErrorCode:
        (result,) = self.run(lambda: self.machine.decide_delete_groups([group_id], now=self.now))
        return ErrorCode(result.error_code)

    def code_of(self, decide: Callable[[], Decision[Record, Any]]) -> ErrorCode:
        try:
            self.run(decide)
        except KafkaError as error:
            return error.code
        return ErrorCode.NONE

    def error(self, ticket: Ticket) -> ErrorCode:
        """Return the error of a request with a ticket."""
        return ErrorCode(self.responses[ticket].error_code)


def deleted_topic(scene: Scene, name: str) -> DeletedTopic:
    """Return a topic that has just been deleted."""
    return DeletedTopic(NO_TOPIC_ID, name, scene.wall_ms)


def replayed(log: Iterable[tuple[bytes, bytes | None]], settings: GroupSettings | None = None) -> GroupsMachine:
    """Return a machine rebuilt from the log."""
    machine = GroupsMachine(settings or GroupSettings(), wall_offset_ms=WALL_AHEAD_MS)
    for offset, (key, value) in enumerate(log):
        machine.apply(decode_group_record(key, value), offset)
    return machine
