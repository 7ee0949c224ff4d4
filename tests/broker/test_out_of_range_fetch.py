"""OFFSET_OUT_OF_RANGE resets a consumer, so a leader must be sure before it responds with it."""

from typing import Any

import pytest
from broker_scene import Talker, fetch_request
from cluster_scene import ALL_CONTROL, Cluster, on_cluster
from replica_scene import are_same, copy_of, create, send

from moldau.model.errors import ErrorCode

pytestmark = [pytest.mark.proves("H5", part="fencing"), pytest.mark.proves("H3", part="clients learn the new leader")]


async def code_at(talker: Talker, offset: int, *, leader_epoch: int = -1) -> Any:
    request = fetch_request("t", offset, max_wait_ms=100)
    request.topics[0].partitions[0].current_leader_epoch = leader_epoch
    return (await talker.ask(12, request)).responses[0].partitions[0].error_code


def test_leader_confirmed_by_its_followers_rejects_out_of_range() -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster)
        await send(cluster, b"a")
        began_s = cluster.simulation.now_s
        talker = await cluster.connect(2)
        assert await code_at(talker, 1) == 0
        assert await code_at(talker, 2) == ErrorCode.OFFSET_OUT_OF_RANGE
        assert await code_at(talker, -1) == ErrorCode.OFFSET_OUT_OF_RANGE
        assert cluster.simulation.now_s - began_s < 0.5

    on_cluster(script)


def test_deposed_leader_rejects_offsets_beyond_its_log_as_not_leader() -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster)
        await send(cluster, b"a")
        await are_same(cluster, 1, 2, 3)
        talker = await cluster.connect(2)
        for other in (1, 3):
            cluster.simulation.network.cut_both("n2", f"n{other}")
        leaving = cluster.nodes.pop(2)  # the other nodes keep running
        await send(cluster, b"b", b"c")
        assert leaving.broker.partitions.get("t", 0).role.is_leader  # it has not learned of the election
        assert await code_at(talker, 3) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert await code_at(talker, -1) == ErrorCode.OFFSET_OUT_OF_RANGE  # below the log start on every replica
        cluster.nodes[2] = leaving
        cluster.simulation.network.heal()
        await are_same(cluster, 1, 2, 3, s_max=30.0)

    on_cluster(script, roles=ALL_CONTROL)


def test_below_min_isr_a_live_controller_connection_confirms_the_leader() -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster, partitions=[[2, 3]], min_insync_replicas=2)
        await send(cluster, b"a")
        cluster.kill(3)

        def are_too_few() -> bool:
            leading = copy_of(cluster, 2).role.leading
            return leading is not None and leading.machine.is_under_min_isr

        await cluster.until(are_too_few, 30.0)
        talker = await cluster.connect(2)
        assert await code_at(talker, 2) == ErrorCode.OFFSET_OUT_OF_RANGE
        cluster.kill(1)
        await cluster.until(lambda: not cluster.nodes[2].broker.controller.is_in_touch, 30.0)
        assert await code_at(talker, 2) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        await cluster.start(1)

    on_cluster(script)


def test_lagging_follower_is_not_leader_for_fetches_without_an_epoch() -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster)
        await send(cluster, b"a")
        await are_same(cluster, 1, 2, 3)
        talker = await cluster.connect(3)
        assert await code_at(talker, 2) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        # A client that sends a leader epoch knows that it reads from a follower, and turns to the leader.
        assert await code_at(talker, 2, leader_epoch=0) == ErrorCode.OFFSET_OUT_OF_RANGE

    on_cluster(script)
