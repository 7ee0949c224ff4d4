"""Transactional partitions with followers: failover of leaders and group coordinators keeps the transaction state."""

import asyncio
from typing import Any

import pytest
from broker_scene import Talker, fetch
from cluster_scene import Cluster, on_cluster
from replica_scene import create
from transaction_scene import Producer, find
from writer_scene import NONE, READ_COMMITTED, Writer, committed, values

from moldau.broker.internal_topics import OFFSETS_TOPIC, STATE_TOPIC, partition_for
from moldau.broker.partitions.partition import Partition
from moldau.broker.transactions.add_partitions import PartitionsOfTransaction
from moldau.model.errors import ErrorCode
from moldau.model.ids import TopicPartition
from moldau.wire.messages import AddPartitionsToTxnRequest, FindCoordinatorRequest, WriteTxnMarkersRequest

SETTINGS = (
    "transaction.state.log.num.partitions=3",
    "transaction.state.log.replication.factor=3",
    "offsets.topic.num.partitions=3",
    "offsets.topic.replication.factor=3",
)
PASSING = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
)
GROUP, TRANSACTION = 0, 1
BOTH = pytest.mark.parametrize("version", [1, 2], ids=["v1", "v2"])

pytestmark = pytest.mark.proves("P3")


async def coordinator(cluster: Cluster, key: str, key_type: int) -> int:
    while True:
        talker = await cluster.connect(next(iter(cluster.nodes)))
        response = await talker.ask(2, FindCoordinatorRequest(key=key, key_type=key_type))
        talker.connection.close()
        if response.error_code == 0 and response.node_id in cluster.nodes:
            return int(response.node_id)
        await asyncio.sleep(0.05)


class ClusterWriter(Writer):
    """Finds the leader or coordinator, and retries passing errors."""

    def __init__(self, cluster: Cluster, transactional_id: str = "t", version: int = 2) -> None:
        async def reach(transactional_id: str) -> Talker:
            return await cluster.connect(await coordinator(cluster, transactional_id, TRANSACTION))

        Producer.__init__(self, reach, transactional_id, version)
        self.cluster = cluster
        self.sequences = {}

    async def send(self, *values: bytes, partition: int = 0, version: int | None = None, **fields: Any) -> Any:
        while True:
            self.talker = await leader_of(self.cluster, partition)
            response = await super().send(*values, partition=partition, version=version, **fields)
            self.talker.connection.close()
            if ErrorCode(response.error_code) not in PASSING:
                return response
            await asyncio.sleep(0.05)

    async def commit_offset(self, offset: int, group_id: str = "g", version: int | None = None, **fields: Any) -> Any:
        while True:
            self.talker = await self.cluster.connect(await coordinator(self.cluster, group_id, GROUP))
            code = await super().commit_offset(offset, group_id, version, **fields)
            self.talker.connection.close()
            if code not in PASSING:
                return code
            await asyncio.sleep(0.05)


async def leader_of(cluster: Cluster, partition: int = 0) -> Talker:
    while cluster.leaders("t")[partition] not in cluster.nodes:
        await asyncio.sleep(0.05)
    return await cluster.connect(cluster.leaders("t")[partition])


def copies(cluster: Cluster, topic: str = "t", index: int = 0) -> list[Partition]:
    found = [node.broker.partitions.find(topic, index) for node in cluster.nodes.values()]
    return [each for each in found if each is not None]


async def in_step(cluster: Cluster) -> None:
    """Wait until every replica has the leader's log and knows that it is committed."""
    await cluster.until(lambda: len({(each.log.end_offset, each.high_watermark) for each in copies(cluster)}) == 1, 5.0)


async def begin(cluster: Cluster, version: int = 2) -> ClusterWriter:
    """Prepare three partitions, each led by another broker."""
    await create(cluster, partitions=[[1, 2, 3], [2, 3, 1], [3, 1, 2]])
    await coordinator(cluster, "g", GROUP)
    talker = await cluster.connect(1)
    assert (await find(talker, "t")).error_code == 0
    writer = ClusterWriter(cluster, version=version)
    assert await writer.init() is NONE
    return writer


def play(script: Any) -> None:
    on_cluster(script, settings=SETTINGS)


@BOTH
def test_remote_coordinator_verifies_partitions_and_followers_know_the_lso(version: int) -> None:
    async def script(cluster: Cluster) -> None:
        writer = await begin(cluster, version)
        for is_commit in (True, False, True):
            for partition in range(3):
                await writer.write(b"c" if is_commit else b"a", partition=partition)
            await in_step(cluster)
            stable = {each.last_stable_offset for each in copies(cluster)}
            assert stable == {copies(cluster)[0].high_watermark - 1}, "the transaction is open on every copy"
            await writer.finish(is_commit=is_commit)
            await in_step(cluster)
            assert {each.last_stable_offset for each in copies(cluster)} == {copies(cluster)[0].high_watermark}
        for node_id in cluster.nodes:
            talker = await cluster.connect(node_id)
            assert await values(talker) == [b"c", b"c"]
            response = await fetch(talker, "t", 0, isolation_level=READ_COMMITTED)
            aborted = [(each.producer_id, each.first_offset) for each in response.aborted_transactions]
            assert aborted == [(writer.producer_id, 2)]

    play(script)


@BOTH
@pytest.mark.parametrize("is_commit", [True, False], ids=["commit", "abort"])
def test_transaction_continues_on_a_new_leader(version: int, is_commit: bool) -> None:
    async def script(cluster: Cluster) -> None:
        writer = await begin(cluster, version)
        partition = 1  # whose leader is not the controller
        await writer.write(b"a", partition=partition)
        first = cluster.leaders("t")[partition]
        cluster.kill(first)
        await cluster.until(lambda: cluster.leaders("t")[partition] not in (first, -1), 30.0)
        response = await writer.send(b"b", partition=partition)
        assert (response.error_code, response.base_offset) == (0, 1)
        await writer.finish(is_commit=is_commit)
        found = cluster.nodes[cluster.leaders("t")[partition]].broker.partitions.get("t", partition)
        assert (found.log.end_offset, found.last_stable_offset) == (3, 3)
        aborted = found.log.aborted_transactions(0, 3)
        assert [each.first_offset for each in aborted] == ([] if is_commit else [0])
        await cluster.start(first)
        await cluster.until(lambda: len(copies(cluster, "t", partition)) == 3, 30.0)
        await cluster.until(lambda: {each.last_stable_offset for each in copies(cluster, "t", partition)} == {3}, 30.0)
        returned = cluster.nodes[first].broker.partitions.find("t", partition)
        assert returned is not None
        assert returned.log.aborted_transactions(0, 3) == aborted

    play(script)


@BOTH
@pytest.mark.parametrize("is_commit", [True, False], ids=["commit", "abort"])
def test_pending_offsets_survive_a_group_coordinator_failover(version: int, is_commit: bool) -> None:
    async def script(cluster: Cluster) -> None:
        writer = await begin(cluster, version)
        group = next(f"g{number}" for number in range(100) if leader_of_group(cluster, f"g{number}") == 3)
        if version == 1:
            assert await writer.add_offsets(group) is NONE
        assert await writer.commit_offset(7, group) is NONE
        cluster.kill(3)
        assert await of_group(cluster, group) == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
        await writer.finish(is_commit=is_commit)
        assert await of_group(cluster, group) == (7 if is_commit else -1, NONE)

    play(script)


def leader_of_group(cluster: Cluster, group_id: str) -> int:
    leaders = cluster.leaders(OFFSETS_TOPIC)
    return leaders[partition_for(group_id, len(leaders))]


async def of_group(cluster: Cluster, group_id: str) -> tuple[int, ErrorCode]:
    while True:
        talker = await cluster.connect(await coordinator(cluster, group_id, GROUP))
        found = await committed(talker, require_stable=True, group_id=group_id)
        talker.connection.close()
        if found[1] not in PASSING:
            return found
        await asyncio.sleep(0.05)


def test_marker_waits_for_min_isr() -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster, min_insync_replicas=2, partitions=[[1, 2, 3]])
        talker = await cluster.connect(1)
        partition = cluster.nodes[1].broker.partitions.get("t", 0)
        topics = [WriteTxnMarkersRequest.WritableTxnMarkerTopic(name="t", partition_indexes=[0])]
        marker = WriteTxnMarkersRequest.WritableTxnMarker(producer_id=5, producer_epoch=0, topics=topics)
        request = WriteTxnMarkersRequest(markers=[marker])
        response = await talker.ask(1, request)
        assert response.markers[0].topics[0].partitions[0].error_code == 0
        assert partition.high_watermark == 1, "the response is sent after the commit"
        cluster.kill(2)
        cluster.kill(3)
        await cluster.until(lambda: cluster.nodes[1].broker.image.topics["t"].partitions[0].isr == (1,), 60.0)
        response = await talker.ask(1, request)
        assert response.markers[0].topics[0].partitions[0].error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        assert partition.log.end_offset == 1

    play(script)


def test_verifications_are_batched_but_never_two_of_one_transaction() -> None:
    async def script(cluster: Cluster) -> None:
        await begin(cluster)
        leaders = cluster.leaders(STATE_TOPIC)
        names = [name for name in map(str, range(100)) if leaders[partition_for(name, len(leaders))] == 3][:5]
        served = cluster.nodes[3].routers.broker.api(AddPartitionsToTxnRequest.API_KEY)
        assert served is not None
        counts: list[int] = []
        handle = served.handle

        async def counting(request: Any, context: Any) -> Any:
            counts.append(len(request.transactions))
            return await handle(request, context)

        served.handle = counting
        channel = cluster.nodes[2].broker.transactions.add_partitions_channel
        where = [TopicPartition("t", 0)]
        transactions = [PartitionsOfTransaction(name, 99, 0, True, where) for name in names]
        codes = await asyncio.gather(*(channel.request(each) for each in [*transactions, transactions[0]]))
        assert codes == 6 * [{where[0]: ErrorCode.INVALID_PRODUCER_ID_MAPPING}], "no coordinator knows these ids"
        assert counts == [5, 1]
        cluster.kill(3)
        assert await channel.request(transactions[0]) == {where[0]: ErrorCode.NETWORK_EXCEPTION}

    play(script)
