"""Execution of reassignment plans on scripted brokers: throttles and state after failures."""

from typing import Any

import pytest
from scripted_cluster import Script, World

from moldau.client.async_client import AsyncClient
from moldau.client.plan_executor import PlanExecutor, Stage
from moldau.client.reassignment_plans import Assignment
from moldau.client.reassignments import Outcomes
from moldau.client.throttles import (
    FOLLOWER_RATE,
    FOLLOWER_REPLICAS,
    LEADER_RATE,
    LEADER_REPLICAS,
)
from moldau.client.types import ConfigSource, ResourceKind
from moldau.model.errors import ClusterAuthorizationFailed, ErrorCode, InvalidConfig
from moldau.model.ids import TopicPartition
from moldau.wire import messages

pytestmark = pytest.mark.proves("H8")

BROKERS = (1, 2, 3)
PLACE, OTHER = TopicPartition("t", 0), TopicPartition("u", 0)
PLAN: Assignment = {PLACE: (2, 3), OTHER: (2, 3)}
BEFORE: Assignment = {PLACE: (1, 2), OTHER: (1, 2)}
CHANGES = ("IncrementalAlterConfigs", "AlterPartitionReassignments")
DELETE, APPEND = 1, 2


class StoringScript(Script):
    """Three brokers that store settings, but reject those of one resource."""

    def __init__(self) -> None:
        super().__init__(brokers=len(BROKERS))
        self.topics["u"] = bytes(16)
        self.settings: dict[str, dict[str, str]] = {}
        self.rejects: str | None = None
        self.serving: tuple[int, ...] = BROKERS
        for node in BROKERS:
            self.on(node, "DescribeCluster", lambda _: self._cluster())
            self.on(node, "DescribeConfigs", self._describe)
            self.on(node, "IncrementalAlterConfigs", self._alter)
            self.on(node, "ListPartitionReassignments", lambda _: messages.ListPartitionReassignmentsResponse())

    def changes(self) -> int:
        return sum(count for (_, api), count in self.requested.items() if api in CHANGES)

    def _cluster(self) -> Any:
        response = messages.DescribeClusterResponse
        brokers = [response.DescribeClusterBroker(broker_id=node, host=f"b{node}", port=9092) for node in self.serving]
        return response(cluster_id="scripted", controller_id=2, brokers=brokers)

    def _describe(self, request: Any) -> Any:
        (requested,) = request.resources
        response = messages.DescribeConfigsResponse
        result = response.DescribeConfigsResult(
            resource_type=requested.resource_type, resource_name=requested.resource_name
        )
        is_topic = requested.resource_type == ResourceKind.TOPIC
        if is_topic and requested.resource_name not in self.topics:
            result.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        source = ConfigSource.TOPIC if is_topic else ConfigSource.DYNAMIC_BROKER
        result.configs = [
            response.DescribeConfigsResourceResult(name=name, value=text, config_source=source)
            for name, text in self.settings.get(requested.resource_name, {}).items()
        ]
        return response(results=[result])

    def _alter(self, request: Any) -> Any:
        (requested,) = request.resources
        response = messages.IncrementalAlterConfigsResponse
        result = response.AlterConfigsResourceResponse(
            resource_type=requested.resource_type, resource_name=requested.resource_name
        )
        if requested.resource_name == self.rejects:
            result.error_code = ErrorCode.INVALID_CONFIG
        else:
            self._change(self.settings.setdefault(requested.resource_name, {}), requested.configs)
        return response(responses=[result])

    def _change(self, kept: dict[str, str], changes: Any) -> None:
        for each in changes:
            if each.config_operation == DELETE:
                kept.pop(each.name, None)
            elif each.config_operation == APPEND and each.name in kept:
                kept[each.name] += f",{each.value}"
            else:
                kept[each.name] = each.value

    def kept(self) -> dict[str, dict[str, str]]:
        return {name: settings for name, settings in self.settings.items() if settings}


async def begin(client: AsyncClient) -> tuple[Assignment, Outcomes]:
    return await PlanExecutor(client).begin(PLAN, throttle_bytes=1000)


@pytest.mark.parametrize("rejects", ["1", "3", "t", "u"])
def test_throttles_are_restored_after_a_partial_failure(rejects: str) -> None:
    script = StoringScript()
    script.rejects = rejects
    with pytest.raises(InvalidConfig):
        World(script).run(begin)
    assert script.kept() == {}


def test_unavailable_broker_is_not_throttled_and_can_be_drained() -> None:
    script = StoringScript()
    script.serving = (2, 3)
    script.rejects = "1"
    script.on(2, "AlterPartitionReassignments", lambda _: messages.AlterPartitionReassignmentsResponse())
    before, _ = World(script).run(begin)
    assert before == BEFORE
    assert script.kept()["t"] == {LEADER_REPLICAS: "0:1,0:2", FOLLOWER_REPLICAS: "0:3"}
    assert sorted(script.kept()) == ["2", "3", "t", "u"]


def test_previous_throttles_are_restored_after_a_failure() -> None:
    script = StoringScript()
    rates, lists = {LEADER_RATE: "5", FOLLOWER_RATE: "6"}, {LEADER_REPLICAS: "7:1", FOLLOWER_REPLICAS: "7:2"}
    script.settings = {"1": dict(rates), "t": dict(lists)}
    script.rejects = "u"

    async def add(client: AsyncClient) -> None:
        await PlanExecutor(client).throttles.apply(BEFORE, PLAN, 1000, serving=BROKERS, keeps_others=True)

    with pytest.raises(InvalidConfig):
        World(script).run(add)
    assert script.kept() == {"1": rates, "t": lists}
    script.rejects = None
    World(script).run(add)
    assert script.kept()["t"] == {LEADER_REPLICAS: "7:1,0:1,0:2", FOLLOWER_REPLICAS: "7:2,0:3"}
    assert script.kept()["1"] == {LEADER_RATE: "1000", FOLLOWER_RATE: "1000"}


def test_previous_assignment_is_kept_before_any_change() -> None:
    script = StoringScript()
    response = messages.AlterPartitionReassignmentsResponse
    rejection = response(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    script.on(2, "AlterPartitionReassignments", lambda _: rejection)
    kept: list[tuple[Assignment, int]] = []

    async def begin_and_keep(client: AsyncClient) -> None:
        await PlanExecutor(client).begin(
            PLAN, throttle_bytes=1000, keep=lambda before: kept.append((before, script.changes()))
        )

    with pytest.raises(ClusterAuthorizationFailed):
        World(script).run(begin_and_keep)
    assert kept == [(BEFORE, 0)]
    assert script.changes() > 0


def test_plan_of_a_deleted_topic_is_done_and_throttles_are_removed() -> None:
    script = StoringScript()
    del script.topics["u"]
    script.settings = {"t": {LEADER_REPLICAS: "0:1"}, "1": {LEADER_RATE: "1000"}}
    plan: Assignment = {PLACE: (1, 2), OTHER: (2, 3)}

    async def verify(client: AsyncClient) -> tuple[list[tuple[Stage, bool]], list[str]]:
        moves = PlanExecutor(client)
        found = await moves.progress(plan)
        return [(each.stage, each.is_done) for each in found], await moves.clear_up(plan)

    stages, freed = World(script).run(verify)
    assert stages == [(Stage.DONE, True), (Stage.GONE, True)]
    assert freed == ["topic t", "broker 1"]
    assert script.kept() == {}


def test_topic_unknown_to_a_lagging_broker_is_not_gone() -> None:
    """It is retried for a while: the broker may have just started."""
    script = StoringScript()
    up_to_date = script.metadata

    def late(request: Any) -> Any:
        is_early = sum(script.requested[node, "Metadata"] for node in (1, 2, 3)) < 4
        script.topics = {"t": bytes(range(16))} if is_early else {"t": bytes(range(16)), "u": bytes(16)}
        return up_to_date(request)

    for node in BROKERS:
        script.on(node, "Metadata", late)
    found = World(script).run(lambda client: PlanExecutor(client).progress(BEFORE))
    assert [each.stage for each in found] == [Stage.DONE, Stage.DONE]
