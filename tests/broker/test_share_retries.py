"""Back-off of share groups: released records, and those whose lock expired, are available again after a delay."""

import asyncio

import pytest
from broker_scene import Scene, Talker
from share_members import RELEASE, Member, StateInMemory
from test_share_fetch import LOCK_MS, LONG_MS, configure, with_group

from moldau.wire.messages import IncrementalAlterConfigsRequest

pytestmark = pytest.mark.proves("C8")


async def error_of_config(talker: Talker, **values: str) -> str | None:
    """Set configs of group `g`; return the error message."""
    request = IncrementalAlterConfigsRequest
    configs = [
        request.AlterableConfig(name=name.replace("_", "."), config_operation=0, value=value)
        for name, value in values.items()
    ]
    resource = request.AlterConfigsResource(resource_type=32, resource_name="g", configs=configs)
    response = await talker.ask(1, request(resources=[resource]))
    message: str | None = response.responses[0].error_message
    return message


async def seconds_until_acquired(member: Member, *acknowledged: tuple[int, int, int]) -> float:
    loop = asyncio.get_running_loop()
    started_s = loop.time()
    assert await member.acquire(acknowledged, max_wait_ms=LONG_MS)
    return loop.time() - started_s


def test_released_record_is_delivered_after_its_backoff() -> None:
    async def script(scene: Scene, _state: StateInMemory, member: Member) -> None:
        talker = await scene.connect()
        assert await error_of_config(talker, share_retry_backoff_ms="2000", share_retry_backoff_factor="3") is None
        assert await member.acquire() == [(0, 0, 1)]
        assert 2.0 <= await seconds_until_acquired(member, (0, 0, RELEASE)) < 2.1
        assert 6.0 <= await seconds_until_acquired(member, (0, 0, RELEASE)) < 6.1

    with_group(script, b"a")


def test_backoff_begins_when_the_lock_expires() -> None:
    async def script(scene: Scene, _state: StateInMemory, member: Member) -> None:
        await configure(await scene.connect(), "share.retry.backoff.ms", "5000")
        assert await member.acquire() == [(0, 0, 1)]
        assert abs(await seconds_until_acquired(member) - (LOCK_MS / 1000 + 5)) < 0.1

    with_group(script, b"a")


def test_backoff_of_one_record_does_not_delay_others() -> None:
    async def script(scene: Scene, _state: StateInMemory, member: Member) -> None:
        await configure(await scene.connect(), "share.retry.backoff.ms", "60000")
        assert await member.acquire(max_records=1) == [(0, 0, 1)]
        assert await member.acquire([(0, 0, RELEASE)]) == [(1, 1, 1)]

    with_group(script, b"a", b"b")


def test_maximum_backoff_must_not_be_below_the_first() -> None:
    async def script(scene: Scene, _state: StateInMemory, _member: Member) -> None:
        talker = await scene.connect()
        message = await error_of_config(talker, share_retry_backoff_ms="5000", share_retry_backoff_max_ms="4000")
        assert message == "share.retry.backoff.max.ms is 4000; it must be at least share.retry.backoff.ms (5000)."

    with_group(script)
