"""What a client asks about groups, against scripted brokers that are just not ready to answer."""

from typing import Any

import pytest
from scripted_cluster import Script, World

from moldau.client.asynchronous import AsyncClient
from moldau.client.coordinators import GROUP_KEY, Coordinator, one_code
from moldau.client.groups import Groups
from moldau.client.metadata import BrokerView
from moldau.model.errors import ErrorCode, GroupAuthorizationFailed
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


def in_turn(*answers: Any) -> Any:
    """The last one again and again; an exception ends the connection."""
    left = list(answers)

    def answer(_: Any) -> Any:
        said = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(said, Exception):
            raise said
        return said

    return answer


@pytest.mark.parametrize(
    "trouble", [listed(code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS), ConnectionResetError("it just stopped")]
)
def test_a_broker_that_is_not_ready_to_list_its_groups_is_asked_again(trouble: Any) -> None:
    script = Script()
    script.on(1, "ListGroups", in_turn(listed("a")))
    script.on(2, "ListGroups", in_turn(trouble, listed("b")))
    found = World(script).run(lambda client: Groups(client).all())
    assert [each.group for each in found] == ["a", "b"]


def test_offsets_are_asked_of_the_coordinator_that_a_group_has_now() -> None:
    script = Script()
    found = [messages.FindCoordinatorResponse(node_id=node, host=f"b{node}", port=9092) for node in (1, 2)]
    finding = in_turn(*found)
    for node in (1, 2):
        script.on(node, "FindCoordinator", finding)
    script.on(1, "OffsetFetch", in_turn(messages.OffsetFetchResponse(error_code=ErrorCode.NOT_COORDINATOR)))
    loading = messages.OffsetFetchResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    script.on(2, "OffsetFetch", in_turn(loading, fetched(17)))
    assert World(script).run(lambda client: Groups(client).offsets("g")) == {TopicPartition("t", 0): 17}
    assert [script.asked[node, "OffsetFetch"] for node in (1, 2)] == [1, 2]


def test_an_error_that_does_not_pass_is_told_at_once() -> None:
    script = Script()
    for node in (1, 2):
        script.on(node, "ListGroups", in_turn(listed(code=ErrorCode.GROUP_AUTHORIZATION_FAILED)))
    with pytest.raises(GroupAuthorizationFailed):
        World(script).run(lambda client: Groups(client).all())
    assert script.asked[1, "ListGroups"] == 1


def test_a_broker_that_is_not_where_it_was_is_looked_for() -> None:
    script = Script()
    script.on(1, "FindCoordinator", in_turn(messages.FindCoordinatorResponse(node_id=2, host="b2", port=9092)))
    script.on(2, "OffsetFetch", in_turn(fetched(17)))

    async def ask(client: AsyncClient) -> Any:
        await client.refresh([])
        client.metadata.brokers[NodeId(2)] = BrokerView(NodeId(2), Address("nowhere", 9092))  # before it moved
        request = messages.OffsetFetchRequest(group_id="g", topics=None)
        answer = await Coordinator(client, "g", GROUP_KEY).ask(request, one_code, version_at_most=7)
        return answer.topics[0].partitions[0].committed_offset

    assert World(script).run(ask) == 17
