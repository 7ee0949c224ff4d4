"""The asyncio client during leader changes and with lagging brokers, against scripted brokers."""

import asyncio
import random
from typing import Any

import pytest
from scripted_cluster import Script, World, batch, produced

from moldau.client.async_client import AsyncClient
from moldau.client.broker_ranking import AVOIDED_MS, BrokerRanking
from moldau.client.errors import ConnectionLost, ResponseTimeout, Unreachable
from moldau.model.errors import (
    BrokerNotAvailable,
    ErrorCode,
    NotEnoughReplicas,
    NotLeaderOrFollower,
    UnknownTopicOrPartition,
)
from moldau.model.ids import Address
from moldau.testing.clock import SimulatedClock


class Stale(Script):
    """Broker 1 was isolated and has the metadata of its own leadership. Broker 2 leads."""

    def __init__(self, code: int = ErrorCode.NOT_LEADER_OR_FOLLOWER) -> None:
        super().__init__()
        self.on(1, "Metadata", lambda request: self._as_of(request, 1, 5))
        self.on(2, "Metadata", lambda request: self._as_of(request, 2, 6))
        self.on(1, "Produce", lambda _: produced(code))
        self.on(2, "Produce", lambda _: produced(base_offset=9))

    def _as_of(self, request: Any, leader: int, epoch: int) -> Any:
        self.leader, self.leader_epoch = leader, epoch
        return self.metadata(request)


@pytest.mark.proves("H3", part="clients learn the new leader")
def test_concurrent_invalidation_does_not_affect_a_lookup() -> None:
    script = Script()
    script.on(1, "Produce", lambda _: produced())

    async def act(client: AsyncClient) -> Any:
        look_up = client.topic

        async def look_up_and_invalidate(name: str) -> Any:
            view = await look_up(name)
            client.metadata.forget(name)  # another caller has just invalidated it
            return view

        client.topic = look_up_and_invalidate  # type: ignore[method-assign]
        return await client.produce("t", 0, batch(4))

    assert World(script, total_timeout_ms=100).run(act).base_offset == 7


@pytest.mark.proves("H3", part="clients learn the new leader")
def test_failure_does_not_invalidate_newer_metadata() -> None:
    script = Script()

    async def act(client: AsyncClient) -> None:
        tries = []

        async def attempt() -> None:
            await client.topic("t")
            tries.append(1)
            if len(tries) == 1:
                await client.refresh(["t"])  # another sender has looked meanwhile
                raise NotLeaderOrFollower("it moved")

        await client.retry(attempt, about="t")

    World(script).run(act)
    assert script.requested[1, "Metadata"] + script.requested[2, "Metadata"] == 2


@pytest.mark.proves("H3", part="clients learn the new leader")
def test_known_topic_is_retried_until_the_timeout() -> None:
    script = Script()
    world = World(script)

    def response(_: Any) -> Any:
        passed_s = world.loop.time() - 1000
        return produced(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if passed_s < 5 else ErrorCode.NONE)

    script.on(1, "Produce", response)
    assert world.run(lambda client: client.produce("t", 0, batch(4))).base_offset == 7


@pytest.mark.proves("H3", part="clients learn the new leader")
def test_unknown_broker_timeout_starts_when_it_becomes_unknown() -> None:
    troubles = [*[NotEnoughReplicas("not yet")] * 8, BrokerNotAvailable("no broker 9"), NotEnoughReplicas("not yet")]

    async def attempt() -> str:
        if troubles:
            raise troubles.pop(0)
        return "there"

    world = World(Script())
    assert world.run(lambda client: client.retry(attempt)) == "there"
    assert world.loop.time() > 1000 + 3


@pytest.mark.proves("H3", part="clients learn the new leader")
def test_unknown_topic_fails_soon_after_other_errors() -> None:
    world = World(Script())

    async def attempt() -> None:
        raise NotEnoughReplicas("not yet") if world.loop.time() < 1005 else BrokerNotAvailable("no broker 9")

    with pytest.raises(BrokerNotAvailable):
        world.run(lambda client: client.retry(attempt))
    assert 1006 < world.loop.time() < 1010


@pytest.mark.proves("H3", part="clients learn the new leader")
def test_topic_being_created_is_retried_longer() -> None:
    script = Script()
    world = World(script, allow_auto_create_topics=True)
    for node in (1, 2):
        script.on(node, "Produce", lambda _: produced())

    async def act(client: AsyncClient) -> Any:
        waiting = asyncio.get_running_loop().create_task(client.produce("new", 0, batch(4)))
        await asyncio.sleep(5)
        script.topics["new"] = bytes(range(16))
        return await waiting

    assert world.run(act).base_offset == 7


@pytest.mark.parametrize("code", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.REQUEST_TIMED_OUT])
@pytest.mark.proves("H3", part="clients learn the new leader")
def test_another_broker_is_preferred_after_stale_metadata(code: ErrorCode) -> None:
    script = Stale(code)
    world = World(script, bootstrap="b1:9092")
    assert world.run(lambda client: client.produce("t", 0, batch(4))).base_offset == 9
    assert script.requested[1, "Produce"] == 1


@pytest.mark.proves("H3", part="clients learn the new leader")
def test_unknown_topic_is_looked_up_at_another_broker() -> None:
    script = Script()

    def not_yet(request: Any) -> Any:
        known, script.topics = script.topics, {}
        response = script.metadata(request)
        script.topics = known
        return response

    script.on(1, "Metadata", not_yet)
    script.on(1, "Produce", lambda _: produced())
    world = World(script, bootstrap="b1:9092")
    assert world.run(lambda client: client.produce("t", 0, batch(4))).base_offset == 7


def test_brokers_are_ranked_with_unreachable_ones_last() -> None:
    one, two, three = (Address(f"b{each}", 9092) for each in (1, 2, 3))
    preferences = BrokerRanking()

    def order(now_ms: float) -> list[Address]:
        return sorted((one, two, three), key=lambda each: preferences.rank(each, now_ms))

    assert order(0) == [one, two, three]
    preferences.mark_stale(one)
    assert order(0) == [two, three, one]
    preferences.mark_stale(two)
    assert order(0) == [three, one, two]
    preferences.mark_stale(three)
    assert order(0) == [one, two, three]
    preferences.mark_unreachable(one, 0)
    assert order(AVOIDED_MS - 1) == [two, three, one]
    assert order(AVOIDED_MS) == [one, two, three]
    preferences.mark_unreachable(one, AVOIDED_MS)
    preferences.mark_reachable(one)
    assert order(AVOIDED_MS) == [one, two, three]


# Several bootstrap servers


class Seeded(World):
    """Tries the bootstrap servers in an order that depends on the seed."""

    seed = 0

    def client(self) -> AsyncClient:
        ports = (self.network.host("c"), SimulatedClock(self.loop.now_ms), random.Random(self.seed))
        return AsyncClient(*ports, self.bootstrap, settings=self.settings)


def close(_: Any) -> Any:
    raise ConnectionResetError


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("response", [close, lambda _: None])
@pytest.mark.parametrize("api", ["ApiVersions", "Metadata"])
@pytest.mark.proves("H3", part="clients learn the new leader")
def test_unresponsive_bootstrap_server_is_skipped(seed: int, response: Any, api: str) -> None:
    script = Script()
    script.on(1, api, response)
    world = Seeded(script)
    world.seed = seed
    assert world.run(lambda client: client.describe_topic("t")).name == "t"


def test_all_causes_are_reported_when_no_bootstrap_server_responds() -> None:
    script = Script()
    script.on(1, "ApiVersions", close)
    script.on(2, "ApiVersions", lambda _: None)
    with pytest.raises(Unreachable) as failed:
        World(script, bootstrap="b1:9092,b2:9092,b9:9092").run(lambda client: client.describe_topics())
    said = str(failed.value)
    assert "cannot reach b1:9092: [Errno 104] Connection reset by peer while versions were negotiated" in said
    assert "cannot reach b2:9092: Metadata to b2:9092 timed out before it was sent (connection negotiating)" in said
    assert "cannot reach b9:9092: unknown host b9" in said


@pytest.mark.proves("H3", part="clients learn the new leader")
def test_executed_request_is_not_sent_to_the_next_bootstrap_server() -> None:
    script = Script()
    for node in (1, 2):
        script.on(node, "DescribeCluster", close)
    with pytest.raises(ConnectionLost):
        World(script).run(lambda client: client.describe_cluster())
    assert script.requested[1, "DescribeCluster"] + script.requested[2, "DescribeCluster"] == 1


# Bounds on time


@pytest.mark.proves("H3", part="clients learn the new leader")
def test_unresponsive_leader_fails_at_the_call_deadline() -> None:
    script = Script()
    script.on(1, "Produce", lambda _: None)
    world = World(script)
    with pytest.raises(ResponseTimeout, match="b1:9092 did not respond to Produce in time") as failed:
        world.run(lambda client: client.produce("t", 0, batch(4), total_timeout_ms=500))
    assert failed.value.was_sent
    assert 1000.4 < world.loop.time() < 1000.6


def test_call_that_times_out_keeps_the_connection_for_others() -> None:
    script = Script()
    script.on(1, "Produce", lambda _: None)

    async def act(client: AsyncClient) -> None:
        patient = asyncio.get_running_loop().create_task(client.produce("t", 0, batch()))
        with pytest.raises(ResponseTimeout):
            await client.produce("t", 0, batch(), total_timeout_ms=500)
        await asyncio.sleep(1)
        assert not patient.done()
        patient.cancel()

    World(script).run(act)


def test_lookup_and_connect_fail_at_the_call_deadline() -> None:
    script = Script()
    world = World(script)

    async def act(client: AsyncClient) -> None:
        await client.refresh([])
        for node in (1, 2):
            script.on(node, "Metadata", lambda _: None)
        with pytest.raises(ResponseTimeout, match="metadata of topic t timed out"):
            await client.produce("t", 0, batch(4), total_timeout_ms=500)
        for link in client._links.values():
            await link.close()
        for node in (1, 2):
            world.network.crash(f"b{node}", silently=True)
        with pytest.raises(ResponseTimeout, match=r"no connection to b.:9092 in time"), client.deadline(500):
            await client.refresh([])

    world.run(act)
    assert world.loop.time() < 1010


@pytest.mark.proves("H3", part="clients learn the new leader")
def test_shared_lookup_is_not_bound_by_its_first_callers_deadline() -> None:
    script = Script()
    script.on(1, "Produce", lambda _: produced())
    world = World(script)

    async def act(client: AsyncClient) -> Any:
        await client.refresh([])
        hurried = asyncio.get_running_loop().create_task(client.produce("t", 0, batch(4), total_timeout_ms=0.1))
        await asyncio.sleep(0)
        patient = asyncio.get_running_loop().create_task(client.produce("t", 0, batch(4)))
        with pytest.raises(ResponseTimeout):
            await hurried
        return await patient

    assert world.run(act).base_offset == 7
    assert script.requested[1, "Metadata"] + script.requested[2, "Metadata"] == 2


def test_fetch_may_wait_longer_than_the_call_timeout() -> None:
    script = Script()
    script.on(1, "Fetch", lambda _: None)
    world = World(script, total_timeout_ms=1000, request_timeout_ms=1000)
    with pytest.raises(ResponseTimeout):
        world.run(lambda client: client.fetch("t", 0, 0, max_wait_ms=3000))
    assert world.loop.time() >= 1004


@pytest.mark.proves("H3", part="clients learn the new leader")
def test_unknown_partition_fails_soon() -> None:
    world = World(Script())
    with pytest.raises(UnknownTopicOrPartition, match="partition 5 does not exist"):
        world.run(lambda client: client.fetch("t", 5, 0))
    assert world.loop.time() < 1004
