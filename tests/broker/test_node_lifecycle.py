"""The lifecycle of a node: start, recovery, stop, and error messages of a failed start."""

import asyncio
import errno

import pytest
from broker_scene import Scene, batch, list_offset, on_broker, produce, produce_request

from moldau.model.errors import ErrorCode, InvalidConfig
from moldau.model.ports import Ports
from moldau.node.configuration import load_configuration
from moldau.node.node import Node
from moldau.storage.log_dir import LogDirLocked
from moldau_dev.simulation.cluster.disk_log import LogOnDisk
from moldau_dev.simulation.simulation import Simulation

LOG = "/data/t-0/00000000000000000000.log"


def _node(simulation: Simulation, ports: Ports, *settings: str) -> Node:
    overrides = ["listeners=PLAINTEXT://broker:9092", "moldau.metrics.listener=", "log.dirs=/data", *settings]
    return Node(load_configuration(overrides=overrides), ports, on_failure=simulation.fail)


@pytest.mark.proves("S8")
def test_start_scans_the_log_tail_only_after_a_crash() -> None:
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


def test_second_node_on_the_same_folder_is_rejected() -> None:
    async def play(simulation: Simulation) -> None:
        async def program(ports: Ports) -> Node:
            first = _node(simulation, ports)
            await first.start()
            with pytest.raises(LogDirLocked, match="/data is in use by another node"):
                await _node(simulation, ports, "listeners=PLAINTEXT://broker:9093").start()
            return first

        await simulation.host("broker").start(program)

    Simulation(seed=1).run(play)


def test_folder_of_another_node_is_rejected_and_released() -> None:
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


def test_port_in_use_raises_os_error_and_releases_the_folder() -> None:
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


def test_connection_before_the_start_is_complete_is_served_later() -> None:
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
        response = await talker.ask(9, MetadataRequest(topics=[]))
        assert [broker.node_id for broker in response.brokers] == [1]
        await starting

    async def _started(node: Node) -> Node:
        await node.start()
        return node

    Simulation(seed=1).run(play)


@pytest.mark.proves("S8")
def test_corrupt_partition_is_offline_and_the_rest_is_served() -> None:
    async def script(scene: Scene) -> None:
        await scene.create("good")
        await scene.create("bad")
        talker = await scene.connect()
        for topic in ("good", "bad"):
            for _ in range(3):
                await produce(talker, topic, batch(b"x" * 100))
        scene.simulation.disks_fail = True
        scene.host.crash()
        scene.host.disk.flip_bit("/data/bad-0/00000000000000000000.log", position=100)
        await scene.restart()
        talker = await scene.connect()
        assert (await produce(talker, "good", batch(b"y"))).base_offset == 3
        rejected = await produce(talker, "bad", batch(b"y"))
        assert rejected.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert "bad-0 is offline" in rejected.error_message

    on_broker(script)


@pytest.mark.proves("S8")
def test_hole_is_truncated_only_after_a_power_loss() -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t")
        talker = await scene.connect()
        for _ in range(3):
            await produce(talker, "t", batch(b"x" * 100))
        for file in scene.host.disk.contents():
            if file.endswith(".log"):
                scene.host.disk.mount().open(file).fsync()
        scene.host.disk.mount().sync_directory("/data/t-0")
        scene.host.power_loss()
        scene.host.disk.flip_bit("/data/t-0/00000000000000000000.log", position=300)
        await scene.restart()
        talker = await scene.connect()
        end_offset = (await list_offset(talker, "t", -1)).offset
        assert end_offset == 1
        assert (await produce(talker, "t", batch(b"y"))).base_offset == end_offset

    on_broker(script)


@pytest.mark.proves("S8", part="acknowledged records are kept")
def test_corrupt_partition_is_offline_after_a_clean_shutdown() -> None:
    async def script(scene: Scene) -> None:
        scene.simulation.disks_fail = True
        await scene.create("t")
        talker = await scene.connect()
        for _ in range(3):
            await produce(talker, "t", batch(b"x" * 100))
        scene.host.crash()
        scene.host.disk.flip_bit(LOG, position=100)
        await scene.restart()
        for _ in range(2):
            await scene.host.stop()
            await scene.restart()
            talker = await scene.connect()
            assert "t-0 is offline" in (await produce(talker, "t", batch(b"y"))).error_message

    on_broker(script)


@pytest.mark.proves("S8", part="torn tails are truncated")
@pytest.mark.parametrize("is_killed", [True, False])
def test_power_loss_is_remembered_until_every_log_is_opened(is_killed: bool) -> None:
    async def script(scene: Scene) -> None:
        scene.simulation.disks_fail = True
        await scene.create("t")
        talker = await scene.connect()
        for _ in range(3):
            await produce(talker, "t", batch(b"x" * 100))
        scene.host.disk.mount().open(LOG).fsync()
        scene.host.disk.mount().sync_directory("/data/t-0")
        scene.host.power_loss()
        scene.host.disk.flip_bit(LOG, position=300)  # a hole, as after a power loss
        scene.host.disk.fail("open", errno.EMFILE, path=LOG, times=1000)
        await scene.restart()
        if is_killed:
            scene.host.crash()
        else:
            await scene.host.stop()
        scene.host.disk.forget_plans()
        await scene.restart()
        talker = await scene.connect()
        assert (await list_offset(talker, "t", -1)).offset == 1

    on_broker(script)


@pytest.mark.proves("S8", part="acknowledged records are kept")
def test_power_loss_recovery_ends_once_every_log_is_opened() -> None:
    async def script(scene: Scene) -> None:
        scene.simulation.disks_fail = True
        await scene.create("t")
        scene.host.power_loss()
        scene.host.disk.fail("open", errno.EMFILE, path=LOG, times=3)
        await scene.restart()
        talker = await scene.connect()
        assert "t-0 cannot be opened yet" in (await produce(talker, "t", batch(b"y"))).error_message
        await asyncio.sleep(5)
        for _ in range(3):
            await produce(talker, "t", batch(b"x" * 100))
        scene.host.crash()
        scene.host.disk.flip_bit(LOG, position=300)  # no power loss: this is corruption, and nothing is truncated
        await scene.restart()
        talker = await scene.connect()
        assert "t-0 is offline" in (await produce(talker, "t", batch(b"y"))).error_message

    on_broker(script)


@pytest.mark.proves("S6")
def test_unsynced_records_of_a_killed_process_are_synced_before_reads() -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t", flush_messages=1)
        talker = await scene.connect()
        await produce(talker, "t", batch(b"a"))
        log = LogOnDisk(scene.host.disk, "/data/t-0")
        talker.begin(9, produce_request("t", batch(b"b")))
        while log.end_offset < 2:
            await asyncio.sleep(0.0001)
            log.refresh()
        assert log.durable_end_offset() == 1
        scene.host.crash()
        await scene.restart()
        talker = await scene.connect()
        assert (await list_offset(talker, "t", -1)).offset == 2
        log.refresh()
        assert log.durable_end_offset() == 2

    on_broker(script)


@pytest.mark.proves("S6", "S8")
def test_failed_sync_stops_the_node() -> None:
    failures: list[str] = []

    async def play(simulation: Simulation) -> None:
        host = simulation.host("broker")
        simulation.disks_fail = True

        async def program(ports: Ports) -> Node:
            overrides = ["listeners=PLAINTEXT://broker:9092", "moldau.metrics.listener=", "log.dirs=/data"]
            node = Node(
                load_configuration(overrides=overrides), ports, on_failure=lambda what, _: failures.append(what)
            )
            await node.start()
            return node

        scene = Scene(simulation, host, await host.start(program))
        await scene.create("t", flush_messages=1)
        host.disk.fail("fsync", errno.EIO, path="/data/t-0/00000000000000000000.log")
        talker = await scene.connect()
        response = await produce(talker, "t", batch(b"a"), timeout_ms=1000)
        assert response.error_code == ErrorCode.REQUEST_TIMED_OUT
        assert failures == ["t-0: fsync failed"]
        assert host.disk.mount().read("/data/.boot-id") == b"a sync has failed"

    Simulation(seed=1).run(play)
