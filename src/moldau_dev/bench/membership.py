"""Simulated consumer group members for both protocols: join, sync and heartbeat."""

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any, Final

from moldau.cli.bench.requests import frame_of
from moldau.cli.bench.streams import Address
from moldau.cli.errors import CommandError
from moldau.model.errors import ErrorCode
from moldau.wire.data_records import encode_versioned
from moldau.wire.messages import (
    ConsumerGroupHeartbeatRequest,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    HeartbeatRequest,
    JoinGroupRequest,
    SyncGroupRequest,
)
from moldau_dev.bench.conversations import Conversation, Reply, Requested, Talk, ask, converse

CLASSIC: Final = "classic"
CONSUMER: Final = "consumer"
PROTOCOLS: Final = (CLASSIC, CONSUMER)

JOIN_VERSION: Final = 5
SYNC_VERSION: Final = 3
HEARTBEAT_VERSION: Final = 4
CONSUMER_VERSION: Final = 1
SESSION_MS: Final = 45_000
REBALANCE_MS: Final = 60_000
LOOK_AGAIN_S: Final = 0.1  # between heartbeats until the group is complete
ASK_AGAIN: Final = frozenset({ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE})
JOIN_AGAIN: Final = frozenset({ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION})


@dataclass(slots=True)
class Party:
    """The members of one group: their last epoch and assignment."""

    size: int
    partitions: int
    epochs: dict[int, int] = field(default_factory=dict)  # or generations
    shares: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def assigned(self, number: int, epoch: int, share: tuple[int, ...]) -> None:
        self.epochs[number], self.shares[number] = epoch, share

    @property
    def is_complete(self) -> bool:
        """Whether all members share a generation and every partition is assigned."""
        if len(self.epochs) < self.size or len(set(self.epochs.values())) > 1:
            return False
        return sorted(each for share in self.shares.values() for each in share) == list(range(self.partitions))


@dataclass(frozen=True, slots=True)
class Group:
    """A group's coordinator, id and topic."""

    address: Address
    group_id: str
    topic: str


class ClassicMember:
    """A member of the classic protocol; the group leader sends empty assignments."""

    def __init__(self, group: Group, party: Party, number: int) -> None:
        self._group = group
        self._party = party
        self._number = number
        self._member_id = ""
        self._generation = -1

    def heartbeat(self) -> bytes:
        """Return an encoded heartbeat frame."""
        return frame_of(HEARTBEAT_VERSION, self._heartbeat())

    def _heartbeat(self) -> HeartbeatRequest:
        return HeartbeatRequest(
            group_id=self._group.group_id, generation_id=self._generation, member_id=self._member_id
        )

    def settle(self) -> Conversation:
        """Join and heartbeat until the group is complete."""
        yield from self._join()
        while not self._party.is_complete:
            response = yield from ask(self._group.address, self._heartbeat(), HEARTBEAT_VERSION, after_s=LOOK_AGAIN_S)
            if response.error_code in JOIN_AGAIN:
                yield from self._join()
            else:
                _raise_for_error(response.error_code)

    def _join(self) -> Generator[Requested, Reply, None]:
        while True:
            joined = yield from ask(self._group.address, self._request(), JOIN_VERSION)
            self._member_id = joined.member_id or self._member_id
            if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED or joined.error_code in ASK_AGAIN:
                continue
            _raise_for_error(joined.error_code)
            synced = yield from ask(self._group.address, self._assignments(joined), SYNC_VERSION)
            if synced.error_code not in JOIN_AGAIN:
                break
        _raise_for_error(synced.error_code)
        self._generation = joined.generation_id
        self._party.assigned(self._number, joined.generation_id, (self._number,))

    def _request(self) -> JoinGroupRequest:
        subscription = encode_versioned(ConsumerProtocolSubscription(topics=[self._group.topic]), 0)
        return JoinGroupRequest(
            group_id=self._group.group_id,
            member_id=self._member_id,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            protocol_type="consumer",
            protocols=[JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=subscription)],
        )

    def _assignments(self, joined: Any) -> SyncGroupRequest:
        """Return the leader's SyncGroup request with empty assignments."""
        nothing = encode_versioned(ConsumerProtocolAssignment(), 0)
        return SyncGroupRequest(
            group_id=self._group.group_id,
            generation_id=joined.generation_id,
            member_id=self._member_id,
            assignments=[
                SyncGroupRequest.SyncGroupRequestAssignment(member_id=each.member_id, assignment=nothing)
                for each in joined.members
            ],
        )


class ConsumerMember:
    """A member of the consumer protocol (KIP-848): reports its partitions and adopts its assignment."""

    def __init__(self, group: Group, party: Party, number: int) -> None:
        self._group = group
        self._party = party
        self._number = number
        self._epoch = 0
        self._held: list[Any] = []

    def heartbeat(self) -> bytes:
        return frame_of(CONSUMER_VERSION, self._heartbeat_request())

    def _heartbeat_request(self, **more: Any) -> ConsumerGroupHeartbeatRequest:
        return ConsumerGroupHeartbeatRequest(
            group_id=self._group.group_id,
            member_id=f"member-{self._number:030d}",
            member_epoch=self._epoch,
            **more,
        )

    def settle(self) -> Conversation:
        joining = {"rebalance_timeout_ms": REBALANCE_MS, "subscribed_topic_names": [self._group.topic]}
        pause_s = 0.0
        while True:
            more = joining if self._epoch == 0 else {}
            request = self._heartbeat_request(topic_partitions=self._held, **more)
            response = yield from ask(self._group.address, request, CONSUMER_VERSION, after_s=pause_s)
            if response.error_code not in ASK_AGAIN:
                _raise_for_error(response.error_code)
                self._adopt(response)
                pause_s = min(response.heartbeat_interval_ms / 1000, 1.0)
            if self._party.is_complete:
                return

    def _adopt(self, response: Any) -> None:
        self._epoch = response.member_epoch
        if response.assignment is not None:
            self._held = [
                ConsumerGroupHeartbeatRequest.TopicPartitions(topic_id=each.topic_id, partitions=each.partitions)
                for each in response.assignment.topic_partitions
            ]
        share = tuple(index for each in self._held for index in each.partitions)
        self._party.assigned(self._number, self._epoch, share)


def _raise_for_error(code: int) -> None:
    if code:
        raise CommandError(f"a group member was rejected with {ErrorCode(code).name}")


def new_member(protocol: str, group: Group, party: Party, number: int) -> "ClassicMember | ConsumerMember":
    return (ClassicMember if protocol == CLASSIC else ConsumerMember)(group, party, number)


@dataclass(frozen=True, slots=True)
class Settle:
    """Members that join one group at once; measures the seconds until the group is complete."""

    group: Group
    protocol: str
    members: int  # and as many partitions

    def run(self) -> float:
        party = Party(self.members, self.members)
        talks = [Talk() for _ in range(self.members)]
        for talk in talks:
            talk.line(self.group.address)
        try:
            members = [new_member(self.protocol, self.group, party, number) for number in range(self.members)]
            return converse((talk, member.settle()) for talk, member in zip(talks, members, strict=True))
        finally:
            for talk in talks:
                talk.close()


@dataclass(frozen=True, slots=True)
class Seat:
    """A single member per group, and the bytes of its heartbeat."""

    groups: tuple[Group, ...]
    protocol: str
    partitions: int

    def run(self) -> list[bytes]:
        talks = [Talk() for _ in self.groups]
        members = [
            # A classic member has an empty assignment here: its own number stands for it.
            new_member(self.protocol, group, Party(1, 1 if self.protocol == CLASSIC else self.partitions), 0)
            for group in self.groups
        ]
        try:
            converse((talk, member.settle()) for talk, member in zip(talks, members, strict=True))
        finally:
            for talk in talks:
                talk.close()
        return [member.heartbeat() for member in members]
