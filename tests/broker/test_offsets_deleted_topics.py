"""Committed offsets of deleted topics: removed with the topic, never returned for a recreated one."""

import asyncio
import errno
from typing import Any

import pytest
from broker_scene import Scene, Talker, on_broker
from cluster_scene import Cluster, on_cluster
from group_members import TOPIC, commit, committed, find_coordinator
from replica_scene import create, where
from test_replica_groups import SETTINGS, commit_request, coordinator
from test_replica_groups import commit as commit_in_cluster
from test_replica_groups import committed as committed_in_cluster
from transaction_scene import find, producer_of

from moldau.broker.groups.group_coordinator import Groups
from moldau.broker.internal_topics import OFFSETS_TOPIC, partition_for
from moldau.machines.metadata.delta import MetadataDelta
from moldau.model.errors import ErrorCode
from moldau.wire import messages

HERE = [[1]]  # the replicas of the topic: not the nodes that fail
RETENTION_MS = 3_600_000


async def _ready(scene: Scene) -> Talker:
    await scene.create(TOPIC, partitions=2)
    talker = await scene.connect()
    await find_coordinator(talker)
    return talker


async def _delete(talker: Talker, topic: str = TOPIC) -> None:
    response = await talker.ask(5, messages.DeleteTopicsRequest(topic_names=[topic]))
    assert response.responses[0].error_code == 0


def _stored(scene: Scene, group_id: str = "g") -> Any:
    """Return the shard's state of the group, whether it is visible or not."""
    machine = scene.node.broker.groups.shard_of(group_id)._driver._machine
    assert machine is not None
    return machine.state.offsets.get(group_id, {})


@pytest.mark.proves("H3", part="the new leader has all committed records")
@pytest.mark.parametrize("version", [4, 8], ids=["no id", "id"])
def test_coordinator_with_a_late_topic_update_keeps_new_commits(version: int) -> None:
    """The deletion, the new topic and the coordinator election reach it in one image."""

    async def script(cluster: Cluster) -> None:
        await create(cluster)
        await commit_in_cluster(cluster, 1, "x")
        group, index = _group_led_elsewhere(cluster)
        first = where(cluster, OFFSETS_TOPIC, index).leader
        (second,) = {1, 2, 3} - {1, first}
        network = cluster.simulation.network
        network.cut_both(f"n{second}", "n1")
        await _delete(await cluster.connect(1), "t")
        await create(cluster, partitions=HERE)
        await cluster.until(lambda: len(where(cluster, seen_by=first).replicas) == 1, 5.0)
        request = commit_request(42, group)
        request.retention_time_ms = RETENTION_MS if version == 4 else -1
        response = await (await cluster.connect(first)).ask(version, request)
        assert response.topics[0].partitions[0].error_code == 0
        cluster.kill(first)
        await cluster.until(lambda: where(cluster, OFFSETS_TOPIC, index).leader == second, 5.0)
        assert where(cluster, OFFSETS_TOPIC, index, seen_by=second).leader == first
        network.heal()
        assert await committed_in_cluster(cluster, group) == 42
        await asyncio.sleep(2)
        assert await committed_in_cluster(cluster, group) == 42

    on_cluster(script, settings=SETTINGS)


def _group_led_elsewhere(cluster: Cluster) -> tuple[str, int]:
    """Return a group whose coordinator, like the next one, is not the controller."""
    for number in range(100):
        index = partition_for(f"g{number}", 3)
        place = where(cluster, OFFSETS_TOPIC, index)
        if place.leader != 1 and next(each for each in place.replicas if each != place.leader) != 1:
            return f"g{number}", index
    raise AssertionError("there is none")


@pytest.mark.proves("C3", part="committed offsets are returned")
def test_topic_recreated_while_a_coordinator_is_down_has_no_offsets() -> None:
    async def script(cluster: Cluster) -> None:
        await create(cluster, partitions=HERE)
        await commit_in_cluster(cluster, 500, "x")
        group = ""
        for number in range(100):
            group = f"g{number}"
            if await coordinator(cluster, group) == 2:
                break
        await commit_in_cluster(cluster, 500, group)
        await cluster.stop(2)
        await _delete(await cluster.connect(1), "t")
        await create(cluster, partitions=HERE)
        await cluster.start(2)
        assert await committed_in_cluster(cluster, group) == -1
        shard = cluster.nodes[2].broker.groups.shard_of(group)
        await cluster.until(lambda: group not in shard._driver._machine.state.offsets, 10.0)  # type: ignore[union-attr]
        await commit_in_cluster(cluster, 7, group)
        await cluster.stop(2)
        await cluster.start(2)
        await asyncio.sleep(2)
        assert await committed_in_cluster(cluster, group) == 7

    on_cluster(script, settings=("offsets.topic.num.partitions=3", "offsets.topic.replication.factor=1"))


@pytest.mark.proves("C3", part="committed offsets are returned")
@pytest.mark.parametrize("options", [{}, {"version": 4, "retention_time_ms": RETENTION_MS}], ids=["id", "no id"])
def test_offsets_do_not_survive_a_deletion_that_fails_on_disk(options: dict[str, Any]) -> None:
    async def script(scene: Scene) -> None:
        scene.simulation.disks_fail = True
        talker = await _ready(scene)
        await commit(talker, {0: 500}, **options)
        scene.host.disk.fail("pwrite", errno.ENOSPC, path=OFFSETS_TOPIC)
        await _delete(talker)
        await scene.create(TOPIC, partitions=2)
        await asyncio.sleep(6)
        assert not _stored(scene)
        assert await committed(talker, [0]) == {0: -1}
        await commit(talker, {0: 7})
        await scene.restart_after_crash()
        assert await committed(await scene.connect(), [0]) == {0: 7}

    on_broker(script)


@pytest.mark.proves("C3", part="committed offsets are returned")
def test_many_offsets_are_removed_with_their_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moldau.machines.groups.offset_cleanup.OFFSETS_PER_CLEANUP_STEP", 3)

    async def script(scene: Scene) -> None:
        talker = await _ready(scene)
        await scene.create("wide", partitions=20)
        await commit(talker, dict.fromkeys(range(20), 5), topic="wide")
        await commit(talker, {0: 6})
        await _delete(talker, "wide")
        await asyncio.sleep(0.1)
        assert [*_stored(scene)] == [TOPIC]

    on_broker(script)


@pytest.mark.proves("C3", part="committed offsets are returned")
def test_offsets_of_a_deleted_topic_are_not_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(scene: Scene) -> None:
        talker = await _ready(scene)
        await commit(talker, {0: 5})
        was = scene.node.broker.image.topic_id(TOPIC)
        with monkeypatch.context() as patch:
            patch.setattr("moldau.broker.groups.shard.Shard.topics_deleted", _do_nothing)
            await _delete(talker)
            assert await committed(talker, [0]) == {0: -1}
            await scene.create(TOPIC)
        assert _stored(scene), "the shard was not notified"
        assert await committed(talker, [0]) == {0: -1}
        assert await committed(talker, None) == {}
        assert await scene.node.broker.groups.positions() == []
        fetch = messages.OffsetFetchRequest
        requested = [
            fetch.OffsetFetchRequestTopics(topic_id=each, partition_indexes=[0])
            for each in (was, scene.node.broker.image.topic_id(TOPIC))
        ]
        for topics, expected in ((requested, {(-1, 0), (-1, ErrorCode.UNKNOWN_TOPIC_ID)}), (None, set())):
            request = fetch(groups=[fetch.OffsetFetchRequestGroup(group_id="g", topics=topics)])
            (group,) = (await talker.ask(10, request)).groups
            responses = {
                (each.committed_offset, each.error_code) for topic in group.topics for each in topic.partitions
            }
            assert responses == expected

    on_broker(script)


async def _do_nothing(*_: object) -> None: ...


@pytest.mark.proves("P3")
def test_transactional_offsets_do_not_apply_to_a_recreated_topic() -> None:
    async def script(scene: Scene) -> None:
        talker = await _ready(scene)
        producer = producer_of(scene)
        assert (await find(talker, producer.transactional_id)).error_code == 0
        await producer.init()
        partition = messages.TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(
            partition_index=0, committed_offset=5
        )
        topic = messages.TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(name=TOPIC, partitions=[partition])
        request = messages.TxnOffsetCommitRequest(
            transactional_id=producer.transactional_id,
            group_id="g",
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            topics=[topic],
        )
        response = await talker.ask(5, request)
        assert response.topics[0].partitions[0].error_code == 0
        await _delete(talker)
        await scene.create(TOPIC)
        await producer.end(is_commit=True)
        assert await committed(talker, [0]) == {0: -1}

    on_broker(script)


@pytest.mark.proves("C3", part="committed offsets survive a crash")
def test_topics_missing_from_an_incomplete_image_do_not_count_as_deleted() -> None:
    async def script(scene: Scene) -> None:
        broker = scene.node.broker
        groups = Groups(broker, broker.share_persister, scene.simulation.fail)
        await groups.follow(broker.image, MetadataDelta())
        assert groups.newest_image() is None
        groups.start()
        assert groups.newest_image() is broker.image
        await groups.close()

    on_broker(script)


@pytest.mark.proves("C3", part="committed offsets are returned")
def test_loaded_offsets_are_checked_once_the_image_is_complete(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def script(scene: Scene) -> None:
        talker = await _ready(scene)
        await commit(talker, {0: 5})
        groups = scene.node.broker.groups
        groups._is_metadata_complete = False
        with monkeypatch.context() as patch:
            patch.setattr("moldau.broker.groups.shard.Shard.topics_deleted", _do_nothing)
            await _delete(talker)
        await groups.shard_of("g").load()
        await asyncio.sleep(1)
        assert _stored(scene)
        groups.start()
        await asyncio.sleep(1)
        assert not _stored(scene)

    on_broker(script)
