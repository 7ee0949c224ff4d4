"""The asyncio client against scripted brokers: routing, metadata refresh, retries."""

import asyncio
from typing import Any

import pytest
from scripted_cluster import TOPIC_ID, Response, Script, World, batch, produced

from moldau.client.async_client import AsyncClient
from moldau.client.errors import ConnectionLost, ResponseTimeout, Unreachable
from moldau.client.types import Resource, ResourceKind
from moldau.model.errors import (
    BrokerNotAvailable,
    ErrorCode,
    MessageTooLarge,
    NotEnoughReplicas,
    UnknownTopicOrPartition,
)


def test_produce_goes_to_the_leader_with_the_topic_id() -> None:
    script = Script()
    script.leader = 2
    script.on(2, "Produce", lambda _: produced())
    assert World(script).run(lambda client: client.produce("t", 0, batch())).base_offset == 7
    assert script.last.topic_data[0].topic_id == TOPIC_ID
    assert bytes(script.last.topic_data[0].partition_data[0].records) == bytes(batch())


def test_produce_uses_topic_names_when_the_cluster_has_no_ids() -> None:
    script = Script()
    script.versions = {3: (0, 9), 0: (3, 13)}
    script.on(1, "Produce", lambda _: produced())
    World(script).run(lambda client: client.produce("t", 0, batch()))
    assert script.last.topic_data[0].name == "t"


@pytest.mark.parametrize(
    "code",
    [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
)
def test_not_leader_error_refreshes_metadata(code: ErrorCode) -> None:
    script = Script()

    def reject(_: Any) -> Any:
        script.leader, script.leader_epoch = 2, 6
        return produced(code)

    script.on(1, "Produce", reject)
    script.on(2, "Produce", lambda _: produced(base_offset=9))
    assert World(script).run(lambda client: client.produce("t", 0, batch(producer_id=4))).base_offset == 9
    assert script.requested[1, "Produce"] == script.requested[2, "Produce"] == 1


def test_retriable_error_is_retried_until_the_timeout() -> None:
    script = Script()
    script.on(1, "Produce", lambda _: produced(ErrorCode.NOT_ENOUGH_REPLICAS))
    world = World(script, total_timeout_ms=3000)
    with pytest.raises(NotEnoughReplicas):
        world.run(lambda client: client.produce("t", 0, batch()))
    assert 4 <= script.requested[1, "Produce"] <= 8
    assert world.loop.time() <= 1000 + 3.1


def test_non_retriable_error_raises_the_brokers_message_at_once() -> None:
    script = Script()
    script.on(1, "Produce", lambda _: produced(ErrorCode.MESSAGE_TOO_LARGE, message="at most 10 bytes"))
    with pytest.raises(MessageTooLarge, match="at most 10 bytes"):
        World(script).run(lambda client: client.produce("t", 0, batch()))
    assert script.requested[1, "Produce"] == 1


def lose_first(times: int) -> Response:
    left = [times]

    def response(_: Any) -> Any:
        left[0] -= 1
        if left[0] >= 0:
            raise ConnectionResetError
        return produced()

    return response


def test_idempotent_batch_is_retried_after_a_lost_connection() -> None:
    script = Script()
    script.on(1, "Produce", lose_first(2))
    assert World(script).run(lambda client: client.produce("t", 0, batch(producer_id=4))).base_offset == 7
    assert script.requested[1, "Produce"] == 3


def test_batch_without_producer_id_is_not_retried_when_it_may_be_stored() -> None:
    script = Script()
    script.on(1, "Produce", lose_first(1))
    with pytest.raises(ConnectionLost, match="lost the connection to b1:9092"):
        World(script).run(lambda client: client.produce("t", 0, batch()))
    assert script.requested[1, "Produce"] == 1


def test_missing_response_fails_after_the_request_timeout() -> None:
    script = Script()
    script.on(1, "Produce", lambda _: None)
    world = World(script, request_timeout_ms=2000)
    with pytest.raises(ResponseTimeout, match="b1:9092 did not respond to Produce in time"):
        world.run(lambda client: client.produce("t", 0, batch()))
    assert 1002 <= world.loop.time() < 1003


def test_acks_zero_does_not_wait_and_close_sends_the_queue() -> None:
    script = Script()
    script.on(1, "Produce", lambda _: None)

    async def act(client: AsyncClient) -> None:
        assert (await client.produce("t", 0, batch(), acks=0)).base_offset == -1
        await client.close()
        await asyncio.sleep(1)

    World(script).run(act)
    assert script.requested[1, "Produce"] == 1


def test_unreachable_cluster_fails_at_once_with_a_hint() -> None:
    world = World(Script(brokers=0), bootstrap="localhost:9092")
    with pytest.raises(Unreachable, match="cannot reach localhost:9092: connection refused; is the broker running"):
        world.run(lambda client: client.describe_topics())
    assert world.loop.time() < 1001


def test_second_bootstrap_server_is_used_when_the_first_is_down() -> None:
    script = Script(brokers=1)
    world = World(script, bootstrap="b9:9092,b1:9092")
    assert [each.name for each in world.run(lambda client: client.describe_topics())] == ["t"]


def test_restarted_broker_is_reconnected() -> None:
    script = Script(brokers=1)
    script.on(1, "Produce", lambda _: produced())
    world = World(script)

    async def act(client: AsyncClient) -> Any:
        await client.produce("t", 0, batch(4))
        world.network.crash("b1")
        waiting = asyncio.get_running_loop().create_task(client.produce("t", 0, batch(4)))
        await asyncio.sleep(3)
        assert not waiting.done()
        await world.serve(1)
        return await waiting

    assert world.run(act).base_offset == 7


def test_unknown_topic_fails_soon() -> None:
    script = Script()
    world = World(script)
    with pytest.raises(UnknownTopicOrPartition, match="topic nope does not exist"):
        world.run(lambda client: client.fetch("nope", 0, 0))
    assert world.loop.time() < 1004


def test_unknown_partition_error_has_the_partition_count() -> None:
    with pytest.raises(UnknownTopicOrPartition, match="topic t has 1 partitions, partition 5 does not exist"):
        World(Script()).run(lambda client: client.fetch("t", 5, 0))


def test_concurrent_lookups_share_one_request() -> None:
    script = Script()
    script.on(1, "Produce", lambda _: produced())

    async def act(client: AsyncClient) -> None:
        await asyncio.gather(*(client.produce("t", 0, batch()) for _ in range(50)))

    World(script).run(act)
    assert script.requested[1, "Metadata"] + script.requested[2, "Metadata"] == 1
    assert script.requested[1, "Produce"] == 50


def test_cancelled_caller_does_not_close_a_shared_connection() -> None:
    script = Script()
    script.on(1, "Produce", lambda _: produced())

    async def act(client: AsyncClient) -> Any:
        loop = asyncio.get_running_loop()
        one, other = (loop.create_task(client.produce("t", 0, batch())) for _ in range(2))
        await asyncio.sleep(0)
        one.cancel()
        return await other

    assert World(script).run(act).base_offset == 7


def test_pending_requests_fail_when_the_client_is_closed() -> None:
    script = Script()
    script.on(1, "Produce", lambda _: None)

    async def act(client: AsyncClient) -> None:
        waiting = asyncio.get_running_loop().create_task(client.produce("t", 0, batch(producer_id=4)))
        await asyncio.sleep(1)
        await client.close()
        with pytest.raises(ConnectionLost, match="closed by the client"):
            await waiting
        with pytest.raises(ConnectionLost, match="this client is closed"):
            await client.describe_topics()

    World(script).run(act)


def test_older_leader_epoch_is_ignored() -> None:
    script = Script()

    async def act(client: AsyncClient) -> int:
        await client.refresh(["t"])
        script.leader, script.leader_epoch = 2, 4
        await client.refresh(["t"])
        return client.metadata.leader("t", 0).leader

    assert World(script).run(act) == 1


def test_metadata_without_brokers_is_ignored() -> None:
    script = Script()

    async def act(client: AsyncClient) -> int:
        await client.refresh(["t"])
        script.brokers = 0
        await client.refresh(["t"])
        return len(client.metadata.brokers)

    assert World(script).run(act) == 2


def test_unknown_broker_fails_soon() -> None:
    world = World(Script())
    with pytest.raises(BrokerNotAvailable, match="the cluster has no broker 9"):
        world.run(lambda client: client.describe_configs(Resource(ResourceKind.BROKER, "9")))
    assert world.loop.time() < 1004


@pytest.mark.proves("A4", part="topics and settings")
def test_unreachable_advertised_address_names_the_broker() -> None:
    """`--listen 0.0.0.0:9092` advertises localhost to remote clients, although the broker runs on another machine."""
    world = World(Script(), bootstrap="b2:9092")

    async def act(client: AsyncClient) -> None:
        world.network.crash("b1")
        await client.produce("t", 0, batch())

    with pytest.raises(
        Unreachable, match=r"cannot reach b1:9092: .*; this is the advertised address of broker 1"
    ) as failed:
        world.run(act)
    assert "advertised.listeners" in str(failed.value)
    assert "moldau start" not in str(failed.value)


def test_connect_fails_after_the_connect_timeout() -> None:
    world = World(Script(brokers=1), bootstrap="b1:9092", connect_timeout_ms=3000)

    async def act(client: AsyncClient) -> None:
        world.network.crash("b1", silently=True)
        await client.describe_topics()

    with pytest.raises(Unreachable, match="cannot reach b1:9092: connection timed out after 3 s"):
        world.run(act)
