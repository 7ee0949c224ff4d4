"""Fast paths with an authorizer: used while a request is allowed, and left at once after a change."""

from typing import Any

import pytest
from broker_scene import Scene, ScriptedAuthorizer, batch, on_broker, produce_request
from cluster_scene import Cluster
from group_members import TOPIC, Member, find_coordinator, members, settle
from test_follower_fetch_fast_path import LEADER, Follower, recorded_paths, with_follower

from moldau.broker.access import CLUSTER, Client, Operation, Resource, ResourceKind
from moldau.broker.fastpath.follower_fetch import FollowerFetchFastPath
from moldau.broker.fastpath.heartbeat import HeartbeatFastPath
from moldau.broker.fastpath.produce import ProduceFastPath
from moldau.model.errors import ErrorCode
from moldau.wire.messages import HeartbeatRequest


class ChangingAuthorizer(ScriptedAuthorizer):
    """Allows everything but the denied resources; a change starts a new generation."""

    def __init__(self) -> None:
        self.generation = 0
        self.checked: list[tuple[Operation, Resource]] = []
        self._denied: set[Resource] = set()

    def deny(self, *resources: Resource) -> None:
        self._denied = set(resources)
        self.generation += 1

    def is_allowed(self, client: Client, operation: Operation, resource: Resource) -> bool:  # noqa: ARG002
        self.checked.append((operation, resource))
        return resource not in self._denied


@pytest.fixture
def handled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the name of a fast path for each request that it handled."""
    names: list[str] = []

    def record(cls: Any) -> None:
        original = cls.try_handle

        def try_handle(fast_path: Any, frame: memoryview) -> bool:
            is_handled: bool = original(fast_path, frame)
            names.extend([cls.__name__] * is_handled)
            return is_handled

        monkeypatch.setattr(cls, "try_handle", try_handle)

    for cls in (ProduceFastPath, HeartbeatFastPath, FollowerFetchFastPath):
        record(cls)
    return names


def topic(name: str) -> Resource:
    return Resource(ResourceKind.TOPIC, name)


@pytest.mark.proves("P1", part="acks=1 and all")
@pytest.mark.parametrize("version", [5, 9])
def test_produce_fast_path_follows_the_authorizer(version: int, handled: list[str]) -> None:
    authorizer = ChangingAuthorizer()

    async def script(scene: Scene) -> None:
        await scene.create("t")
        talker = await scene.connect()

        async def sent() -> Any:
            response = await talker.ask(version, produce_request("t", batch(b"v")))
            return response.responses[0].partition_responses[0].error_code

        assert [await sent() for _ in range(4)] == [ErrorCode.NONE] * 4
        assert len(handled) == 3
        checks = len(authorizer.checked)
        assert await sent() == ErrorCode.NONE
        assert len(authorizer.checked) == checks, "one decision for all repetitions"
        authorizer.deny(topic("t"))
        assert [await sent() for _ in range(3)] == [ErrorCode.TOPIC_AUTHORIZATION_FAILED] * 3
        assert len(handled) == 4
        authorizer.deny(topic("another"))
        assert [await sent() for _ in range(3)] == [ErrorCode.NONE] * 3
        assert len(handled) == 6
        assert scene.node.broker.partitions.get("t", 0).log.end_offset == 8

    on_broker(script, authorizer=authorizer)


def test_produce_fast_path_serves_only_the_allowed_topic(handled: list[str]) -> None:
    authorizer = ChangingAuthorizer()
    authorizer.deny(topic("b"))

    async def script(scene: Scene) -> None:
        talker = await scene.connect()
        for name in ("a", "b"):
            await scene.create(name)
        codes = []
        for _ in range(3):
            for name in ("a", "b"):
                response = await talker.ask(9, produce_request(name, batch(b"v")))
                codes.append(response.responses[0].partition_responses[0].error_code)
        assert codes == [ErrorCode.NONE, ErrorCode.TOPIC_AUTHORIZATION_FAILED] * 3
        assert len(handled) == 2

    on_broker(script, authorizer=authorizer)


def test_heartbeat_fast_path_follows_the_authorizer(handled: list[str]) -> None:
    authorizer = ChangingAuthorizer()

    async def script(scene: Scene) -> None:
        await scene.create(TOPIC, partitions=2)
        await find_coordinator(await scene.connect())
        (member,) = await members(scene, 1)
        await settle([member], partitions=2)
        handled.clear()

        async def beat(of: Member) -> int:
            request = HeartbeatRequest(group_id=of.group_id, generation_id=of.generation, member_id=of.member_id)
            code: int = (await of.talker.ask(4, request)).error_code
            return code

        assert [await beat(member) for _ in range(4)] == [ErrorCode.NONE] * 4
        assert handled == ["HeartbeatFastPath"] * 3
        authorizer.deny(Resource(ResourceKind.GROUP, member.group_id))
        assert [await beat(member) for _ in range(2)] == [ErrorCode.GROUP_AUTHORIZATION_FAILED] * 2
        authorizer.deny()
        assert [await beat(member) for _ in range(3)] == [ErrorCode.NONE] * 3
        assert handled == ["HeartbeatFastPath"] * 5

    on_broker(script, authorizer=authorizer)


@pytest.mark.proves("H1", part="the high watermark")
def test_follower_fetch_fast_path_follows_the_authorizer(monkeypatch: pytest.MonkeyPatch) -> None:
    authorizer = ChangingAuthorizer()

    async def script(cluster: Cluster, follower: Follower) -> None:
        broker = cluster.nodes[LEADER].broker
        monkeypatch.setattr(broker, "authorizer", authorizer)
        monkeypatch.setattr(broker, "allows_all", False)
        with recorded_paths(monkeypatch) as paths:
            await follower.join()
            for _ in range(3):
                assert (await follower.begin(0, wait_ms=1)).error_code == ErrorCode.NONE
            assert paths == ["handler", "fast path", "fast path", "fast path"]
            paths.clear()
            authorizer.deny(topic("unrelated"))
            for _ in range(2):
                assert (await follower.begin(0, wait_ms=1)).error_code == ErrorCode.NONE
            assert paths == ["handler", "fast path"]
            paths.clear()
            authorizer.deny(CLUSTER)
            (denied,) = (await follower.begin(0, wait_ms=1)).responses
            assert [each.error_code for each in denied.partitions] == [ErrorCode.TOPIC_AUTHORIZATION_FAILED]
            assert paths == ["handler"]

    with_follower(script, min_insync_replicas=1)
