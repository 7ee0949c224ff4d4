"""Groups across restarts and crashes of a broker: offsets, members, sessions, loading."""

import asyncio
import errno
import random

import pytest
from broker_scene import Scene, Talker, on_broker
from group_members import SESSION_MS, TOPIC, Member, commit, committed, find_coordinator, join_request, members, settle

from moldau.broker import internal_topics
from moldau.broker.internal_topics import OFFSETS_TOPIC, partition_for
from moldau.model.errors import ErrorCode
from moldau.storage.checkpoints import CLEANED
from moldau.wire import messages

LOADING = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


async def _ready(scene: Scene, partitions: int = 4) -> Talker:
    await scene.create(TOPIC, partitions=partitions)
    talker = await scene.connect()
    await find_coordinator(talker)
    return talker


async def _reconnect(scene: Scene, group: list[Member]) -> None:
    for member in group:
        member.talker = await scene.connect()


async def _loaded(scene: Scene, group_id: str = "g") -> None:
    await committed(await scene.connect(), None, group_id)


@pytest.mark.proves("C3")
@pytest.mark.parametrize("is_crash", [False, True], ids=["stopped", "killed"])
def test_offsets_and_members_survive_a_restart(is_crash: bool) -> None:
    async def script(scene: Scene) -> None:
        talker = await _ready(scene)
        group = await members(scene, 3)
        await settle(group, 4)
        await group[0].commit({0: 5, 1: 6})
        for number in range(20):
            await commit(talker, {number % 4: number}, f"group-{number}")
        if is_crash:
            await scene.restart_after_crash()
        else:
            await scene.host.stop()
            await scene.restart()
        await _reconnect(scene, group)
        await _loaded(scene)
        assert [await member.heartbeat() for member in group] == [ErrorCode.NONE] * 3, "no rebalance"
        assert await group[1].commit({2: 7}) == [ErrorCode.NONE]
        talker = await scene.connect()
        assert await committed(talker, range(4)) == {0: 5, 1: 6, 2: 7, 3: -1}
        for number in range(20):
            assert await committed(talker, [number % 4], f"group-{number}") == {number % 4: number}

    on_broker(script)


@pytest.mark.proves("C5")
def test_sessions_restart_in_full_after_a_failover() -> None:
    async def script(scene: Scene) -> None:
        await _ready(scene)
        alive, silent = group = await members(scene, 2)
        await settle(group, 4)
        await asyncio.sleep(SESSION_MS / 1000 * 0.8)
        assert await alive.heartbeat() is ErrorCode.NONE
        await scene.restart_after_crash()
        began_s = scene.simulation.now_s
        await _reconnect(scene, group)
        await _loaded(scene)
        while await alive.heartbeat() is ErrorCode.NONE:
            await asyncio.sleep(0.5)
        assert scene.simulation.now_s - began_s >= SESSION_MS / 1000 - 0.1, "not the rest of the old session"
        assert scene.simulation.now_s - began_s <= SESSION_MS / 1000 + 1
        assert await silent.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID

    on_broker(script)


@pytest.mark.proves("C5")
def test_rebalance_interrupted_by_a_crash_is_completed() -> None:
    async def script(scene: Scene) -> None:
        await _ready(scene)
        first, second = await members(scene, 2)
        await first.settle(4)
        response = await second.talker.ask(9, join_request())
        second.member_id = response.member_id
        second.talker.begin(9, join_request(member_id=second.member_id)).add_done_callback(
            lambda done: done.exception()
        )
        await asyncio.sleep(0.1)
        assert await first.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
        await scene.restart_after_crash()
        await _reconnect(scene, [first, second])
        await _loaded(scene)
        assert await first.heartbeat() is ErrorCode.NONE, "the waiting join is forgotten"
        assert (await second.join()).error_code == ErrorCode.UNKNOWN_MEMBER_ID
        second.member_id = ""
        joining = asyncio.create_task(second.settle(4))
        while await first.heartbeat() is ErrorCode.NONE:
            await asyncio.sleep(0.1)
        await first.settle(4)
        await joining
        assert sorted(first.partitions[TOPIC] + second.partitions[TOPIC]) == [0, 1, 2, 3]

    on_broker(script)


def test_requests_get_a_retriable_error_while_a_shard_is_loading() -> None:
    async def script(scene: Scene) -> None:
        talker = await _ready(scene)
        member = Member(await scene.connect())
        await member.settle(4)
        for offset in range(20):  # each is a batch, and needs a read of its own
            await member.commit({0: offset})
            await commit(talker, {0: offset}, "other")
        await scene.restart_after_crash()
        member.talker = talker = await scene.connect()
        assert (await find_coordinator(talker)).error_code == 0
        heartbeat, join, listing = (
            talker.begin(4, messages.HeartbeatRequest(group_id="g", member_id=member.member_id, generation_id=1)),
            talker.begin(9, join_request()),
            talker.begin(5, messages.ListGroupsRequest()),
        )
        assert [(await each).error_code for each in (heartbeat, join, listing)] == [LOADING] * 3
        assert await commit(talker, {0: 1}, "other") == [LOADING]
        await _loaded(scene, "other")
        await _loaded(scene)
        listed = await talker.ask(5, messages.ListGroupsRequest())
        assert (listed.error_code, {group.group_id for group in listed.groups}) == (0, {"g", "other"})
        assert await member.heartbeat() is ErrorCode.NONE

    on_broker(script, settings=["offsets.load.buffer.size=1"])


def test_deleted_offsets_topic_removes_its_groups_and_is_recreated() -> None:
    async def script(scene: Scene) -> None:
        talker = await _ready(scene)
        member = Member(await scene.connect())
        await member.settle(4)
        await member.commit({0: 5})
        response = await talker.ask(5, messages.DeleteTopicsRequest(topic_names=[OFFSETS_TOPIC]))
        assert response.responses[0].error_code == 0
        assert await member.heartbeat() is ErrorCode.NOT_COORDINATOR
        assert (await find_coordinator(talker)).error_code == 0
        assert await member.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID
        assert await committed(talker, [0]) == {0: -1}

    on_broker(script)


def test_waiting_join_fails_when_its_shard_is_unloaded() -> None:
    async def script(scene: Scene) -> None:
        talker = await _ready(scene)
        joining = talker.begin(3, join_request())
        await asyncio.sleep(0.1)
        other = await scene.connect()
        await other.ask(5, messages.DeleteTopicsRequest(topic_names=[OFFSETS_TOPIC]))
        assert (await joining).error_code == ErrorCode.NOT_COORDINATOR

    on_broker(script)


def test_topic_deleted_while_its_groups_load_removes_their_offsets() -> None:
    async def script(scene: Scene) -> None:
        talker = await _ready(scene)
        await commit(talker, {0: 5})
        await scene.restart_after_crash()
        talker = await scene.connect()
        deleting = talker.begin(5, messages.DeleteTopicsRequest(topic_names=[TOPIC]))
        assert (await deleting).responses[0].error_code == 0
        await _loaded(scene)
        await asyncio.sleep(1)
        assert await committed(talker, [0]) == {0: -1}

    on_broker(script)


def test_commits_are_rejected_while_the_disk_is_full() -> None:
    async def script(scene: Scene) -> None:
        scene.simulation.disks_fail = True
        talker = await _ready(scene)
        assert await commit(talker, {0: 1}) == [ErrorCode.NONE]
        scene.host.disk.fail("pwrite", errno.ENOSPC, path=OFFSETS_TOPIC)
        rejected = await commit(talker, {0: 2})
        assert rejected == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
        assert await committed(talker, [0]) == {0: 1}
        assert await commit(talker, {0: 3}) == [ErrorCode.NONE]
        assert await committed(talker, [0]) == {0: 3}

    on_broker(script)


async def _shorten_segments(talker: Talker) -> None:
    request = messages.IncrementalAlterConfigsRequest
    configs = {"segment.bytes": "2048", "min.cleanable.dirty.ratio": "0.1"}
    resource = request.AlterConfigsResource(
        resource_type=2,
        resource_name=OFFSETS_TOPIC,
        configs=[request.AlterableConfig(name=name, value=value) for name, value in configs.items()],
    )
    assert (await talker.ask(1, request(resources=[resource]))).responses[0].error_code == 0


@pytest.mark.proves("C3")
@pytest.mark.parametrize("seed", range(5))
def test_acknowledged_commits_are_never_lost_or_reverted(seed: int) -> None:
    """Continuous commits, a broker that crashes repeatedly, and compaction."""
    chance = random.Random(seed)
    acknowledged: dict[tuple[str, int], int] = {}
    tried: dict[tuple[str, int], int] = {}

    async def committer(scene: Scene, group_id: str, until_s: float) -> None:
        offset = 0
        while scene.simulation.now_s < until_s:
            offset += 1
            index = chance.randrange(4)
            try:
                talker = await scene.connect()
                while scene.simulation.now_s < until_s:
                    tried[group_id, index] = offset
                    (code,) = await commit(talker, {index: offset}, group_id)
                    if code is ErrorCode.NONE:
                        acknowledged[group_id, index] = offset
                    offset, index = offset + 1, chance.randrange(4)
                    await asyncio.sleep(chance.random() / 20)
            except OSError:
                await asyncio.sleep(0.05)

    async def script(scene: Scene) -> None:
        await _shorten_segments(await _ready(scene))
        until_s = scene.simulation.now_s + 30
        groups = [f"group-{number}" for number in range(6)]
        committing = [asyncio.create_task(committer(scene, group_id, until_s)) for group_id in groups]
        while scene.simulation.now_s < until_s:
            await asyncio.sleep(chance.uniform(0.5, 5))
            await scene.restart_after_crash()
        await asyncio.gather(*committing)
        assert f"/data/{CLEANED}" in scene.host.disk.contents(), "compaction had its part in this"
        talker = await scene.connect()
        assert len(acknowledged) == 24
        for (group_id, index), offset in acknowledged.items():
            (found,) = (await committed(talker, [index], group_id)).values()
            assert offset <= found <= tried[group_id, index]

    on_broker(script, settings=["offsets.topic.num.partitions=3", "log.cleaner.backoff.ms=1000"])


def test_groups_are_assigned_to_shards_as_in_kafka() -> None:
    known = {"test": 48, "": 0, "my-group": 12, "console-consumer-4711": 22, "polygenelubricants": 0, "größe": 7}
    assert {group_id: partition_for(group_id, 50) for group_id in known} == known


@pytest.mark.proves("C3", part="committed offsets are returned")
def test_long_group_ids_are_not_kept_in_memory() -> None:
    before = internal_topics._cached_hash.cache_info().currsize
    known = {"a" * 256: 0, "a" * 257: 19, "ab" * 16_000: 34}
    assert {group_id: partition_for(group_id, 50) for group_id in known} == known
    assert internal_topics._cached_hash.cache_info().currsize == before + 1
