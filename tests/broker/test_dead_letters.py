"""Dead letters of share groups: written once each, before the record is archived, whatever fails in between."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from broker_scene import Scene, batch, fetch, produce
from share_members import ACCEPT, OTHER, REJECT, RELEASE, Member, StateInMemory, member_of
from test_share_fetch import LOCK_MS, configure, with_group
from test_share_retries import error_of_config

from moldau.broker.shares.shares import Shares
from moldau.machines.shares.state import RecordState
from moldau.model.error_codes import ErrorCode
from moldau.model.errors import RequestTimedOut
from moldau.records.builder import build_batch
from moldau.records.record import Record, iterate_batches, iterate_records
from moldau.wire.messages import ProduceRequest

pytestmark = pytest.mark.proves("C8")

TOPIC = "dlq.t"
ENABLED: Any = {"errors.deadletterqueue.group.enable": "true"}


async def use_dead_letters(scene: Scene, **configs: Any) -> None:
    await scene.create(TOPIC, **ENABLED, **configs)
    await configure(await scene.connect(), "errors.deadletterqueue.topic.name", TOPIC)


async def letters(scene: Scene, count: int) -> list[Record]:
    """Wait until there are so many dead letters, and a little longer; return them."""
    talker = await scene.connect()
    found: list[Record] = []
    async with asyncio.timeout(60):
        while len(found) < count:
            await asyncio.sleep(0.1)
            found = await read(talker)
    await asyncio.sleep(2)
    assert len(await read(talker)) == count
    return found


async def read(talker: Any) -> list[Record]:
    found = await fetch(talker, TOPIC, 0)
    return [record for _, each in iterate_batches(bytes(found.records or b"")) for record in iterate_records(each)]


def context_of(record: Record) -> dict[str, str]:
    return {
        name.removeprefix("__dlq.errors."): (value or b"").decode()
        for name, value in record.headers
        if name.startswith("__dlq.errors.")
    }


async def fail_over(scene: Scene, state: StateInMemory, name: str) -> Member:
    """Another leader takes over: with the durable state, and without anything in memory."""
    broker = scene.node.broker
    old, broker.shares = broker.shares, Shares(broker, state)
    for share in old.loaded():
        share.close()
    return await member_of(scene, name)


def states_of(state: StateInMemory) -> list[tuple[int, int]]:
    (found,) = state.states.values()
    return [(each.first_offset, each.delivery_state) for each in found.batches if each.delivery_state]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


def test_rejected_record_becomes_a_dead_letter() -> None:
    async def script(scene: Scene, state: StateInMemory, member: Member) -> None:
        await use_dead_letters(scene)
        record = (5, b"k", b"v", (("h", b"1"), ("__dlq.errors.topic", b"an earlier one")))
        await produce(await scene.connect(), "t", build_batch([record]))
        assert await member.acquire() == [(0, 0, 1)]
        assert await member.acknowledge((0, 0, REJECT)) == 0
        (letter,) = await letters(scene, 1)
        assert (letter.key, letter.value, letter.headers[0]) == (b"k", b"v", ("h", b"1"))
        assert context_of(letter) == {
            "topic": "t",
            "partition": "0",
            "offset": "0",
            "group": "g",
            "delivery.count": "1",
            "message": "The record was rejected by a member.",
        }
        assert state.writes[-1].start_offset == 1
        assert await member.acquire() == []
        assert scene.node.broker.shares.meter.dead_letters == {"g": 1}

    with_group(script)


def test_record_without_attempts_left_becomes_a_dead_letter() -> None:
    async def script(scene: Scene, _state: StateInMemory, member: Member) -> None:
        await configure(await scene.connect(), "share.delivery.count.limit", "2")
        await use_dead_letters(scene)
        assert await member.acquire() == [(0, 1, 1)]
        assert await member.acquire([(0, 0, RELEASE)]) == [(0, 0, 2)]
        await member.acknowledge((0, 0, RELEASE), (1, 1, ACCEPT))
        (letter,) = await letters(scene, 1)
        assert context_of(letter)["message"] == "The record reached the delivery count limit."
        assert (context_of(letter)["offset"], context_of(letter)["delivery.count"]) == ("0", "2")

    with_group(script, b"a", b"b")


def test_record_whose_last_lock_expires_becomes_a_dead_letter() -> None:
    async def script(scene: Scene, _state: StateInMemory, member: Member) -> None:
        await configure(await scene.connect(), "share.delivery.count.limit", "2")
        await use_dead_letters(scene)
        await member.acquire()
        assert await member.acquire([(0, 0, RELEASE)]) == [(0, 0, 2)]
        await asyncio.sleep(LOCK_MS / 1000 + 1)
        (letter,) = await letters(scene, 1)
        assert letter.value == b"a"

    with_group(script, b"a")


def test_dead_letters_can_be_without_the_record() -> None:
    async def script(scene: Scene, _state: StateInMemory, member: Member) -> None:
        await use_dead_letters(scene)
        await configure(await scene.connect(), "errors.deadletterqueue.copy.record.enable", "false")
        await member.acquire()
        await member.acknowledge((0, 0, REJECT))
        (letter,) = await letters(scene, 1)
        assert (letter.key, letter.value, len(letter.headers)) == (None, None, 6)

    with_group(script, b"a")


def test_record_that_is_too_large_for_the_topic_leaves_its_origin() -> None:
    async def script(scene: Scene, _state: StateInMemory, member: Member) -> None:
        await use_dead_letters(scene, **{"max.message.bytes": "600"})
        await member.acquire()
        await member.acknowledge((0, 0, REJECT))
        (letter,) = await letters(scene, 1)
        assert (letter.value, context_of(letter)["offset"]) == (None, "0")

    with_group(script, b"a" * 1000)


def test_many_records_are_dead_letters_once_each() -> None:
    async def script(scene: Scene, state: StateInMemory, member: Member) -> None:
        await use_dead_letters(scene)
        await member.acquire()
        assert await member.acknowledge((0, 39, REJECT)) == 0
        found = await letters(scene, 40)
        assert sorted(int(context_of(each)["offset"]) for each in found) == list(range(40))
        assert state.writes[-1].start_offset == 40

    with_group(script, *[b"%d" % each for each in range(40)])


@pytest.mark.parametrize("settings", [(), ("errors.deadletterqueue.auto.create.topics.enable=true",)])
def test_records_wait_for_a_missing_topic(settings: tuple[str, ...]) -> None:
    async def script(scene: Scene, _state: StateInMemory, member: Member) -> None:
        await configure(await scene.connect(), "errors.deadletterqueue.topic.name", TOPIC)
        await member.acquire()
        await member.acknowledge((0, 0, REJECT))
        if not settings:
            await asyncio.sleep(5)
            assert scene.node.broker.shares.meter.dead_letter_failures > 2
            assert await member.acquire() == []
            await scene.create(TOPIC, **ENABLED)
        assert len(await letters(scene, 1)) == 1

    with_group(script, b"a", settings=settings)


def test_topic_must_be_enabled_for_dead_letters() -> None:
    async def script(scene: Scene, _state: StateInMemory, member: Member) -> None:
        await scene.create(TOPIC)
        await configure(await scene.connect(), "errors.deadletterqueue.topic.name", TOPIC)
        await member.acquire()
        await member.acknowledge((0, 0, REJECT))
        await asyncio.sleep(5)
        assert await read(await scene.connect()) == []
        message = await error_of_config(await scene.connect(), errors_deadletterqueue_topic_name="orders")
        assert message is not None
        assert "it must begin with dlq." in message

    with_group(script, b"a")


def test_records_are_archived_when_the_group_gives_up_its_topic() -> None:
    async def script(scene: Scene, state: StateInMemory, member: Member) -> None:
        await configure(await scene.connect(), "errors.deadletterqueue.topic.name", TOPIC)
        await member.acquire()
        await member.acknowledge((0, 0, REJECT))
        assert states_of(state) == [(0, RecordState.ARCHIVING)]
        await configure(await scene.connect(), "errors.deadletterqueue.topic.name", "")
        await member.acquire()
        await until(lambda: state.writes[-1].start_offset == 1)

    with_group(script, b"a")


# -- a crash at each step


def test_leader_fails_before_the_rejection_is_durable() -> None:
    async def script(scene: Scene, state: StateInMemory, member: Member) -> None:
        await use_dead_letters(scene)
        await member.acquire()
        await asyncio.sleep(1)
        state.may_write.clear()
        rejected = asyncio.create_task(member.acknowledge((0, 0, REJECT)))
        assert await (await member_of(scene, "w" * 22)).acquire() == []
        await asyncio.sleep(3)
        assert await read(await scene.connect()) == []  # otherwise it could be delivered after its dead letter
        other = await fail_over(scene, state, OTHER)
        assert await rejected == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert await other.acquire() == [(0, 0, 1)]
        state.may_write.set()
        assert await other.acknowledge((0, 0, ACCEPT)) == 0
        await asyncio.sleep(3)
        assert await read(await scene.connect()) == []

    with_group(script, b"a")


def test_leader_fails_before_the_append() -> None:
    async def script(scene: Scene, state: StateInMemory, member: Member) -> None:
        await configure(await scene.connect(), "errors.deadletterqueue.topic.name", TOPIC)
        await member.acquire()
        assert await member.acknowledge((0, 0, REJECT)) == 0
        other = await fail_over(scene, state, OTHER)
        await scene.create(TOPIC, **ENABLED)
        assert await other.acquire() == []
        assert len(await letters(scene, 1)) == 1
        assert state.writes[-1].start_offset == 1

    with_group(script, b"a")


@pytest.mark.parametrize("failures", [1, 3])
def test_leader_fails_after_the_append(failures: int) -> None:
    async def script(scene: Scene, state: StateInMemory, member: Member) -> None:
        await use_dead_letters(scene)
        await member.acquire()
        await member.acknowledge((0, 0, REJECT), (1, 1, REJECT))
        for number in range(failures):
            state.may_write.clear()
            if number == 0:
                await until(lambda: scene.node.broker.shares.meter.dead_letters["g"] == 2)
            other = await fail_over(scene, state, f"{number}" * 22)
            assert await other.acquire() == []
        state.may_write.set()
        found = await letters(scene, 2)
        assert [each.value for each in found] == [b"a", b"b"]
        await until(lambda: state.writes[-1].start_offset == 2)

    with_group(script, b"a", b"b")


def test_append_of_a_former_leader_arrives_late() -> None:
    async def script(scene: Scene, state: StateInMemory, member: Member) -> None:
        await use_dead_letters(scene)
        local: Any = scene.node.broker.local
        handle, release = local.handle, asyncio.Event()
        held: list[Awaitable[Any]] = []

        async def hold_first(request: Any, *, version: int | None = None) -> Any:
            if isinstance(request, ProduceRequest) and not held:
                held.append(asyncio.ensure_future(_after(release, handle, request)))
                return await held[0]
            return await handle(request, version=version)

        local.handle = hold_first
        await member.acquire()
        await member.acknowledge((0, 0, REJECT))
        await until(lambda: bool(held))
        other = await fail_over(scene, state, OTHER)
        assert await other.acquire() == []
        await letters(scene, 1)
        release.set()
        await held[0]
        assert len(await letters(scene, 1)) == 1

    with_group(script, b"a")


async def _after(release: asyncio.Event, handle: Any, request: Any) -> Any:
    await release.wait()
    return await handle(request)


def test_lost_response_of_an_append_is_harmless() -> None:
    async def script(scene: Scene, _state: StateInMemory, member: Member) -> None:
        await use_dead_letters(scene)
        local: Any = scene.node.broker.local
        handle = local.handle
        lost = 3

        async def lose(request: Any, *, version: int | None = None) -> Any:
            nonlocal lost
            response = await handle(request, version=version)
            if isinstance(request, ProduceRequest) and lost:
                lost -= 1
                raise RequestTimedOut("lost")
            return response

        local.handle = lose
        await member.acquire()
        await member.acknowledge((0, 0, REJECT))
        assert len(await letters(scene, 1)) == 1
        await until(lambda: scene.node.broker.shares.meter.dead_letters["g"] == 1)
        assert lost == 0

    with_group(script, b"a")


def test_gap_is_no_dead_letter() -> None:
    async def script(scene: Scene, state: StateInMemory, member: Member) -> None:
        await use_dead_letters(scene)
        await member.acquire()
        assert await member.acknowledge((0, 0, 0)) == ErrorCode.NONE
        assert state.writes[-1].start_offset == 1
        await produce(await scene.connect(), "t", batch(b"b"))
        assert await member.acquire() == [(1, 1, 1)]
        assert await read(await scene.connect()) == []

    with_group(script, b"a")
