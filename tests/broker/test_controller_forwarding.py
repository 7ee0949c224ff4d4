"""Forwarding: an inactive broker finds the active controller and forwards its clients' requests."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import pytest
from broker_scene import FRAME_BYTES_MAX, Talker

from moldau.broker.controllers import controller_channel
from moldau.model.errors import ErrorCode, NotController, RequestTimedOut
from moldau.model.ids import Address
from moldau.model.ports import Ports
from moldau.node.configuration import load_configuration
from moldau.node.node import Node
from moldau.wire import messages as m
from moldau_dev.simulation.simulation import Simulation


@dataclass
class TwoNodes:
    """Two nodes; node b takes a, or no node, for the active controller."""

    simulation: Simulation
    a: Node
    b: Node

    def point_b_at(self, address: Address | None) -> None:
        metadata: Any = type(self.b.broker.metadata)
        stand_in = type("Elsewhere", (metadata,), {"is_active": False, "controller_address": address})
        self.b.broker.metadata.__class__ = stand_in

    async def talk_to_b(self) -> Talker:
        talker = Talker()
        await self.simulation.network.host("client").connect(Address("b", 9092), talker, FRAME_BYTES_MAX)
        return talker


def on_two(script: Callable[[TwoNodes], Coroutine[Any, Any, None]]) -> None:
    async def start(simulation: Simulation, name: str) -> Node:
        async def program(ports: Ports) -> Node:
            overrides = [
                f"listeners=PLAINTEXT://{name}:9092,CONTROLLER://{name}:9093",
                "controller.listener.names=CONTROLLER",
                "moldau.metrics.listener=",
                "log.dirs=/data",
            ]
            node = Node(load_configuration(overrides=overrides), ports, on_failure=simulation.fail)
            await node.start()
            return node

        return await simulation.host(name).start(program)  # type: ignore[no-any-return]

    async def play(simulation: Simulation) -> None:
        nodes = TwoNodes(simulation, await start(simulation, "a"), await start(simulation, "b"))
        nodes.point_b_at(Address("a", 9093))
        await script(nodes)
        for name in ("a", "b"):
            if simulation.host(name).is_up:
                await simulation.host(name).stop()

    Simulation(seed=1).run(play)


def creation(name: str) -> m.CreateTopicsRequest:
    topic = m.CreateTopicsRequest.CreatableTopic(name=name, num_partitions=2, replication_factor=1)
    return m.CreateTopicsRequest(topics=[topic])


@pytest.mark.proves("H6")
def test_client_request_is_forwarded_to_the_active_controller() -> None:
    async def script(nodes: TwoNodes) -> None:
        talker = await nodes.talk_to_b()
        for version in range(2, 8):
            response = await talker.ask(version, creation(f"t{version}"))
            assert [(each.name, each.error_code) for each in response.topics] == [(f"t{version}", 0)]
        assert response.topics[0].num_partitions == 2
        again = await talker.ask(7, creation("t2"))
        assert again.topics[0].error_code == ErrorCode.TOPIC_ALREADY_EXISTS
        assert again.topics[0].error_message
        assert len(nodes.a.broker.image.topics) == 6
        assert not nodes.b.broker.image.topics

    on_two(script)


@pytest.mark.proves("H6")
def test_inactive_controller_rejects_and_does_not_forward() -> None:
    async def script(nodes: TwoNodes) -> None:
        talker = Talker()
        await nodes.simulation.network.host("client").connect(Address("b", 9093), talker, FRAME_BYTES_MAX)
        rejected = m.EnvelopeRequest(
            request_data=b"\0\x13\0\x07\0\0\0\0\xff\xff\0\x01\0\0\0\0\0\0", client_host_address=b""
        )
        response = await talker.ask(0, rejected)
        assert response.error_code == ErrorCode.NOT_CONTROLLER

    on_two(script)


@pytest.mark.proves("H6")
def test_forwarded_request_waits_until_a_controller_is_active() -> None:
    async def script(nodes: TwoNodes) -> None:
        nodes.point_b_at(None)
        talker = await nodes.talk_to_b()
        responding = talker.begin(7, creation("t"))
        await asyncio.sleep(3)
        assert not responding.done()
        nodes.point_b_at(Address("b", 9093))  # which responds that it is not the controller
        await asyncio.sleep(3)
        assert not responding.done()
        nodes.point_b_at(Address("a", 9093))
        began_s = nodes.simulation.now_s
        assert (await responding).topics[0].error_code == 0
        assert nodes.simulation.now_s - began_s < 0.5

    on_two(script)


def test_forwarded_request_times_out_without_an_active_controller() -> None:
    async def script(nodes: TwoNodes) -> None:
        nodes.point_b_at(Address("nowhere", 1))
        talker = await nodes.talk_to_b()
        began_s = nodes.simulation.now_s
        response = await talker.ask(7, creation("t"))
        assert response.topics[0].error_code == ErrorCode.REQUEST_TIMED_OUT
        assert nodes.simulation.now_s - began_s < controller_channel.TIMEOUT_MS / 1000 + 0.1
        with pytest.raises(RequestTimedOut, match="did not respond in time"):
            await nodes.b.broker.controller.ask(m.AllocateProducerIdsRequest(), timeout_ms=100)

    on_two(script)


def test_deposed_controller_is_replaced_during_a_request() -> None:
    async def script(nodes: TwoNodes) -> None:
        failures_left = 3

        async def write(decide: Any) -> Any:
            nonlocal failures_left
            if failures_left:
                failures_left -= 1
                raise NotController
            return await original(decide)

        metadata: Any = nodes.a.broker.metadata
        original, metadata.write = metadata.write, write
        talker = await nodes.talk_to_b()
        response = await talker.ask(7, creation("t"))
        assert (response.topics[0].error_code, failures_left) == (0, 0)

    on_two(script)


def test_brokers_own_request_reaches_the_controller_from_any_node() -> None:
    async def script(nodes: TwoNodes) -> None:
        epoch = nodes.a.broker.image.brokers[1].epoch
        request = m.AllocateProducerIdsRequest(broker_id=1, broker_epoch=epoch)
        here = await nodes.a.broker.controller.ask(request)
        there = await nodes.b.broker.controller.ask(request)
        assert there.producer_id_start == here.producer_id_start + here.producer_id_len
        assert await nodes.b.broker.producer_ids.next() == there.producer_id_start + there.producer_id_len
        stale = await nodes.b.broker.controller.ask(m.AllocateProducerIdsRequest(broker_id=1, broker_epoch=-1))
        assert stale.error_code == ErrorCode.STALE_BROKER_EPOCH

    on_two(script)


def test_auto_created_topic_is_created_by_the_controller() -> None:
    async def script(nodes: TwoNodes) -> None:
        talker = await nodes.talk_to_b()
        request = m.MetadataRequest(
            topics=[m.MetadataRequest.MetadataRequestTopic(name="t")], allow_auto_topic_creation=True
        )
        response = await talker.ask(12, request)
        # The two nodes are no cluster, so b does not learn of the topic.
        assert response.topics[0].error_code == ErrorCode.LEADER_NOT_AVAILABLE
        assert "t" in nodes.a.broker.image.topics

    on_two(script)


def test_init_producer_id_is_retriable_without_a_block_of_ids() -> None:
    async def script(nodes: TwoNodes) -> None:
        nodes.point_b_at(None)
        talker = await nodes.talk_to_b()
        response = await talker.ask(4, m.InitProducerIdRequest())
        assert response.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        nodes.point_b_at(Address("a", 9093))
        nodes.b.broker.replicas.update_image(nodes.a.broker.image)  # which knows another incarnation of broker 1
        response = await talker.ask(4, m.InitProducerIdRequest())
        assert response.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    on_two(script)
