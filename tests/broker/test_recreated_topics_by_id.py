"""Requests by the id of a deleted topic do not reach a recreated topic of the same name."""

import asyncio
from typing import Any

import pytest
from broker_scene import Scene, Talker, batch, fetch, fetch_request, on_broker, produce, produce_request

from moldau.broker.partitions.log_store import LogStore
from moldau.model.errors import ErrorCode
from moldau.wire.messages import CreateTopicsRequest, DeleteTopicsRequest

pytestmark = pytest.mark.proves("T1", part="delete")

MISSING = ErrorCode.UNKNOWN_TOPIC_ID
SYNC_S = 2.0


def creation(name: str, codec: str = "producer") -> CreateTopicsRequest:
    config = CreateTopicsRequest.CreatableTopicConfig(name="compression.type", value=codec)
    topic = CreateTopicsRequest.CreatableTopic(name=name, num_partitions=1, replication_factor=1, configs=[config])
    return CreateTopicsRequest(topics=[topic], timeout_ms=1000)


async def send_to(talker: Talker, topic_id: bytes, records: bytes | bytearray) -> Any:
    request = produce_request("", records)
    request.topic_data[0].topic_id = topic_id
    return (await talker.ask(13, request)).responses[0].partition_responses[0]


async def read_from(talker: Talker, topic_id: bytes) -> Any:
    request = fetch_request("", 0)
    request.topics[0].topic_id = topic_id
    return (await talker.ask(13, request)).responses[0].partitions[0]


@pytest.fixture(autouse=True)
def folders_are_synced_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Delay directory syncs: new logs are open while handlers still see the previous image."""
    sync = LogStore.sync

    async def slowly(store: LogStore) -> None:
        await asyncio.sleep(SYNC_S)
        await sync(store)

    monkeypatch.setattr(LogStore, "sync", slowly)


async def replace(scene: Scene, codec: str = "producer") -> "asyncio.Future[Any]":
    """Delete `t` and create it again while the broker is busy with another topic: both changes arrive in one delta."""
    busy, deleting, creating = [await scene.connect() for _ in range(3)]
    busy.begin(7, creation("busy"))
    await asyncio.sleep(SYNC_S / 4)
    deleting.begin(5, DeleteTopicsRequest(topic_names=["t"], timeout_ms=1000))
    await asyncio.sleep(SYNC_S / 4)
    return creating.begin(7, creation("t", codec))


@pytest.mark.parametrize("codec", ["producer", "gzip"])
def test_batch_for_a_deleted_topic_is_not_appended_to_a_recreated_one(codec: str) -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t", compression_type=codec)
        former = scene.node.broker.image.topics["t"].topic_id
        talker = await scene.connect()
        created = await replace(scene, codec)
        codes = []
        while not created.done():
            codes.append((await send_to(talker, former, batch(b"x"))).error_code)
        assert codes[0] == 0  # the broker had not applied the change
        assert codes[-1] == MISSING
        assert (await fetch(talker, "t", 0)).high_watermark == 0
        # Nor does the connection use what it cached meanwhile.
        assert (await send_to(talker, former, batch(b"x"))).error_code == MISSING

    on_broker(script)


def test_fetch_of_a_deleted_topic_does_not_read_a_recreated_one() -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t")
        former = scene.node.broker.image.topics["t"].topic_id
        talker, writer = await scene.connect(), await scene.connect()
        await produce(writer, "t", batch(b"former"))
        created = await replace(scene)
        read = []
        while not created.done():
            await produce(writer, "t", batch(b"new"))
            read.append(await read_from(talker, former))
        assert read[0].error_code == 0
        assert read[-1].error_code == MISSING
        assert all(b"former" in bytes(each.records) for each in read if each.error_code == 0)

    on_broker(script)
