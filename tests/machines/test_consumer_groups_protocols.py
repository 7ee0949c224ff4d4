"""One group that repeatedly changes its protocol while it has members: no partition is read twice."""

from random import Random

import pytest
from consumer_scene import ConsumerScene, owned_subscription
from test_consumer_groups_properties import Partition, Reader

from moldau.machines.decision import Ticket
from moldau.machines.groups import GroupType
from moldau.machines.groups.classic.group import ClassicGroup
from moldau.machines.groups.consumer.consumer_protocol import read_assignment
from moldau.machines.groups.consumer.group import ConsumerGroup
from moldau.model.errors import ErrorCode
from moldau.wire import messages
from moldau.wire.data_records import encode_versioned

TOPIC = "a"
MEMBERS = 3


class Eager:
    """A classic member that revokes everything before it joins, and assigns ranges as leader."""

    def __init__(self, scene: ConsumerScene) -> None:
        self.scene = scene
        self.member_id = ""
        self.generation = -1
        self.held: set[Partition] = set()
        self.join: Ticket | None = None
        self.sync: Ticket | None = None

    def step(self) -> None:
        """Do what is next: take a response, send a request, or send a heartbeat."""
        responses = self.scene.responses
        if self.join in responses or self.sync in responses:
            self._take()
        elif self.join is None and self.sync is None:
            self._show()

    def _show(self) -> None:
        if self.generation < 0:
            self._send_join()
            return
        error = self.scene.heartbeat(self.member_id, self.generation)
        if error == ErrorCode.REBALANCE_IN_PROGRESS:
            self._send_join()
        elif error != ErrorCode.NONE:
            self.start_over(error)

    def _send_join(self) -> None:
        self.held, self.generation = set(), -1
        self.join = self.scene.send_join(
            self.member_id, protocols=(("range", owned_subscription(TOPIC)),), rebalance_ms=20_000
        )

    def _take(self) -> None:
        if self.join is not None:
            response, self.join = self.scene.responses[self.join], None
            if response.error_code == ErrorCode.NONE:
                self.member_id, self.generation = response.member_id, response.generation_id
                self._send_sync(response)
            elif response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
                self.member_id = response.member_id
            else:
                self.start_over(ErrorCode(response.error_code))
        elif self.sync is not None:
            synced, self.sync = self.scene.responses[self.sync], None
            if synced.error_code == ErrorCode.NONE:
                self.held = self._read(synced.assignment)
            else:
                self.start_over(ErrorCode(synced.error_code))

    def _read(self, assignment: bytes) -> set[Partition]:
        parts = read_assignment(assignment).assigned_partitions if assignment else ()
        return {(self.scene.id_of(each.topic), index) for each in parts for index in each.partitions}

    def _send_sync(self, joined: messages.JoinGroupResponse) -> None:
        shares = []
        if joined.leader == joined.member_id and not joined.skip_assignment:
            members, count = list(joined.members), len(self.scene.image.topics[TOPIC].partitions)
            for rank, each in enumerate(members):
                part = messages.ConsumerProtocolAssignment.TopicPartition(
                    topic=TOPIC, partitions=list(range(rank, count, len(members)))
                )
                whole = messages.ConsumerProtocolAssignment(assigned_partitions=[part])
                shares.append((each.member_id, encode_versioned(whole, 1)))
        self.sync = self.scene.send_sync(self.member_id, self.generation, shares)

    def start_over(self, error: ErrorCode) -> None:
        """Drop all partitions; only an unknown member needs a new id."""
        self.held, self.generation = set(), -1
        if error == ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id = ""

    def lose_coordinator(self) -> None:
        """Fail waiting requests when the coordinator changes."""
        for ticket in (self.join, self.sync):
            if ticket is not None and ticket not in self.scene.responses:
                self.start_over(ErrorCode.NOT_COORDINATOR)
        self.join = self.join if self.join in self.scene.responses else None
        self.sync = self.sync if self.sync in self.scene.responses else None


class ProtocolLife:
    """Consumers and classic members come and go, drawn from a seed."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.scene = ConsumerScene()
        self.scene.set_topics(**{TOPIC: self.random.randint(1, 6)})
        self.readers: list[Reader] = []
        self.eager: list[Eager] = []
        self.born = 0
        self.changes = 0  # between the protocols, with members

    def live(self, steps: int) -> None:
        events = {
            self.add_consumer: 3,
            self.add_classic_member: 3,
            self.step_one: 12,
            self.step_all: 20,
            self.remove_one: 2,
            self.remove_consumers: 2,
            self.pass_time: 3,
            self.fail_over: 1,
        }
        for _ in range(steps):
            before = self._protocol()
            (event,) = self.random.choices(list(events), list(events.values()))
            event()
            self.changes += None not in (before, self._protocol()) and before != self._protocol()
            self.check()

    def _protocol(self) -> GroupType | None:
        group = self.scene.machine.group("g")
        return None if group is None or group.is_empty else group.group_type

    # Events

    def add_consumer(self) -> None:
        if len(self.readers) < MEMBERS:
            self.born += 1
            reader = Reader(self.scene, f"m{self.born}", None)
            reader.join([TOPIC], "", is_response_lost=self.random.random() < 0.2)
            self.readers.append(reader)

    def add_classic_member(self) -> None:
        if len(self.eager) < MEMBERS:
            self.eager.append(Eager(self.scene))

    def step_one(self) -> None:
        members = [*self.readers, *self.eager]
        member = self.random.choice(members) if members else None
        if isinstance(member, Eager):
            member.step()
        elif isinstance(member, Reader):
            member.beat(is_response_lost=self.random.random() < 0.2)
            if self.random.random() < 0.5:
                member.deliver_held()

    def step_all(self) -> None:
        for reader in self.readers:
            reader.beat()
            reader.deliver_held()
            reader.beat()
        for member in self.eager:
            member.step()
        self.scene.pass_time(500)

    def remove_one(self) -> None:
        sends_leave = self.random.random() < 0.7
        if self.readers and self.random.random() < 0.5:
            reader = self.readers.pop(0)
            if sends_leave:
                self.scene.rejection(reader.member_id, -1)
        elif self.eager:
            member = self.eager.pop(0)
            if sends_leave and member.generation > 0 and self.scene.machine.group("g") is not None:
                self.scene.leave((member.member_id, None))

    def remove_consumers(self) -> None:
        """Remove the consumers; remaining members are classic."""
        while self.readers:
            self.scene.rejection(self.readers.pop().member_id, -1)

    def pass_time(self) -> None:
        """Mostly less than a session timeout, sometimes more than any."""
        self.scene.pass_time(self.random.choice([500, 1_000, 2_000, 3_000, 3_000, 5_000, 46_000]))

    def fail_over(self) -> None:
        before = self.scene.machine.state
        self.scene.elect()
        assert self.scene.machine.state == before
        for member in self.eager:
            member.lose_coordinator()

    # Invariants

    def check(self) -> None:
        machine = self.scene.machine
        assert not machine.state.classic.keys() & machine.state.consumer.keys()
        assert not machine._classic.live.keys() & machine.state.consumer.keys()
        group = machine.group("g")
        members = group.members if isinstance(group, ClassicGroup | ConsumerGroup) else {}
        all_members: list[Reader | Eager] = [*self.readers, *self.eager]
        reading = [each.held for each in all_members if each.member_id in members]
        assert sum(map(len, reading)) == len(set().union(*reading))

    def settle(self) -> None:
        """Check that everything is read, in the protocol of the remaining members."""
        for _ in range(100):
            self.step_all()
            self.check()
        if self.readers or self.eager:
            held = set().union(*(each.held for each in self.readers), *(each.held for each in self.eager))
            assert len(held) == len(self.scene.image.topics[TOPIC].partitions)
            assert self._protocol() is (GroupType.CONSUMER if self.readers else GroupType.CLASSIC)


@pytest.mark.proves("C2", "C5")
def test_group_may_change_its_protocol_repeatedly() -> None:
    changes = 0
    for seed in range(30):
        life = ProtocolLife(seed)
        life.live(200)
        life.settle()
        changes += life.changes
    assert changes > 100, "hardly anything happened, so nothing was shown"
