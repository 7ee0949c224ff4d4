"""Before a coordinator tells offsets from memory it asks whether it still leads; whoever might lead instead says it."""

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest
from broker_scene import Talker
from cluster_scene import ALL_CONTROL, Cluster, on_cluster
from replica_scene import copy_of, create
from test_replica_groups import SETTINGS, commit, coordinator, group_away_from_controller

from moldau.broker.fetch.replica_sessions import ReplicaFetchSession, SessionPartition
from moldau.broker.internal_topics import OFFSETS_TOPIC, partition_for
from moldau.broker.partitions.leadership_check import LeadershipCheck, PendingConfirmation
from moldau.machines.replication import LeaderMachine
from moldau.model.errors import ErrorCode
from moldau.wire.messages import OffsetFetchRequest

EPOCH = 5
BROKER_EPOCH = 70

pytestmark = [pytest.mark.proves("H5", part="fencing"), pytest.mark.proves("H3", part="clients are told")]


def in_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def run() -> None:
        asyncio.run(test())

    run.__name__ = test.__name__
    return run


def machine_of(*isr: int, broker_epoch: int = BROKER_EPOCH) -> LeaderMachine:
    return LeaderMachine(
        1,
        leader_epoch=EPOCH,
        partition_epoch=1,
        replicas=(1, 2, 3),
        isr=isr,
        end_offset=10,
        high_watermark=10,
        min_isr=1,
        lag_max_ms=1000,
        broker_epoch_of=lambda _: broker_epoch,
        now_ms=0.0,
    )


class Scene:
    """A leader with two followers that fetch when they are told to."""

    def __init__(self, machine: LeaderMachine) -> None:
        partition: Any = SimpleNamespace(followers={})
        self.partition = partition
        self.leadership_check = LeadershipCheck(partition, machine)
        partition.leading = SimpleNamespace(leadership_check=self.leadership_check)

    def follower(
        self, replica: int, *, leader_epoch: int = EPOCH, broker_epoch: int = BROKER_EPOCH
    ) -> SessionPartition:
        """In a session of its own."""
        session = ReplicaFetchSession(1, replica)
        session.broker_epoch = broker_epoch
        followed = session.followed[b"t", 0] = SessionPartition(session, (b"t", 0))
        followed.partition, followed.leader_epoch = self.partition, leader_epoch
        self.partition.followers[followed] = None
        return followed


@in_loop
async def test_only_fetches_that_cannot_have_been_under_way_answer_a_question() -> None:
    scene = Scene(machine_of(1, 2))
    follower = scene.follower(2)
    confirmed = scene.leadership_check.confirm(5000)
    assert follower.session.fetch_requested_by
    for _ in range(2):
        follower.session.notify_leadership_checks()
        assert not confirmed.done()
    follower.session.notify_leadership_checks()
    assert confirmed.result() is True
    assert not follower.session.fetch_requested_by


@in_loop
async def test_behind_a_fetch_that_waits_here_only_one_can_be_under_way() -> None:
    scene = Scene(machine_of(1, 2))
    session = scene.follower(2).session
    waiting = asyncio.ensure_future(session.wait(1, 60_000, has_news=False))
    await asyncio.sleep(0)
    confirmed = scene.leadership_check.confirm(5000)
    await waiting  # it is not left waiting
    session.notify_leadership_checks()
    assert not confirmed.done()
    session.notify_leadership_checks()
    assert confirmed.result() is True


@in_loop
async def test_a_session_that_begins_later_is_counted_from_its_own_beginning() -> None:
    scene = Scene(machine_of(1, 2))
    scene.follower(2).session.notify_leadership_checks()
    confirmed = scene.leadership_check.confirm(5000)
    later = scene.follower(2)
    scene.leadership_check.follower_added(later)
    for _ in range(2):
        later.session.notify_leadership_checks()
        assert not confirmed.done()
    later.session.notify_leadership_checks()
    assert confirmed.result() is True


@in_loop
async def test_everybody_who_may_lead_is_heard_and_nobody_is_kept_busy_for_another() -> None:
    scene = Scene(machine_of(1, 2, 3))
    second, third = scene.follower(2), scene.follower(3)
    confirmed = scene.leadership_check.confirm(5000)
    for _ in range(3):
        second.session.notify_leadership_checks()
    assert not confirmed.done()
    assert not second.session.fetch_requested_by  # its fetches may wait again
    for _ in range(3):
        third.session.notify_leadership_checks()
    assert confirmed.result() is True


@pytest.mark.parametrize(("leader_epoch", "broker_epoch"), [(EPOCH - 1, 70), (EPOCH + 1, 70), (EPOCH, 71)])
def test_fetches_of_another_epoch_or_of_an_unknown_life_say_nothing(leader_epoch: int, broker_epoch: int) -> None:
    async def play() -> None:
        scene = Scene(machine_of(1, 2))
        follower = scene.follower(2, leader_epoch=leader_epoch, broker_epoch=broker_epoch)
        confirmed = scene.leadership_check.confirm(5000)
        for _ in range(9):
            scene.leadership_check.follower_added(follower)
            follower.session.notify_leadership_checks()
        assert not confirmed.done()
        assert not follower.session.fetch_requested_by
        scene.leadership_check.end()
        assert confirmed.result() is False

    asyncio.run(play())


@in_loop
async def test_who_is_in_sync_no_longer_is_not_waited_for() -> None:
    machine = machine_of(1, 2, 3)
    scene = Scene(machine)
    second = scene.follower(2)
    confirmed = scene.leadership_check.confirm(5000)
    for _ in range(3):
        second.session.notify_leadership_checks()
    machine.image_changed(2, (1, 2, 3), (1, 2), 0.0)
    scene.leadership_check.successors_changed()
    assert confirmed.result() is True


@in_loop
async def test_nobody_is_asked_where_nobody_else_can_lead_and_time_is_limited_where_somebody_can() -> None:
    assert Scene(machine_of(1)).leadership_check.confirm(5000).result() is True
    assert await Scene(machine_of(1, 2)).leadership_check.confirm(1) is False


@in_loop
async def test_a_question_that_is_over_stays_so() -> None:
    question = PendingConfirmation({2}, [])
    question.end(is_leader=False)
    question.keep_only(frozenset())
    assert question.confirmed.result() is False


# In a cluster


def machine_in(cluster: Cluster, node_id: int, group: str) -> LeaderMachine | None:
    """What the node knows as leader of the group's partition; None where another leads."""
    leading = copy_of(cluster, node_id, OFFSETS_TOPIC, partition_for(group, 3)).leading
    return None if leading is None else leading.machine


async def told(talker: Talker, *groups: str) -> list[tuple[int, int]]:
    """The error and the offset that one broker tells of each group."""
    whole = OffsetFetchRequest
    named = [
        whole.OffsetFetchRequestGroup(
            group_id=each, topics=[whole.OffsetFetchRequestTopics(name="t", partition_indexes=[0])]
        )
        for each in groups
    ]
    answer = await talker.ask(8, OffsetFetchRequest(groups=named))
    return [(each.error_code, each.topics[0].partitions[0].committed_offset) for each in answer.groups]


def test_a_coordinator_that_does_not_know_that_it_was_deposed_tells_no_offsets() -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster)
        group = await group_away_from_controller(cluster)
        await commit(cluster, 1, group)
        first = await coordinator(cluster, group)
        talker = await cluster.connect(first)
        assert await told(talker, group) == [(0, 1)]
        for other in {1, 2, 3} - {first}:
            cluster.simulation.network.cut_both(f"n{first}", f"n{other}")
        leaving = cluster.nodes.pop(first)  # the rest of the cluster does without it
        await commit(cluster, 2, group)
        assert leaving.broker.groups.shard_of(group).is_ready  # it has heard of nothing
        assert await told(talker, group) == [(ErrorCode.NOT_COORDINATOR, -1)]
        cluster.nodes[first] = leaving
        cluster.simulation.network.heal()
        assert await told(await cluster.connect(await coordinator(cluster, group)), group) == [(0, 2)]

    on_cluster(script, settings=SETTINGS, roles=ALL_CONTROL)


def test_offsets_of_many_groups_are_told_after_one_exchange_with_the_replicas() -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster)
        groups = [f"g{number}" for number in range(12)]
        for number, group in enumerate(groups):
            await commit(cluster, number, group)
        here = await coordinator(cluster, groups[0])
        own = [each for each in groups if await coordinator(cluster, each) == here]
        assert len(own) > 1
        talker = await cluster.connect(here)
        began_s = cluster.simulation.now_s
        assert await told(talker, *own) == [(0, groups.index(each)) for each in own]
        assert cluster.simulation.now_s - began_s < 0.1

    on_cluster(script, settings=SETTINGS)


def test_where_too_few_replicas_are_in_sync_no_offsets_are_told() -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster)
        await commit(cluster, 1)
        cluster.kill(3)
        cluster.kill(2)

        def are_too_few() -> bool:
            machine = machine_in(cluster, 1, "g")
            return machine is not None and machine.is_under_min_isr

        await cluster.until(are_too_few, 30.0)
        ((error, _),) = await told(await cluster.connect(1), "g")
        assert error == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "the controller knows of it: clients ask again"

    on_cluster(script, settings=SETTINGS)


def test_a_replica_that_died_is_waited_for_until_it_is_known_to_be_out_of_sync() -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster)
        group = await group_away_from_controller(cluster)
        await commit(cluster, 1, group)
        here = await coordinator(cluster, group)
        cluster.kill({2: 3, 3: 2}[here])
        talker = await cluster.connect(here)
        assert await told(talker, group) == [(0, 1)]
        machine = machine_in(cluster, here, group)
        assert machine is not None
        assert len(machine.isr) == 2

    on_cluster(script, settings=[*SETTINGS, "broker.session.timeout.ms=3000"])
