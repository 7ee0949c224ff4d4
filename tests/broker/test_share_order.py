"""Share groups with `share.order=key` on a broker: keys are read in the background, also after a failover."""

import asyncio
from typing import Any

import pytest
from broker_scene import Scene, produce
from share_members import ACCEPT, OTHER, REJECT, RELEASE, Member, StateInMemory, member_of
from test_dead_letters import fail_over
from test_share_fetch import LONG_MS, configure, values, with_group
from test_share_partitions import PRODUCER, append, end_open_transaction

from moldau.records.builder import build_batch

pytestmark = pytest.mark.proves("C8")


def records(*pairs: tuple[bytes | None, bytes], **fields: Any) -> bytearray:
    return build_batch([(0, key, value, ()) for key, value in pairs], **fields)


async def order(scene: Scene) -> None:
    await configure(await scene.connect(), "share.order", "key")


def test_keys_are_delivered_in_order_within_a_batch() -> None:
    async def script(scene: Scene, _state: StateInMemory, member: Member) -> None:
        await order(scene)
        await produce(await scene.connect(), "t", records((b"a", b"a1"), (b"a", b"a2"), (b"b", b"b1"), (None, b"n")))
        assert values(await member.fetch()) == [b"a1", b"b1", b"n"]
        other = await member_of(scene, OTHER)
        assert await other.acquire() == []
        assert values(await member.fetch([(0, 0, ACCEPT), (2, 3, ACCEPT)])) == [b"a2"]

    with_group(script)


def test_waiting_fetch_gets_the_next_record_of_a_key() -> None:
    async def script(scene: Scene, _state: StateInMemory, member: Member) -> None:
        await order(scene)
        await produce(await scene.connect(), "t", records((b"a", b"a1"), (b"a", b"a2")))
        await member.acquire()
        other = await member_of(scene, OTHER)
        waiting = asyncio.create_task(other.fetch(max_wait_ms=LONG_MS))
        await asyncio.sleep(1)
        assert not waiting.done()
        assert await member.acknowledge((0, 0, REJECT)) == 0
        assert values(await waiting) == [b"a2"]

    with_group(script)


def test_waiting_fetch_gets_new_records() -> None:
    async def script(scene: Scene, _state: StateInMemory, member: Member) -> None:
        await order(scene)
        waiting = asyncio.create_task(member.fetch(max_wait_ms=LONG_MS))
        await asyncio.sleep(1)
        await produce(await scene.connect(), "t", records((b"a", b"a1")))
        async with asyncio.timeout(1):
            assert values(await waiting) == [b"a1"]

    with_group(script)


def test_order_holds_after_a_failover() -> None:
    async def script(scene: Scene, state: StateInMemory, member: Member) -> None:
        await order(scene)
        await produce(await scene.connect(), "t", records(*((b"k%d" % (each % 3), b"%d" % each) for each in range(9))))
        assert await member.acquire() == [(0, 2, 1)]
        await member.acknowledge((0, 0, RELEASE), (1, 1, ACCEPT))
        other = await fail_over(scene, state, OTHER)
        assert [each[:2] for each in await other.acquire()] == [(0, 0), (2, 2), (4, 4)]

    with_group(script)


def test_many_records_are_inspected_in_steps() -> None:
    async def script(scene: Scene, _state: StateInMemory, member: Member) -> None:
        await order(scene)
        talker = await scene.connect()
        for first in range(0, 2400, 300):
            await produce(talker, "t", records(*((b"%d" % each, b"x") for each in range(first, first + 300))))
        delivered: list[int] = []
        acknowledged: list[tuple[int, int, int]] = []
        while len(delivered) < 2400:
            ranges = await member.acquire(acknowledged, max_wait_ms=1000)
            acknowledged = [(first, last, ACCEPT) for first, last, _ in ranges]
            delivered += [each for first, last, _ in ranges for each in range(first, last + 1)]
        assert delivered == list(range(2400))

    with_group(script)


def test_aborted_records_block_no_key() -> None:
    async def script(scene: Scene, _state: StateInMemory, member: Member) -> None:
        await configure(await scene.connect(), "share.isolation.level", "read_committed")
        await order(scene)
        append(scene, records((b"a", b"aborted"), base_sequence=0, **PRODUCER))
        end_open_transaction(scene, is_commit=False)
        append(scene, records((b"a", b"a1")))
        assert values(await member.fetch(max_wait_ms=1000)) == [b"a1"]

    with_group(script)
