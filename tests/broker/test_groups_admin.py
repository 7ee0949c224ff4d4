"""Group administration: list, describe, delete."""

import asyncio

import pytest
from broker_scene import Scene, ScriptedAuthorizer, Talker, on_broker
from group_members import SESSION_MS, TOPIC, Member, commit, committed, find_coordinator, members, settle

from moldau.broker.access import GROUP_OPERATIONS, Client, Operation, Resource, ResourceKind
from moldau.model.errors import ErrorCode
from moldau.wire import messages


async def _ready(scene: Scene) -> Talker:
    await scene.create(TOPIC, partitions=4)
    talker = await scene.connect()
    await find_coordinator(talker)
    return talker


async def _listed(talker: Talker, states: list[str] | None = None, types: list[str] | None = None) -> dict[str, str]:
    request = messages.ListGroupsRequest(states_filter=states or [], types_filter=types or [])
    response = await talker.ask(5, request)
    assert response.error_code == 0
    return {group.group_id: group.group_state for group in response.groups}


def test_coordinator_is_found_for_one_key_or_many() -> None:
    async def script(scene: Scene) -> None:
        talker = await scene.connect()
        for version in range(4):
            response = await find_coordinator(talker, version=version)
            assert (response.error_code, response.node_id, response.host, response.port) == (0, 1, "broker", 9092)
        for version in (4, 5, 6):
            many = await talker.ask(version, messages.FindCoordinatorRequest(coordinator_keys=["g", "h"]))
            assert [(each.key, each.node_id, each.error_code) for each in many.coordinators] == [
                ("g", 1, 0),
                ("h", 1, 0),
            ]
        response = await talker.ask(4, messages.FindCoordinatorRequest(key_type=9, coordinator_keys=["g"]))
        assert response.coordinators[0].error_code == ErrorCode.INVALID_REQUEST
        response = await talker.ask(4, messages.FindCoordinatorRequest(key_type=1, coordinator_keys=["t"]))
        assert (response.coordinators[0].error_code, response.coordinators[0].node_id) == (0, 1)

    on_broker(script)


def test_groups_are_unavailable_without_an_offsets_topic() -> None:
    async def script(scene: Scene) -> None:
        talker = await scene.connect()
        assert await _listed(talker) == {}
        member = Member(talker)
        assert await member.heartbeat() is ErrorCode.NOT_COORDINATOR
        assert (await member.join()).error_code == ErrorCode.NOT_COORDINATOR
        assert scene.node.broker.image.topics == {}

    on_broker(script)


def test_groups_are_listed_by_state_and_type() -> None:
    async def script(scene: Scene) -> None:
        talker = await _ready(scene)
        await settle(await members(scene, 2, "stable"), 4)
        await commit(talker, {0: 1}, "empty")
        assert await _listed(talker) == {"stable": "Stable", "empty": "Empty"}
        assert await _listed(talker, states=["stable"]) == {"stable": "Stable"}
        assert await _listed(talker, states=["Empty", "Dead"]) == {"empty": "Empty"}
        assert set(await _listed(talker, types=["classic"])) == {"stable", "empty"}
        assert await _listed(talker, types=["consumer"]) == {}
        for version in range(5):
            response = await talker.ask(version, messages.ListGroupsRequest())
            assert {group.group_id: group.protocol_type for group in response.groups} == {
                "stable": "consumer",
                "empty": "",
            }

    on_broker(script)


@pytest.mark.parametrize("version", range(7))
def test_group_is_described_with_its_members(version: int) -> None:
    async def script(scene: Scene) -> None:
        talker = await _ready(scene)
        member = Member(await scene.connect(), instance_id="kitchen")
        await member.settle(4)
        request = messages.DescribeGroupsRequest(groups=["g", "missing"], include_authorized_operations=version >= 3)
        known, missing = (await talker.ask(version, request)).groups
        assert (known.group_id, known.group_state, known.protocol_type, known.protocol_data) == (
            "g",
            "Stable",
            "consumer",
            "range",
        )
        (described,) = known.members
        assert (described.member_id, described.client_id, described.client_host) == (
            member.member_id,
            "scene",
            "/client",
        )
        assert described.group_instance_id == ("kitchen" if version >= 4 else None)
        assert described.member_metadata
        assert described.member_assignment
        if version >= 3:
            assert known.authorized_operations == sum(1 << each.value for each in GROUP_OPERATIONS)
        assert missing.group_state == "Dead"
        assert missing.error_code == (ErrorCode.GROUP_ID_NOT_FOUND if version >= 6 else ErrorCode.NONE)

    on_broker(script)


@pytest.mark.parametrize("version", range(3))
def test_delete_groups_deletes_only_empty_groups_with_their_offsets(version: int) -> None:
    async def script(scene: Scene) -> None:
        talker = await _ready(scene)
        await commit(talker, {0: 1}, "empty")
        member = Member(await scene.connect())
        await member.settle(4)
        request = messages.DeleteGroupsRequest(groups_names=["empty", "g", "missing", "", "empty"])
        response = await talker.ask(version, request)
        assert {each.group_id: each.error_code for each in response.results} == {
            "empty": ErrorCode.NONE,
            "g": ErrorCode.NON_EMPTY_GROUP,
            "missing": ErrorCode.GROUP_ID_NOT_FOUND,
            "": ErrorCode.INVALID_GROUP_ID,
        }
        assert await committed(talker, [0], "empty") == {0: -1}
        await member.leave()
        response = await talker.ask(version, messages.DeleteGroupsRequest(groups_names=["g"]))
        assert response.results[0].error_code == ErrorCode.NONE
        assert await _listed(talker) == {}
        await scene.restart_after_crash()
        talker = await scene.connect()
        assert await committed(talker, [0], "empty") == {0: -1}
        assert await _listed(talker) == {}

    on_broker(script)


class OwnGroups(ScriptedAuthorizer):
    """Allows everything on groups whose names begin with `my`."""

    def is_allowed(self, client: Client, operation: Operation, resource: Resource) -> bool:  # noqa: ARG002
        if resource.kind is ResourceKind.CLUSTER:
            return operation is Operation.CREATE
        return resource.kind is not ResourceKind.GROUP or resource.name.startswith("my")


def test_unauthorized_groups_are_not_listed() -> None:
    async def script(scene: Scene) -> None:
        await scene.create(TOPIC)
        talker = await scene.connect()
        await find_coordinator(talker, "my-group")
        await commit(talker, {0: 1}, "my-group")
        assert await commit(talker, {0: 1}, "yours") == [ErrorCode.GROUP_AUTHORIZATION_FAILED]
        assert set(await _listed(talker)) == {"my-group"}
        described = await talker.ask(5, messages.DescribeGroupsRequest(groups=["my-group", "yours"]))
        assert [group.error_code for group in described.groups] == [0, ErrorCode.GROUP_AUTHORIZATION_FAILED]
        deleted = await talker.ask(2, messages.DeleteGroupsRequest(groups_names=["yours", "my-group"]))
        assert [each.error_code for each in deleted.results] == [ErrorCode.GROUP_AUTHORIZATION_FAILED, 0]
        many = await talker.ask(4, messages.FindCoordinatorRequest(coordinator_keys=["yours", "my-group"]))
        assert [each.error_code for each in many.coordinators] == [ErrorCode.GROUP_AUTHORIZATION_FAILED, 0]

    on_broker(script, authorizer=OwnGroups())


def test_session_timeout_is_the_requested_one() -> None:
    async def script(scene: Scene) -> None:
        talker = await _ready(scene)
        member = Member(await scene.connect())
        await member.settle(4)
        assert SESSION_MS == 10_000
        assert await _listed(talker) == {"g": "Stable"}
        await asyncio.sleep(9.5)
        assert await _listed(await scene.connect()) == {"g": "Stable"}
        await asyncio.sleep(1)
        assert await _listed(await scene.connect()) == {"g": "Empty"}

    on_broker(script)
