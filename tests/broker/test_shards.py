"""Shards of a coordinator that are unloaded, loading, or cannot be loaded."""

import asyncio
from typing import Any

import pytest
from broker_scene import Scene, on_broker
from group_members import commit, find_coordinator
from transaction_scene import FEW_PARTITIONS, P0, Sink, find, producer_of

from moldau.broker.coordinators.shard import CoordinatorShard
from moldau.broker.coordinators.shards import read_all
from moldau.broker.groups.shard import Shard
from moldau.broker.transactions.shard import TransactionShard
from moldau.machines.transactions import SendMarkers
from moldau.model.errors import CoordinatorLoadInProgress, CorruptMessage, ErrorCode, NotCoordinator

SETTINGS = ("offsets.topic.num.partitions=3",)


async def shards_with_groups(scene: Scene) -> list[Shard]:
    """Return three shards, each with a group."""
    await scene.create("t")
    talker = await scene.connect()
    await find_coordinator(talker)
    for group in "abc":
        assert await commit(talker, {0: 1}, group) == [ErrorCode.NONE]
    return scene.node.broker.groups.shards()


async def listed(shards: list[Shard]) -> tuple[list[str], ErrorCode]:
    groups, error = await read_all(shards, lambda machine, _: machine.list_groups())
    return [each.group_id for each in groups], error


@pytest.mark.proves("H3", part="clients learn the new leader")
def test_shard_unloaded_during_a_request_is_skipped() -> None:
    async def script(scene: Scene) -> None:
        shards = await shards_with_groups(scene)
        everything, _ = await listed(shards)
        assert sorted(everything) == ["a", "b", "c"]
        listing = asyncio.ensure_future(listed(shards))
        await asyncio.sleep(0)  # the first is being read
        shards[1].resign()
        assert await listing == ([everything[0], everything[2]], ErrorCode.NONE)

    on_broker(script, settings=SETTINGS)


def test_loading_shard_is_reported_as_missing() -> None:
    async def script(scene: Scene) -> None:
        shards = await shards_with_groups(scene)
        everything, _ = await listed(shards)
        shards[1].resign()
        shards[1].expect_load()
        assert await listed(shards) == ([everything[0], everything[2]], ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)

    on_broker(script, settings=SETTINGS)


@pytest.mark.proves("H3", part="clients learn the new leader")
def test_unreadable_shard_returns_a_final_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async def unreadable() -> None:
        raise CorruptMessage("a batch with another checksum")

    async def script(scene: Scene) -> None:
        shard = (await shards_with_groups(scene))[0]
        shard.resign()
        shard.expect_load()
        with pytest.raises(CoordinatorLoadInProgress):
            await shard.read(lambda machine: machine.list_groups())
        monkeypatch.setattr(shard._driver, "lead", unreadable)
        with pytest.raises(CorruptMessage):
            await shard.load()
        with pytest.raises(NotCoordinator):
            await shard.read(lambda machine: machine.list_groups())

    on_broker(script, settings=SETTINGS)


@pytest.mark.proves("P3")
def test_end_of_a_transaction_is_not_written_before_it_can_be_committed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    can_commit = True
    marked: list[SendMarkers] = []
    all_marked = TransactionShard.all_marked

    def lose_replicas(shard: TransactionShard, effect: SendMarkers) -> None:
        nonlocal can_commit
        can_commit = can_commit and bool(marked)  # the first time the ISR is too small
        marked.append(effect)
        all_marked(shard, effect)

    async def script(scene: Scene) -> None:
        nonlocal can_commit
        await scene.create("t")
        await find(await scene.connect(), "t")
        Sink(scene.node)
        monkeypatch.setattr(CoordinatorShard, "can_commit", property(lambda _: can_commit))
        monkeypatch.setattr(TransactionShard, "all_marked", lose_replicas)
        producer = producer_of(scene)
        await producer.init()
        await producer.add(P0)
        assert await producer.end() is ErrorCode.NONE
        await producer.until("PrepareCommit")
        log: Any = scene.node.broker.transactions.shard_for("t")._partition.log
        end_offset = log.end_offset
        await asyncio.sleep(5)
        assert log.end_offset == end_offset
        assert len(marked) > 1
        can_commit = True
        await producer.until("CompleteCommit")

    on_broker(script, settings=FEW_PARTITIONS)
