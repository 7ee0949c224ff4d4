"""Invariants of classic groups under any order of requests, timeouts and failovers."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
from groups_scene import REBALANCE_MS, SESSION_MS, Scene, deleted_topic, replayed
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from moldau.machines.decision import Ticket
from moldau.machines.groups import GroupSettings
from moldau.machines.groups.classic.group import ClassicGroup, Phase
from moldau.machines.groups.classic.timers import JoinDue, SessionsDue, SyncDue
from moldau.model.errors import ErrorCode, KafkaError

RANGE, BOTH, STICKY = [("range", b"r")], [("sticky", b"s"), ("range", b"r")], [("sticky", b"s")]
REBALANCES_MS = [SESSION_MS // 2, REBALANCE_MS]
RETRY = {
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.FENCED_INSTANCE_ID,
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.GROUP_MAX_SIZE_REACHED,
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
}


@dataclass
class Client:
    """A consumer as the coordinator sees it: its latest responses and waiting requests."""

    instance_id: str | None
    member_id: str = ""
    generation: int = -1
    is_leader: bool = False
    others: tuple[tuple[str, str | None], ...] = ()  # the members that it leads
    join: Ticket | None = None
    sync: Ticket | None = None
    synced_in: int = -1


class Groups(RuleBasedStateMachine):
    """Five consumers, two of which claim the same instance id, and a coordinator that may fail over."""

    def __init__(self) -> None:
        super().__init__()
        self.scene = Scene(GroupSettings(group_max_size=4, group_initial_rebalance_delay_ms=1_000))
        self.clients = [Client(None), Client(None), Client(None), Client("s"), Client("s")]
        self.life = 0  # incarnation of the group: it changes when the group is deleted
        self.assigned: dict[tuple[int, int], dict[str, bytes]] = {}  # by incarnation and generation, then by member
        self.stored_generation = 0
        self.offset: int | None = None
        self.rebalance_ms = REBALANCE_MS

    clients_st = st.integers(0, 4)

    # Responses

    def take_responses(self) -> None:
        """Let every client take its responses."""
        self.generations_only_grow()
        for client in self.clients:
            if client.join is not None and client.join not in self.scene.waiting:
                self.take_join_response(client, client.join)
            if client.sync is not None and client.sync not in self.scene.waiting:
                self.take_sync_response(client, client.sync)

    def take_join_response(self, client: Client, ticket: Ticket) -> None:
        client.join = None
        response = self.scene.responses.get(ticket)
        if response is None:  # lost with a coordinator
            return
        if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            client.member_id = response.member_id
        elif response.error_code == ErrorCode.NONE:
            client.member_id, client.generation = response.member_id, response.generation_id
            client.is_leader = response.leader == response.member_id and not response.skip_assignment
            client.others = tuple((each.member_id, each.group_instance_id) for each in response.members)
            assert bool(response.members) == (response.leader == response.member_id)
        else:
            assert response.error_code in RETRY
            if response.error_code != ErrorCode.REBALANCE_IN_PROGRESS:
                client.member_id = ""

    def take_sync_response(self, client: Client, ticket: Ticket) -> None:
        client.sync = None
        response = self.scene.responses.get(ticket)
        if response is None or response.error_code != ErrorCode.NONE:
            return
        who = client.instance_id or client.member_id
        client.synced_in = client.generation
        meant = self.assigned[self.life, client.generation]
        assert response.assignment == meant.get(who, b""), "not what this generation's leader meant for it"

    # Requests

    @rule(
        number=clients_st,
        protocols=st.sampled_from([RANGE, RANGE, RANGE, BOTH, STICKY]),
        version=st.sampled_from([3, 8, 9]),
        rebalance_ms=st.sampled_from(REBALANCES_MS),
    )
    def joins(self, number: int, protocols: list[tuple[str, bytes]], version: int, rebalance_ms: int) -> None:
        client = self.clients[number]
        if client.join is None:
            client.join = self.scene.send_join(
                client.member_id,
                instance_id=client.instance_id,
                protocols=protocols,
                version=version,
                rebalance_ms=rebalance_ms,
            )
            self.take_responses()

    @rule(number=clients_st)
    def gives_up_waiting(self, number: int) -> None:
        self.clients[number].join = self.clients[number].sync = None

    @rule(number=clients_st)
    def restarts(self, number: int) -> None:
        self.clients[number] = Client(self.clients[number].instance_id)

    @rule(number=clients_st, stranger=st.booleans(), forgets=st.booleans())
    def syncs(self, number: int, stranger: bool, forgets: bool) -> None:
        client = self.clients[number]
        if client.sync is not None or not client.member_id:
            return
        assignments = []
        if client.is_leader:
            led = client.others[1:] if forgets else client.others
            assignments = [(each, f"{client.generation} {instance or each}".encode()) for each, instance in led]
            if stranger:
                assignments.append(("stranger", b"something"))
        group = self.scene.machine._classic.live.get("g")
        settles = (
            group is not None
            and group.phase is Phase.COMPLETING
            and group.leader == client.member_id
            and group.generation == client.generation
        )
        names = {each: instance or each for each, instance in client.others}
        ticket = self.scene.send_sync(
            client.member_id, client.generation, assignments, instance_id=client.instance_id, protocol_name=None
        )
        client.sync = ticket
        if settles and ticket not in self.scene.waiting and self.scene.error(ticket) == ErrorCode.NONE:
            assert (self.life, client.generation) not in self.assigned, "one generation was assigned twice"
            meant = {names[each]: words for each, words in assignments if each in names}
            self.assigned[self.life, client.generation] = meant
        self.take_responses()

    @rule(number=clients_st)
    def sends_a_heartbeat(self, number: int) -> None:
        client = self.clients[number]
        error = self.scene.heartbeat(client.member_id, client.generation, instance_id=client.instance_id)
        assert error in RETRY | {ErrorCode.NONE}

    @rule(number=clients_st)
    def leaves(self, number: int) -> None:
        client = self.clients[number]
        with suppress(KafkaError):
            self.scene.leave((client.member_id, client.instance_id))
        self.take_responses()

    @rule(offset=st.integers(0, 100), number=clients_st | st.none())
    def commits(self, offset: int, number: int | None) -> None:
        client = Client(None) if number is None else self.clients[number]
        error = self.scene.commit(
            offset, member_id=client.member_id, generation=client.generation, instance_id=client.instance_id
        )
        if error == ErrorCode.NONE:
            self.offset = offset
            if client.member_id and client.generation >= 0:
                group = self.scene.group()
                assert client.generation == group.generation
                assert client.member_id in group.members
        assert self.scene.committed() == self.offset

    @rule(rounds=st.integers(1, 8), protocols=st.sampled_from([RANGE, RANGE, BOTH]))
    def behave(self, rounds: int, protocols: list[tuple[str, bytes]]) -> None:
        """For a while all members behave; one of the two with the same instance is enough."""
        for _ in range(rounds):
            for client in self.clients[:4]:
                self.behave_alone(client, protocols)
            self.scene.pass_time(500)
            self.take_responses()

    @rule(number=clients_st, rounds=st.integers(1, 3))
    def behaves(self, number: int, rounds: int) -> None:
        for _ in range(rounds):
            self.behave_alone(self.clients[number], RANGE)

    # Events

    @rule(ms=st.sampled_from([1.0, 500.0, 1_000.0, SESSION_MS / 2, SESSION_MS, REBALANCE_MS]))
    def time_passes(self, ms: float) -> None:
        self.scene.pass_time(ms)
        self.take_responses()

    @rule()
    def the_coordinator_fails_over(self) -> None:
        before = self.scene.machine.state
        for client in self.clients:
            client.join = client.sync = None
        self.scene.elect()
        assert self.scene.machine.state == before

    @precondition(lambda self: self.scene.machine.group("g") is not None)
    @rule()
    def an_admin_deletes_the_group(self) -> None:
        if self.scene.delete_group() == ErrorCode.NONE:
            self.offset = None
            self.forget()

    @rule()
    def the_topic_is_deleted(self) -> None:
        topics = [deleted_topic(self.scene, "t")]
        self.scene.run(lambda: self.scene.machine.decide_topics_deleted(topics, now=self.scene.now))
        self.offset = None

    def forget(self) -> None:
        self.life += 1
        self.stored_generation = 0

    # Invariants

    @invariant()
    def generations_only_grow(self) -> None:
        stored = self.scene.machine.state.classic.get("g")
        if stored is None:
            if self.stored_generation and self.scene.machine.group("g") is None:
                self.forget()  # empty and without offsets, it was removed
            return
        assert stored.generation >= self.stored_generation
        self.stored_generation = stored.generation

    @invariant()
    def the_group_is_in_order(self) -> None:
        group = self.scene.machine._classic.live.get("g")
        if group is None:
            assert not self.scene.waiting
            assert not {SessionsDue("g"), JoinDue("g"), SyncDue("g")} & self.scene.timers.keys()
            stored = self.scene.machine.state.classic.get("g")
            assert stored is None or not stored.members
        else:
            self.check(group)

    def check(self, group: ClassicGroup) -> None:
        members, timers = group.members, self.scene.timers
        assert self.scene.waiting == {*group.joins.values(), *group.syncs.values()}
        assert group.joins.keys() | group.syncs.keys() | group.unsynced.keys() <= members.keys()
        assert group.static_ids == {each.instance_id: each.member_id for each in members.values() if each.instance_id}
        assert all(
            group.support[name] == sum(name in dict(each.protocols) for each in members.values())
            for name in group.support
        )
        assert not group.joins or group.phase is Phase.PREPARING
        assert not group.syncs or group.phase is Phase.COMPLETING
        assert bool(members) or group.phase in (Phase.EMPTY, Phase.PREPARING)
        assert not (members and group.phase is Phase.EMPTY)
        assert group.leader in members or not members
        assert (group.phase is Phase.PREPARING) == (JoinDue("g") in timers)
        assert group.phase is not Phase.COMPLETING or SyncDue("g") in timers
        deadlines = [
            each.deadline_ms
            for each in members.values()
            if each.is_new or not {each.member_id} & (group.joins.keys() | group.syncs.keys())
        ]
        if deadlines or group.pending:
            assert group.timer_ms is not None
            assert group.timer_ms <= min([*deadlines, *group.pending.values()])
        if group.timer_ms is not None:
            assert abs(timers[SessionsDue("g")] - group.timer_ms) < 0.001

    def teardown(self) -> None:
        self.check_replay()
        self.settle()
        self.scene.pass_time(60 * REBALANCE_MS)
        assert not self.scene.waiting

    def check_replay(self) -> None:
        """Check that the compacted log leads to the same state."""
        compacted = dict(self.scene.log)
        again = replayed((key, value) for key, value in compacted.items() if value is not None)
        assert again.state == self.scene.machine.state

    def settle(self) -> None:
        """Well-behaved members end up in one stable generation, soon."""
        self.clients = [Client(None) for _ in range(3)]
        self.time_passes(4 * REBALANCE_MS)  # absent members expire
        self.behave(40, RANGE)
        generations = {client.synced_in for client in self.clients}
        assert len(generations) == 1
        assert generations != {-1}
        assert self.scene.group().phase is Phase.STABLE
        assert self.scene.group().members.keys() == {client.member_id for client in self.clients}

    def behave_alone(self, client: Client, protocols: list[tuple[str, bytes]]) -> None:
        if client.join is not None or client.sync is not None:
            return
        error = ErrorCode.NONE
        if client.generation >= 0:
            error = self.scene.heartbeat(client.member_id, client.generation, instance_id=client.instance_id)
        if error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            client.member_id = ""
        if error != ErrorCode.NONE or client.generation < 0:
            client.generation = -1
            self.joins(self.clients.index(client), protocols, 9, self.rebalance_ms)
        elif client.synced_in != client.generation:
            self.syncs(self.clients.index(client), False, False)


TestGroups = Groups.TestCase
TestGroups.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


def walk(seed: int, steps: int) -> Any:
    """Run many mostly successful steps, so that faults meet a working group."""
    random = Random(seed)
    groups: Any = Groups()  # its rules are called as the plain functions they are
    groups.rebalance_ms = random.choice(REBALANCES_MS)
    pick = random.choice

    def number() -> int:
        return random.randrange(5)

    actions: list[tuple[int, Callable[[], None]]] = [
        (8, lambda: groups.behave(random.randint(1, 8), pick([RANGE, RANGE, BOTH]))),
        (6, lambda: groups.behaves(number(), random.randint(1, 3))),
        (4, lambda: groups.joins(number(), pick([RANGE, RANGE, BOTH, STICKY]), pick([3, 8, 9]), pick(REBALANCES_MS))),
        (3, lambda: groups.restarts(number())),
        (3, lambda: groups.syncs(number(), random.random() < 0.5, random.random() < 0.5)),
        (2, lambda: groups.leaves(number())),
        (2, lambda: groups.gives_up_waiting(number())),
        (3, lambda: groups.commits(random.randrange(100), pick([None, number(), number()]))),
        (4, lambda: groups.time_passes(pick([1.0, 500.0, 1_000.0, SESSION_MS / 2, SESSION_MS / 2]))),
        (1, lambda: groups.time_passes(pick([SESSION_MS, REBALANCE_MS]))),
        (1, groups.the_coordinator_fails_over),
        (1, groups.an_admin_deletes_the_group),
        (1, groups.the_topic_is_deleted),
    ]
    weights = [weight for weight, _ in actions]
    for _ in range(steps):
        random.choices(actions, weights)[0][1]()
        groups.generations_only_grow()
        groups.the_group_is_in_order()
    groups.teardown()
    return groups


@pytest.mark.proves("C2")
@pytest.mark.parametrize("seed", range(40))
def test_long_runs_settle(seed: int) -> None:
    groups = walk(seed, 150)
    assert len(groups.assigned) >= 4  # a run with few generations proves little
