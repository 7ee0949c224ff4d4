"""Cluster administration against scripted brokers: reassignments, elections, the quorum, health."""

from typing import Any

import pytest
from scripted_cluster import Script, World

from moldau.client.async_client import AsyncClient
from moldau.client.brokers import Brokers
from moldau.client.health import check_health
from moldau.client.quorum import Quorum
from moldau.client.reassignments import Election, Reassignment, Reassignments
from moldau.model.errors import BrokerIdNotRegistered, ErrorCode, RequestTimedOut
from moldau.model.ids import Address, TopicPartition
from moldau.wire import messages

MOVES = messages.ListPartitionReassignmentsResponse
PLACE = TopicPartition("t", 0)
DIRECTORIES = {node: bytes([node]) * 16 for node in (1, 2, 3)}


def moving(*partitions: Any) -> Any:
    return MOVES(topics=[MOVES.OngoingTopicReassignment(name="t", partitions=list(partitions))] if partitions else [])


def on_its_way() -> Any:
    return MOVES.OngoingPartitionReassignment(
        partition_index=0, replicas=[3, 1, 2], adding_replicas=[3], removing_replicas=[1]
    )


def quorum(
    leader: int = 2, caught_up: tuple[int, ...] = (9_000, 10_000, 9_500), observers: tuple[Any, ...] = ()
) -> Any:
    response = messages.DescribeQuorumResponse
    voters = [
        response.ReplicaState(
            replica_id=node,
            replica_directory_id=DIRECTORIES[node],
            log_end_offset=50 if node == leader else 48,
            last_fetch_timestamp=at_ms,
            last_caught_up_timestamp=at_ms,
        )
        for node, at_ms in zip((1, 2, 3), caught_up, strict=True)
    ]
    partition = response.PartitionData(
        partition_index=0,
        leader_id=leader,
        leader_epoch=4,
        high_watermark=49,
        current_voters=voters,
        observers=list(observers),
    )
    nodes = [
        response.Node(node_id=node, listeners=[response.Listener(name="CONTROLLER", host=f"c{node}", port=9093)])
        for node in (1, 2, 3)
    ]
    return response(topics=[response.TopicData(topic_name="__cluster_metadata", partitions=[partition])], nodes=nodes)


def described(*fenced: int) -> Any:
    response = messages.DescribeClusterResponse
    brokers = [
        response.DescribeClusterBroker(broker_id=node, host=f"b{node}", port=9092, is_fenced=node in fenced)
        for node in (1, 2)
    ]
    return response(cluster_id="scripted", controller_id=1, brokers=brokers)


def min_isr(value: int) -> Any:
    response = messages.DescribeConfigsResponse
    entry = response.DescribeConfigsResourceResult(name="min.insync.replicas", value=str(value), config_source=5)
    return response(results=[response.DescribeConfigsResult(resource_type=2, resource_name="t", configs=[entry])])


def healthy(isr: tuple[int, ...] = (1, 2), leader: int = 1, fenced: tuple[int, ...] = ()) -> Script:
    """Two brokers and one partition, with responses to every request of `check_health`."""
    script = Script()
    script.leader = leader
    whole = script.metadata

    def metadata(request: Any) -> Any:
        response = whole(request)
        for topic in response.topics:
            topic.partitions[0].isr_nodes = list(isr)
        return response

    for node in (1, 2):
        script.on(node, "Metadata", metadata)
        script.on(node, "DescribeCluster", lambda _: described(*fenced))
        script.on(node, "DescribeQuorum", lambda _: quorum())
        script.on(node, "ListPartitionReassignments", lambda _: moving())
        script.on(node, "DescribeConfigs", lambda _: min_isr(2))
        script.on(node, "DescribeLogDirs", lambda _: messages.DescribeLogDirsResponse(results=[]))
    return script


def on_both(script: Script, api: str, response: Any) -> None:
    for node in (1, 2):
        script.on(node, api, response)


def test_ongoing_reassignments_have_origin_and_target() -> None:
    script = Script()
    script.on(2, "ListPartitionReassignments", lambda _: moving(on_its_way()))
    found = World(script).run(lambda client: Reassignments(client).ongoing())
    assert found == {PLACE: Reassignment((3, 1, 2), (3,), (1,))}
    assert found[PLACE].origin == (1, 2)
    assert found[PLACE].target == (3, 2)


@pytest.mark.proves("H3")
def test_lost_controller_is_replaced_by_another() -> None:
    script = Script()

    def vanish(_: Any) -> Any:
        script.controller = 1
        raise ConnectionResetError

    script.on(2, "ListPartitionReassignments", vanish)
    script.on(1, "ListPartitionReassignments", lambda _: moving())
    assert World(script).run(lambda client: Reassignments(client).ongoing()) == {}
    assert script.requested[1, "ListPartitionReassignments"] == 1


def test_alter_reassigns_and_cancels_in_one_request() -> None:
    script = Script()
    response = messages.AlterPartitionReassignmentsResponse
    part = response.ReassignablePartitionResponse
    parts = [part(partition_index=0), part(partition_index=1, error_code=85, error_message="nothing to cancel")]
    topics = [response.ReassignableTopicResponse(name="t", partitions=parts)]
    script.on(2, "AlterPartitionReassignments", lambda _: response(responses=topics))
    wanted = {PLACE: (2, 3), TopicPartition("t", 1): None}
    outcomes = World(script).run(lambda client: Reassignments(client).alter(wanted))
    assert outcomes[PLACE] is None
    error = outcomes[TopicPartition("t", 1)]
    assert error.code == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    assert [each.replicas for each in script.last.topics[0].partitions] == [(2, 3), None]


def test_leaders_are_elected_for_some_or_all_partitions() -> None:
    script = Script()
    response = messages.ElectLeadersResponse
    result = response.ReplicaElectionResult(topic="t", partition_result=[response.PartitionResult(partition_id=0)])
    script.on(2, "ElectLeaders", lambda _: response(replica_election_results=[result]))
    World(script).run(lambda client: Reassignments(client).elect(Election.PREFERRED, [PLACE]))
    assert (script.last.election_type, script.last.topic_partitions[0].topic) == (0, "t")
    World(script).run(lambda client: Reassignments(client).elect(Election.UNCLEAN, None))
    assert (script.last.election_type, script.last.topic_partitions) == (1, None)


def test_quorum_description_has_lag_and_listeners() -> None:
    script = Script()
    on_both(script, "DescribeQuorum", lambda _: quorum())
    view = World(script).run(lambda client: Quorum(client).describe())
    assert (view.leader_id, view.epoch, view.high_watermark) == (2, 4, 49)
    assert [view.lag(each) for each in view.voters] == [2, 0, 2]
    assert [view.behind_ms(each) for each in view.voters] == [1_000, 0, 500]
    assert view.voters[0].listeners == (("CONTROLLER", Address("c1", 9093)),)
    assert view.voters[0].directory_id == DIRECTORIES[1]


def observer(disk: int, fetched_ms: int) -> Any:
    return messages.DescribeQuorumResponse.ReplicaState(
        replica_id=4, replica_directory_id=bytes([disk]) * 16, log_end_offset=50, last_fetch_timestamp=fetched_ms
    )


@pytest.mark.proves("H6")
def test_active_observer_is_the_current_directory_not_a_lost_one() -> None:
    script = Script()
    lost, found = observer(1, 7_000), observer(2, 9_900)

    def response(_: Any) -> Any:
        looks = script.requested[1, "DescribeQuorum"] + script.requested[2, "DescribeQuorum"]
        return quorum(observers=(lost,) if looks < 3 else (lost, found))

    on_both(script, "DescribeQuorum", response)
    observers = World(script).run(lambda client: Quorum(client).active_observers(4))
    assert [each.directory_id for each in observers] == [bytes([2]) * 16]
    on_both(script, "DescribeQuorum", lambda _: quorum(observers=(lost,)))
    assert World(script).run(lambda client: Quorum(client).active_observers(4)) == []


def silence(kind: Any, **fields: Any) -> Any:
    return kind(error_code=ErrorCode.REQUEST_TIMED_OUT, **fields)


def test_missing_controller_is_reported_once() -> None:
    """A broker has searched for 20 s by then; repeating that adds nothing."""
    script = Script()
    words = "no controller is known to be active"
    on_both(script, "DescribeQuorum", lambda _: silence(messages.DescribeQuorumResponse, error_message=words))
    on_both(script, "ListPartitionReassignments", lambda _: silence(MOVES, error_message=words))
    on_both(script, "ElectLeaders", lambda _: silence(messages.ElectLeadersResponse))
    with pytest.raises(RequestTimedOut, match=words):
        World(script).run(lambda client: Quorum(client).describe())
    with pytest.raises(RequestTimedOut, match=words):
        World(script).run(lambda client: Reassignments(client).ongoing())
    with pytest.raises(RequestTimedOut, match="no active controller responded"):
        World(script).run(lambda client: Reassignments(client).elect(Election.PREFERRED, None))
    requested = sum(count for (_, api), count in script.requested.items() if api not in ("ApiVersions", "Metadata"))
    assert requested == 3


def test_unknown_broker_cannot_be_unregistered() -> None:
    script = Script()
    response = messages.UnregisterBrokerResponse(error_code=102, error_message="Broker ID 9 is not registered")
    script.on(2, "UnregisterBroker", lambda _: response)
    with pytest.raises(BrokerIdNotRegistered):
        World(script).run(lambda client: Brokers(client).unregister(9))


# Health


async def _problems(client: AsyncClient) -> list[str]:
    return list((await check_health(client)).problems())


def problems(script: Script) -> list[str]:
    found: list[str] = World(script, bootstrap="b1:9092").run(_problems)
    return found


def test_cluster_without_problems_is_healthy() -> None:
    assert problems(healthy()) == []


def test_offline_log_dir_is_reported_with_its_effect_and_remedy() -> None:
    script = healthy()
    log_dir = messages.DescribeLogDirsResponse.DescribeLogDirsResult(error_code=56, log_dir="/data", usable_bytes=0)
    script.on(2, "DescribeLogDirs", lambda _: messages.DescribeLogDirsResponse(results=[log_dir]))
    (found,) = problems(script)
    assert found.startswith("broker 2 cannot write its log dir /data, 0 bytes free: free space or replace the disk")


@pytest.mark.proves("A4", part="groups")
@pytest.mark.parametrize(
    ("topic", "effect"),
    [
        ("__consumer_offsets", "some consumer groups have no coordinator"),
        ("__transaction_state", "some transactional ids have no coordinator"),
        ("__share_group_state", "some share groups have no coordinator"),
    ],
)
def test_coordinators_without_a_leader_are_reported_with_their_effect(topic: str, effect: str) -> None:
    script = healthy(leader=-1)
    script.topics = {topic: next(iter(script.topics.values()))}
    found = problems(script)
    assert found[1].startswith(f"1 partition has no leader in {topic}, so {effect}")
    assert found[1].endswith("Its replicas: brokers 1, 2")
    assert not any("coordinator" in each for each in problems(healthy(leader=-1)))


@pytest.mark.proves("S11", part="one fails")
def test_every_offline_log_dir_of_a_broker_is_reported() -> None:
    script = healthy()
    result = messages.DescribeLogDirsResponse.DescribeLogDirsResult
    log_dirs = [result(error_code=56, log_dir="/a"), result(log_dir="/b"), result(error_code=56, log_dir="/c")]
    script.on(2, "DescribeLogDirs", lambda _: messages.DescribeLogDirsResponse(results=log_dirs))
    assert [each.split(":")[0] for each in problems(script)] == [
        "broker 2 cannot write its log dir /a",
        "broker 2 cannot write its log dir /c",
    ]


@pytest.mark.proves("H8", part="partitions move by plan")
@pytest.mark.parametrize("is_internal", [False, True])
def test_internal_topics_with_too_few_replicas_get_advice(is_internal: bool) -> None:
    script = healthy()
    whole = script.metadata

    def metadata(request: Any) -> Any:
        response = whole(request)
        for topic in response.topics:
            topic.is_internal = is_internal
            topic.partitions[0].replica_nodes = topic.partitions[0].isr_nodes = [1]
        return response

    on_both(script, "Metadata", metadata)
    on_both(script, "DescribeConfigs", lambda _: min_isr(1))
    found = World(script).run(check_health)
    assert found.is_healthy
    advice = "t has 1 replica, created with fewer brokers; plan more with: moldau reassign generate"
    assert list(found.advice()) == ([f"{advice} -t t --brokers 1,2 -r 2 -o plan.json"] if is_internal else [])


@pytest.mark.proves("A4")
def test_out_of_sync_replica_is_reported_with_its_effect_on_writes() -> None:
    found = problems(healthy(isr=(1,)))
    assert found == [
        "1 partition has too few replicas in sync: writes with acks=all are rejected",
        "1 partition has replicas that are not in sync",
    ]


def test_min_isr_is_limited_to_the_replica_count() -> None:
    script = healthy()
    on_both(script, "DescribeConfigs", lambda _: min_isr(3))
    assert problems(script) == []


def test_topic_whose_settings_may_not_be_read_is_named_and_checked_without_them() -> None:
    script = healthy(isr=(1,))
    result = messages.DescribeConfigsResponse.DescribeConfigsResult
    denied = result(error_code=29, resource_type=2, resource_name="t", configs=[])
    on_both(script, "DescribeConfigs", lambda _: messages.DescribeConfigsResponse(results=[denied]))
    found = World(script, bootstrap="b1:9092").run(check_health)
    assert list(found.problems()) == ["1 partition has replicas that are not in sync"]
    (advice,) = found.advice()
    assert advice.startswith("min.insync.replicas of t is not known")


def test_leaderless_partition_is_reported_first() -> None:
    assert problems(healthy(isr=(1, 2), leader=-1))[0].startswith("1 partition has no leader")


def test_fenced_broker_is_reported_with_advice() -> None:
    (line,) = problems(healthy(fenced=(2,)))
    assert line == "broker 2 is fenced: start it, or unregister it with: moldau broker remove 2"
    lines = problems(healthy(isr=(1,), fenced=(2,)))
    assert lines[-1] == "broker 2 is fenced: start it, or move its replicas with: moldau broker drain 2"


def test_unregistered_broker_with_replicas_is_reported() -> None:
    script = healthy(isr=(1,))
    response = messages.DescribeClusterResponse
    alone = response.DescribeClusterBroker(broker_id=1, host="b1", port=9092)
    on_both(script, "DescribeCluster", lambda _: response(cluster_id="scripted", controller_id=1, brokers=[alone]))
    words = "broker 2 is down or unregistered: start it, or move its replicas with: moldau broker drain 2"
    assert problems(script)[-1] == words


def test_lagging_voter_is_reported_with_the_remaining_tolerance() -> None:
    script = healthy()
    on_both(script, "DescribeQuorum", lambda _: quorum(caught_up=(1_000, 60_000, 60_000)))
    assert problems(script) == ["controller 1 does not fetch: no other may fail"]
    on_both(script, "DescribeQuorum", lambda _: quorum(caught_up=(60_000, 60_000, -1)))
    assert problems(script) == ["controller 3 does not fetch: no other may fail"]


def test_missing_controller_is_reported() -> None:
    script = healthy()
    on_both(script, "DescribeQuorum", lambda _: quorum(leader=-1, caught_up=(9_000, 9_000, 9_000)))
    assert problems(script)[0].startswith("no active controller")


def test_health_check_times_out_on_unresponsive_controllers() -> None:
    script = healthy()
    on_both(script, "DescribeQuorum", lambda _: None)
    world = World(script)
    began_ms = world.loop.now_ms()
    found: list[str] = world.run(_problems)
    assert found[0].startswith("no active controller")
    assert world.loop.now_ms() - began_ms < 10_000


def test_unreachable_broker_is_reported() -> None:
    script = healthy()
    script.on(2, "DescribeCluster", lambda _: None)
    found = problems(script)
    assert found == ["broker 2 does not respond at b2:9092"]


@pytest.mark.proves("H8")
def test_replicas_being_added_are_not_under_replicated() -> None:
    script = healthy(isr=(1,))
    part = MOVES.OngoingPartitionReassignment(partition_index=0, replicas=[1, 2], adding_replicas=[2])
    on_both(script, "ListPartitionReassignments", lambda _: moving(part))
    on_both(script, "DescribeConfigs", lambda _: min_isr(1))
    assert problems(script) == []


def test_health_of_an_older_cluster_is_checked_without_unsupported_apis() -> None:
    script = healthy()
    script.versions = {55: (9, 9), 46: (9, 9)}
    assert problems(script) == []
