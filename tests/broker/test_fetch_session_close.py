"""Waiting fetches whose session changes."""

import asyncio

import pytest
from broker_scene import Scene, batch, fetch_request, on_broker, produce

from moldau.wire.messages import FetchRequest

FINAL_EPOCH = -1
LONG_MS = 60_000

pytestmark = pytest.mark.proves("C1")


def test_waiting_fetch_is_completed_when_its_session_is_closed() -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t")
        talker = await scene.connect()
        opened = await talker.ask(12, fetch_request("t", 0, session_epoch=0))
        waiting = talker.begin(
            12, FetchRequest(session_id=opened.session_id, session_epoch=1, max_wait_ms=LONG_MS, min_bytes=1)
        )
        started_s = asyncio.get_running_loop().time()
        await talker.ask(12, FetchRequest(session_id=opened.session_id, session_epoch=FINAL_EPOCH))
        assert waiting.done()
        assert asyncio.get_running_loop().time() - started_s < 1

    on_broker(script)


def test_next_fetch_of_a_session_completes_the_waiting_one() -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t")
        talker = await scene.connect()
        opened = await talker.ask(12, fetch_request("t", 0, session_epoch=0))
        waiting = talker.begin(
            12, FetchRequest(session_id=opened.session_id, session_epoch=1, max_wait_ms=LONG_MS, min_bytes=1)
        )
        forgotten = FetchRequest.ForgottenTopic(topic="t", partitions=[0])
        later = talker.begin(
            12, FetchRequest(session_id=opened.session_id, session_epoch=2, forgotten_topics_data=[forgotten])
        )
        assert not (await waiting).responses
        assert (await later).error_code == 0
        other = await scene.connect()
        await produce(other, "t", batch(b"a"))
        response = await talker.ask(12, FetchRequest(session_id=opened.session_id, session_epoch=3))
        assert not response.responses  # the partition was forgotten
        assert scene.node.broker.bugs == 0

    on_broker(script)
