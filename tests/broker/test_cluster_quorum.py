"""Three combined nodes: controller election, failover, and durability of the metadata."""

import asyncio

import pytest
from broker_scene import batch, produce
from cluster_scene import ALL_CONTROL, BROKER, CONTROLLER, CONTROLLERS, Cluster, on_cluster

from moldau.machines.metadata.image import TopicImage
from moldau.model.errors import ErrorCode
from moldau.wire import messages as m

HOSTS = ("n1", "n2", "n3")


def others(cluster: Cluster, node_id: int) -> list[int]:
    return [each for each in cluster.nodes if each != node_id]


@pytest.mark.proves("H6")
def test_three_nodes_elect_a_controller_and_register_with_it() -> None:
    async def script(cluster: Cluster) -> None:
        assert cluster.simulation.now_s < 3.0
        active = cluster.active
        for node in cluster.nodes.values():
            assert node.broker.metadata.leader_id == active
            await node.broker.metadata_publisher.until(lambda image: len(image.controllers) == 3)
            await node.broker.metadata_publisher.until(lambda image: [*map(image.is_active, (1, 2, 3))] == [True] * 3)

    on_cluster(script, roles=ALL_CONTROL)


@pytest.mark.proves("H6")
def test_topic_can_be_created_through_every_broker() -> None:
    async def script(cluster: Cluster) -> None:
        for through in cluster.nodes:
            await cluster.create(f"t{through}", partitions=3, through=through)
            assert set(cluster.leaders(f"t{through}")) == {1, 2, 3}

    on_cluster(script, roles=ALL_CONTROL)


async def write_voters_down(cluster: Cluster, through: int) -> None:
    update = m.UpdateFeaturesRequest.FeatureUpdateKey(feature="kraft.version", max_version_level=1, upgrade_type=1)
    talker = await cluster.connect(through)
    response = await talker.ask(2, m.UpdateFeaturesRequest(timeout_ms=5000, feature_updates=[update]))
    assert (response.error_code, response.error_message) == (0, None)


@pytest.mark.proves("H6")
def test_only_static_voters_can_be_recorded_through_any_broker() -> None:
    async def script(cluster: Cluster) -> None:
        await cluster.create("t")
        for through in (4, *others(cluster, cluster.active)):
            await write_voters_down(cluster, through)
        quorums = [node.broker.metadata.quorum.machine for node in cluster.nodes.values()]
        await cluster.until(lambda: {each.kraft_version for each in quorums} == {1}, 5.0)
        assert [each.is_voter for each in quorums] == [True, True, True, False]
        cluster.kill(cluster.active)
        await cluster.until_active()
        await cluster.create("u")

    on_cluster(script, roles=(*ALL_CONTROL, BROKER))


@pytest.mark.proves("H6", part="voters change")
def test_adding_a_voter_does_not_block_other_requests_of_the_broker() -> None:
    async def script(cluster: Cluster) -> None:
        await write_voters_down(cluster, 2)
        where = m.AddRaftVoterRequest.Listener(name="CONTROLLER", host="n9", port=CONTROLLERS)
        talker = await cluster.connect(2)
        adding = talker.begin(
            1,
            m.AddRaftVoterRequest(timeout_ms=10_000, voter_id=9, voter_directory_id=b"9" * 16, listeners=[where]),
        )
        await asyncio.sleep(0.1)
        began_s = cluster.simulation.now_s
        await cluster.create("t", through=2)
        assert cluster.simulation.now_s - began_s < 1.0
        assert not adding.done()
        assert (await adding).error_code == ErrorCode.REQUEST_TIMED_OUT  # there is no such controller

    on_cluster(script)


@pytest.mark.proves("H3", "H6")
def test_killed_active_controller_is_fenced_within_a_second() -> None:
    async def script(cluster: Cluster) -> None:
        await cluster.create("t", partitions=6)
        await asyncio.sleep(3)
        victim = cluster.active
        cluster.kill(victim)
        assert await cluster.until_active(1.0) < 1.0
        assert await cluster.until(lambda: cluster.broker(victim).is_fenced, 1.0) < 0.5
        assert set(cluster.leaders("t")) == set(cluster.nodes)
        await cluster.create("u", replicas=2)

    on_cluster(script, roles=ALL_CONTROL)


@pytest.mark.proves("H3")
def test_killed_inactive_broker_is_fenced_within_a_second() -> None:
    async def script(cluster: Cluster) -> None:
        await cluster.create("t", partitions=6)
        await asyncio.sleep(3)
        active = cluster.active
        victim = others(cluster, active)[0]
        cluster.kill(victim)
        assert await cluster.until(lambda: cluster.broker(victim, active).is_fenced, 1.0) < 0.5
        assert cluster.active == active

    on_cluster(script, roles=ALL_CONTROL)


@pytest.mark.proves("H6")
def test_controlled_shutdown_of_the_active_controller_hands_over() -> None:
    async def script(cluster: Cluster) -> None:
        await cluster.create("t", partitions=6)
        await asyncio.sleep(3)
        victim = cluster.active
        began_s = cluster.simulation.now_s
        await cluster.stop(victim)
        assert cluster.simulation.now_s - began_s < 1.0
        assert await cluster.until_active(1.0) < 0.5
        assert cluster.broker(victim).is_fenced
        assert set(cluster.leaders("t")) == set(cluster.nodes)
        await cluster.start(victim)
        assert not cluster.broker(victim, victim).is_fenced

    on_cluster(script, roles=ALL_CONTROL)


@pytest.mark.proves("H3", "H6")
def test_isolated_active_controller_is_replaced_after_timeouts() -> None:
    async def script(cluster: Cluster) -> None:
        await cluster.create("t", partitions=6)
        await asyncio.sleep(3)
        victim = cluster.active
        cluster.cut_power(victim)
        await cluster.until_active(6.0)
        assert await cluster.until(lambda: cluster.broker(victim).is_fenced, 12.0) > 5.0
        assert set(cluster.leaders("t")) == set(cluster.nodes)
        assert all(not cluster.broker(each).is_fenced for each in cluster.nodes)

    on_cluster(script, roles=ALL_CONTROL)


@pytest.mark.proves("H7")
def test_minority_elects_no_controller_and_recovers_by_itself() -> None:
    async def script(cluster: Cluster) -> None:
        await cluster.create("t", partitions=6)
        await asyncio.sleep(3)
        lonely = cluster.active
        network = cluster.simulation.network
        network.partition((HOSTS[lonely - 1],), tuple(each for each in HOSTS if each != HOSTS[lonely - 1]))
        majority = others(cluster, lonely)
        await cluster.until(lambda: any(cluster.nodes[each].broker.metadata.is_active for each in majority), 6.0)
        await cluster.until(lambda: not cluster.nodes[lonely].broker.metadata.is_active, 6.0)
        await cluster.until(lambda: cluster.broker(lonely, majority[0]).is_fenced, 12.0)
        network.heal()
        await cluster.until(lambda: all(not cluster.broker(lonely, each).is_fenced for each in cluster.nodes), 10.0)
        assert cluster.active in majority

    on_cluster(script, roles=ALL_CONTROL)


@pytest.mark.proves("H6")
def test_acknowledged_metadata_survives_a_kill_of_all_nodes() -> None:
    async def script(cluster: Cluster) -> None:
        await cluster.create("t", partitions=3)
        leader = cluster.leaders("t")[0]
        response = await produce(await cluster.connect(leader), "t", batch(b"a", b"b"))
        assert response.error_code == 0
        for node_id in list(cluster.nodes):
            cluster.kill(node_id)
        await cluster.start_all()
        await cluster.until(lambda: -1 not in cluster.leaders("t"), 5.0)
        leader = cluster.leaders("t")[0]
        await cluster.until(lambda: "t" in cluster.nodes[leader].broker.image.topics, 5.0)
        response = await produce(await cluster.connect(leader), "t", batch(b"c"))
        assert (response.error_code, response.base_offset) == (0, 2)

    on_cluster(script, roles=ALL_CONTROL)


@pytest.mark.proves("H6")
def test_dedicated_controllers_and_brokers_form_a_cluster() -> None:
    async def script(cluster: Cluster) -> None:
        assert cluster.active in (1, 2, 3)
        await cluster.create("t", partitions=4, replicas=2, through=5)
        assert set(cluster.leaders("t", 1)) == {4, 5}
        talker = await cluster.connect(4)
        response = await talker.ask(12, m.MetadataRequest(topics=None))
        assert {each.node_id for each in response.brokers} == {4, 5}
        assert response.controller_id in (4, 5)
        victim = cluster.active
        cluster.kill(victim)
        await cluster.until_active(1.0)
        cluster.kill(4)  # it may not have found its new controller yet
        assert await cluster.until(lambda: cluster.broker(4, 5).is_fenced, 1.0) < 1.0
        assert set(cluster.leaders("t", 5)) == {5}

    on_cluster(script, roles=(CONTROLLER, CONTROLLER, CONTROLLER, BROKER, BROKER))


def test_cluster_run_is_deterministic() -> None:
    """Elections depend on the seed alone."""

    async def script(cluster: Cluster) -> None:
        await cluster.create("t")
        elected.append((cluster.active, cluster.simulation.now_s))

    elected: list[tuple[int, float]] = []
    for _ in range(2):
        on_cluster(script, roles=ALL_CONTROL, seed=7)
    assert elected[0] == elected[1]


@pytest.mark.proves("H3", "H6")
@pytest.mark.parametrize("is_active", [False, True])
def test_suspended_process_is_fenced_and_unfenced_when_it_resumes(is_active: bool) -> None:
    async def script(cluster: Cluster) -> None:
        await cluster.create("t", partitions=6)
        await asyncio.sleep(3)
        paused = cluster.active if is_active else others(cluster, cluster.active)[0]
        epoch, witness = cluster.broker(paused).epoch, others(cluster, paused)[0]
        cluster.host(paused).pause()
        assert await cluster.until(lambda: cluster.broker(paused, witness).is_fenced, 15.0) > 5.0
        cluster.host(paused).resume()
        await cluster.until(lambda: not cluster.broker(paused, witness).is_fenced, 5.0)
        await cluster.until(lambda: not cluster.broker(paused, paused).is_fenced, 1.0)
        assert cluster.broker(paused).epoch == epoch
        assert cluster.active != paused or not is_active

    on_cluster(script, roles=ALL_CONTROL)


@pytest.mark.proves("H8")
def test_leadership_is_available_throughout_a_rolling_restart() -> None:
    async def script(cluster: Cluster) -> None:
        await cluster.create("t", partitions=6)
        for node_id in (1, 2, 3):
            await cluster.stop(node_id)
            await cluster.until(lambda: -1 not in cluster.leaders("t"), 0.5)
            await cluster.start(node_id)
            await cluster.until(lambda: all(len(each.isr) == 3 for each in topic_of(cluster, "t").partitions), 5.0)
        assert -1 not in cluster.leaders("t")

    on_cluster(script, roles=ALL_CONTROL)


def topic_of(cluster: Cluster, name: str) -> TopicImage:
    return cluster.nodes[min(cluster.nodes)].broker.image.topics[name]
