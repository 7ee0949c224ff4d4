"""The lifecycle of brokers in a cluster: registration, heartbeats, fencing, controlled shutdown."""

import asyncio

import pytest
from cluster_scene import CLIENTS, Cluster, on_cluster

from moldau.broker.cluster.peers import Peers
from moldau.broker.drivers.metadata import MetadataDriver
from moldau.model.errors import ErrorCode, InvalidConfig, RequestTimedOut
from moldau.model.ids import Address
from moldau.model.ports import Ports
from moldau.node.configuration import load_configuration
from moldau.node.node import Node
from moldau.storage.files import replace_file
from moldau.storage.log_dir import BROKER_EPOCH, INCARNATION, LogDir
from moldau.wire import messages as m


def test_brokers_are_registered_and_unfenced_before_they_serve() -> None:
    async def script(cluster: Cluster) -> None:
        for node_id in (1, 2, 3):
            talker = await cluster.connect(node_id)
            response = await talker.ask(12, m.MetadataRequest(topics=None))
            assert {each.node_id for each in response.brokers} >= {node_id}
        epochs = [cluster.broker(node_id).epoch for node_id in (1, 2, 3)]
        assert len(set(epochs)) == 3

    on_cluster(script)


@pytest.mark.parametrize("through", [1, 2, 3])
def test_topic_can_be_created_through_any_broker(through: int) -> None:
    async def script(cluster: Cluster) -> None:
        await cluster.create("t", partitions=6, through=through)
        for node in cluster.nodes.values():
            topic = node.broker.image.topics["t"]
            assert all(sorted(each.replicas) == [1, 2, 3] for each in topic.partitions)
            assert {each.leader for each in topic.partitions} == {1, 2, 3}

    on_cluster(script)


@pytest.mark.proves("H3")
def test_killed_broker_is_fenced_within_a_second() -> None:
    async def script(cluster: Cluster) -> None:
        await cluster.create("t", partitions=6)
        await asyncio.sleep(3)
        cluster.kill(2)
        assert await cluster.until(lambda: cluster.broker(2).is_fenced, 1.0) < 0.5
        assert set(cluster.leaders("t")) == {1, 3}
        assert not cluster.broker(3).is_fenced

    on_cluster(script)


@pytest.mark.proves("H3")
def test_dead_broker_is_fenced_though_its_port_still_accepts_for_a_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: list[Address] = []
    is_refused = Peers.is_refused

    async def too_early_at_first(peers: Peers, address: Address) -> bool:
        looks.append(address)
        return await is_refused(peers, address) and len(looks) > 3

    monkeypatch.setattr(Peers, "is_refused", too_early_at_first)

    async def script(cluster: Cluster) -> None:
        await cluster.create("t", partitions=6)
        await asyncio.sleep(3)
        looks.clear()
        cluster.kill(2)
        assert await cluster.until(lambda: cluster.broker(2).is_fenced, 1.0) < 0.6
        assert len(looks) >= 5

    on_cluster(script)


@pytest.mark.proves("H6", part="brokers register")
@pytest.mark.parametrize("seconds", [2, 5, 25])
def test_broker_start_times_out_without_a_controller(seconds: int) -> None:
    async def script(cluster: Cluster) -> None:
        await cluster.stop(2)
        cluster.kill(1)  # the only controller
        began_s = cluster.simulation.now_s
        with pytest.raises(RequestTimedOut, match=r"initial\.broker\.registration\.timeout\.ms"):
            await cluster.start(2)
        assert seconds - 1.0 <= cluster.simulation.now_s - began_s <= seconds + 0.5
        await cluster.start(1)

    on_cluster(script, settings=[f"initial.broker.registration.timeout.ms={seconds * 1000}"])


def test_registered_broker_waits_for_a_controller_without_a_timeout() -> None:
    async def script(cluster: Cluster) -> None:
        epoch = cluster.broker(2).epoch
        cluster.kill(1)
        await asyncio.sleep(30)
        await cluster.start(1)
        await cluster.until(lambda: not cluster.broker(2).is_fenced, 5.0)
        assert cluster.broker(2).epoch >= epoch

    on_cluster(script, settings=["initial.broker.registration.timeout.ms=3000"])


def test_broker_that_restarts_at_once_is_unfenced() -> None:
    async def script(cluster: Cluster) -> None:
        await cluster.create("t", partitions=3)
        await asyncio.sleep(3)
        before = cluster.broker(2).epoch
        cluster.kill(2)
        began_s = cluster.simulation.now_s
        await cluster.start(2)
        assert cluster.simulation.now_s - began_s < 1.0
        assert cluster.broker(2).epoch > before
        assert not cluster.broker(2).is_fenced

    on_cluster(script)


@pytest.mark.proves("H3")
def test_silent_broker_is_fenced_when_its_session_expires() -> None:
    async def script(cluster: Cluster) -> None:
        await cluster.create("t", partitions=6)
        await asyncio.sleep(3)
        cluster.cut_power(2)
        silent_s = await cluster.until(lambda: cluster.broker(2).is_fenced, 10.0)
        assert 6.9 < silent_s < 9.5  # the last heartbeat may have been sent up to 2 s before

    on_cluster(script)


@pytest.mark.proves("H3")
def test_broker_is_not_fenced_for_lost_connections() -> None:
    async def script(cluster: Cluster) -> None:
        await asyncio.sleep(3)
        epoch = cluster.broker(2).epoch
        for _ in range(20):
            cluster.simulation.network.reset("n2", "n1")
            await asyncio.sleep(1.0)
            assert not cluster.broker(2).is_fenced
        assert cluster.broker(2).epoch == epoch

    on_cluster(script)


@pytest.mark.proves("H3")
def test_controlled_shutdown_moves_leaderships_first() -> None:
    async def script(cluster: Cluster) -> None:
        await cluster.create("t", partitions=6)
        began_s = cluster.simulation.now_s
        await cluster.stop(2)
        assert cluster.simulation.now_s - began_s < 1.0
        assert cluster.broker(2).is_fenced
        assert set(cluster.leaders("t")) == {1, 3}

    on_cluster(script)


def test_partitioned_broker_is_unfenced_after_the_partition_heals() -> None:
    async def script(cluster: Cluster) -> None:
        await cluster.create("t", partitions=6)
        cluster.simulation.network.cut_both("n2", "n1")
        await cluster.until(lambda: cluster.broker(2).is_fenced, 12.0)
        await asyncio.sleep(20)
        cluster.simulation.network.heal()
        assert await cluster.until(lambda: not cluster.broker(2).is_fenced, 6.0) < 5.0

    on_cluster(script)


@pytest.mark.proves("H3")
def test_unregistered_broker_registers_again() -> None:
    async def script(cluster: Cluster) -> None:
        await asyncio.sleep(3)
        before = cluster.broker(2).epoch
        await cluster.nodes[1].broker.metadata.write(lambda machine: machine.decide_unregister_broker(2))
        await cluster.until(lambda: 2 not in cluster.nodes[1].broker.image.brokers, 1.0)
        await cluster.until(lambda: 2 in cluster.nodes[1].broker.image.brokers, 3.0)
        await cluster.until(lambda: not cluster.broker(2).is_fenced, 3.0)
        assert cluster.broker(2).epoch > before

    on_cluster(script)


@pytest.mark.proves("H6", part="brokers register")
def test_unregistered_broker_registers_again_though_its_disk_is_full() -> None:
    async def script(cluster: Cluster) -> None:
        known = cluster.broker(2)
        cluster.simulation.disks_fail = True
        cluster.host(2).disk.fail("open", 28, path=BROKER_EPOCH)
        await cluster.nodes[1].broker.metadata.write(lambda machine: machine.decide_unregister_broker(2))
        await cluster.until(lambda: 2 in cluster.nodes[1].broker.image.brokers, 5.0)
        await cluster.until(lambda: cluster.broker(2).is_active, 5.0)
        assert cluster.broker(2).epoch > known.epoch

    on_cluster(script)


@pytest.mark.proves("H6", part="brokers register")
def test_broker_survives_a_foreign_server_at_the_controller_address(monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(cluster: Cluster) -> None:
        with monkeypatch.context() as elsewhere:
            elsewhere.setattr(MetadataDriver, "controller_address", Address("n3", CLIENTS))
            await asyncio.sleep(5)
        await asyncio.sleep(5)
        assert [cluster.broker(each).is_active for each in (2, 3)] == [True, True]

    on_cluster(script)


def test_second_broker_with_the_same_id_fails_to_start_with_a_message() -> None:
    async def script(cluster: Cluster) -> None:
        request = m.BrokerRegistrationRequest(
            broker_id=2, cluster_id=cluster.nodes[1].cluster_id, incarnation_id=bytes(16), log_dirs=[bytes(16)]
        )
        await asyncio.sleep(3)
        response = await cluster.nodes[3].broker.controller.ask(request)
        assert response.error_code == ErrorCode.DUPLICATE_BROKER_REGISTRATION
        request.cluster_id = "another"
        response = await cluster.nodes[3].broker.controller.ask(request)
        assert response.error_code == ErrorCode.INCONSISTENT_CLUSTER_ID

    on_cluster(script)


@pytest.mark.proves("H3")
def test_new_controller_probes_all_brokers_at_once() -> None:
    async def script(cluster: Cluster) -> None:
        await asyncio.sleep(3)
        cluster.kill(1)
        cluster.kill(2)
        await cluster.start(1)
        assert await cluster.until(lambda: cluster.broker(2).is_fenced, 1.0) < 0.5
        await asyncio.sleep(5)
        assert not cluster.broker(3).is_fenced

    on_cluster(script)


@pytest.mark.proves("H5")
def test_previous_epoch_is_only_withheld_after_a_power_loss() -> None:
    async def script(cluster: Cluster) -> None:
        def previous_epoch() -> int:
            return cluster.nodes[2]._registration().previous_broker_epoch

        async def write_epoch_for_good() -> None:
            """Sync the epoch, so that the power loss is detected by the boot id alone and not by a lost file."""
            disk = cluster.nodes[2]._ports.disk
            replace_file(disk, f"/data/{BROKER_EPOCH}", disk.read(f"/data/{BROKER_EPOCH}"))

        assert previous_epoch() == -1
        epoch = cluster.broker(2).epoch
        cluster.kill(2)
        await cluster.start(2)
        assert previous_epoch() == epoch
        epoch = cluster.broker(2).epoch
        await cluster.stop(2)
        await cluster.start(2)
        assert previous_epoch() == epoch
        await cluster.host(2).run(write_epoch_for_good())
        cluster.cut_power(2)
        await cluster.start(2)
        assert previous_epoch() == -1

    on_cluster(script)


@pytest.mark.proves("H3", part="the new leader has all committed records")
@pytest.mark.parametrize("loses_power", [False, True])
def test_broker_killed_before_its_registration_response_counts_as_clean(
    loses_power: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was registered once more without knowing it: it reports the epoch before."""

    async def script(cluster: Cluster) -> None:
        async def write_id_for_good() -> None:
            disk = cluster.nodes[2]._ports.disk
            replace_file(disk, f"/data/{INCARNATION}", disk.read(f"/data/{INCARNATION}"))

        ids = [cluster.broker(2).incarnation_id]
        epochs = [cluster.broker(2).epoch]
        with monkeypatch.context() as patched:
            patched.setattr(LogDir, "record_broker_epoch", lambda *_: None)
            cluster.kill(2)
            await cluster.start(2)
            ids.append(cluster.broker(2).incarnation_id)
            epochs.append(cluster.broker(2).epoch)
        if loses_power:
            await cluster.host(2).run(write_id_for_good())
            cluster.cut_power(2)
        else:
            cluster.kill(2)
        await cluster.start(2)
        ids.append(cluster.broker(2).incarnation_id)
        epochs.append(cluster.broker(2).epoch)
        assert (ids[1] == ids[2], epochs[1] == epochs[2]) == (not loses_power, not loses_power)
        assert epochs[0] < epochs[1]
        cluster.kill(2)
        await cluster.start(2)
        assert cluster.broker(2).incarnation_id not in ids

    on_cluster(script)


@pytest.mark.proves("H6")
def test_unformatted_folder_is_not_formatted_implicitly() -> None:
    async def script(cluster: Cluster) -> None:
        async def program(ports: Ports) -> None:
            overrides = [*cluster.overrides(2), "log.dirs=/other", "listeners=PLAINTEXT://n2:9094"]
            node = Node(load_configuration(overrides=overrides), ports, on_failure=cluster.simulation.fail)
            async with asyncio.timeout(10):
                with pytest.raises(InvalidConfig, match="is not formatted"):
                    await node.start()

        await cluster.stop(2)
        await cluster.host(2).start(program)

    on_cluster(script)
