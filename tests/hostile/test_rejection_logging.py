"""Rejections are logged with client, resource, and reason, at a limited rate."""

from typing import Any

import pytest
from broker_scene import Scene, Talker, batch, on_broker, produce

from moldau.model.errors import ErrorCode
from moldau.wire import messages as m


def corrupted(place: int, value: int) -> bytearray:
    made = batch(b"value")
    made[place] = value
    return made


BATCHES = (
    (corrupted(16, 1), ErrorCode.INVALID_RECORD, "magic 1"),
    (corrupted(16, 9), ErrorCode.CORRUPT_MESSAGE, "magic 9"),
    (corrupted(70, 7), ErrorCode.CORRUPT_MESSAGE, "checksum"),
    (batch(b"x" * 2_000_000), ErrorCode.MESSAGE_TOO_LARGE, "max.message.bytes"),
)


@pytest.mark.parametrize(("records", "code", "words"), BATCHES)
def test_invalid_batch_is_logged(
    caplog: pytest.LogCaptureFixture, records: bytearray, code: ErrorCode, words: str
) -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t")
        assert (await produce(await scene.connect(), "t", records)).error_code == code

    on_broker(script)
    (line,) = [each for each in caplog.messages if "Rejected a batch of client (scene) for t-0" in each]
    assert words in line


def test_unknown_topic_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def script(scene: Scene) -> None:
        talker = await scene.connect()
        for _ in range(200):
            response = await produce(talker, "missing", batch(b"a"))
            assert response.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    on_broker(script)
    lines = [each for each in caplog.messages if "Partition 0 of topic missing does not exist" in each]
    assert 1 <= len(lines) <= 12


async def create(talker: Talker, value: str) -> Any:
    config = m.CreateTopicsRequest.CreatableTopicConfig(name="retention.ms", value=value)
    topic = m.CreateTopicsRequest.CreatableTopic(name="t", num_partitions=1, replication_factor=1, configs=[config])
    return (await talker.ask(7, m.CreateTopicsRequest(topics=[topic]))).topics[0].error_code


async def alter(talker: Talker, value: str) -> Any:
    config = m.IncrementalAlterConfigsRequest.AlterableConfig(name="retention.ms", config_operation=0, value=value)
    resource = m.IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=2, resource_name="t", configs=[config]
    )
    response = await talker.ask(1, m.IncrementalAlterConfigsRequest(resources=[resource]))
    return response.responses[0].error_code


def test_invalid_configs_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def script(scene: Scene) -> None:
        talker = await scene.connect()
        assert await create(talker, "soon") == ErrorCode.INVALID_CONFIG
        assert await create(talker, "1000") == ErrorCode.NONE
        assert await alter(talker, "later") == ErrorCode.INVALID_CONFIG

    on_broker(script)
    topic, change = [each for each in caplog.messages if each.startswith("Rejected a ")]
    assert topic.startswith("Rejected a new topic of client (scene) for t: ")
    assert change.startswith("Rejected a change of configs of client (scene) for t: ")
    assert all("retention.ms" in line for line in (topic, change))


@pytest.mark.proves("T1", part="create")
def test_failed_topic_auto_creation_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def script(scene: Scene) -> None:
        requested = m.MetadataRequest(topics=[m.MetadataRequest.MetadataRequestTopic(name="t")])
        response = await (await scene.connect()).ask(12, requested)
        assert response.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    on_broker(script, settings=["auto.create.topics.enable=true", "default.replication.factor=3"])
    (line,) = [each for each in caplog.messages if each.startswith("Rejected a ")]
    assert line.startswith("Rejected a new topic of client (scene) for t: ")
    assert "replication factor of 3" in line
