"""ShareFetch and ShareAcknowledge: acquisition, durability of acknowledgements, locks, and waiting fetches."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from broker_scene import Scene, Talker, batch, on_broker, produce
from share_members import ACCEPT, OTHER, REJECT, RELEASE, RENEW, Member, StateInMemory, member_of, serve_shares

from moldau.model.error_codes import ErrorCode
from moldau.model.errors import CoordinatorNotAvailable, FencedStateEpoch
from moldau.records.record import iterate_batches, iterate_records
from moldau.wire.messages import IncrementalAlterConfigsRequest

pytestmark = pytest.mark.proves("C8")

LOCK_MS = 30_000  # the default of share.record.lock.duration.ms
LONG_MS = 60_000

Script = Callable[[Scene, StateInMemory, Member], Coroutine[Any, Any, None]]


def with_group(script: Script, *records: bytes, reset: str = "earliest", settings: tuple[str, ...] = ()) -> None:
    """Run a script with topic `t`, one batch per record, and a member of group `g` that starts at the beginning."""

    async def play(scene: Scene) -> None:
        await scene.create("t", partitions=2)
        state = await serve_shares(scene)
        talker = await scene.connect()
        await configure(talker, "share.auto.offset.reset", reset)
        for record in records:
            await produce(talker, "t", batch(record))
        await script(scene, state, await member_of(scene))

    on_broker(play, settings=settings)


async def configure(talker: Talker, name: str, value: str) -> None:
    """Set a config of group `g`."""
    config = IncrementalAlterConfigsRequest.AlterableConfig(name=name, config_operation=0, value=value)
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=32, resource_name="g", configs=[config]
    )
    response = await talker.ask(1, IncrementalAlterConfigsRequest(resources=[resource]))
    assert response.responses[0].error_code == 0, response


def values(found: Any) -> list[bytes | None]:
    """The values of the acquired records."""
    records = [record for _, each in iterate_batches(bytes(found.records)) for record in iterate_records(each)]
    return [
        record.value
        for record in records
        if any(each.first_offset <= record.offset <= each.last_offset for each in found.acquired_records)
    ]


@pytest.mark.parametrize("version", [1, 2])
def test_members_share_the_records_of_a_partition(version: int) -> None:
    async def script(scene: Scene, _state: StateInMemory, member: Member) -> None:
        member.version = version
        found = await member.fetch(max_records=2)
        assert values(found) == [b"a", b"b"]
        other = await member_of(scene, OTHER)
        found = await other.fetch()
        assert values(found) == [b"c"]
        assert [each.delivery_count for each in found.acquired_records] == [1]

    with_group(script, b"a", b"b", b"c")


def test_accepted_records_are_not_delivered_again() -> None:
    async def script(scene: Scene, state: StateInMemory, member: Member) -> None:
        assert await member.acquire() == [(0, 2, 1)]
        assert await member.acknowledge((0, 1, ACCEPT), (2, 2, RELEASE)) == 0
        assert state.writes[-1].start_offset == 2
        assert await member.acquire() == [(2, 2, 2)]
        assert await member.acquire([(2, 2, ACCEPT)]) == []
        assert state.writes[-1].start_offset == 3
        assert await (await member_of(scene, OTHER, group="other")).acquire() == []  # latest

    with_group(script, b"a", b"b", b"c")


def test_response_waits_until_acknowledgements_are_durable() -> None:
    async def script(_scene: Scene, state: StateInMemory, member: Member) -> None:
        await member.acquire()
        state.may_write.clear()
        acknowledged = asyncio.create_task(member.acknowledge((0, 0, ACCEPT)))
        await asyncio.sleep(5)
        assert not acknowledged.done()
        state.may_write.set()
        assert await acknowledged == 0

    with_group(script, b"a")


def test_failed_write_leaves_the_records_with_their_member() -> None:
    async def script(_scene: Scene, state: StateInMemory, member: Member) -> None:
        await member.acquire()
        await asyncio.sleep(1)  # the initial start offset is written
        state.write_error = CoordinatorNotAvailable("no coordinator")
        assert await member.acknowledge((0, 0, ACCEPT)) == ErrorCode.COORDINATOR_NOT_AVAILABLE
        state.write_error = None
        assert await member.acknowledge((0, 0, ACCEPT)) == 0
        assert await member.acquire() == []

    with_group(script, b"a")


def test_fenced_write_makes_the_leader_read_the_state_again() -> None:
    async def script(_scene: Scene, state: StateInMemory, member: Member) -> None:
        await member.acquire()
        await asyncio.sleep(1)  # the initial start offset is written
        state.write_error = FencedStateEpoch("deleted and created again")
        assert await member.acknowledge((0, 0, ACCEPT)) == ErrorCode.FENCED_STATE_EPOCH
        state.write_error = None
        assert await member.acknowledge((0, 0, ACCEPT)) == ErrorCode.INVALID_RECORD_STATE
        assert await member.acquire() == [(0, 0, 1)]

    with_group(script, b"a")


def test_state_is_read_again_when_the_coordinator_is_available() -> None:
    async def script(_scene: Scene, state: StateInMemory, member: Member) -> None:
        state.read_error = CoordinatorNotAvailable("no coordinator")
        assert await member.acquire(max_wait_ms=5000) == []
        state.read_error = None
        assert await member.acquire(max_wait_ms=5000) == [(0, 0, 1)]

    with_group(script, b"a")


def test_expired_lock_makes_the_record_available() -> None:
    async def script(scene: Scene, state: StateInMemory, member: Member) -> None:
        assert await member.acquire(max_wait_ms=1000) == []  # the initial start offset is written
        await produce(await scene.connect(), "t", batch(b"a"))
        assert await member.acquire() == [(0, 0, 1)]
        other = await member_of(scene, OTHER)
        began = asyncio.get_running_loop().time()
        assert await other.acquire(max_wait_ms=LONG_MS) == [(0, 0, 2)]
        assert asyncio.get_running_loop().time() - began == pytest.approx(LOCK_MS / 1000, abs=1)
        assert await member.acknowledge((0, 0, ACCEPT)) == ErrorCode.INVALID_RECORD_STATE
        await asyncio.sleep(1)
        assert [each.delivery_count for each in state.writes[-1].batches] == [1]

    with_group(script)


def test_renewed_lock_lasts_longer() -> None:
    async def script(scene: Scene, _state: StateInMemory, member: Member) -> None:
        assert await member.acquire() == [(0, 0, 1)]
        await asyncio.sleep(LOCK_MS / 2000)
        assert await member.acknowledge((0, 0, RENEW)) == ErrorCode.INVALID_REQUEST
        assert await member.acknowledge((0, 0, RENEW), is_renew_ack=True) == 0
        other = await member_of(scene, OTHER)
        assert await other.acquire(max_wait_ms=LOCK_MS - 5000) == []
        assert await member.acknowledge((0, 0, ACCEPT)) == 0

    with_group(script, b"a")


def test_renewal_in_a_fetch_does_not_fetch() -> None:
    async def script(_scene: Scene, _state: StateInMemory, member: Member) -> None:
        assert await member.acquire(max_records=1) == [(0, 0, 1)]
        nothing = {"min_bytes": 0, "max_bytes": 0, "max_records": 0, "max_wait_ms": 0}
        assert await member.acquire([(0, 0, RENEW)], is_renew_ack=True, **nothing) == []
        response = await member.fetch_response([(0, 0, RENEW)], is_renew_ack=True)
        assert response.error_code == ErrorCode.INVALID_REQUEST

    with_group(script, b"a", b"b")


def test_renewals_can_be_disabled() -> None:
    async def script(scene: Scene, _state: StateInMemory, member: Member) -> None:
        await configure(await scene.connect(), "share.renew.acknowledge.enable", "false")
        await member.acquire()
        assert await member.acknowledge((0, 0, RENEW), is_renew_ack=True) == ErrorCode.INVALID_REQUEST

    with_group(script, b"a")


def test_invalid_acknowledgement_in_a_fetch_has_its_own_error() -> None:
    async def script(_scene: Scene, _state: StateInMemory, member: Member) -> None:
        await member.acquire(max_records=1)
        found = await member.fetch([(1, 1, ACCEPT)])
        assert found.acknowledge_error_code == ErrorCode.INVALID_RECORD_STATE
        assert found.error_code == 0
        assert values(found) == [b"b"]

    with_group(script, b"a", b"b")


def test_rejected_record_is_archived() -> None:
    async def script(_scene: Scene, _state: StateInMemory, member: Member) -> None:
        await member.acquire()
        assert await member.acquire([(0, 0, REJECT)]) == []

    with_group(script, b"a")


def test_record_limit_is_strict_if_requested() -> None:
    async def script(scene: Scene, _state: StateInMemory, member: Member) -> None:
        await produce(await scene.connect(), "t", batch(*[b"x"] * 10))
        assert await member.acquire(max_records=3, share_acquire_mode=1) == [(0, 2, 1)]
        assert await member.acquire(max_records=3) == [(3, 9, 1)]
        response = await member.fetch_response(share_acquire_mode=2)
        assert response.error_code == ErrorCode.INVALID_REQUEST

    with_group(script)


def test_record_limit_is_strict_if_the_group_says_so() -> None:
    async def script(scene: Scene, _state: StateInMemory, member: Member) -> None:
        talker = await scene.connect()
        await configure(talker, "share.acquire.mode", "record_limit")
        await produce(talker, "t", batch(*[b"x"] * 10))
        assert await member.acquire(max_records=3) == [(0, 2, 1)]
        await configure(talker, "share.acquire.mode", "batch_optimized")
        assert await member.acquire(max_records=3) == [(3, 9, 1)]

    with_group(script)


def test_fetch_waits_for_a_record() -> None:
    async def script(scene: Scene, _state: StateInMemory, member: Member) -> None:
        waiting = asyncio.create_task(member.fetch(max_wait_ms=LONG_MS))
        await asyncio.sleep(10)
        assert not waiting.done()
        await produce(await scene.connect(), "t", batch(b"new"))
        async with asyncio.timeout(1):
            assert values(await waiting) == [b"new"]

    with_group(script)


def test_fetch_waits_for_enough_bytes_without_acquiring() -> None:
    async def script(scene: Scene, _state: StateInMemory, member: Member) -> None:
        waiting = asyncio.create_task(member.acquire(max_wait_ms=LONG_MS, min_bytes=300))
        await asyncio.sleep(LOCK_MS / 1000)
        await produce(await scene.connect(), "t", batch(b"y" * 300))
        assert await waiting == [(0, 1, 1)]
        assert await member.acquire([(0, 1, ACCEPT)], max_wait_ms=1000) == []

    with_group(script, b"a")


def test_fetch_gets_what_there_is_at_the_deadline() -> None:
    async def script(_scene: Scene, _state: StateInMemory, member: Member) -> None:
        assert await member.acquire(max_wait_ms=2000, min_bytes=10_000) == [(0, 0, 1)]

    with_group(script, b"a")


def test_released_record_wakes_a_waiting_fetch() -> None:
    async def script(scene: Scene, _state: StateInMemory, member: Member) -> None:
        await member.acquire()
        waiting = asyncio.create_task((await member_of(scene, OTHER)).acquire(max_wait_ms=LONG_MS, min_bytes=10_000))
        await asyncio.sleep(1)
        await member.acknowledge((0, 0, RELEASE))
        async with asyncio.timeout(1):
            assert await waiting == [(0, 0, 2)]

    with_group(script, b"a")


def test_full_window_delays_further_records_until_it_moves() -> None:
    async def script(scene: Scene, _state: StateInMemory, member: Member) -> None:
        await configure(await scene.connect(), "share.partition.max.record.locks", "100")
        await produce(await scene.connect(), "t", batch(*[b"x"] * 150))
        assert await member.acquire() == [(0, 99, 1)]
        other = await member_of(scene, OTHER)
        assert await other.acquire(max_wait_ms=1000) == []
        assert await member.acknowledge((0, 9, ACCEPT)) == 0
        assert await other.acquire(max_wait_ms=1000) == [(100, 109, 1)]

    with_group(script)


def test_fetches_of_several_partitions_take_turns() -> None:
    async def script(scene: Scene, _state: StateInMemory, member: Member) -> None:
        talker = await scene.connect()
        for partition in (0, 1):
            for _ in range(4):
                await produce(talker, "t", batch(b"x"), partition=partition)
        served = []
        for _ in range(4):
            found = await member.fetch(partitions=(0, 1), max_records=1)
            served.append(found.partition_index)
        assert served == [0, 1, 0, 1]

    with_group(script)
