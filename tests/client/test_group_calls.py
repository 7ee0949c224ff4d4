"""Group administration against scripted brokers that are loading or unavailable."""

from typing import Any

import pytest
from scripted_cluster import Script, World

from moldau.client.async_client import AsyncClient
from moldau.client.coordinators import GROUP_KEY, Coordinator, single_error_code
from moldau.client.errors import ConnectionLost, ResponseTimeout
from moldau.client.groups import Groups
from moldau.client.metadata import BrokerView
from moldau.model.errors import ErrorCode, GroupAuthorizationFailed, GroupIdNotFound
from moldau.model.ids import Address, NodeId, TopicPartition
from moldau.wire import messages

pytestmark = pytest.mark.proves("O3")


def listed(*groups: str, code: int = 0) -> Any:
    response = messages.ListGroupsResponse
    return response(error_code=code, groups=[response.ListedGroup(group_id=each) for each in groups])


def fetched(offset: int) -> Any:
    response = messages.OffsetFetchResponse
    part = response.OffsetFetchResponsePartition(partition_index=0, committed_offset=offset)
    return response(topics=[response.OffsetFetchResponseTopic(name="t", partitions=[part])])


def in_turn(*responses: Any) -> Any:
    """The last one again and again; an exception ends the connection."""
    left = list(responses)

    def response(_: Any) -> Any:
        said = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(said, Exception):
            raise said
        return said

    return response


@pytest.mark.parametrize(
    "trouble", [listed(code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS), ConnectionResetError("it just stopped")]
)
def test_list_groups_is_retried_while_a_broker_is_loading(trouble: Any) -> None:
    script = Script()
    script.on(1, "ListGroups", in_turn(listed("a")))
    script.on(2, "ListGroups", in_turn(trouble, listed("b")))
    found = World(script).run(lambda client: Groups(client).all())
    assert [each.group for each in found] == ["a", "b"]


@pytest.mark.proves("A4", part="groups")
def test_list_reachable_returns_failures_beside_groups() -> None:
    script = Script(brokers=3)
    script.on(1, "ListGroups", in_turn(listed("a")))
    script.on(2, "ListGroups", lambda _: None)
    script.on(3, "ListGroups", in_turn(ConnectionResetError("it just stopped")))
    world = World(script)
    began_ms = world.loop.now_ms()
    found, silent = world.run(lambda client: Groups(client).list_reachable(15_000))
    assert [each.group for each in found] == ["a"]
    assert {node: type(error) for node, error in silent.items()} == {2: ResponseTimeout, 3: ConnectionLost}
    assert world.loop.now_ms() - began_ms == pytest.approx(15_000, abs=1_500)


@pytest.mark.proves("A4", part="groups")
def test_list_of_all_groups_fails_when_a_broker_does_not_respond() -> None:
    script = Script()
    script.on(1, "ListGroups", in_turn(listed("a")))
    script.on(2, "ListGroups", lambda _: None)
    with pytest.raises(ResponseTimeout, match="ListGroups"):
        World(script).run(lambda client: Groups(client).all())


@pytest.mark.proves("A4", part="groups")
def test_non_retriable_error_of_one_broker_is_raised() -> None:
    script = Script()
    script.on(1, "ListGroups", lambda _: None)
    script.on(2, "ListGroups", in_turn(listed(code=ErrorCode.GROUP_AUTHORIZATION_FAILED)))
    with pytest.raises(GroupAuthorizationFailed):
        World(script).run(lambda client: Groups(client).list_reachable(15_000))


def test_offsets_are_fetched_from_the_current_coordinator() -> None:
    script = Script()
    found = [messages.FindCoordinatorResponse(node_id=node, host=f"b{node}", port=9092) for node in (1, 2)]
    finding = in_turn(*found)
    for node in (1, 2):
        script.on(node, "FindCoordinator", finding)
    script.on(1, "OffsetFetch", in_turn(messages.OffsetFetchResponse(error_code=ErrorCode.NOT_COORDINATOR)))
    loading = messages.OffsetFetchResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    script.on(2, "OffsetFetch", in_turn(loading, fetched(17)))
    assert World(script).run(lambda client: Groups(client).offsets("g")) == {TopicPartition("t", 0): 17}
    assert [script.requested[node, "OffsetFetch"] for node in (1, 2)] == [1, 2]


def test_non_retriable_coordinator_error_is_raised_at_once() -> None:
    script = Script()
    for node in (1, 2):
        script.on(node, "ListGroups", in_turn(listed(code=ErrorCode.GROUP_AUTHORIZATION_FAILED)))
    with pytest.raises(GroupAuthorizationFailed):
        World(script).run(lambda client: Groups(client).all())
    assert script.requested[1, "ListGroups"] == 1


def test_broker_with_a_changed_address_is_found() -> None:
    script = Script()
    script.on(1, "FindCoordinator", in_turn(messages.FindCoordinatorResponse(node_id=2, host="b2", port=9092)))
    script.on(2, "OffsetFetch", in_turn(fetched(17)))

    async def ask(client: AsyncClient) -> Any:
        await client.refresh([])
        client.metadata.brokers[NodeId(2)] = BrokerView(NodeId(2), Address("nowhere", 9092))  # before it moved
        request = messages.OffsetFetchRequest(group_id="g", topics=None)
        response = await Coordinator(client, "g", GROUP_KEY).send(request, single_error_code, version_at_most=7)
        return response.topics[0].partitions[0].committed_offset

    assert World(script).run(ask) == 17


# The coordinator is not ready yet, or was another one


def coordinated(script: Script) -> Script:
    """By broker 2."""
    found = messages.FindCoordinatorResponse(node_id=2, host="b2", port=9092)
    for node in (1, 2):
        script.on(node, "FindCoordinator", lambda _: found)
    return script


TROUBLES = [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR]
PLACE = TopicPartition("t", 0)


def committed(code: int) -> Any:
    response = messages.OffsetCommitResponse
    part = response.OffsetCommitResponsePartition(partition_index=0, error_code=code)
    return response(topics=[response.OffsetCommitResponseTopic(name="t", partitions=[part])])


def described(code: int) -> Any:
    response = messages.DescribeGroupsResponse
    return response(groups=[response.DescribedGroup(group_id="g", group_state="Empty", error_code=code)])


def deleted(code: int) -> Any:
    response = messages.DeleteGroupsResponse
    return response(results=[response.DeletableGroupResult(group_id="g", error_code=code)])


def offsets_deleted(code: int) -> Any:
    return messages.OffsetDeleteResponse(error_code=code)


@pytest.mark.parametrize("code", TROUBLES)
@pytest.mark.parametrize(
    ("api", "response", "call"),
    [
        ("OffsetCommit", committed, lambda groups: groups.commit("g", {PLACE: 5})),
        ("DescribeGroups", described, lambda groups: groups.describe("g")),
        ("DeleteGroups", deleted, lambda groups: groups.delete("g")),
        ("OffsetDelete", offsets_deleted, lambda groups: groups.delete_offsets("g", [PLACE])),
    ],
)
@pytest.mark.proves("A4", part="groups")
def test_coordinator_request_is_retried_while_loading(api: str, response: Any, call: Any, code: ErrorCode) -> None:
    script = coordinated(Script())
    script.on(2, api, in_turn(response(code), response(0)))
    World(script).run(lambda client: call(Groups(client)))
    assert script.requested[2, api] == 2


@pytest.mark.proves("A4", part="groups")
def test_delete_group_is_not_retried_after_a_lost_response() -> None:
    script = coordinated(Script())
    script.on(
        2, "DeleteGroups", in_turn(ConnectionResetError("it just stopped"), deleted(ErrorCode.GROUP_ID_NOT_FOUND))
    )
    with pytest.raises(ConnectionLost):
        World(script).run(lambda client: Groups(client).delete("g"))
    assert script.requested[2, "DeleteGroups"] == 1


def test_consumer_group_is_described_once_its_coordinator_has_loaded() -> None:
    script = coordinated(Script())
    newer = messages.ConsumerGroupDescribeResponse

    def group_with(code: int) -> Any:
        group = newer.DescribedGroup(group_id="g", group_state="Stable", assignor_name="uniform", error_code=code)
        return newer(groups=[group])

    script.on(2, "DescribeGroups", in_turn(described(ErrorCode.GROUP_ID_NOT_FOUND)))
    script.on(2, "ConsumerGroupDescribe", in_turn(group_with(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS), group_with(0)))
    found = World(script).run(lambda client: Groups(client).describe("g"))
    assert (found.protocol, found.assignor, found.coordinator) == ("consumer", "uniform", 2)
    script.on(2, "ConsumerGroupDescribe", in_turn(group_with(ErrorCode.GROUP_ID_NOT_FOUND)))
    with pytest.raises(GroupIdNotFound, match="Group g does not exist"):
        World(script).run(lambda client: Groups(client).describe("g"))


@pytest.mark.proves("H3", part="clients learn the new leader")
def test_offset_fetch_fails_at_the_call_deadline() -> None:
    script = coordinated(Script())
    script.on(2, "OffsetFetch", lambda _: None)
    world = World(script, total_timeout_ms=5000, request_timeout_ms=4000)

    async def act(client: AsyncClient) -> None:
        await client.refresh([])
        for node in (1, 2):
            world.network.crash(f"b{node}")
        await Groups(client).offsets("g")

    with pytest.raises(OSError, match=r"b[12]:9092"):
        world.run(act)
    assert world.loop.time() < 1005.1
