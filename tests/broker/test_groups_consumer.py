"""Consumer groups (KIP-848) over the wire."""

import asyncio
from typing import Any

import pytest
from broker_scene import Scene, ScriptedAuthorizer, Talker, on_broker
from group_members import Member as ClassicMember
from group_members import commit, committed, find_coordinator

from moldau.broker.access import Client, Operation, Resource, ResourceKind
from moldau.model.errors import ErrorCode
from moldau.wire import messages

HEARTBEAT = messages.ConsumerGroupHeartbeatRequest
TOPIC = "t"
JOINING, LEAVING = 0, -1


class Consumer:
    """A member of a consumer group, with its own connection; it revokes partitions at once."""

    def __init__(self, talker: Talker, member_id: str, group_id: str = "g", **described: Any) -> None:
        self.talker = talker
        self.member_id = member_id
        self.group_id = group_id
        self.epoch = JOINING
        self.owned: dict[bytes, list[int]] = {}
        self.described = {"subscribed_topic_names": [TOPIC], "rebalance_timeout_ms": 60_000, **described}
        self.last: Any = None

    async def beat(self, **fields: Any) -> ErrorCode:
        """Send one heartbeat; a joining one describes the member."""
        if self.epoch == JOINING:
            fields = {**self.described, "topic_partitions": [], **fields}
        request = HEARTBEAT(
            group_id=self.group_id,
            member_id=self.member_id,
            member_epoch=self.epoch,
            **{"topic_partitions": None, **fields},
        )
        response = self.last = await self.talker.ask(1, request)
        if response.error_code == 0:
            self.epoch = response.member_epoch
            if response.assignment is not None:
                self.owned = {each.topic_id: list(each.partitions) for each in response.assignment.topic_partitions}
        return ErrorCode(response.error_code)

    async def acknowledge(self) -> ErrorCode:
        """Report the owned partitions in a heartbeat."""
        owned = [HEARTBEAT.TopicPartitions(topic_id=topic_id, partitions=each) for topic_id, each in self.owned.items()]
        return await self.beat(topic_partitions=owned)

    def partitions(self) -> list[int]:
        return sorted(index for indexes in self.owned.values() for index in indexes)


async def _consumers(scene: Scene, *names: str, **described: Any) -> list[Consumer]:
    return [Consumer(await scene.connect(), name, **described) for name in names]


async def _settle(group: list[Consumer], rounds: int = 6) -> None:
    """Send heartbeats and acknowledgements until the assignment is stable."""
    for _ in range(rounds):
        for consumer in group:
            assert (
                await consumer.acknowledge() is ErrorCode.NONE
                if consumer.epoch
                else await consumer.beat() is ErrorCode.NONE
            )


async def _ready(scene: Scene, partitions: int = 4) -> Talker:
    await scene.create(TOPIC, partitions=partitions)
    talker = await scene.connect()
    await find_coordinator(talker)
    return talker


async def _describe(talker: Talker, group_id: str = "g") -> Any:
    response = await talker.ask(1, messages.ConsumerGroupDescribeRequest(group_ids=[group_id]))
    return response.groups[0]


@pytest.mark.proves("C2")
def test_partitions_are_assigned_once_and_rebalanced_to_a_new_member() -> None:
    async def script(scene: Scene) -> None:
        talker = await _ready(scene)
        (first,) = await _consumers(scene, "first")
        await _settle([first], 2)
        assert first.partitions() == [0, 1, 2, 3]
        (second,) = await _consumers(scene, "second")
        await _settle([second, first])
        assert sorted(first.partitions() + second.partitions()) == [0, 1, 2, 3]
        assert len(first.partitions()) == 2
        group = await _describe(talker)
        assert (group.group_state, len(group.members)) == ("Stable", 2)
        listed = (await talker.ask(5, messages.ListGroupsRequest(types_filter=["consumer"]))).groups
        assert [(each.group_id, each.group_type, each.protocol_type) for each in listed] == [
            ("g", "consumer", "consumer")
        ]

    on_broker(script)


@pytest.mark.proves("C5")
def test_new_partitions_are_assigned() -> None:
    async def script(scene: Scene) -> None:
        talker = await _ready(scene, partitions=2)
        group = await _consumers(scene, "first", "second")
        await _settle(group)
        grown = messages.CreatePartitionsRequest.CreatePartitionsTopic(name=TOPIC, count=5, assignments=None)
        response = await talker.ask(3, messages.CreatePartitionsRequest(topics=[grown]))
        assert response.results[0].error_code == 0
        await _settle(group)
        assert sorted(group[0].partitions() + group[1].partitions()) == [0, 1, 2, 3, 4]

    on_broker(script)


@pytest.mark.proves("C5")
def test_regex_subscription_matches_topics_created_later() -> None:
    async def script(scene: Scene) -> None:
        await _ready(scene)
        (consumer,) = await _consumers(scene, "first", subscribed_topic_regex="t|later-.*", subscribed_topic_names=None)
        await _settle([consumer], 2)
        assert consumer.partitions() == [0, 1, 2, 3]
        await scene.create("later-1", partitions=2)
        await scene.create("never", partitions=2)
        for _ in range(5):
            await asyncio.sleep(5)
            await _settle([consumer], 2)
        assert consumer.partitions() == [0, 0, 1, 1, 2, 3]

    on_broker(script)


def test_invalid_regex_is_rejected_and_an_expensive_one_is_bounded() -> None:
    async def script(scene: Scene) -> None:
        await _ready(scene)
        await scene.create("a" * 100)
        (consumer,) = await _consumers(scene, "first", subscribed_topic_names=None)
        assert await consumer.beat(subscribed_topic_regex="(") is ErrorCode.INVALID_REGULAR_EXPRESSION
        assert "missing )" in consumer.last.error_message
        assert await consumer.beat(subscribed_topic_regex="(?=a)") is ErrorCode.INVALID_REGULAR_EXPRESSION
        assert await consumer.beat(subscribed_topic_regex="(a*)*b") is ErrorCode.NONE
        assert consumer.partitions() == []

    on_broker(script)


def test_members_are_removed_when_they_leave_or_expire() -> None:
    async def script(scene: Scene) -> None:
        talker = await _ready(scene)
        first, second, third = group = await _consumers(scene, "first", "second", "third")
        await _settle(group)
        third.epoch = LEAVING
        assert await third.beat() is ErrorCode.NONE
        await _settle([first, second])
        assert sorted(first.partitions() + second.partitions()) == [0, 1, 2, 3]
        for _ in range(12):
            await asyncio.sleep(5)
            await _settle([first], 1)
        await _settle([first])
        assert first.partitions() == [0, 1, 2, 3]
        assert await second.beat() is ErrorCode.UNKNOWN_MEMBER_ID
        assert len((await _describe(await scene.connect())).members) == 1
        assert talker

    on_broker(script)


@pytest.mark.proves("C5")
def test_static_member_rejoins_with_its_assignment() -> None:
    async def script(scene: Scene) -> None:
        await _ready(scene)
        other, old = await _consumers(scene, "other", "old")
        old.described["instance_id"] = "kitchen"
        await _settle([other, old])
        had = old.partitions()
        old.epoch = -2
        assert await old.beat(instance_id="kitchen") is ErrorCode.NONE
        (new,) = await _consumers(scene, "new", instance_id="kitchen")
        assert await new.beat() is ErrorCode.NONE
        assert new.partitions() == had
        assert other.epoch == new.epoch

    on_broker(script)


@pytest.mark.proves("C3")
def test_group_survives_a_broker_restart() -> None:
    async def script(scene: Scene) -> None:
        await _ready(scene)
        group = await _consumers(scene, "first", "second")
        await _settle(group)
        before = [(each.epoch, each.partitions()) for each in group]
        member: dict[str, Any] = {"generation_id_or_member_epoch": group[0].epoch, "member_id": "first"}
        assert await commit(group[0].talker, {0: 9}, version=9, **member) == [ErrorCode.NONE]
        await scene.restart_after_crash()
        assert await committed(await scene.connect(), [0]) == {0: 9}
        for consumer in group:
            consumer.talker = await scene.connect()
            assert await consumer.acknowledge() is ErrorCode.NONE
        assert [(each.epoch, each.partitions()) for each in group] == before

    on_broker(script)


@pytest.mark.parametrize("version", [9, 10])
def test_older_member_epoch_commits_only_partitions_owned_since(version: int) -> None:
    async def script(scene: Scene) -> None:
        await _ready(scene)
        first, second = await _consumers(scene, "first", "second")
        await _settle([first])
        old_epoch = first.epoch
        await _settle([first, second])
        (topic_id,) = first.owned
        assert first.epoch > old_epoch

        async def committed_in(epoch: int, index: int) -> ErrorCode:
            member: dict[str, Any] = {"generation_id_or_member_epoch": epoch, "member_id": "first"}
            (code,) = await commit(first.talker, {index: 1}, version=version, topic_id=topic_id, **member)
            return code

        assert await committed_in(old_epoch, first.partitions()[0]) is ErrorCode.NONE
        assert await committed_in(old_epoch, second.partitions()[0]) is ErrorCode.STALE_MEMBER_EPOCH
        assert await committed_in(old_epoch - 1, first.partitions()[0]) is ErrorCode.STALE_MEMBER_EPOCH

    on_broker(script)


def test_stale_members_get_kafkas_error_codes() -> None:
    async def script(scene: Scene) -> None:
        await _ready(scene)
        member, other = await _consumers(scene, "member", "other")
        other.epoch = 5
        assert await other.beat() is ErrorCode.GROUP_ID_NOT_FOUND
        assert await member.beat() is ErrorCode.NONE
        assert await other.beat() is ErrorCode.UNKNOWN_MEMBER_ID
        member.epoch += 7
        assert await member.beat() is ErrorCode.FENCED_MEMBER_EPOCH
        other.epoch, other.group_id = JOINING, ""
        assert await other.beat() is ErrorCode.INVALID_REQUEST
        other.group_id = "g"
        assert await other.beat(server_assignor="magic") is ErrorCode.UNSUPPORTED_ASSIGNOR
        missing = await _describe(other.talker, "missing")
        assert missing.error_code == ErrorCode.GROUP_ID_NOT_FOUND

    on_broker(script)


def test_classic_and_consumer_members_share_a_group() -> None:
    async def script(scene: Scene) -> None:
        talker = await _ready(scene)
        classic = ClassicMember(await scene.connect())
        await classic.settle(4)
        (consumer,) = await _consumers(scene, "consumer")
        assert await consumer.beat() is ErrorCode.NONE
        while await classic.heartbeat() is ErrorCode.NONE:
            await consumer.acknowledge()
        for _ in range(3):
            await classic.join()
            assert (await classic.sync()).error_code == 0
            await _settle([consumer], 2)
            await classic.heartbeat()
        assert sorted(classic.partitions.get(TOPIC, []) + consumer.partitions()) == [0, 1, 2, 3]
        assert len((await _describe(talker)).members) == 2

    on_broker(script)


async def _alter(talker: Talker, group_id: str, **configs: str) -> ErrorCode:
    request = messages.IncrementalAlterConfigsRequest
    changes = [request.AlterableConfig(name=name.replace("_", "."), value=value) for name, value in configs.items()]
    resource = request.AlterConfigsResource(resource_type=32, resource_name=group_id, configs=changes)
    return ErrorCode((await talker.ask(1, request(resources=[resource]))).responses[0].error_code)


def test_group_configs_set_heartbeat_and_session_timeouts() -> None:
    async def script(scene: Scene) -> None:
        talker = await _ready(scene)
        (consumer,) = await _consumers(scene, "first")
        assert await _alter(talker, "g", consumer_heartbeat_interval_ms="12000") is ErrorCode.NONE
        assert await _alter(talker, "g", consumer_session_timeout_ms="50000") is ErrorCode.NONE
        assert await _alter(talker, "g", consumer_session_timeout_ms="soon") is ErrorCode.INVALID_CONFIG
        assert await _alter(talker, "g", consumer_naps="1") is ErrorCode.INVALID_CONFIG
        assert await _alter(talker, "", consumer_session_timeout_ms="1") is ErrorCode.INVALID_REQUEST
        await _settle([consumer], 2)
        await asyncio.sleep(20)
        await _settle([consumer], 1)
        assert consumer.last.heartbeat_interval_ms == 12_000
        requested = messages.DescribeConfigsRequest.DescribeConfigsResource(resource_type=32, resource_name="g")
        response = await talker.ask(4, messages.DescribeConfigsRequest(resources=[requested]))
        configs = {each.name: (each.value, each.config_source) for each in response.results[0].configs}
        assert configs["consumer.heartbeat.interval.ms"] == ("12000", 8)
        assert configs["consumer.session.timeout.ms"] == ("50000", 8)
        assert configs["share.auto.offset.reset"][1] == 5

    on_broker(script)


class SomeTopics(ScriptedAuthorizer):
    """Allows everything except on secret topics."""

    def is_allowed(self, client: Client, operation: Operation, resource: Resource) -> bool:  # noqa: ARG002
        hides = resource.kind is ResourceKind.TOPIC and resource.name.startswith("secret")
        return not hides or operation is Operation.CREATE


def test_unauthorized_topics_are_not_assigned() -> None:
    async def script(scene: Scene) -> None:
        await _ready(scene)
        await scene.create("secret", partitions=3)
        (consumer,) = await _consumers(scene, "first", subscribed_topic_names=[TOPIC, "secret"])
        assert await consumer.beat() is ErrorCode.TOPIC_AUTHORIZATION_FAILED
        by_pattern = {"subscribed_topic_regex": ".*et|t", "subscribed_topic_names": None}
        assert await consumer.beat(**by_pattern) is ErrorCode.NONE
        await _settle([consumer], 2)
        assert consumer.partitions() == [0, 1, 2, 3]

    on_broker(script, authorizer=SomeTopics())
