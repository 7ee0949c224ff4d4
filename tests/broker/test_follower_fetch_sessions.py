"""Fetch sessions of followers, and ISR changes sent to the controller: bounded, in order, batched, retried."""

import asyncio
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from cluster_scene import Cluster, on_cluster
from replica_scene import are_same, copy_of, create, leader_of, send, where

from moldau.broker.fetch.replica_sessions import SESSIONS_PER_REPLICA_MAX, ReplicaFetchSession, ReplicaFetchSessions
from moldau.broker.partitions.uncommitted_bytes import STEPS_MAX, UncommittedBytes
from moldau.model.errors import FetchSessionIdNotFound, InvalidFetchSessionEpoch
from moldau.wire.messages import FetchRequest

ALTER_PARTITION = 56


def requested(session_id: int = 0, epoch: int = 0) -> FetchRequest:
    return FetchRequest(session_id=session_id, session_epoch=epoch)


def naming(*indexes: int, offset: int = 0) -> list[Any]:
    partitions = [FetchRequest.FetchPartition(partition=index, fetch_offset=offset) for index in indexes]
    return [FetchRequest.FetchTopic(topic_id=b"t" * 16, partitions=partitions)]


def found(partition: Any) -> Callable[[bytes, int], Any]:
    return lambda topic_id, index: partition  # noqa: ARG005


def test_session_requires_the_next_epoch_and_its_own_broker() -> None:
    sessions = ReplicaFetchSessions(random.Random(1))
    session = sessions.begin(requested(), 3)
    assert session.session_id > 0
    assert sessions.begin(requested(session.session_id, 1), 3) is session
    with pytest.raises(InvalidFetchSessionEpoch):
        sessions.begin(requested(session.session_id, 1), 3)
    with pytest.raises(FetchSessionIdNotFound):
        sessions.begin(requested(session.session_id, 2), 4)
    with pytest.raises(FetchSessionIdNotFound):
        sessions.begin(requested(session.session_id + 1, 1), 3)
    assert sessions.begin(requested(session.session_id, 2), 3) is session


def test_session_epoch_wraps_to_1() -> None:
    sessions = ReplicaFetchSessions(random.Random(1))
    session = sessions.begin(requested(), 3)
    session.epoch = 2**31 - 1
    sessions.begin(requested(session.session_id, 2**31 - 1), 3)
    assert session.epoch == 1


def test_sessions_per_broker_are_bounded_and_release_their_partitions() -> None:
    sessions = ReplicaFetchSessions(random.Random(1))
    partition = SimpleNamespace(followers={})
    for _ in range(3 * SESSIONS_PER_REPLICA_MAX):
        session = sessions.begin(requested(), 3)
        session.update(naming(0), found(partition))
    sessions.begin(requested(), 4)
    assert len(sessions) == SESSIONS_PER_REPLICA_MAX + 1
    assert len(partition.followers) == SESSIONS_PER_REPLICA_MAX
    sessions.begin(requested(session.session_id, -1), 3)
    assert len(partition.followers) == SESSIONS_PER_REPLICA_MAX - 1
    sessions.close()
    assert not partition.followers


def test_forgotten_partition_is_not_ready() -> None:
    session = ReplicaFetchSession(1, 3)
    partition = SimpleNamespace(followers={})
    session.update(naming(0, 1), found(partition))
    assert len(session.ready) == 2
    session.forget([FetchRequest.ForgottenTopic(topic_id=b"t" * 16, partitions=[0, 7])])
    assert [followed.key[1] for followed in session.ready] == [1]
    assert len(partition.followers) == 1


def test_wait_ends_with_min_bytes_a_change_or_a_commit() -> None:
    async def play() -> None:
        loop = asyncio.get_running_loop()
        session = ReplicaFetchSession(1, 3)
        session.update(naming(0), found(SimpleNamespace(followers={})))
        (followed,) = session.ready
        changes: list[Callable[[], None]] = [
            lambda: followed.on_appended(10),
            followed.on_leader_changed,
            followed.on_committed,
        ]
        for change in changes:
            session.ready.clear()
            waiting = loop.create_task(session.wait(10, 60_000, has_news=False))
            await asyncio.sleep(0)
            followed.on_appended(9)
            await asyncio.sleep(0)
            assert not waiting.done()
            change()
            await asyncio.wait_for(waiting, 1)
            assert followed in session.ready

    asyncio.run(play())


@pytest.mark.proves("H8")
def test_delayed_partition_becomes_ready_once() -> None:
    async def play() -> None:
        session = ReplicaFetchSession(1, 3)
        session.update(naming(0), found(SimpleNamespace(followers={})))
        (followed,) = session.ready
        for delay_ms in (10, 20, 30):  # the leader checks at each batch that is produced
            session.hold_back(followed, delay_ms)
        await asyncio.wait_for(session.wait(1, 60_000, has_news=False), 1)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(session.wait(1, 60_000, has_news=False), 0.1)
        session.hold_back(followed, 10)
        await asyncio.wait_for(session.wait(1, 60_000, has_news=False), 1)

    asyncio.run(play())


def test_committed_bytes_are_counted_once_and_truncated_ones_never() -> None:
    uncommitted = UncommittedBytes()
    for end_offset in (10, 20, 30):
        uncommitted.grew(end_offset, end_offset)
    assert uncommitted.take(9) == 0
    assert uncommitted.take(20) == 30
    uncommitted.truncate(25)
    assert uncommitted.take(100) == 0
    for end_offset in range(3 * STEPS_MAX):
        uncommitted.grew(end_offset + 1, 1)
    assert uncommitted.take(3 * STEPS_MAX) == 3 * STEPS_MAX


def test_isr_changes_of_many_partitions_are_sent_together() -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster, partitions=[[2, 3]] * 50)
        for index in range(50):
            await send(cluster, b"a", index=index)
        api = cluster.nodes[1].routers.controller.api(ALTER_PARTITION)
        assert api is not None
        before = api.meter.count
        cluster.host(3).pause()
        await asyncio.gather(*(send(cluster, b"b", index=index) for index in range(50)))
        await cluster.until(lambda: all(where(cluster, index=index).isr == (2,) for index in range(50)), 0.5)
        assert api.meter.count - before < 10
        assert cluster.nodes[2].broker.replicas.isr_changes.shrinks == 50
        cluster.host(3).resume()
        await cluster.until(lambda: all(len(where(cluster, index=index).isr) == 2 for index in range(50)), 10.0)
        assert cluster.nodes[2].broker.replicas.isr_changes.expands == 50

    on_cluster(script, settings=["replica.lag.time.max.ms=1000", "broker.session.timeout.ms=60000"])


def test_isr_change_is_retried_until_the_controller_responds() -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster, partitions=[[2, 3]])
        await send(cluster, b"a")
        cluster.simulation.network.cut_both("n1", "n2")
        cluster.host(3).pause()
        sending = asyncio.get_running_loop().create_task(send(cluster, b"b"))
        await asyncio.sleep(5.0)
        assert where(cluster).isr == (2, 3)
        assert not sending.done()  # the controller has not yet agreed to drop the other replica
        cluster.simulation.network.heal()
        await asyncio.wait_for(sending, 30)
        await cluster.until(lambda: where(cluster).isr == (2,), 0.5)
        assert leader_of(cluster) == 2
        cluster.host(3).resume()

    on_cluster(script, settings=["replica.lag.time.max.ms=1000", "broker.session.timeout.ms=60000"])


def test_full_fetch_follows_a_session_forgotten_by_the_leader() -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster, partitions=[[2, 3, 1]] * 3)
        await send(cluster, b"a")
        cluster.nodes[2].broker.replica_sessions.close()
        for index in range(3):
            await send(cluster, b"b", index=index)
            await are_same(cluster, 1, 2, 3, index=index)

    on_cluster(script)


def test_repeatedly_broken_connections_do_not_stop_replication() -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster)
        for number in range(20):
            cluster.simulation.network.reset("n2", "n3")
            await send(cluster, str(number).encode())
        await are_same(cluster, 1, 2, 3)
        assert where(cluster).isr == (2, 3, 1)
        assert copy_of(cluster, 3).log.end_offset >= 20

    on_cluster(script)
