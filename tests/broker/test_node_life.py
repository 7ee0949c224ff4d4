"""A node starts, stops, and refuses to start in words."""

import asyncio

import pytest
from broker_scene import Scene, batch, list_offset, on_broker, produce

from moldau.model.errors import InvalidConfig
from moldau.model.ports import Ports
from moldau.node.configuration import load_configuration
from moldau.node.node import Node
from moldau.storage.folder import FolderInUse
from moldau.testing.simulation import Simulation


def _node(simulation: Simulation, ports: Ports, *settings: str) -> Node:
    overrides = ["listeners=PLAINTEXT://broker:9092", "moldau.metrics.listener=", "log.dirs=/data", *settings]
    return Node(load_configuration(overrides=overrides), ports, on_failure=simulation.fail)


@pytest.mark.proves("S8")
def test_after_a_clean_stop_nothing_is_scanned_and_after_a_crash_the_tail_is() -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t")
        talker = await scene.connect()
        await produce(talker, "t", batch(b"a"))
        await scene.host.stop()
        assert scene.host.disk.mount().exists("/data/.kafka_cleanshutdown")
        await scene.restart()
        assert not scene.host.disk.mount().exists("/data/.kafka_cleanshutdown")
        talker = await scene.connect()
        assert (await list_offset(talker, "t", -1)).offset == 1
        await produce(talker, "t", batch(b"b"))
        scene.host.crash()
        await scene.restart()
        talker = await scene.connect()
        assert (await list_offset(talker, "t", -1)).offset == 2
        assert (await produce(talker, "t", batch(b"c"))).base_offset == 2

    on_broker(script)


def test_a_second_node_on_the_same_folder_is_refused() -> None:
    async def play(simulation: Simulation) -> None:
        async def program(ports: Ports) -> Node:
            first = _node(simulation, ports)
            await first.start()
            with pytest.raises(FolderInUse, match="another node runs on /data"):
                await _node(simulation, ports, "listeners=PLAINTEXT://broker:9093").start()
            return first

        await simulation.host("broker").start(program)

    Simulation(seed=1).run(play)


def test_a_folder_of_another_node_is_refused_and_can_be_used_afterwards() -> None:
    async def play(simulation: Simulation) -> None:
        async def program(ports: Ports) -> Node:
            first = _node(simulation, ports)
            await first.start()
            await first.stop()
            with pytest.raises(InvalidConfig, match=r"belongs to node 1, but node.id is 2"):
                await _node(simulation, ports, "node.id=2").start()
            again = _node(simulation, ports)
            await again.start()
            return again

        await simulation.host("broker").start(program)

    Simulation(seed=1).run(play)


def test_a_port_that_is_taken_is_an_os_error_and_gives_the_folder_back() -> None:
    async def play(simulation: Simulation) -> None:
        async def program(ports: Ports) -> Node:
            first = _node(simulation, ports)
            await first.start()
            with pytest.raises(OSError, match="in use"):
                await _node(simulation, ports, "log.dirs=/other").start()
            other = _node(simulation, ports, "log.dirs=/other", "listeners=PLAINTEXT://broker:9093")
            await other.start()
            return first

        await simulation.host("broker").start(program)

    Simulation(seed=1).run(play)


def test_who_connects_before_the_node_is_ready_is_served_when_it_is() -> None:
    async def play(simulation: Simulation) -> None:
        from broker_scene import BROKER, FRAME_BYTES_MAX, Talker

        from moldau.wire.messages import MetadataRequest

        host = simulation.host("broker")
        starting = asyncio.get_running_loop().create_task(host.start(lambda ports: _started(_node(simulation, ports))))
        talker = Talker()
        while True:
            try:
                await simulation.network.host("client").connect(BROKER, talker, FRAME_BYTES_MAX)
                break
            except OSError:
                await asyncio.sleep(0.0005)
        answer = await talker.ask(9, MetadataRequest(topics=[]))
        assert [broker.node_id for broker in answer.brokers] == [1]
        await starting

    async def _started(node: Node) -> Node:
        await node.start()
        return node

    Simulation(seed=1).run(play)
