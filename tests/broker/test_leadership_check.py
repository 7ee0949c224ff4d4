"""The leadership check before reads from a coordinator's memory: every replica that might lead must confirm it."""

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

pytestmark = [pytest.mark.proves("H5", part="fencing"), pytest.mark.proves("H3", part="clients learn the new leader")]


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
    """A leader with two followers that fetch on demand."""

    def __init__(self, machine: LeaderMachine) -> None:
        partition: Any = SimpleNamespace(followers={}, role=SimpleNamespace())
        self.partition = partition
        self.leadership_check = LeadershipCheck(partition, machine)
        partition.role.leading = SimpleNamespace(leadership_check=self.leadership_check)

    def follower(
        self, replica: int, *, leader_epoch: int = EPOCH, broker_epoch: int = BROKER_EPOCH
    ) -> SessionPartition:
        """A follower with its own fetch session."""
        session = ReplicaFetchSession(1, replica)
        session.broker_epoch = broker_epoch
        followed = session.followed[b"t", 0] = SessionPartition(session, (b"t", 0))
        followed.partition, followed.leader_epoch = self.partition, leader_epoch
        self.partition.followers[followed] = None
        return followed


@in_loop
async def test_only_fetches_sent_after_the_check_confirm_it() -> None:
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
async def test_fetch_behind_a_waiting_one_confirms_the_check() -> None:
    scene = Scene(machine_of(1, 2))
    session = scene.follower(2).session
    waiting = asyncio.ensure_future(session.wait(1, 60_000, has_news=False))
    await asyncio.sleep(0)
    confirmed = scene.leadership_check.confirm(5000)
    await waiting  # it is completed
    session.notify_leadership_checks()
    assert not confirmed.done()
    session.notify_leadership_checks()
    assert confirmed.result() is True


@in_loop
async def test_new_session_counts_its_own_fetches() -> None:
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
async def test_every_in_sync_replica_must_confirm_and_each_only_once() -> None:
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
def test_fetch_of_another_leader_or_broker_epoch_does_not_confirm(leader_epoch: int, broker_epoch: int) -> None:
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
async def test_replica_that_left_the_isr_need_not_confirm() -> None:
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
async def test_check_is_immediate_without_followers_and_times_out_with_them() -> None:
    assert Scene(machine_of(1)).leadership_check.confirm(5000).result() is True
    assert await Scene(machine_of(1, 2)).leadership_check.confirm(1) is False


@in_loop
async def test_failed_check_stays_failed() -> None:
    check = PendingConfirmation({2}, [])
    check.end(is_leader=False)
    check.keep_only(frozenset())
    assert check.confirmed.result() is False


# In a cluster


def machine_in(cluster: Cluster, node_id: int, group: str) -> LeaderMachine | None:
    """Return the node's leader state of the group's partition; None if another node leads."""
    leading = copy_of(cluster, node_id, OFFSETS_TOPIC, partition_for(group, 3)).role.leading
    return None if leading is None else leading.machine


async def fetch_offsets(talker: Talker, *groups: str) -> list[tuple[int, int]]:
    """Return the error and the offset of each group, from one broker."""
    whole = OffsetFetchRequest
    named = [
        whole.OffsetFetchRequestGroup(
            group_id=each, topics=[whole.OffsetFetchRequestTopics(name="t", partition_indexes=[0])]
        )
        for each in groups
    ]
    response = await talker.ask(8, OffsetFetchRequest(groups=named))
    return [(each.error_code, _committed_offset(each)) for each in response.groups]


def _committed_offset(group: Any) -> int:
    """Return the offset of a group's only partition; -1 if the group has an error, which comes without topics."""
    return group.topics[0].partitions[0].committed_offset if group.topics else -1


def test_deposed_coordinator_returns_no_offsets() -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster)
        group = await group_away_from_controller(cluster)
        await commit(cluster, 1, group)
        first = await coordinator(cluster, group)
        talker = await cluster.connect(first)
        assert await fetch_offsets(talker, group) == [(0, 1)]
        for other in {1, 2, 3} - {first}:
            cluster.simulation.network.cut_both(f"n{first}", f"n{other}")
        leaving = cluster.nodes.pop(first)  # the other nodes keep running
        await commit(cluster, 2, group)
        assert leaving.broker.groups.shard_of(group).is_ready  # it has not learned of the election
        assert await fetch_offsets(talker, group) == [(ErrorCode.NOT_COORDINATOR, -1)]
        cluster.nodes[first] = leaving
        cluster.simulation.network.heal()
        assert await fetch_offsets(await cluster.connect(await coordinator(cluster, group)), group) == [(0, 2)]

    on_cluster(script, settings=SETTINGS, roles=ALL_CONTROL)


def test_offsets_of_many_groups_need_one_leadership_check() -> None:
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
        assert await fetch_offsets(talker, *own) == [(0, groups.index(each)) for each in own]
        assert cluster.simulation.now_s - began_s < 0.1

    on_cluster(script, settings=SETTINGS)


def test_offsets_are_unavailable_below_min_isr() -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster)
        await commit(cluster, 1)
        cluster.kill(3)
        cluster.kill(2)

        def are_too_few() -> bool:
            machine = machine_in(cluster, 1, "g")
            return machine is not None and machine.is_under_min_isr

        await cluster.until(are_too_few, 30.0)
        ((error, _),) = await fetch_offsets(await cluster.connect(1), "g")
        assert error == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "the controller knows of it: clients ask again"

    on_cluster(script, settings=SETTINGS)


def test_leadership_check_waits_until_a_dead_replica_leaves_the_isr() -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster)
        group = await group_away_from_controller(cluster)
        await commit(cluster, 1, group)
        here = await coordinator(cluster, group)
        cluster.kill({2: 3, 3: 2}[here])
        talker = await cluster.connect(here)
        assert await fetch_offsets(talker, group) == [(0, 1)]
        machine = machine_in(cluster, here, group)
        assert machine is not None
        assert len(machine.isr) == 2

    on_cluster(script, settings=[*SETTINGS, "broker.session.timeout.ms=3000"])
