"""Requests that leaders and followers serve, and redirects of clients."""

import asyncio
from typing import Any

import pytest
from broker_scene import Talker, batch, fetch, fetch_request, list_offset, produce, produce_request
from cluster_scene import Cluster, on_cluster
from replica_scene import are_same, copy_of, create, fetch_by_id, read, send, values

from moldau.model.errors import ErrorCode
from moldau.wire.messages import FetchRequest, OffsetForLeaderEpochRequest

RACKS = (
    "replica.selector.class=org.apache.kafka.common.replica.RackAwareReplicaSelector",
    "broker.rack=r{id}",
)


def at(response: Any) -> Any:
    return response.responses[0].partitions[0]


@pytest.mark.proves("H1")
@pytest.mark.parametrize("version", [9, 10, 12, 13])
def test_follower_rejects_produce_and_names_the_leader(version: int) -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster)
        request = produce_request("t", batch(b"a"))
        request.topic_data[0].topic_id = cluster.nodes[1].broker.image.topics["t"].topic_id
        response = await (await cluster.connect(3)).ask(version, request)
        (rejected,) = response.responses[0].partition_responses
        assert rejected.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        if version >= 10:
            assert (rejected.current_leader.leader_id, rejected.current_leader.leader_epoch) == (2, 0)
            assert [(each.node_id, each.host, each.port) for each in response.node_endpoints] == [(2, "n2", 9092)]
        assert copy_of(cluster, 3).log.end_offset == 0

    on_cluster(script)


def test_broker_without_a_replica_names_the_leader() -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster, partitions=[[2, 3]])
        talker = await cluster.connect(1)
        response = await talker.ask(10, produce_request("t", batch(b"a")))
        assert response.responses[0].partition_responses[0].current_leader.leader_id == 2
        response = await talker.ask(16, await fetch_by_id(cluster, 0))
        assert at(response).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert at(response).current_leader.leader_id == 2
        assert [each.node_id for each in response.node_endpoints] == [2]

    on_cluster(script)


@pytest.mark.proves("H1")
def test_only_new_fetch_versions_read_from_followers() -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster)
        await send(cluster, b"a", b"b")
        await are_same(cluster, 1, 2, 3)
        talker = await cluster.connect(3)
        assert (await fetch(talker, "t", 0, 10)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert await read(talker) == [b"a", b"b"]
        waiting = talker.begin(12, fetch_request("t", 2, max_wait_ms=10_000))
        await send(cluster, b"c")
        began_s = cluster.simulation.now_s
        assert values(bytes(at(await waiting).records)) == [b"c"]
        assert cluster.simulation.now_s - began_s < 0.1  # a follower soon learns the high watermark

    on_cluster(script)


def test_follower_does_not_serve_uncommitted_records() -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster, min_insync_replicas=3)
        await send(cluster, b"a")
        await are_same(cluster, 1, 2, 3)
        cluster.kill(3)
        await asyncio.sleep(0.5)
        await send(cluster, b"b", acks=1)
        await cluster.until(lambda: copy_of(cluster, 1).log.end_offset == 2, 2.0)
        assert await read(await cluster.connect(1)) == [b"a"]
        response = await fetch(await cluster.connect(1), "t", 2, 12)
        assert response.error_code == 0  # the offset exists, though it is not visible yet

    on_cluster(script)


def test_only_the_leader_serves_list_offsets() -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster)
        await send(cluster, b"a")
        for timestamp in (-1, -2, 0):
            assert (await list_offset(await cluster.connect(2), "t", timestamp)).error_code == 0
            rejected = await list_offset(await cluster.connect(3), "t", timestamp)
            assert rejected.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        requested = OffsetForLeaderEpochRequest.OffsetForLeaderPartition(
            partition=0, current_leader_epoch=0, leader_epoch=0
        )
        topics = [OffsetForLeaderEpochRequest.OffsetForLeaderTopic(topic="t", partitions=[requested])]
        request = OffsetForLeaderEpochRequest(replica_id=-1, topics=topics)
        response = await (await cluster.connect(3)).ask(4, request)
        assert response.topics[0].partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        response = await (await cluster.connect(2)).ask(4, request)
        assert response.topics[0].partitions[0].end_offset == 1

    on_cluster(script)


@pytest.mark.proves("H3")
def test_new_leader_lists_no_end_offset_before_its_high_watermark_is_known() -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster, partitions=[[2, 3]], min_insync_replicas=1)
        await send(cluster, b"a")
        await are_same(cluster, 2, 3)
        await send(cluster, b"b")
        cluster.kill(2)  # before the follower learns that the second is committed
        await cluster.until(lambda: copy_of(cluster, 3).role.is_leader, 5.0)
        partition = copy_of(cluster, 3)
        assert partition.role.leading is not None
        partition.role.leading.machine.high_watermark = 1  # as if another replica were waited for
        talker = await cluster.connect(3)
        assert (await list_offset(talker, "t", -1, 5)).error_code == ErrorCode.OFFSET_NOT_AVAILABLE
        assert (await list_offset(talker, "t", -1, 4)).error_code == ErrorCode.LEADER_NOT_AVAILABLE
        assert (await list_offset(talker, "t", -2, 5)).error_code == 0
        assert (await list_offset(talker, "t", 0, 5)).offset == 0
        # Whether there is a record with a later timestamp is not known yet.
        assert (await list_offset(talker, "t", 1_900_000_000_000, 5)).error_code == ErrorCode.OFFSET_NOT_AVAILABLE
        partition.role.leading.ticked()
        assert (await list_offset(talker, "t", -1, 5)).offset == 2
        assert (await list_offset(talker, "t", 1_900_000_000_000, 5)).offset == -1

    on_cluster(script)


@pytest.mark.parametrize(("epoch", "code"), [(0, ErrorCode.FENCED_LEADER_EPOCH), (5, ErrorCode.UNKNOWN_LEADER_EPOCH)])
@pytest.mark.proves("H5")
def test_fetch_with_another_leader_epoch_is_fenced_by_leader_and_follower(epoch: int, code: int) -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster)
        cluster.kill(2)
        await send(cluster, b"a")
        for node_id in (1, 3):
            request = fetch_request("t", 0)
            request.topics[0].partitions[0].current_leader_epoch = epoch
            assert at(await (await cluster.connect(node_id)).ask(12, request)).error_code == code

    on_cluster(script)


async def _from_rack(talker: Talker, offset: int, rack: str) -> Any:
    request = fetch_request("t", offset, rack_id=rack)
    return at(await talker.ask(12, request))


def test_consumer_is_redirected_to_the_replica_in_its_rack() -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster)
        await send(cluster, b"a")
        await are_same(cluster, 1, 2, 3)
        talker = await cluster.connect(2)
        for rack, preferred in (("r3", 3), ("r1", 1), ("r2", -1), ("r9", -1), ("", -1)):
            response = await _from_rack(talker, 0, rack)
            assert (response.error_code, response.preferred_read_replica) == (0, preferred)
            assert values(bytes(response.records)) == ([] if preferred >= 0 else [b"a"])
        assert values(bytes((await _from_rack(await cluster.connect(3), 0, "r3")).records)) == [b"a"]
        cluster.kill(3)
        await cluster.until(lambda: not cluster.broker(3, 2).is_active, 5.0)
        assert (await _from_rack(talker, 0, "r3")).preferred_read_replica == -1

    on_cluster(script, settings=RACKS)


def test_fetch_session_redirects_to_a_new_replica_in_the_rack() -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster)
        await send(cluster, b"a")
        await are_same(cluster, 1, 2, 3)
        talker = await cluster.connect(2)
        whole = await talker.ask(12, fetch_request("t", 0, session_epoch=0))
        assert values(bytes(at(whole).records)) == [b"a"]
        request = FetchRequest(
            max_wait_ms=1000, min_bytes=1, session_id=whole.session_id, session_epoch=1, rack_id="r3", topics=[]
        )
        assert at(await talker.ask(12, request)).preferred_read_replica == 3

    on_cluster(script, settings=RACKS)


def _follower_fetch(cluster: Cluster, replica: int, epoch: int, *, leader_epoch: int = 0, offset: int = 0) -> Any:
    request = fetch_request("", offset)
    request.topics[0].topic_id = cluster.nodes[1].broker.image.topics["t"].topic_id
    request.topics[0].partitions[0].current_leader_epoch = leader_epoch
    request.replica_state = FetchRequest.ReplicaState(replica_id=replica, replica_epoch=epoch)
    request.replica_id = replica
    request.session_epoch = -1
    return request


@pytest.mark.proves("H5")
def test_only_registered_brokers_fetch_as_followers() -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster, partitions=[[2, 3]])
        await produce(await cluster.connect(2), "t", batch(b"a"), acks=1)
        talker = await cluster.connect(2)
        epoch = cluster.broker(3).epoch
        response = await talker.ask(17, _follower_fetch(cluster, 9, 1))
        assert (response.error_code, list(response.responses)) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, [])
        response = await talker.ask(17, _follower_fetch(cluster, 2, epoch))
        assert response.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        response = await talker.ask(12, _follower_fetch(cluster, 3, epoch))
        assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
        # A broker without a replica: the leader may not have learned of it yet.
        response = await talker.ask(17, _follower_fetch(cluster, 1, cluster.broker(1).epoch))
        assert at(response).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
        response = await talker.ask(17, _follower_fetch(cluster, 3, epoch - 1))
        assert at(response).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER  # an earlier incarnation of that broker
        response = await talker.ask(17, _follower_fetch(cluster, 3, epoch, leader_epoch=3))
        assert at(response).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
        response = await talker.ask(17, _follower_fetch(cluster, 3, epoch, leader_epoch=-1))
        assert at(response).error_code == ErrorCode.FENCED_LEADER_EPOCH
        response = await talker.ask(17, _follower_fetch(cluster, 3, epoch, offset=7))
        assert at(response).error_code == ErrorCode.OFFSET_OUT_OF_RANGE

    on_cluster(script)
