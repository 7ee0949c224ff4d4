"""Coordinators whose log is corrupt on the leader: another replica leads, and the corrupt one is fetched again."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from cluster_scene import Cluster, on_cluster
from replica_scene import contents, copy_of, create
from test_replica_groups import commit, committed, coordinator

from moldau.broker.internal_topics import OFFSETS_TOPIC, STATE_TOPIC
from moldau.wire.messages import FindCoordinatorRequest, InitProducerIdRequest

SETTINGS = (
    "offsets.topic.num.partitions=1",
    "offsets.topic.replication.factor=3",
    "transaction.state.log.num.partitions=1",
    "transaction.state.log.replication.factor=3",
    "min.insync.replicas=2",
)


async def commit_some(cluster: Cluster) -> None:
    for number in range(20):
        await commit(cluster, number)


async def begin_some(cluster: Cluster) -> None:
    for number in range(20):
        await producer_id(cluster, f"x{number}")


async def producer_id(cluster: Cluster, transactional_id: str) -> int:
    """The producer id of a transactional id, with retries; the same one each time."""
    while True:
        talker = await cluster.connect(next(iter(cluster.nodes)))
        found = await talker.ask(2, FindCoordinatorRequest(key=transactional_id, key_type=1))
        if found.error_code == 0 and found.node_id in cluster.nodes:
            there = await cluster.connect(found.node_id)
            request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=60_000)
            response = await there.ask(4, request)
            if response.error_code == 0:
                return int(response.producer_id)
        await asyncio.sleep(0.05)


def state_of(cluster: Cluster, topic: str, seen_by: int) -> tuple[int, tuple[int, ...]]:
    state = cluster.nodes[seen_by].broker.image.topics[topic].partitions[0]
    return state.leader, state.isr


@pytest.mark.proves("H4", part="a corrupt coordinator resigns")
@pytest.mark.parametrize(("topic", "fill"), [(OFFSETS_TOPIC, commit_some), (STATE_TOPIC, begin_some)])
def test_coordinator_with_a_corrupt_log_resigns_and_fetches_it_again(
    topic: str, fill: Callable[[Cluster], Awaitable[None]]
) -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster)
        await fill(cluster)
        known = await producer_id(cluster, "x3")
        await cluster.until(lambda: len(state_of(cluster, topic, 1)[1]) == 3, 10.0)
        leader = state_of(cluster, topic, 1)[0]
        await asyncio.sleep(2)
        successor = next(
            each for each in cluster.nodes[1].broker.image.topics[topic].partitions[0].replicas if each != leader
        )
        cluster.simulation.disks_fail = True
        log = copy_of(cluster, successor, topic).log
        found = log.read(5, 1)
        assert found is not None
        cluster.host(successor).disk.flip_bit(f"{log.folder}/{0:020}.log", found.position + 66)
        third = next(each for each in (1, 2, 3) if each not in (leader, successor))
        cluster.kill(leader)
        await cluster.until(lambda: state_of(cluster, topic, third)[0] == third, 15.0)
        assert await producer_id(cluster, "x3") == known
        if topic == OFFSETS_TOPIC:
            assert await committed(cluster) == 19
            assert await coordinator(cluster) == third
        await cluster.start(leader)
        await cluster.until(lambda: len(state_of(cluster, topic, third)[1]) == 3, 30.0)
        assert contents(copy_of(cluster, successor, topic)) == contents(copy_of(cluster, third, topic))

    on_cluster(script, settings=SETTINGS, roles=("broker,controller",) * 3)
