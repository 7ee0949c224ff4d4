"""Committed offsets over the wire: commit, fetch, reject, delete, expire."""

import asyncio
from typing import Any

import pytest
from broker_scene import Scene, ScriptedAuthorizer, Talker, batch, on_broker, produce
from group_members import TOPIC, Member, commit, committed, find_coordinator

from moldau.broker.access import Client, Operation, Resource, ResourceKind
from moldau.broker.internal_topics import OFFSETS_TOPIC, partition_for
from moldau.model.errors import ErrorCode
from moldau.wire import messages

FETCH = messages.OffsetFetchRequest
MINUTE_S = 60.0


async def _ready(scene: Scene, partitions: int = 4) -> Talker:
    await scene.create(TOPIC, partitions=partitions)
    talker = await scene.connect()
    await find_coordinator(talker)
    return talker


@pytest.mark.proves("C3")
@pytest.mark.parametrize("version", range(2, 10))
def test_committed_offset_is_fetched_in_every_version(version: int) -> None:
    async def script(scene: Scene) -> None:
        talker = await _ready(scene)
        assert await commit(talker, {0: 7, 3: 9}, version=version, metadata="why") == [ErrorCode.NONE] * 2
        assert await committed(talker, [0, 1, 3]) == {0: 7, 1: -1, 3: 9}
        for fetch_version in range(1, 8):
            topic = FETCH.OffsetFetchRequestTopic(name=TOPIC, partition_indexes=[0, 1])
            response = await talker.ask(fetch_version, FETCH(group_id="g", topics=[topic]))
            first, second = response.topics[0].partitions
            assert (first.partition_index, first.committed_offset, first.metadata) == (0, 7, "why")
            assert (second.committed_offset, second.metadata, second.error_code) == (-1, "", 0)
            assert first.committed_leader_epoch == (0 if version >= 6 and fetch_version >= 5 else -1)

    on_broker(script)


@pytest.mark.proves("C3")
def test_topics_are_identified_by_id_from_version_10() -> None:
    async def script(scene: Scene) -> None:
        talker = await _ready(scene)
        topic_id = scene.node.broker.image.topic_id(TOPIC)
        assert await commit(talker, {0: 5}, topic="", topic_id=topic_id, version=10) == [ErrorCode.NONE]
        assert await commit(talker, {0: 6}, topic="", topic_id=b"?" * 16, version=10) == [ErrorCode.UNKNOWN_TOPIC_ID]
        topics = [
            FETCH.OffsetFetchRequestTopics(topic_id=each, partition_indexes=[0]) for each in (topic_id, b"?" * 16)
        ]
        response = await talker.ask(10, FETCH(groups=[FETCH.OffsetFetchRequestGroup(group_id="g", topics=topics)]))
        known, unknown = response.groups[0].topics
        assert (known.topic_id, known.partitions[0].committed_offset) == (topic_id, 5)
        assert (unknown.topic_id, unknown.partitions[0].error_code) == (b"?" * 16, ErrorCode.UNKNOWN_TOPIC_ID)
        everything = await talker.ask(10, FETCH(groups=[FETCH.OffsetFetchRequestGroup(group_id="g", topics=None)]))
        assert [topic.topic_id for topic in everything.groups[0].topics] == [topic_id]
        assert await committed(talker, [0]) == {0: 5}, "by name it is the same"

    on_broker(script)


def test_all_offsets_of_many_groups_are_fetched_in_one_request() -> None:
    async def script(scene: Scene) -> None:
        talker = await _ready(scene)
        for number in range(3):
            await commit(talker, {0: number, 1: number}, f"group-{number}")
        groups = [FETCH.OffsetFetchRequestGroup(group_id=f"group-{number}", topics=None) for number in range(4)]
        response = await talker.ask(8, FETCH(groups=groups))
        fetched = {
            group.group_id: {
                each.partition_index: each.committed_offset for topic in group.topics for each in topic.partitions
            }
            for group in response.groups
        }
        assert fetched == {"group-0": {0: 0, 1: 0}, "group-1": {0: 1, 1: 1}, "group-2": {0: 2, 1: 2}, "group-3": {}}
        old = await talker.ask(2, FETCH(group_id="group-1", topics=None))
        assert [each.committed_offset for each in old.topics[0].partitions] == [1, 1]

    on_broker(script)


def test_partitions_of_a_commit_are_accepted_or_rejected_individually() -> None:
    async def script(scene: Scene) -> None:
        talker = await _ready(scene)
        request = messages.OffsetCommitRequest
        long = "x" * 5_000

        def partition(index: int, note: str | None = None) -> Any:
            return request.OffsetCommitRequestPartition(
                partition_index=index, committed_offset=1, committed_metadata=note
            )

        topics = [
            request.OffsetCommitRequestTopic(
                name=TOPIC, partitions=[partition(0), partition(99), partition(1, long), partition(-1)]
            ),
            request.OffsetCommitRequestTopic(name="missing", partitions=[partition(0)]),
        ]
        response = await talker.ask(8, request(group_id="g", topics=topics))
        codes = {topic.name: {p.partition_index: p.error_code for p in topic.partitions} for topic in response.topics}
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert codes == {
            TOPIC: {0: 0, 99: unknown, -1: unknown, 1: ErrorCode.OFFSET_METADATA_TOO_LARGE},
            "missing": {0: unknown},
        }
        assert await committed(talker, None) == {0: 1}
        nothing = await talker.ask(8, request(group_id="g", topics=[topics[1]]))
        assert nothing.topics[0].partitions[0].error_code == unknown

    on_broker(script)


def test_commit_requires_the_current_generation() -> None:
    async def script(scene: Scene) -> None:
        talker = await _ready(scene)
        assert await commit(talker, {0: 1}, generation_id_or_member_epoch=1, member_id="m") == [
            ErrorCode.ILLEGAL_GENERATION
        ]
        assert await commit(talker, {0: 1}, version=9, generation_id_or_member_epoch=1, member_id="m") == [
            ErrorCode.GROUP_ID_NOT_FOUND
        ]
        member = Member(await scene.connect())
        await member.settle(4)
        assert await member.commit({0: 4}) == [ErrorCode.NONE]
        assert await commit(talker, {0: 5}) == [ErrorCode.UNKNOWN_MEMBER_ID], "a group with members is theirs"
        member.generation -= 1
        assert await member.commit({0: 6}) == [ErrorCode.ILLEGAL_GENERATION]
        assert await committed(talker, [0]) == {0: 4}

    on_broker(script)


def test_offset_delete_rejects_subscribed_topics() -> None:
    async def script(scene: Scene) -> None:
        talker = await _ready(scene)
        await scene.create("idle", partitions=2)
        request = messages.OffsetDeleteRequest

        async def delete(group_id: str, topic: str, *indexes: int) -> tuple[ErrorCode, list[ErrorCode]]:
            partitions = [request.OffsetDeleteRequestPartition(partition_index=index) for index in indexes]
            topics = [request.OffsetDeleteRequestTopic(name=topic, partitions=partitions)]
            response = await talker.ask(0, request(group_id=group_id, topics=topics))
            codes = [ErrorCode(each.error_code) for found in response.topics for each in found.partitions]
            return ErrorCode(response.error_code), codes

        assert await delete("g", TOPIC, 0) == (ErrorCode.GROUP_ID_NOT_FOUND, [])
        assert await delete("", TOPIC, 0) == (ErrorCode.INVALID_GROUP_ID, [])
        member = Member(await scene.connect())
        await member.settle(4)
        await member.commit({0: 1})
        await member.commit({0: 1, 1: 1}, topic="idle")
        assert await delete("g", TOPIC, 0) == (ErrorCode.NONE, [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC])
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await delete("g", "idle", 0, 7) == (ErrorCode.NONE, [ErrorCode.NONE, unknown])
        assert await delete("g", "missing", 0) == (ErrorCode.NONE, [unknown])
        assert await committed(talker, None, topic="idle") == {1: 1}
        assert await committed(talker, [0]) == {0: 1}

    on_broker(script)


def test_recreated_topic_has_no_committed_offsets() -> None:
    async def script(scene: Scene) -> None:
        talker = await _ready(scene)
        await scene.create("stays")
        await commit(talker, {0: 5, 1: 6})
        await commit(talker, {0: 7}, topic="stays")
        response = await talker.ask(5, messages.DeleteTopicsRequest(topic_names=[TOPIC]))
        assert response.responses[0].error_code == 0
        await scene.create(TOPIC)
        await asyncio.sleep(1)
        assert await committed(talker, [0, 1]) == {0: -1, 1: -1}
        assert await committed(talker, [0], topic="stays") == {0: 7}
        assert await commit(talker, {0: 1}) == [ErrorCode.NONE]
        await scene.restart_after_crash()
        assert await committed(await scene.connect(), [0, 1]) == {0: 1, 1: -1}

    on_broker(script)


def test_offsets_expire_when_their_group_has_been_empty() -> None:
    async def script(scene: Scene) -> None:
        talker = await _ready(scene)
        member = Member(await scene.connect())
        await member.settle(4)
        await member.commit({0: 5})
        await commit(talker, {0: 5}, "without-members")
        for _ in range(15):  # minutes with a live member
            for _ in range(12):
                await asyncio.sleep(5)
                assert await member.heartbeat() is ErrorCode.NONE
        talker = await scene.connect()
        assert await committed(talker, [0]) == {0: 5}
        assert await committed(talker, [0], "without-members") == {0: -1}
        await member.leave()
        await asyncio.sleep(5 * MINUTE_S)
        talker = await scene.connect()
        assert await committed(talker, [0]) == {0: 5}
        await asyncio.sleep(10 * MINUTE_S)
        talker = await scene.connect()
        assert await committed(talker, [0]) == {0: -1}
        assert (await talker.ask(5, messages.ListGroupsRequest())).groups in ([], ())

    on_broker(script, settings=["offsets.retention.minutes=10", "offsets.retention.check.interval.ms=60000"])


def test_clients_may_not_write_to_or_extend_the_offsets_topic() -> None:
    async def script(scene: Scene) -> None:
        talker = await _ready(scene)
        response = await produce(talker, OFFSETS_TOPIC, batch(b"forged", key=b"\x00\x01"))
        assert response.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        grown = messages.CreatePartitionsRequest.CreatePartitionsTopic(name=OFFSETS_TOPIC, count=60, assignments=None)
        rejected = await talker.ask(3, messages.CreatePartitionsRequest(topics=[grown]))
        assert rejected.results[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert await commit(talker, {0: 1}) == [ErrorCode.NONE]

    on_broker(script)


def test_offsets_topic_is_created_with_the_configured_partitions() -> None:
    async def script(scene: Scene) -> None:
        talker = await scene.connect()
        requested = messages.MetadataRequest.MetadataRequestTopic(name=OFFSETS_TOPIC)
        await talker.ask(12, messages.MetadataRequest(topics=[requested], allow_auto_topic_creation=True))
        image = scene.node.broker.image
        topic = image.topics[OFFSETS_TOPIC]
        assert len(topic.partitions) == 5
        assert topic.partitions[0].replicas == (1,), "three were requested, and there is one broker"
        configs = image.topic_configs(OFFSETS_TOPIC)
        assert (configs["cleanup.policy"], configs["segment.bytes"]) == ("compact", str(50 << 20))
        assert (await find_coordinator(talker)).node_id == 1

    on_broker(script, settings=["offsets.topic.num.partitions=5", f"offsets.topic.segment.bytes={50 << 20}"])


@pytest.mark.parametrize("codec", range(5))
def test_offsets_survive_in_every_codec(codec: int) -> None:
    async def script(scene: Scene) -> None:
        talker = await _ready(scene)
        assert await commit(talker, dict.fromkeys(range(4), 11), metadata="note " * 20) == [ErrorCode.NONE] * 4
        partition = scene.node.broker.partitions.get(OFFSETS_TOPIC, partition_for("g", 50))
        assert partition.log.read_bytes(0, 1_000)[22] & 7 == codec
        await scene.restart_after_crash()
        assert await committed(await scene.connect(), [0]) == {0: 11}

    on_broker(script, settings=[f"offsets.topic.compression.codec={codec}"])


class SomeTopics(ScriptedAuthorizer):
    """Allows everything, except on topics whose names do not begin with `t`."""

    def is_allowed(self, client: Client, operation: Operation, resource: Resource) -> bool:  # noqa: ARG002
        return resource.kind is not ResourceKind.TOPIC or operation is Operation.CREATE or resource.name.startswith("t")


def test_offsets_of_unauthorized_topics_are_rejected_or_omitted() -> None:
    async def script(scene: Scene) -> None:
        talker = await _ready(scene)
        await scene.create("secret")
        assert await commit(talker, {0: 1}) == [ErrorCode.NONE]
        assert await commit(talker, {0: 1}, topic="secret") == [ErrorCode.TOPIC_AUTHORIZATION_FAILED]
        requested = [FETCH.OffsetFetchRequestTopics(name=name, partition_indexes=[0]) for name in (TOPIC, "secret")]
        response = await talker.ask(8, FETCH(groups=[FETCH.OffsetFetchRequestGroup(group_id="g", topics=requested)]))
        codes = {topic.name: topic.partitions[0].error_code for topic in response.groups[0].topics}
        assert codes == {TOPIC: 0, "secret": ErrorCode.TOPIC_AUTHORIZATION_FAILED}
        request = messages.OffsetDeleteRequest
        topic = request.OffsetDeleteRequestTopic(name="secret", partitions=[request.OffsetDeleteRequestPartition()])
        deleted = await talker.ask(0, request(group_id="g", topics=[topic]))
        assert deleted.topics[0].partitions[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED

    on_broker(script, authorizer=SomeTopics())
