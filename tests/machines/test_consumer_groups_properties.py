"""Consumer groups under random events: members of both protocols, lost responses, slow revocations, failovers.

Invariants: no partition is read by two members at once, epochs only grow, and the replayed log leads to the same
state. Without further events, every group settles.
"""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from consumer_scene import ClassicConsumer, ConsumerScene, as_owned, each_partition
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from moldau.machines.groups import GroupSettings
from moldau.machines.groups.consumer.group import ConsumerGroup
from moldau.machines.groups.consumer.member import MemberState
from moldau.model.errors import ErrorCode, KafkaError
from moldau.model.ids import TopicId
from moldau.wire import messages

NAMES = ["a1", "a2", "b1"]
MEMBERS = 4
CLASSIC_MEMBERS = 2
STARTS_OVER = (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND)

Partition = tuple[TopicId, int]
subscriptions = st.one_of(st.just(NAMES), st.sets(st.sampled_from(NAMES)).map(sorted))
patterns = st.sampled_from(["", "", "", "a*", "b*"])
members = st.integers(0, MEMBERS - 1)


class Reader:
    """A consumer that takes its time: it reads its partitions until it has revoked them, whatever its assignment."""

    def __init__(self, scene: ConsumerScene, member_id: str, instance_id: str | None) -> None:
        self.scene = scene
        self.member_id = member_id
        self.instance_id = instance_id
        self.names: list[str] = []
        self.regex = ""
        self.epoch = 0
        self.held: set[Partition] = set()  # what it reads
        self.assigned: set[Partition] = set()  # what it should read
        self.is_news = False  # whether it has not applied its assignment yet
        self.must_report = True  # whether it must report its partitions
        self.is_rejected = False  # because its instance is still in use
        self.is_uncertain = False  # whether a response was lost, so that it must report everything

    def join(self, names: list[str], regex: str, *, is_response_lost: bool = False) -> None:
        self.names, self.regex, self.epoch, self.held, self.assigned = names, regex, 0, set(), set()
        self._send(
            is_response_lost=is_response_lost,
            rebalance_timeout_ms=20_000,
            subscribed_topic_names=names,
            subscribed_topic_regex=regex,
            topic_partitions=[],
        )

    def beat(self, *, is_response_lost: bool = False, **fields: Any) -> None:
        if self.epoch == 0:
            self.join(self.names, self.regex, is_response_lost=is_response_lost)
            return
        if self.is_uncertain:
            fields = {
                "rebalance_timeout_ms": 20_000,
                "subscribed_topic_names": self.names,
                "subscribed_topic_regex": self.regex,
                **fields,
            }
        if self.must_report or self.is_uncertain:
            self.assigned &= self.held  # what it does not report as owned it reads only once it is assigned again
            held: dict[TopicId, list[int]] = {}
            for topic_id, index in self.held:
                held.setdefault(topic_id, []).append(index)
            fields["topic_partitions"] = as_owned(held)
        self._send(is_response_lost=is_response_lost, **fields)

    def subscribe(self, names: list[str], regex: str) -> None:
        self.names, self.regex = names, regex
        self.beat(subscribed_topic_names=names, subscribed_topic_regex=regex)

    def deliver_held(self) -> None:
        """Stop reading revoked partitions, start the new ones, and report even an unchanged assignment."""
        if self.is_news or self.held != self.assigned:
            self.held, self.must_report, self.is_news = set(self.assigned), True, False

    def _send(self, *, is_response_lost: bool, **fields: Any) -> None:
        try:
            response = self.scene.beat(self.member_id, self.epoch, instance_id=self.instance_id, **fields)
        except KafkaError as error:
            self.epoch, self.held, self.assigned = 0, set(), set()
            self.is_rejected = error.code == ErrorCode.UNRELEASED_INSTANCE_ID
            if error.code not in (*STARTS_OVER, ErrorCode.UNRELEASED_INSTANCE_ID):
                raise
            return
        self.is_uncertain = is_response_lost
        if not is_response_lost:
            self._take(response)

    def _take(self, response: messages.ConsumerGroupHeartbeatResponse) -> None:
        self.epoch, self.must_report = response.member_epoch, False
        if response.assignment is not None:
            parts = response.assignment.topic_partitions
            assigned = {(TopicId(each.topic_id), index) for each in parts for index in each.partitions}
            self.is_news = self.is_news or assigned != self.assigned
            self.assigned = assigned


class SlowClassicConsumer(ClassicConsumer):
    """A classic member that may be slow, and starts over when it is unknown."""

    def reads(self) -> set[Partition]:
        ids = self.ids
        return {(ids[name], index) for name, indexes in self.owned.items() for index in indexes}

    ids: dict[str, TopicId]

    def step(self) -> None:
        if not self.member_id:
            self.rejoin()
            return
        error = self.scene.heartbeat(self.member_id, self.generation)
        if error == ErrorCode.REBALANCE_IN_PROGRESS:
            self.rejoin()
        elif error != ErrorCode.NONE:
            self.forget()

    def rejoin(self) -> None:
        ticket = self.send_join()
        if self.scene.error(ticket) == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = self.scene.responses[ticket].member_id
            ticket = self.send_join()
        if self.scene.error(ticket) != ErrorCode.NONE:
            self.forget()
            return
        self.member_id, self.generation = (
            self.scene.responses[ticket].member_id,
            self.scene.responses[ticket].generation_id,
        )
        if self.sync() == ErrorCode.NONE:
            self.ids = {name: topic.topic_id for name, topic in self.scene.image.topics.items()}

    def forget(self) -> None:
        self.member_id, self.generation, self.owned = "", -1, {}


class GroupLife(RuleBasedStateMachine):
    """One group, some members, some topics."""

    def __init__(self) -> None:
        super().__init__()
        self.scene = ConsumerScene(GroupSettings(group_consumer_migration_policy="upgrade"))
        self.readers: dict[str, Reader] = {}
        self.veterans: list[SlowClassicConsumer] = []
        self.epoch = 0
        self.born = 0

    @property
    def group(self) -> ConsumerGroup | None:
        return self.scene.machine.state.consumer.get("g")

    def has_members(self) -> bool:
        return self.group is not None and not self.group.is_empty

    # Events

    @initialize(counts=st.lists(st.integers(1, 4), min_size=len(NAMES), max_size=len(NAMES)))
    def topics(self, counts: list[int]) -> None:
        self.scene.set_topics(**{name: count for name, count in zip(NAMES, counts, strict=True) if count})

    @rule(number=members, names=subscriptions, regex=patterns, is_response_lost=st.booleans())
    def join(self, number: int, names: list[str], regex: str, is_response_lost: bool) -> None:
        name = f"m{number}"
        if name not in self.readers:
            self.born += 1
            instance_id = f"i{number}" if number < 2 else None
            reader = Reader(self.scene, f"{name}-{self.born}", instance_id)
            reader.join(names, regex, is_response_lost=is_response_lost)
            if not reader.is_rejected:
                self.readers[name] = reader

    @rule(number=members, is_quick=st.booleans(), is_response_lost=st.booleans())
    def beat(self, number: int, is_quick: bool, is_response_lost: bool) -> None:
        def act(reader: Reader) -> None:
            reader.beat(is_response_lost=is_response_lost)
            if is_quick:
                reader.deliver_held()

        self._with(number, act)

    @rule(rounds=st.integers(1, 2))
    def calm(self, rounds: int) -> None:
        """Let heartbeats pass without other events."""
        for _ in range(rounds):
            self._let_all_beat()

    @rule(number=members, names=subscriptions, regex=patterns)
    def subscribe(self, number: int, names: list[str], regex: str) -> None:
        self._with(number, lambda reader: reader.subscribe(names, regex))

    @rule(number=members, way=st.sampled_from([-1, -2, 0]))
    def leave(self, number: int, way: int) -> None:
        """Leave for good, temporarily, or by a crash without a leave."""
        reader = self.readers.pop(f"m{number}", None)
        if reader is not None and reader.epoch > 0 and way:
            epoch = -1 if reader.instance_id is None else way
            self.scene.rejection(reader.member_id, epoch, instance_id=reader.instance_id)

    @precondition(has_members)
    @rule(names=subscriptions, is_cooperative=st.booleans())
    def classic_join(self, names: list[str], is_cooperative: bool) -> None:
        if len(self.veterans) < CLASSIC_MEMBERS:
            veteran = SlowClassicConsumer(self.scene, *names, is_cooperative=is_cooperative)
            veteran.rejoin()
            self.veterans.append(veteran)

    @precondition(lambda self: self.veterans and self.has_members())
    @rule(data=st.data())
    def classic_beat(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.veterans)).step()

    @precondition(lambda self: self.veterans)
    @rule()
    def classic_leave(self) -> None:
        veteran = self.veterans.pop()
        if veteran.member_id and self.has_members():
            self.scene.leave((veteran.member_id, None))

    @rule(name=st.sampled_from(NAMES), more=st.integers(-1, 3))
    def change_topic(self, name: str, more: int) -> None:
        """Grow, create or delete a topic."""
        topic = self.scene.image.topics.get(name)
        if more < 0:
            self.scene.drop_topic(name)
        else:
            self.scene.add_topics(**{name: (len(topic.partitions) if topic else 1) + more})

    @rule(seconds=st.sampled_from([1, 5, 11, 21, 46]))
    def wait(self, seconds: int) -> None:
        self.scene.pass_time(1_000 * seconds)

    @rule()
    def fail_over(self) -> None:
        before = self.scene.machine.state
        self.scene.elect()
        assert self.scene.machine.state == before

    def _with(self, number: int, act: Callable[[Reader], None]) -> None:
        reader = self.readers.get(f"m{number}")
        if reader is not None:
            act(reader)

    # Invariants

    @invariant()
    def no_partition_is_read_twice(self) -> None:
        if self.group is None:
            return
        reading = [reader.held for reader in self.readers.values() if self._is_member(reader.member_id, reader.epoch)]
        reading += [each.reads() for each in self.veterans if self._is_member(each.member_id, each.generation)]
        assert sum(map(len, reading)) == len(set().union(*reading))

    def _is_member(self, member_id: str, epoch: int) -> bool:
        """A fenced member learns of it with its next heartbeat, and cannot commit until then."""
        return self.group is not None and member_id in self.group.members and epoch > 0

    @invariant()
    def the_coordinator_knows_who_holds_what(self) -> None:
        if self.group is None:
            return
        held = [
            ((topic_id, index), member.member_id)
            for member in self.group.members.values()
            for holding in (member.assigned, member.revoking)
            for topic_id, index in each_partition(holding)
        ]
        assert len(held) == len(dict(held))
        owners = {
            (topic_id, index): owner
            for topic_id, owners in self.group.owners.items()
            for index, owner in owners.items()
        }
        assert owners == dict(held)
        for reader in self.readers.values():
            if self._is_member(reader.member_id, reader.epoch):
                assert reader.held <= {partition for partition, owner in held if owner == reader.member_id}

    @invariant()
    def epochs_only_grow(self) -> None:
        if self.group is None:
            self.epoch = 0
            return
        assert self.group.epoch >= self.epoch
        assert self.group.assignment_epoch <= self.group.epoch
        assert all(member.epoch <= self.group.assignment_epoch for member in self.group.members.values())
        self.epoch = self.group.epoch

    @invariant()
    def a_target_gives_every_partition_once(self) -> None:
        group = self.group
        if group is not None and group.members and group.epoch == group.assignment_epoch:
            meant = [partition for target in group.targets.values() for partition in each_partition(target)]
            assert len(meant) == len(set(meant))
            assert group.targets.keys() <= group.members.keys()

    # Settling

    def teardown(self) -> None:
        self._check_compacted_log()
        for _ in range(6):
            self._let_all_beat()
            self.scene.pass_time(11_000)  # dead members expire, and patterns find new topics
        for _ in range(6):
            self._let_all_beat()
        self._check_settled()

    def _let_all_beat(self) -> None:
        for reader in self.readers.values():
            reader.beat()
            reader.deliver_held()
            reader.beat()
        for veteran in self.veterans:
            if self.has_members():
                veteran.step()

    def _check_compacted_log(self) -> None:
        """Check that the compacted log leads to the same state as the whole log."""
        newest: dict[bytes, bytes | None] = {}
        for key, value in self.scene.log:
            newest.pop(key, None)
            newest[key] = value
        whole = self.scene.machine.state
        self.scene.log = [(key, value) for key, value in newest.items() if value is not None]
        self.scene.elect()
        assert self.scene.machine.state == whole

    def _check_settled(self) -> None:
        group = self.group
        if group is None or group.is_empty:
            return
        assert all(member.is_reconciled_to(group.epoch) for member in group.members.values())
        assert group.state == "Stable"
        expected = {
            (topic.topic_id, index)
            for name in set(group.topic_counts).union(*(each.topics for each in group.resolved.values()))
            if (topic := self.scene.image.topics.get(name)) is not None
            for index in range(len(topic.partitions))
        }
        read = set().union(*(each.held for each in self.readers.values()), *(each.reads() for each in self.veterans))
        assert read == expected
        assert all(member.state is MemberState.STABLE for member in group.members.values())


def life(seed: int, steps: int) -> GroupLife:
    """Run random events with realistic frequencies, drawn from a seed."""
    random = Random(seed)
    group = GroupLife()
    group.scene.set_topics(**{name: random.randint(1, 4) for name in NAMES})

    def names() -> list[str]:
        return NAMES if random.random() < 0.6 else sorted(random.sample(NAMES, random.randint(0, len(NAMES))))

    def regex() -> str:
        return random.choice(["", "", "", "a*", "b*"])

    def one() -> int:
        return random.randrange(MEMBERS)

    def chance(probability: float) -> bool:
        return random.random() < probability

    def classic_beat() -> None:
        if group.veterans and group.has_members():
            random.choice(group.veterans).step()

    events: dict[Callable[[], object], int] = {
        lambda: group.join(number=one(), names=names(), regex=regex(), is_response_lost=chance(0.2)): 4,
        lambda: group.beat(number=one(), is_quick=chance(0.5), is_response_lost=chance(0.2)): 14,
        lambda: group.calm(rounds=random.randint(1, 2)): 6,
        lambda: group.subscribe(number=one(), names=names(), regex=regex()): 2,
        lambda: group.leave(number=one(), way=random.choice([-1, -2, 0])): 2,
        lambda: group.has_members() and group.classic_join(names=names(), is_cooperative=chance(0.5)): 2,
        classic_beat: 4,
        lambda: group.veterans and group.classic_leave(): 1,
        lambda: group.change_topic(name=random.choice(NAMES), more=random.randint(-1, 3)): 2,
        lambda: group.wait(seconds=random.choice([1, 1, 5, 5, 11, 21, 46])): 3,
        group.fail_over: 1,
    }
    for _ in range(steps):
        (event,) = random.choices(list(events), list(events.values()))
        event()
        group.no_partition_is_read_twice()
        group.the_coordinator_knows_who_holds_what()
        group.epochs_only_grow()
        group.a_target_gives_every_partition_once()
    group.teardown()
    return group


@pytest.mark.proves("C2", "C5")
def test_long_runs_settle() -> None:
    epochs = sum(life(seed, steps=150).epoch for seed in range(40))
    assert epochs > 400, "hardly anything happened, so nothing was shown"


LIVES = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    # Shrinking would take too long, and the printed steps replay as they are.
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
)


@pytest.mark.proves("C2", "C5")
def test_no_partition_is_read_twice_and_the_group_settles() -> None:
    run_state_machine_as_test(GroupLife, settings=LIVES)
