"""The coordinator of transactions on one broker: from the first request of a producer to the last marker."""

from typing import Any

import pytest
from broker_scene import Scene, Talker, on_broker
from transaction_scene import FEW_PARTITIONS, Marked, Producer, Sink, find

from moldau.broker.transactions.state_topic import STATE_TOPIC
from moldau.model.errors import ErrorCode
from moldau.model.ids import TopicPartition

NONE = ErrorCode.NONE
P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


def producer_of(scene: Scene, transactional_id: str = "t", version: int = 2) -> Producer:
    async def reach(transactional_id: str) -> Talker:  # noqa: ARG001 - there is one broker
        return await scene.connect()

    return Producer(reach, transactional_id, version)


async def ready(scene: Scene) -> Sink:
    await scene.create("t", partitions=2)
    talker = await scene.connect()
    assert (await find(talker, "t")).error_code == 0
    return Sink(scene.node)


def play(script: Any, *settings: str) -> None:
    on_broker(script, settings=[*FEW_PARTITIONS, *settings])


@pytest.mark.parametrize("version", range(1, 7))
def test_who_asks_for_a_coordinator_has_the_topic_of_states_created(version: int) -> None:
    async def script(scene: Scene) -> None:
        answer = await find(await scene.connect(), "t", version)
        assert (answer.error_code, answer.node_id) == (0, scene.node.broker.node_id)
        image = scene.node.broker.image
        assert len(image.topics[STATE_TOPIC].partitions) == 3
        configs = image.topic_configs(STATE_TOPIC)
        assert (configs["cleanup.policy"], configs["min.insync.replicas"]) == ("compact", "1")
        assert configs["unclean.leader.election.enable"] == "false"

    play(script)


@pytest.mark.proves("P3")
@pytest.mark.parametrize("is_commit", [True, False], ids=["commit", "abort"])
@pytest.mark.parametrize("version", [1, 2], ids=["v1", "v2"])
def test_a_transaction_ends_with_a_marker_in_each_of_its_partitions(version: int, is_commit: bool) -> None:
    async def script(scene: Scene) -> None:
        sink = await ready(scene)
        producer = producer_of(scene, version=version)
        assert await producer.init() is NONE
        first_id, first_epoch = producer.producer_id, producer.epoch
        assert await producer.add(P0) is NONE
        assert await producer.add(P0, P1) is NONE
        described = await producer.described()
        assert (described.transaction_state, list(described.topics[0].partitions)) == ("Ongoing", [0, 1])
        assert await producer.end(is_commit=is_commit) is NONE
        await producer.until("CompleteCommit" if is_commit else "CompleteAbort")
        bump = 1 if version == 2 else 0
        assert producer.epoch == first_epoch + bump
        marked = [Marked(first_id, first_epoch + bump, is_commit, each, 0, 2 * bump) for each in (P0, P1)]
        assert sorted(sink.came) == marked
        assert await producer.add(P1) is NONE, "the next transaction begins"
        assert scene.node.broker.transactions.markers.backlog == 0

    play(script)
