"""Share groups over the wire: membership, the states of share partitions, and their coordinators."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from broker_scene import Scene, Talker, batch, on_broker, produce
from group_members import find_coordinator
from share_group_members import LEAVING, TOPIC, ShareMember, ready

from moldau.broker.internal_topics import SHARE_STATE_TOPIC
from moldau.broker.shares.persister import SharePartitionKey
from moldau.broker.shares.state_topic import coordinator_key, parse_coordinator_key
from moldau.machines.shares.state import ShareState, StateBatch, StateWrite
from moldau.model.errors import ErrorCode, FencedLeaderEpoch, FencedStateEpoch, InvalidRequest
from moldau.model.ids import TopicId
from moldau.wire import messages

pytestmark = pytest.mark.proves("C8")


def on_share_broker(script: Callable[[Scene], Coroutine[Any, Any, None]], *settings: str) -> None:
    on_broker(script, settings=settings)


async def joined(scene: Scene, *names: str, partitions: int = 3) -> list[ShareMember]:
    """Members of which the first has all partitions of the topic before the others join."""
    await ready(scene, partitions)
    members = [ShareMember(await scene.connect(), name) for name in names]
    await members[0].wait_for(list(range(partitions)))
    return members


def key_of(scene: Scene, partition: int = 0, group_id: str = "g") -> SharePartitionKey:
    return SharePartitionKey(group_id, scene.node.broker.image.topics[TOPIC].topic_id, partition)


async def delete_group(talker: Talker, group_id: str = "g") -> ErrorCode:
    response = await talker.ask(2, messages.DeleteGroupsRequest(groups_names=[group_id]))
    return ErrorCode(response.results[0].error_code)


class TestMembership:
    def test_member_gets_its_partitions_and_shares_them(self) -> None:
        async def script(scene: Scene) -> None:
            first, second = await joined(scene, "first", "second")
            await second.beat()
            for _ in range(3):
                await first.beat()
                await second.beat()
                await asyncio.sleep(1)
            assert sorted(first.partitions() + second.partitions()) == [0, 1, 2]
            request = messages.ShareGroupDescribeRequest(group_ids=["g", "x"])
            described, missing = (await first.talker.ask(1, request)).groups
            assert (described.group_state, len(described.members)) == ("Stable", 2)
            assert missing.error_code == ErrorCode.GROUP_ID_NOT_FOUND
            listed = (await first.talker.ask(5, messages.ListGroupsRequest(types_filter=["Share"]))).groups
            assert [(each.group_id, each.group_type) for each in listed] == [("g", "share")]

        on_share_broker(script)

    def test_group_survives_a_crash(self) -> None:
        async def script(scene: Scene) -> None:
            (member,) = await joined(scene, "m")
            await scene.restart_after_crash()
            member.talker = await scene.connect()
            member.assigned = {}
            member.topics, member.epoch = [TOPIC], 0
            await member.wait_for([0, 1, 2])

        on_share_broker(script)

    def test_deleted_group_is_gone_with_its_states(self) -> None:
        async def script(scene: Scene) -> None:
            (member,) = await joined(scene, "m")
            persister = scene.node.broker.share_persister
            assert (await persister.summary(key_of(scene))).state_epoch == 1
            assert await delete_group(member.talker) is ErrorCode.NON_EMPTY_GROUP
            assert await member.beat(LEAVING) is ErrorCode.NONE
            assert await delete_group(member.talker) is ErrorCode.NONE
            assert (await persister.summary(key_of(scene))).state_epoch == 0
            assert await delete_group(member.talker) is ErrorCode.GROUP_ID_NOT_FOUND

        on_share_broker(script)

    def test_recreated_topic_gets_new_states(self) -> None:
        async def script(scene: Scene) -> None:
            (member,) = await joined(scene, "m", partitions=1)
            old = key_of(scene)
            response = await member.talker.ask(5, messages.DeleteTopicsRequest(topic_names=[TOPIC], timeout_ms=1000))
            assert response.responses[0].error_code == 0
            coordinator = scene.node.broker.share_coordinator
            async with asyncio.timeout(60):
                while (await coordinator.summary(old)).state_epoch:
                    await asyncio.sleep(0.1)
            await scene.create(TOPIC, partitions=2)
            await member.wait_for([0, 1])
            assert member.assigned.keys() == {key_of(scene).topic_id} != {old.topic_id}

        on_share_broker(script)


class TestFeature:
    def test_apis_are_advertised_and_served_with_the_feature_only(self) -> None:
        async def script(scene: Scene) -> None:
            talker = await scene.connect()
            versions = messages.ApiVersionsRequest(client_software_name="a", client_software_version="1")

            async def keys() -> set[int]:
                return {each.api_key for each in (await talker.ask(4, versions)).api_keys}

            async def change(level: int) -> None:
                update = messages.UpdateFeaturesRequest.FeatureUpdateKey(
                    feature="share.version", max_version_level=level, upgrade_type=1 if level else 2
                )
                response = await talker.ask(1, messages.UpdateFeaturesRequest(feature_updates=[update]))
                assert response.error_code == 0, response
                await scene.node.broker.catch_up_with_metadata()

            apis = {*range(76, 80), *range(83, 88), 90, 91, 92}
            assert apis <= await keys()
            member = ShareMember(talker, "m")
            await change(0)
            assert not apis & await keys()
            assert await member.beat() is ErrorCode.UNSUPPORTED_VERSION
            await change(1)
            await scene.create(TOPIC)
            await find_coordinator(talker)
            await member.wait_for([0])

        on_share_broker(script)


class TestStates:
    def test_state_survives_a_crash_and_fences_old_leaders(self) -> None:
        async def script(scene: Scene) -> None:
            await joined(scene, "m")
            persister = scene.node.broker.share_persister
            assert await persister.read(key_of(scene), 5) == ShareState(1, -1)
            batch = StateBatch(10, 19, 2, 1)
            await persister.write(key_of(scene), 1, 5, StateWrite(10, 10, (batch,)))
            await scene.restart_after_crash()
            persister = scene.node.broker.share_persister
            assert await persister.read(key_of(scene), 5) == ShareState(1, 10, (batch,))
            assert (await persister.summary(key_of(scene))).complete_count == 10
            with pytest.raises(FencedLeaderEpoch):
                await persister.write(key_of(scene), 1, 4, StateWrite(20, 0, ()))

        on_share_broker(script)

    def test_apis_respond_per_share_partition(self) -> None:
        async def script(scene: Scene) -> None:
            (member,) = await joined(scene, "m", partitions=1)
            read = messages.ReadShareGroupStateRequest
            request = read(
                group_id="g",
                topics=[
                    read.ReadStateData(
                        topic_id=key_of(scene).topic_id,
                        partitions=[read.PartitionData(partition=0), read.PartitionData(partition=7)],
                    )
                ],
            )
            (topic,) = (await member.talker.ask(0, request)).results
            assert [each.error_code for each in topic.partitions] == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
            assert (topic.partitions[0].state_epoch, topic.partitions[0].start_offset) == (1, -1)

        on_share_broker(script)

    def test_log_is_pruned_behind_snapshots(self) -> None:
        async def script(scene: Scene) -> None:
            await joined(scene, "m", partitions=1)
            broker, key = scene.node.broker, key_of(scene)
            for offset in range(20):
                write = StateWrite(0, 0, (StateBatch(offset, offset, 2, 1),))
                await broker.share_persister.write(key, 1, 0, write)
            log = broker.partitions.get(SHARE_STATE_TOPIC, 0).log
            assert log.start_offset == 0
            await asyncio.sleep(6)
            assert log.start_offset > 10
            await scene.restart_after_crash()
            state = await scene.node.broker.share_persister.read(key, 0)
            assert state.batches == (StateBatch(0, 19, 2, 1),)

        on_share_broker(
            script,
            "share.coordinator.state.topic.num.partitions=1",
            "share.coordinator.snapshot.update.records.per.snapshot=5",
            "share.coordinator.state.topic.prune.interval.ms=5000",
        )


async def described(talker: Talker, topics: dict[str, list[int]] | None = None, group_id: str = "g") -> Any:
    request = messages.DescribeShareGroupOffsetsRequest
    wanted = [
        request.DescribeShareGroupOffsetsRequestTopic(topic_name=name, partitions=each)
        for name, each in (topics or {}).items()
    ]
    group = request.DescribeShareGroupOffsetsRequestGroup(group_id=group_id, topics=None if topics is None else wanted)
    return (await talker.ask(1, request(groups=[group]))).groups[0]


async def alter(talker: Talker, offsets: dict[int, int], topic: str = TOPIC) -> Any:
    request = messages.AlterShareGroupOffsetsRequest
    partitions = [
        request.AlterShareGroupOffsetsRequestPartition(partition_index=index, start_offset=offset)
        for index, offset in offsets.items()
    ]
    wanted = request.AlterShareGroupOffsetsRequestTopic(topic_name=topic, partitions=partitions)
    return await talker.ask(0, request(group_id="g", topics=[wanted]))


async def delete_offsets(talker: Talker, *topics: str) -> Any:
    request = messages.DeleteShareGroupOffsetsRequest
    wanted = [request.DeleteShareGroupOffsetsRequestTopic(topic_name=name) for name in topics]
    return await talker.ask(0, request(group_id="g", topics=wanted))


class TestStartOffsets:
    def test_start_offsets_and_lags_are_described(self) -> None:
        async def script(scene: Scene) -> None:
            (member,) = await joined(scene, "m", partitions=2)
            await scene.node.broker.share_persister.write(key_of(scene), 1, 0, StateWrite(0, 0, ()))
            response = await produce(member.talker, TOPIC, batch(b"one", b"two", b"three"))
            assert response.error_code == 0
            (topic,) = (await described(member.talker)).topics
            assert topic.topic_name == TOPIC
            assert [(each.start_offset, each.lag) for each in topic.partitions] == [(0, 3), (-1, -1)]
            await scene.node.broker.share_persister.write(
                key_of(scene), 1, 0, StateWrite(1, 1, (StateBatch(2, 2, 2, 1),))
            )
            (topic,) = (await described(member.talker, {TOPIC: [0, 7]})).topics
            assert [(each.start_offset, each.lag) for each in topic.partitions] == [(1, 1), (-1, -1)]
            assert topic.partitions[1].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            missing = await described(member.talker, group_id="x")
            assert missing.error_code == ErrorCode.GROUP_ID_NOT_FOUND

        on_share_broker(script)

    def test_altered_start_offsets_fence_the_old_state(self) -> None:
        async def script(scene: Scene) -> None:
            (member,) = await joined(scene, "m", partitions=2)
            assert (await alter(member.talker, {0: 5})).error_code == ErrorCode.NON_EMPTY_GROUP
            await member.beat(LEAVING)
            response = await alter(member.talker, {0: 5, 9: 1, 1: -2})
            codes = {each.partition_index: each.error_code for each in response.responses[0].partitions}
            assert codes == {0: 0, 1: ErrorCode.INVALID_REQUEST, 9: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
            persister = scene.node.broker.share_persister
            with pytest.raises(FencedStateEpoch):
                await persister.write(key_of(scene), 1, 0, StateWrite(2, 0, ()))
            assert (await persister.read(key_of(scene), 0)).start_offset == 5
            assert (await persister.read(key_of(scene, 1), 0)).start_offset == -1

        on_share_broker(script)

    def test_deleted_start_offsets_are_initialized_again(self) -> None:
        async def script(scene: Scene) -> None:
            (member,) = await joined(scene, "m", partitions=2)
            assert (await delete_offsets(member.talker, TOPIC)).error_code == ErrorCode.NON_EMPTY_GROUP
            await member.beat(LEAVING)
            await alter(member.talker, {0: 5})
            response = await delete_offsets(member.talker, TOPIC, "x")
            codes = {each.topic_name: each.error_code for each in response.responses}
            assert codes == {TOPIC: 0, "x": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
            assert not (await described(member.talker)).topics
            member.epoch, member.assigned = 0, {}
            await member.wait_for([0, 1])
            assert (await scene.node.broker.share_persister.read(key_of(scene), 0)).start_offset == -1

        on_share_broker(script)


class TestCoordinatorKeys:
    def test_key_is_parsed_from_the_right(self) -> None:
        key = SharePartitionKey("a:b", TopicId(bytes(range(16))), 12)
        assert coordinator_key(key) == "a:b:AAECAwQFBgcICQoLDA0ODw:12"
        assert parse_coordinator_key(coordinator_key(key)) == key

    @pytest.mark.parametrize("text", ["", "g", "g:AAECAwQFBgcICQoLDA0ODw", "g:x:1", ":AAECAwQFBgcICQoLDA0ODw:1"])
    def test_invalid_key_is_rejected(self, text: str) -> None:
        with pytest.raises(InvalidRequest):
            parse_coordinator_key(text)

    def test_coordinator_of_a_share_partition_is_found(self) -> None:
        async def script(scene: Scene) -> None:
            talker = await ready(scene)
            keys = [coordinator_key(key_of(scene)), "invalid"]
            request = messages.FindCoordinatorRequest(key_type=2, coordinator_keys=keys)
            found, invalid = (await talker.ask(6, request)).coordinators
            assert (found.node_id, found.error_code) == (1, 0)
            assert invalid.error_code == ErrorCode.INVALID_REQUEST

        on_share_broker(script)
