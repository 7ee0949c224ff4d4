"""Transactions on three brokers: markers go to the leaders, and coordinator failover works in every state."""

import asyncio
from typing import Any

import pytest
from broker_scene import Talker
from cluster_scene import Cluster, on_cluster
from replica_scene import copy_of, create, elect_preferred
from transaction_scene import PASSING, Producer, Sink, find

from moldau.broker.internal_topics import STATE_TOPIC, partition_for
from moldau.model.errors import ErrorCode
from moldau.model.ids import TopicPartition
from moldau.wire.messages import AddPartitionsToTxnRequest, ListTransactionsRequest

SETTINGS = ("transaction.state.log.num.partitions=3", "transaction.state.log.replication.factor=3")
NONE = ErrorCode.NONE
P0, P1, P2 = (TopicPartition("t", index) for index in range(3))

pytestmark = pytest.mark.proves("P3")


async def coordinator(cluster: Cluster, transactional_id: str) -> int:
    """Wait for the transaction coordinator; return its node id."""
    while True:
        talker = await cluster.connect(next(iter(cluster.nodes)))
        response = await find(talker, transactional_id)
        talker.connection.close()
        if response.error_code == 0 and response.node_id in cluster.nodes:
            return int(response.node_id)
        await asyncio.sleep(0.05)


def producer_of(cluster: Cluster, transactional_id: str, version: int = 2) -> Producer:
    async def reach(transactional_id: str) -> Talker:
        return await cluster.connect(await coordinator(cluster, transactional_id))

    return Producer(reach, transactional_id, version)


async def away_from_controller(cluster: Cluster) -> str:
    """Return a transactional id whose coordinator is not the controller."""
    for number in range(20):
        if await coordinator(cluster, f"t{number}") != 1:
            return f"t{number}"
    raise AssertionError("all are with the controller")


class Sinks:
    """Records the markers that reach each node, across restarts."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.of = {node_id: Sink(node) for node_id, node in cluster.nodes.items()}
        self.ended: list[Sink] = []

    async def start(self, node_id: int) -> None:
        self.ended.append(self.of[node_id])
        sink = self.of[node_id] = Sink()
        with sink.of_nodes_to_come():
            await self.cluster.start(node_id)

    def reject(self, partition: TopicPartition, code: ErrorCode) -> None:
        for sink in self.of.values():
            sink.codes[partition] = code

    def accept_all(self) -> None:
        for sink in self.of.values():
            sink.codes.clear()

    def ends(self, partition: TopicPartition) -> set[tuple[int, int, bool]]:
        """Return the ends of transactions that this partition received: producer id, epoch, is commit."""
        return {
            (each.producer_id, each.epoch, each.is_commit)
            for sink in (*self.of.values(), *self.ended)
            for each in sink.came
            if each.partition == partition
        }


async def ready(cluster: Cluster) -> Sinks:
    """Prepare three partitions, each led by another broker."""
    await create(cluster, partitions=[[1, 2, 3], [2, 3, 1], [3, 1, 2]])
    await coordinator(cluster, "t")
    return Sinks(cluster)


def play(script: Any) -> None:
    on_cluster(script, settings=SETTINGS)


def test_markers_go_to_the_partition_leaders() -> None:
    async def script(cluster: Cluster) -> None:
        sinks = await ready(cluster)
        for name in ("a", "b", "c", "d"):
            producer = producer_of(cluster, name)
            await producer.init()
            await producer.add(P0, P1, P2)
            assert await producer.end() is NONE
            await producer.until("CompleteCommit")
        for node_id, partition in ((1, P0), (2, P1), (3, P2)):
            assert [each.partition for each in sinks.of[node_id].came] == [partition] * 4

    play(script)


STATES = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort")


async def bring_to(producer: Producer, sinks: Sinks, state: str) -> None:
    await producer.init()
    if state == "Empty":
        return
    if state.startswith("Prepare"):
        sinks.reject(P1, ErrorCode.NOT_ENOUGH_REPLICAS)
    await producer.add(P0, P1, P2)
    if state != "Ongoing":
        assert await producer.end(is_commit=state.endswith("Commit")) is NONE
    await producer.until(state)


@pytest.mark.parametrize("version", [1, 2], ids=["v1", "v2"])
@pytest.mark.parametrize("state", STATES)
def test_next_coordinator_completes_the_transaction_in_every_state(state: str, version: int) -> None:
    async def script(cluster: Cluster) -> None:
        sinks = await ready(cluster)
        producer = producer_of(cluster, await away_from_controller(cluster), version)
        await bring_to(producer, sinks, state)
        first = await coordinator(cluster, producer.transactional_id)
        cluster.kill(first)
        assert await coordinator(cluster, producer.transactional_id) != first
        sinks.accept_all()
        is_commit = not state.endswith("Abort")
        if state == "Ongoing":
            assert await producer.end() is NONE
        if state != "Empty":
            await producer.until("CompleteCommit" if is_commit else "CompleteAbort")
            expected = {(producer.producer_id, producer.epoch, is_commit)}
            assert [sinks.ends(each) for each in (P0, P1, P2)] == [expected] * 3, "one outcome everywhere"
        assert await producer.add(P0) is NONE, "and the next transaction begins"
        assert await producer.end(is_commit=False) is NONE
        await producer.until("CompleteAbort")

    play(script)


def test_marker_follows_its_partition_to_another_leader() -> None:
    async def script(cluster: Cluster) -> None:
        sinks = await ready(cluster)
        name = next(f"t{number}" for number in range(100) if partition_for(f"t{number}", 3) == _led_by_1(cluster))
        producer = producer_of(cluster, name)
        await producer.init()
        await producer.add(P0, P1, P2)
        sinks.of[2].is_open.clear()
        assert await producer.end() is NONE
        await cluster.until(lambda: sinks.of[2].requests > 0, 5.0)
        cluster.kill(2)
        await producer.until("CompleteCommit")
        assert sinks.ends(P1) == {(producer.producer_id, producer.epoch, True)}

    play(script)


def _led_by_1(cluster: Cluster) -> int:
    return cluster.leaders(STATE_TOPIC).index(1)


def test_deposed_coordinator_decides_nothing() -> None:
    async def script(cluster: Cluster) -> None:
        sinks = await ready(cluster)
        name = await away_from_controller(cluster)
        index = partition_for(name, 3)
        producer = producer_of(cluster, name)
        await producer.init()
        await producer.add(P0)
        first = await coordinator(cluster, name)
        cluster.kill(first)
        second = await coordinator(cluster, name)
        assert await producer.add(P1) is NONE
        await sinks.start(first)
        await cluster.until(
            lambda: len(cluster.nodes[1].broker.image.topics[STATE_TOPIC].partitions[index].isr) == 3, 10.0
        )
        await elect_preferred(cluster, STATE_TOPIC, index)
        await cluster.until(lambda: not copy_of(cluster, second, STATE_TOPIC, index).role.is_leader, 1.0)
        response = await (await cluster.connect(second)).ask(5, producer.end_request())
        assert response.error_code == ErrorCode.NOT_COORDINATOR
        assert await coordinator(cluster, name) == first
        assert await producer.end() is NONE
        await producer.until("CompleteCommit")
        epochs = {each.coordinator_epoch for sink in sinks.of.values() for each in sink.came}
        assert epochs == {copy_of(cluster, first, STATE_TOPIC, index).role.leader_epoch}, "that of who leads now"

    play(script)


def _verifying(producer: Producer, partition: TopicPartition) -> AddPartitionsToTxnRequest:
    whole = AddPartitionsToTxnRequest
    topic = whole.AddPartitionsToTxnTopic(name=partition.topic, partitions=[partition.partition])
    requested = whole.AddPartitionsToTxnTransaction(
        transactional_id=producer.transactional_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        verify_only=True,
        topics=[topic],
    )
    return whole(transactions=[requested])


@pytest.mark.proves("P3")
async def deposed(cluster: Cluster, producer: Producer) -> Talker:
    """Isolate the coordinator until there is another; return a client of the first, which does not know it."""
    first = await coordinator(cluster, producer.transactional_id)
    for other in cluster.nodes:
        if other != first:
            cluster.simulation.network.cut_both(f"n{first}", f"n{other}")
    while await coordinator(cluster, producer.transactional_id) == first:
        await asyncio.sleep(0.5)
    assert copy_of(cluster, first, STATE_TOPIC, partition_for(producer.transactional_id, 3)).role.is_leader, "it thinks"
    return await cluster.connect(first)


def test_isolated_deposed_coordinator_verifies_no_partition() -> None:
    async def script(cluster: Cluster) -> None:
        await ready(cluster)
        producer = producer_of(cluster, await away_from_controller(cluster), 1)
        await producer.init()
        assert await producer.add(P0) is NONE
        stale = await deposed(cluster, producer)
        assert await producer.end() is NONE
        response = await stale.ask(5, _verifying(producer, P0))
        (found,) = response.results_by_transaction[0].topic_results[0].results_by_partition
        assert found.partition_error_code in PASSING, "no marker would ever come for what is written now"

    play(script)


def test_isolated_deposed_coordinator_returns_only_retriable_errors() -> None:
    async def script(cluster: Cluster) -> None:
        await ready(cluster)
        producer = producer_of(cluster, await away_from_controller(cluster), 1)
        await producer.init()
        stale = await deposed(cluster, producer)
        assert await producer.add(P0) is NONE
        response = await stale.ask(5, _verifying(producer, P0))
        (found,) = response.results_by_transaction[0].topic_results[0].results_by_partition
        assert found.partition_error_code in PASSING, "that the partition is not part of it would be wrong"
        assert (await stale.ask(4, producer.end_request())).error_code in PASSING
        assert await producer.init() is NONE
        assert (await stale.ask(4, producer.end_request())).error_code in PASSING, "it does not know the new epoch"

    play(script)


@pytest.mark.parametrize("state", ["Ongoing", "PrepareCommit", "PrepareAbort"])
def test_transaction_survives_a_restart_of_the_whole_cluster(state: str) -> None:
    async def script(cluster: Cluster) -> None:
        sinks = await ready(cluster)
        producer = producer_of(cluster, "t")
        await bring_to(producer, sinks, state)
        for node_id in (1, 2, 3):
            cluster.kill(node_id)
        sink = Sink()
        with sink.of_nodes_to_come():
            await cluster.start_all()
        if state == "Ongoing":
            assert await producer.end() is NONE
        is_commit = state != "PrepareAbort"
        await producer.until("CompleteCommit" if is_commit else "CompleteAbort")
        ends = {(each.partition, each.producer_id, each.epoch, each.is_commit) for each in sink.came}
        assert ends == {(each, producer.producer_id, producer.epoch, is_commit) for each in (P0, P1, P2)}

    play(script)


def test_transaction_changes_are_rejected_below_min_isr() -> None:
    async def script(cluster: Cluster) -> None:
        await ready(cluster)
        name = next(f"t{number}" for number in range(100) if partition_for(f"t{number}", 3) == _led_by_1(cluster))
        producer = producer_of(cluster, name)
        await producer.init()
        cluster.kill(3)
        cluster.kill(2)
        await asyncio.sleep(0.5)
        talker = await cluster.connect(1)
        began_s = cluster.simulation.now_s
        response = await talker.ask(5, producer.end_request(is_commit=False))
        assert response.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert cluster.simulation.now_s - began_s < 1, "without a wait"

    play(script)


def test_every_broker_lists_only_the_transactions_it_coordinates() -> None:
    async def script(cluster: Cluster) -> None:
        await ready(cluster)
        names = [f"t{number}" for number in range(10)]
        for name in names:
            await producer_of(cluster, name).init()
        for node_id in (1, 2, 3):
            response = await (await cluster.connect(node_id)).ask(2, ListTransactionsRequest())
            listed = sorted(each.transactional_id for each in response.transaction_states)
            assert listed == sorted([name for name in names if await coordinator(cluster, name) == node_id])

    play(script)
