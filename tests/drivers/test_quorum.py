"""Three controllers with one metadata log: election, replication, failover, recovery."""

import asyncio
import errno

import pytest
from quorum_scene import Quorum, is_written, offsets_in, on_quorum, write_to

from moldau.model.errors import NotController

pytestmark = pytest.mark.proves("H6")


@pytest.mark.parametrize("is_static", [False, True], ids=["voters in the log", "voters in the settings"])
def test_three_controllers_elect_a_leader_and_all_see_its_commits(is_static: bool) -> None:
    async def script(quorum: Quorum) -> None:
        leader = await quorum.leader()
        await quorum.write(1)
        assert await quorum.seen_by_all(1) < 0.1
        for node_id in quorum.nodes:
            metadata = quorum.metadata(node_id)
            assert metadata.leader_id == leader
            assert metadata.is_active is (node_id == leader)
            assert metadata.controller_address is not None
            assert metadata.controller_address.host == f"n{leader}"

    on_quorum(script, is_static=is_static)


def test_commits_reach_followers_without_waiting_for_the_next_fetch() -> None:
    async def script(quorum: Quorum) -> None:
        await quorum.leader()
        for value in range(20):
            await quorum.write(value)
            assert await quorum.seen_by_all(value) < 0.02

    on_quorum(script)


def test_only_the_leader_writes() -> None:
    async def script(quorum: Quorum) -> None:
        leader = await quorum.leader()
        for node_id in quorum.nodes:
            if node_id != leader:
                with pytest.raises(NotController):
                    await quorum.host(node_id).run(write_to(quorum.metadata(node_id), 1))

    on_quorum(script)


# Failover


@pytest.mark.parametrize("seed", range(10))
def test_dead_leader_is_replaced_in_well_under_a_second(seed: int) -> None:
    async def script(quorum: Quorum) -> None:
        for value in range(3):
            leader = await quorum.leader()
            await quorum.write(value)
            quorum.kill(leader)
            began_s = quorum.simulation.now_s
            await quorum.leader(unlike=leader)
            assert quorum.simulation.now_s - began_s < 0.5
            await quorum.write(value + 100)
            await quorum.seen_by_all(value + 100)
            await quorum.start(leader)
            await quorum.seen_by_all(value + 100)

    on_quorum(script, seed=seed)


def test_stopping_leader_hands_over_at_once() -> None:
    async def script(quorum: Quorum) -> None:
        leader = await quorum.leader()
        await quorum.write(1)
        stopping = asyncio.create_task(quorum.stop(leader))
        took_s = await quorum.until(lambda: len(quorum.leaders) == 1 and leader not in quorum.leaders)
        assert took_s < 0.2
        await stopping
        await quorum.write(2)

    on_quorum(script)


def test_silent_leader_is_replaced_after_the_fetch_timeout() -> None:
    async def script(quorum: Quorum) -> None:
        leader = await quorum.leader()
        await quorum.write(1)
        quorum.cut_power(leader)
        began_s = quorum.simulation.now_s
        await quorum.leader(unlike=leader)
        took_s = quorum.simulation.now_s - began_s
        assert 0.5 < took_s < 2.0, "the fetch time-out is 1 s here"
        await quorum.write(2)

    on_quorum(script, settings=["controller.quorum.fetch.timeout.ms=1000"])


@pytest.mark.parametrize("seed", range(5))
def test_acknowledged_values_survive_repeated_leader_failures(seed: int) -> None:
    async def script(quorum: Quorum) -> None:
        for value in range(8):
            leader = await quorum.write(value)
            if value % 2:
                quorum.kill(leader)
                await quorum.leader(unlike=leader)
                await quorum.seen_by_all(value)
                await quorum.start(leader)
            else:
                quorum.cut_power(leader)
                await quorum.start(leader)
            await quorum.seen_by_all(value)

    on_quorum(script, seed=seed)


@pytest.mark.parametrize("ends", ["crash", "power loss"])
def test_quorum_recovers_after_all_nodes_die_at_once(ends: str) -> None:
    async def script(quorum: Quorum) -> None:
        for value in range(3):
            await quorum.write(value)
            for node_id in list(quorum.nodes):
                quorum.kill(node_id) if ends == "crash" else quorum.cut_power(node_id)
            await asyncio.gather(*(quorum.start(each) for each in (1, 2, 3)))
            await quorum.leader()
            await quorum.seen_by_all(value)

    on_quorum(script)


# Network partitions


@pytest.mark.proves("H7")
def test_leader_without_a_majority_commits_nothing_and_is_replaced() -> None:
    async def script(quorum: Quorum) -> None:
        old = await quorum.leader()
        await quorum.write(1)
        await quorum.seen_by_all(1)
        others = [each for each in quorum.nodes if each != old]
        quorum.simulation.network.partition((f"n{old}",), tuple(f"n{each}" for each in others))
        doomed = asyncio.create_task(quorum.host(old).run(write_to(quorum.metadata(old), 2)))
        await quorum.until(lambda: any(quorum.metadata(each).is_active for each in others))
        new = next(each for each in others if quorum.metadata(each).is_active)
        await quorum.host(new).run(write_to(quorum.metadata(new), 3))
        with pytest.raises(NotController):
            await doomed
        assert quorum.value(old) == "1"
        assert not quorum.metadata(old).is_active, "it has stepped down by itself"
        tail = offsets_in(quorum.log_bytes(old))
        quorum.simulation.network.heal()
        await quorum.seen_by_all(3)
        await quorum.until(lambda: quorum.metadata(old).end_offset == quorum.metadata(new).end_offset)
        assert quorum.log_bytes(old) == quorum.log_bytes(new) != b"", "its own tail is cut off"
        assert tail

    on_quorum(script)


def test_isolated_node_does_not_disturb_the_others_on_return() -> None:
    async def script(quorum: Quorum) -> None:
        leader = await quorum.leader()
        away = next(each for each in quorum.nodes if each != leader)
        rest = [each for each in quorum.nodes if each != away]
        quorum.simulation.network.partition((f"n{away}",), tuple(f"n{each}" for each in rest))
        await quorum.write(1)
        await asyncio.sleep(10.0)
        epoch = quorum.metadata(leader).epoch
        quorum.simulation.network.heal()
        await quorum.seen_by_all(1)
        await asyncio.sleep(3.0)
        assert quorum.leaders == [leader]
        assert quorum.metadata(leader).epoch == epoch

    on_quorum(script)


def test_logs_are_identical_byte_for_byte() -> None:
    async def script(quorum: Quorum) -> None:
        for value in range(10):
            await quorum.write(value)
            if value == 5:
                quorum.kill(quorum.leaders[0])
        for node_id in {1, 2, 3} - quorum.nodes.keys():
            await quorum.start(node_id)
        await quorum.seen_by_all(9)
        ends = {each: quorum.metadata(each) for each in quorum.nodes}
        await quorum.until(lambda: len({each.end_offset for each in ends.values()}) == 1)
        assert quorum.log_bytes(1) == quorum.log_bytes(2) == quorum.log_bytes(3)

    on_quorum(script)


# Images


@pytest.mark.parametrize("seed", range(5))
def test_every_node_sees_one_history_of_images(seed: int) -> None:
    async def script(quorum: Quorum) -> None:
        for value in range(12):
            leader = await quorum.write(value)
            if value % 3 == 2:
                quorum.kill(leader)
                await quorum.leader(unlike=leader)
                await quorum.start(leader)
        await quorum.seen_by_all(11)
        for seen in quorum.images.values():
            offsets = [image.offset for image in seen]
            assert offsets == sorted(offsets)
            epochs = [image.epoch for image in seen]
            assert epochs == sorted(epochs)

    on_quorum(script, seed=seed)


def test_new_leader_replays_only_unapplied_records() -> None:
    async def script(quorum: Quorum) -> None:
        for value in range(20):
            await quorum.write(value)
        await quorum.seen_by_all(19)
        old = await quorum.leader()
        shown = quorum.metadata(old).image.offset
        quorum.kill(old)
        new = await quorum.leader(unlike=old)
        log = quorum.metadata(new)._log
        assert log.replays_from > shown
        await quorum.write(20)

    on_quorum(script)


def test_follower_publishes_nothing_uncommitted() -> None:
    async def script(quorum: Quorum) -> None:
        leader = await quorum.leader()
        near, away = (each for each in quorum.nodes if each != leader)
        await quorum.write(1)
        await quorum.seen_by_all(1)
        quorum.kill(away)
        await asyncio.sleep(0.05)  # a fetch waits at the leader
        end_offset = quorum.metadata(near).end_offset
        quorum.simulation.network.cut(f"n{near}", f"n{leader}")
        doomed = asyncio.create_task(quorum.host(leader).run(is_written(quorum.metadata(leader), 2, 1.0)))
        await quorum.until(lambda: quorum.metadata(near).end_offset > end_offset)
        await asyncio.sleep(0.5)
        assert quorum.value(near) == quorum.value(leader) == "1"
        assert not await doomed
        quorum.simulation.network.heal()
        await quorum.until(lambda: quorum.value(near) == "2")

    on_quorum(script)


def test_deposed_leader_continues_as_a_follower_from_its_position() -> None:
    async def script(quorum: Quorum) -> None:
        old = await quorum.leader()
        await quorum.write(1)
        others = tuple(f"n{each}" for each in quorum.nodes if each != old)
        quorum.simulation.network.partition((f"n{old}",), others)
        await quorum.until(lambda: not quorum.metadata(old).is_active)
        quorum.simulation.network.heal()
        await quorum.leader()
        await quorum.write(2)
        await quorum.seen_by_all(2)
        whole = quorum.metadata(old).image
        assert whole.features == quorum.metadata(quorum.leaders[0]).image.features != {}

    on_quorum(script)


def test_node_deposed_during_its_election_does_not_lead() -> None:
    """Its disk is full when it writes its leader change; by the time there is space, another node leads."""

    async def script(quorum: Quorum) -> None:
        quorum.simulation.disks_fail = True
        await quorum.write(1)
        await quorum.seen_by_all(1)
        old = await quorum.leader()
        others = [each for each in quorum.nodes if each != old]
        for each in others:
            quorum.host(each).disk.fail("pwrite", errno.ENOSPC, path=".log", times=12 if each == others[0] else 0)
        quorum.kill(old)
        await asyncio.sleep(0.5)
        await quorum.start(old)
        await quorum.write(2)
        await quorum.seen_by_all(2)
        assert len([each for each in quorum.nodes if quorum.metadata(each).is_active]) == 1

    for seed in range(6):
        on_quorum(script, seed=seed)
