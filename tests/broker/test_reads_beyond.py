"""A consumer wants more than there is: told that its offset is out of range it begins anew, so that must be sure."""

from typing import Any

import pytest
from broker_scene import Talker, fetch_request
from cluster_scene import ALL_CONTROL, Cluster, on_cluster
from replica_scene import are_same, copy_of, create, send

from moldau.model.errors import ErrorCode

pytestmark = [pytest.mark.proves("H5", part="fencing"), pytest.mark.proves("H3", part="clients are told")]


async def code_at(talker: Talker, offset: int, *, leader_epoch: int = -1) -> Any:
    request = fetch_request("t", offset, max_wait_ms=100)
    request.topics[0].partitions[0].current_leader_epoch = leader_epoch
    return (await talker.ask(12, request)).responses[0].partitions[0].error_code


def test_a_leader_whose_followers_hear_it_knows_what_there_is() -> None:
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


def test_a_leader_that_does_not_know_that_it_was_deposed_sends_away_whoever_has_read_more() -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster)
        await send(cluster, b"a")
        await are_same(cluster, 1, 2, 3)
        talker = await cluster.connect(2)
        for other in (1, 3):
            cluster.simulation.network.cut_both("n2", f"n{other}")
        leaving = cluster.nodes.pop(2)  # the rest of the cluster does without it
        await send(cluster, b"b", b"c")
        assert leaving.broker.partitions.get("t", 0).is_leader  # it has heard of nothing
        assert await code_at(talker, 3) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert await code_at(talker, -1) == ErrorCode.OFFSET_OUT_OF_RANGE  # whoever leads, nothing is there
        cluster.nodes[2] = leaving
        cluster.simulation.network.heal()
        await are_same(cluster, 1, 2, 3, s_max=30.0)

    on_cluster(script, roles=ALL_CONTROL)


def test_where_too_few_are_in_sync_it_is_enough_that_a_controller_is_in_touch() -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster, partitions=[[2, 3]], min_insync_replicas=2)
        await send(cluster, b"a")
        cluster.kill(3)

        def are_too_few() -> bool:
            leading = copy_of(cluster, 2).leading
            return leading is not None and leading.machine.is_under_min_isr

        await cluster.until(are_too_few, 30.0)
        talker = await cluster.connect(2)
        assert await code_at(talker, 2) == ErrorCode.OFFSET_OUT_OF_RANGE
        cluster.kill(1)
        await cluster.until(lambda: not cluster.nodes[2].broker.controller.is_in_touch, 30.0)
        assert await code_at(talker, 2) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        await cluster.start(1)

    on_cluster(script)


def test_a_follower_that_lags_sends_those_away_who_know_nothing_of_epochs() -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster)
        await send(cluster, b"a")
        await are_same(cluster, 1, 2, 3)
        talker = await cluster.connect(3)
        assert await code_at(talker, 2) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        # Whoever knows in which epoch it asks knows that it asks a follower, and goes to the leader with this.
        assert await code_at(talker, 2, leader_epoch=0) == ErrorCode.OFFSET_OUT_OF_RANGE

    on_cluster(script)
